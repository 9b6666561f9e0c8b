"""A policy run: what it reads, its models, its evaluator, and what it notes while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch

from rlhf_core import distributed
from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.evaluation.benchmark_names import DIALOGUE_BENCHMARKS
from rlhf_core.models.lora import Adapter, LoraSettings
from rlhf_core.models.policy import Policy
from rlhf_core.recipe import Recipe
from rlhf_core.stepper import freeze
from rlhf_core.supervised.objectives import reference_logprobs
from rlhf_core.training_state import State
from tasks.evaluating.over_sft import OverSft, check_answered, over_sft
from tasks.evaluating.policies import Evaluator
from tasks.evaluating.solving import graded, test_sets
from tasks.graph.results import DIVERGED_FILE
from tasks.params.evaluation import EvaluationConfig
from tasks.params.policy import PolicyScale
from tasks.policy_run.hacking_watch import HackingWatch
from tasks.policy_run.proxies import ProxyReader
from tasks.policy_run.reward import RewardInputs
from tasks.policy_run.solutions import SolutionFolders
from tasks.running.amounts import first_rows
from tasks.running.artifacts import read_jsonl, write_json
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.loading import load_encoder, load_judge, load_policy, load_world
from tasks.running.result_rows import Generation, Metrics, Rollout, TokenCredit

#: Benchmarks whose answers a judge compares with those of the benchmark's baseline.
JUDGED_AGAINST_BASELINE = ("alpaca", "arena", "ood")
#: Parts of a run -> their names in saved training states, which must not change: older states are loaded.
_NOTED = {
    "history": "history",
    "evaluations": "checkpoints",
    "rollouts": "rollouts",
    "lengths": "lengths",
    "phases": "phases",
}


@dataclass(frozen=True)
class PolicyInputs:
    """Results of the stages above a row: arguments of the stage `policy`.

    Raises:
        RecipeError: a selection without its holistic reward model, or the other way round.
    """

    data: Path
    sft: Path
    reward: RewardInputs
    solutions: SolutionFolders
    holistic: Annotated[Path | None, "result of `reward_model` that the selection compares with"] = None

    def __post_init__(self) -> None:
        if (self.reward.selection is None) != (self.holistic is None):
            raise RecipeError("--selection and --holistic belong together: the selection and the reward model it names")


@dataclass(frozen=True)
class RowTraining:
    """A row's training at a scale.

    Attributes:
        recipe: the row.
        scale: settings of its optimiser.
        inputs: results of the stages above it.
        where: names row and settings in messages.
    """

    recipe: Recipe
    scale: PolicyScale
    inputs: PolicyInputs
    seed: int
    where: str


@dataclass
class PolicyRun:
    """State shared by training and its periodic evaluation.

    Attributes:
        policy: being trained.
        reference: the frozen SFT model; with an adapter the policy without it.
        encoder: tokenizer and template.
        evaluator: benchmarks.
        sft_answers: the SFT model's generations.
        history, rollouts: rows of history.jsonl and rollouts.jsonl.
        evaluations: while training: step, KL, win rate and lengths; rows of checkpoints.jsonl, which holds no weights.
        lengths: tokens per segment in the last rollout batch.
        phases: speed and memory of each step.
        adapter: the policy's low-rank adapters, if only those are trained.
        proxies: reads proxy rewards of evaluations, where they are asked for.
        credit: what tokens of wrong sampled solutions are credited with, where there are any.
        checkpoint_benchmark: on whose prompts it is evaluated while it trains.
    """

    policy: Policy
    reference: Policy
    encoder: Encoder
    evaluator: Evaluator
    sft_answers: list[Generation]
    history: list[Metrics]
    evaluations: list[Metrics]
    rollouts: list[Rollout]
    lengths: list[int]
    phases: list[Metrics]
    adapter: Adapter | None = None
    proxies: ProxyReader | None = None
    credit: list[TokenCredit] | None = None
    checkpoint_benchmark: str = "alpaca"

    def state_dict(self) -> State:
        """Returns the notes of training so far."""
        return {saved: getattr(self, name) for name, saved in _NOTED.items()}

    def load_state_dict(self, state: State) -> None:
        for name, saved in _NOTED.items():
            setattr(self, name, state[saved])

    @torch.no_grad()
    def kl(self, rows: list[Generation], batch: int = 64) -> float:
        """Nats per response: mean of log pi - log pi_ref over first-turn answers that the policy just gave."""
        names = {row["benchmark"] for row in rows} & set(DIALOGUE_BENCHMARKS)
        items = {item["id"]: item for name in names for item in self.evaluator.items(f"benchmarks/{name}")}
        sequences = []
        for row in rows:
            known = items.get(row["id"], {})
            asked = {"prompt": row["prompt"], **{k: v for k, v in known.items() if k == "messages"}}
            sequences.append(self.evaluator.encoder.sequence(asked, row["response"]))
        policy, reference = (reference_logprobs(model, sequences, batch) for model in (self.policy, self.reference))
        return float((policy - reference).mean())

    @property
    def kl_sets(self) -> tuple[str, ...]:
        """Returns benchmarks whose answers the KL is of: AlpacaEval's prompts, else the questions."""
        return ("alpaca",) if self.evaluator.items("benchmarks/alpaca") else tuple(test_sets(self.evaluator.data))

    @property
    def has_win_rates_while_training(self) -> bool:
        """Returns whether evaluations while training compare answers with the SFT model's: by true rewards, or by a
        judge that the settings let do so."""
        judged = self.evaluator.judge is not None and self.evaluator.config.judge_checkpoints
        return self.evaluator.world is not None or judged

    def evaluate(self, step: int, prompts: int) -> dict[str, float]:
        """Measures the win rate over the SFT model on some prompts, and the KL of those answers; returns each one's
        score."""
        answers = self.evaluator.generate_dialogue(self.policy, self.checkpoint_benchmark, prompts)
        return self.note_evaluation(step, answers)

    def note_evaluation(self, step: int, rows: list[Generation], compared: OverSft | None = None) -> dict[str, float]:
        """Notes an evaluation's answers; returns each one's score.

        Args:
            step: of training.
            rows: the answers.
            compared: with the SFT model's answers, if that is known already.
        """
        kl = self.kl(rows)
        benchmark = self.checkpoint_benchmark
        over = over_sft(self.evaluator, rows, self.sft_answers, (benchmark,)) if compared is None else compared
        chars = {row["id"]: row["n_chars"] for row in self.sft_answers if row["benchmark"] == benchmark}
        longer = sum(row["n_chars"] - chars[row["id"]] for row in rows) / max(1, len(rows))
        tally = over.tallies.get(benchmark)
        rates = {} if tally is None else tally.metrics("win_rate_vs_sft", judged=bool(over.win_rate_facts))
        proxies = {} if self.proxies is None else self.proxies.read(rows)
        self.evaluations.append({"step": step, "kl": kl, "n": len(rows), "chars_over_sft": longer, **rates, **proxies})
        return dict(over.scores(benchmark))


