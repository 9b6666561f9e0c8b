"""Sampled solutions in a policy run: reading them, the fixed batch that a reward is paid on, and imitation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.solutions import ALL_SOLUTIONS, LearntSolutions, Row, edits, ground_truths
from rlhf_core.errors import DataError
from rlhf_core.evaluation.fidelity import negative_credit
from rlhf_core.minimum_editing import mistaken_tokens
from rlhf_core.models.policy import Policy
from rlhf_core.policy_optimisation.experience import Experience, score, slice_rows
from rlhf_core.policy_optimisation.learner import Imitation
from rlhf_core.rollout import RolloutBatch
from rlhf_core.supervised.config import ImitationSettings
from rlhf_core.supervised.recipes import Sources, Weighted, rewritten
from tasks.running.artifacts import read_jsonl
from tasks.running.machine import device
from tasks.running.result_rows import PreferencePair, Prompt, TokenCredit
from tasks.scoring.texts import text_batch

SAMPLES_FILE, TEACHER_FILE = "samples.jsonl", "rewrites.jsonl"
GENERATED_FILE, TOKEN_REWARDS_FILE = "grm_rewrites.jsonl", "token_rewards.jsonl"


@dataclass(frozen=True)
class SolutionFolders:
    """Results of the stages over sampled solutions, where a row reads them: arguments of the stage `policy`."""

    samples: Annotated[Path | None, "result of `samples`, for rows that learn from sampled solutions"] = None
    teacher: Annotated[Path | None, "result of `teacher`, for rows that learn from its rewrites"] = None
    token_rewards: Annotated[
        Path | None, "result of `generative_reward_model`, for rows that read its rewards or rewrites"
    ] = None

    def sources(self, preference: list[PreferencePair]) -> Sources:
        """Returns the rows of everything that is given.

        Raises:
            DataError: no sampled solution.
        """
        samples = _rows(self.samples, SAMPLES_FILE)
        if self.samples is not None and not samples:
            file = str(self.samples / SAMPLES_FILE)
            raise DataError("there is no sampled solution", file=file, remedy="Sample more questions")
        return Sources(
            preference,
            samples,
            edits(_rows(self.teacher, TEACHER_FILE)),
            edits(_rows(self.token_rewards, GENERATED_FILE)),
        )

    def rewards(self) -> dict[str, Row]:
        """Returns the rows of token rewards by sample id; none where the row reads none."""
        return {row["id"]: row for row in _rows(self.token_rewards, TOKEN_REWARDS_FILE)}


def _rows(folder: Path | None, file: str) -> list[Row]:
    return [] if folder is None else read_jsonl(folder / file)


def fixed_samples(samples: Sequence[Row], encoder: Encoder, rewards: Mapping[str, Row]) -> RolloutBatch:
    """Returns samples as one batch, with the very tokens that were drawn, or rewarded.

    Records are {id, question_id, prompt, correct}; groups are the questions'.
    """
    drawn = [(rewards[row["id"]] if rewards else row)["token_ids"] for row in samples]
    sequences = [EncodedSequence(encoder.prompt(row), ids) for row, ids in zip(samples, drawn, strict=True)]
    rows = [{name: row[name] for name in ("id", "question_id", "prompt", "correct")} for row in samples]
    questions = [row["question_id"] for row in samples]
    return text_batch(encoder, rows, [row["prediction"] for row in samples], sequences, questions, device())


def imitation_loss(
    settings: ImitationSettings, sources: Sources, encoder: Encoder, microbatch: int, seed: int
) -> tuple[Imitation, Weighted]:
    """Returns RLMEC's regularisation on the generative reward model's rewrites, and what it imitates.

    Raises:
        DataError: no rewrite that was accepted and changes its prediction.
    """
    made = rewritten(sources.generated, encoder, gamma=settings.gamma, phi=settings.phi)
    for sample in sources.samples if settings.right else ():
        if sample["correct"]:
            same = {**sample, "rewrite": sample["prediction"]}
            alike = rewritten([same], encoder, gamma=settings.gamma, phi=settings.phi)
            made.sequences += alike.sequences
            made.weights += alike.weights
            made.too_long += alike.too_long
    if not made.sequences:
        raise DataError(
            "no rewrite was accepted and changes its prediction, so there is nothing to imitate",
            file=GENERATED_FILE,
            remedy="Train a better generative reward model, or leave 'imitation' out of the row",
        )
    loss = Imitation(
        made.sequences,
        made.weights,
        batch=settings.batch,
        microbatch=microbatch,
        coefficient=settings.coefficient,
        seed=seed,
    )
    return loss, made


#: Wrong samples whose credit is noted, and how many of them are kept for pictures.
CREDITED, PICTURED = 256, 8


@dataclass
class SolutionTraining:
    """Sampled solutions in a run that learns from a reward.

    Attributes:
        sources: samples and rewrites.
        batch: the samples as one batch.
        imitation: the regularisation, if any.
        rewards: of its tokens by sample, if any.
        facts: for the metrics.
        credit: what tokens of wrong samples were credited with at the end, for pictures.
    """

    sources: Sources
    batch: RolloutBatch
    imitation: Imitation | None
    rewards: Mapping[str, Row]
    facts: dict[str, float]
    credit: list[TokenCredit] = field(default_factory=list)

    @property
    def prompts(self) -> list[Prompt]:
        """Returns the sampled questions as prompts for an optimiser that samples itself."""
        asked = ground_truths(self.sources.samples)
        return [{"id": row["question_id"], "prompt": row["prompt"], "solution": row["solution"]} for row in asked]

    def note_credit(
        self,
        credited: Callable[[RolloutBatch], Experience],
        reference: Policy,
        encoder: Encoder,
        microbatch: int,
    ) -> dict[str, float]:
        """Notes each token's credit in wrong samples whose true edit a teacher knows; returns how well it finds errors.

        Credit is the advantage that the optimiser would learn from: the token's reward, or the critic's estimate.
        """
        known = {row["id"]: row["rewrite"] for row in self.sources.teacher}
        rows = [i for i, record in enumerate(self.batch.records) if record["id"] in known][:CREDITED]
        if not rows:
            return self.facts
        batch = slice_rows(self.batch, torch.tensor(rows, device=self.batch.groups.device))
        responses = batch.responses
        logprobs, entropies = score(
            reference, batch.prompt_ids, batch.prompt_mask, responses.ids, responses.mask, microbatch
        )
        responses = replace(responses, entropies=entropies)
        batch = replace(batch, responses=responses, logprobs=logprobs, reference_logprobs=logprobs, entropies=entropies)
        experience = credited(batch)
        credits, mistaken = [], []
        for i, record in enumerate(batch.records):
            length = int(responses.lengths[i])
            ids = responses.ids[i, :length].tolist()
            target = encoder.sequence({"prompt": batch.prompts[i]}, known[record["id"]]).response
            credits.append(experience.advantages[i, :length].tolist())
            mistaken.append(mistaken_tokens(ids, target))
            if i < PICTURED:
                kept: TokenCredit = {
                    "id": record["id"],
                    "prompt": batch.prompts[i],
                    "response": batch.texts[i],
                    "tokens": encoder.pieces(ids),
                    "credit": credits[-1],
                    "mistaken": mistaken[-1],
                    "rewrite": known[record["id"]],
                }
                if (given := self.rewards.get(record["id"])) is not None:
                    kept["unclipped"] = [chance - 0.5 for chance in given["probabilities"]]
                self.credit.append(kept)
        found = negative_credit(credits, mistaken)
        return self.facts | {f"credit_{name}": value for name, value in found.items()}


def solved_samples(
    folders: SolutionFolders,
    encoder: Encoder,
    rewards: Mapping[str, Row],
    settings: ImitationSettings | None,
    microbatch: int,
    seed: int,
    learnt: LearntSolutions = ALL_SOLUTIONS,
) -> SolutionTraining:
    """Returns the sampled solutions that a run with a reward reads."""
    sources = folders.sources([])
    drawn = len(sources.samples)
    if learnt != ALL_SOLUTIONS:
        rewritten_ids = {row["id"] for row in sources.generated}
        sources = replace(sources, samples=learnt.choose(sources.samples, rewritten_ids, seed))
    batch = fixed_samples(sources.samples, encoder, rewards)
    right = sum(sample["correct"] for sample in sources.samples)
    facts = {"samples": float(len(batch)), "samples_correct": right / len(batch)}
    if len(batch) < drawn:
        facts["samples_left_out"] = float(drawn - len(batch))
    imitation = None
    if settings is not None:
        imitation, made = imitation_loss(settings, sources, encoder, microbatch, seed)
        facts |= {"rewrites": float(len(made.sequences)), "rewrites_too_long": float(made.too_long)}
    return SolutionTraining(sources, batch, imitation, rewards, facts)
