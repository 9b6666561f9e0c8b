"""The generative reward model's two tasks as token sequences, and its two-stage inference.

Source: RLMEC, section 4.1, Eq. 2 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlhf_core.data.encoding import EncodedSequence, Encoder, truncate_prompt
from rlhf_core.data.templates import Piece, encode_pieces, encode_text
from rlhf_core.models.policy import Policy, pad_rows, sequence_statistics
from rlhf_core.models.sampling import Sampling, generate
from rlhf_core.reasoning.rewriting import Correction, WrongSolution
from rlhf_core.reasoning.steps import kept_before, locating_target, named_step
from rlhf_core.reasoning.templates import REWRITTEN, PromptTemplate


@dataclass(frozen=True)
class ModelTasks:
    """Both tasks of one tokenizer.

    Args:
        encoder: of the reward model, with limits that hold a prompt and its answer.
        template: the prompts' words.
    """

    encoder: Encoder
    template: PromptTemplate

    def locating_prompt(self, wrong: WrongSolution) -> list[int]:
        asked = self.template.locating(wrong.question["prompt"], wrong.question["solution"], wrong.prediction)
        return self._prompt(asked)

    def rewriting_prompt(self, wrong: WrongSolution) -> list[int]:
        """Returns the prompt up to and including `Correct prediction:`."""
        asked = self.template.rewriting(wrong.question["prompt"], wrong.question["solution"], wrong.prediction)
        return self._prompt(asked, REWRITTEN)

    def _prompt(self, asked: str, opening: str = "") -> list[int]:
        """Returns ids of a prompt with the opening of its answer; a whole prompt follows BOS only."""
        tokenizer = self.encoder.tokenizer
        if not self.template.whole:
            return [*self.encoder.prompt({"prompt": asked}), *encode_text(tokenizer, opening)]
        pieces = [Piece(tokenizer.bos_token or "", trusted=True), Piece(asked + opening, trusted=False)]
        return truncate_prompt(encode_pieces(tokenizer, pieces), self.encoder.limits, self.encoder.counts)

    def answer(self, text: str) -> list[int]:
        """Returns a response, EOS included."""
        return self.encoder.template.response_ids(self.encoder.tokenizer, text)

    def locating(self, each: WrongSolution, step: int | None) -> EncodedSequence:
        """Returns a training sequence; None for a prediction whose steps are all correct."""
        return EncodedSequence(self.locating_prompt(each), self.answer(locating_target(step)))

    def rewriting(self, each: WrongSolution, rewrite: str) -> EncodedSequence:
        """Returns a training sequence; the prediction itself as the rewrite of a correct one."""
        return EncodedSequence(self.rewriting_prompt(each), self.answer(rewrite))

    def fits(self, sequence: EncodedSequence) -> bool:
        return len(sequence) <= self.encoder.limits.total


#: Tokens of an answer to the locating prompt.
LOCATING_TOKENS = 16


def locate(policy: Policy, tasks: ModelTasks, wrong: Sequence[WrongSolution], *, batch: int) -> list[str]:
    """Returns the first wrong step of each prediction according to the model, decoded greedily."""
    return _texts(policy, tasks, [tasks.locating_prompt(each) for each in wrong], LOCATING_TOKENS, batch)


def correct(
    policy: Policy, tasks: ModelTasks, wrong: Sequence[WrongSolution], *, max_new_tokens: int, batch: int
) -> list[Correction]:
    """Corrects in two stages: locates the first wrong step, then keeps the text before it and completes it greedily."""
    located = locate(policy, tasks, wrong, batch=batch)
    kept, prompts = [], []
    for each, said in zip(wrong, located, strict=True):
        step = named_step(said)
        kept.append("" if step is None else kept_before(each.prediction, step))
        prompts.append([*tasks.rewriting_prompt(each), *encode_text(tasks.encoder.tokenizer, kept[-1])])
    written = _texts(policy, tasks, prompts, max_new_tokens, batch)
    return [Correction(said, head + tail) for said, head, tail in zip(located, kept, written, strict=True)]


def _texts(
    policy: Policy, tasks: ModelTasks, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch: int
) -> list[str]:
    """Returns the greedy answer to every prompt, prompts batched by length."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts, sampling = [""] * len(prompts), Sampling(max_new_tokens, temperature=0)
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        ids, mask = pad_rows([prompts[i] for i in places], tasks.encoder.pad_id, "left")
        made = generate(policy, ids.to(policy.device), mask.to(policy.device), sampling, torch.Generator())
        for i, row, real in zip(places, made.ids.cpu(), made.mask.cpu(), strict=True):
            texts[i] = str(tasks.encoder.tokenizer.decode(row[real].tolist(), skip_special_tokens=True))
    return texts


@torch.no_grad()
def token_logprobs(policy: Policy, sequences: Sequence[EncodedSequence], batch: int) -> list[list[float]]:
    """Returns the log-probability of every response token, in nats."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    found: list[list[float]] = [[]] * len(sequences)
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        statistics, _ = sequence_statistics(policy, [sequences[i] for i in places])
        for i, row in zip(places, statistics.logprobs.float().cpu().tolist(), strict=True):
            found[i] = row[: len(sequences[i].response)]
    return found