def start_run(
    data: Path,
    sft: Path,
    evaluation: EvaluationConfig,
    lora: LoraSettings | None,
    seed: int,
    checkpoint_benchmark: str = "alpaca",
) -> PolicyRun:
    """Returns a run at its start: policy and frozen reference from the SFT model, and the evaluator.

    With LoRA settings both are one model, whose adapters alone are trained and switched off for the reference.
    """
    encoder = load_encoder(data, sft / "model")
    world = load_world(data)
    policy = load_policy(sft / "model", encoder)
    adapter = None if lora is None else Adapter(policy.model, lora, seed)
    run = PolicyRun(
        policy=policy,
        reference=load_policy(sft / "model", encoder) if adapter is None else adapter.reference(policy),
        encoder=encoder,
        evaluator=Evaluator(data, encoder, evaluation, load_judge(evaluation.judge, world), world),
        sft_answers=read_jsonl(sft / "generations.jsonl"),
        history=[],
        evaluations=[],
        rollouts=[],
        lengths=[],
        phases=[],
        adapter=adapter,
        checkpoint_benchmark=checkpoint_benchmark,
    )
    if run.evaluator.judge is not None:
        check_comparable(run.evaluator, run.sft_answers, checkpoint_benchmark)
    if adapter is None:
        freeze(run.reference.model)
    run.policy.model.eval()
    return run


def check_comparable(evaluator: Evaluator, sft: list[Generation], checkpoint_benchmark: str) -> None:
    """Refuses, before anything is trained, prompts without an answer that the judge needs.

    Raises:
        DataError: a prompt that the SFT model did not answer, or that has no answer of the benchmark's baseline.
    """
    for name in DIALOGUE_BENCHMARKS:
        items = evaluator.items(f"benchmarks/{name}") if evaluator.config.has(name) else []
        against = items if evaluator.config.judge_baseline and name in JUDGED_AGAINST_BASELINE else []
        empty = [item["id"] for item in against if not item["baseline"][0].strip()]
        if empty:
            raise DataError(
                f"{len(empty)} of {len(items)} prompts have no reference answer, the first is '{empty[0]}'",
                file=str(evaluator.data / "benchmarks" / f"{name}.jsonl"),
                field="baseline",
                remedy="Give the benchmark's reference answers, or leave the benchmark out of the evaluation's 'only'",
            )
        if evaluator.world is None and name in (*evaluator.config.over_sft_benchmarks, checkpoint_benchmark):
            answered = {row["id"] for row in sft if row["benchmark"] == name}
            check_answered(items, answered, name)


def question_accuracies(evaluator: Evaluator, policy: Policy, count: int) -> dict[str, float]:
    """Returns the percent of right greedy answers to the first `count` training questions; empty where the data has
    none."""
    known = evaluator.items("questions")
    asked = first_rows(known, count, "checkpoint_prompts", evaluator.data / "questions.jsonl") if known else []
    if not asked:
        return {}
    answers = evaluator.greedy_answers(policy, asked)
    right = [graded(question, text)["right"] for question, (text, _) in zip(asked, answers, strict=True)]
    return {"train_accuracy": 100 * sum(right) / len(right)}


@contextmanager
def noting_divergence(out: Path, run: PolicyRun) -> Iterator[None]:
    """Writes `<out>/diverged.json` if numbers diverge, and lets the error pass: the stage has no result.

    Args:
        out: the stage's output directory.
        run: has the evaluations so far; the finite ones are written.
    """
    if not distributed.rank():
        (out / DIVERGED_FILE).unlink(missing_ok=True)
    try:
        yield
    except NumericsError as error:
        if not distributed.rank():
            finite = [row for row in run.evaluations if all(map(math.isfinite, row.values()))]
            write_json(out / DIVERGED_FILE, {"reason": str(error), "evaluations": finite})
        raise


#: Function that trains a started run: returns its metrics, and its hacking watch if it has one.
Learn = Callable[[PolicyRun, RunCheckpoints], tuple[Metrics, HackingWatch | None]]
