"""Rows to token ids: chat template, truncation, and responses as tensors.

Prompts lose their left end, responses their right end, and every cut is counted. The cut is plain: it may fall inside a
turn of the chat template. A pair of which it leaves nothing to prefer is dropped.

Source: Segment, Appendix A (prompt cap 1728 of 2048 tokens).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.data.templates import ChatTemplate, encode_text
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.rollout import Responses
from rlhf_core.typed import Checked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LongPrompt = Literal["truncate", "error"]


@dataclass(frozen=True)
class Limits(Checked):
    """Length limits in tokens.

    Args:
        prompt: the most tokens of a prompt.
        total: the most tokens of prompt and response together, EOS included.
        on_long_prompt: `truncate` cuts and counts, `error` refuses the row.

    Raises:
        RecipeError: limits that leave no token for a response, or an unknown `on_long_prompt`.
    """

    prompt: int = 1728
    total: int = 2048
    on_long_prompt: LongPrompt = "truncate"

    def _check_together(self) -> None:
        if not 0 < self.prompt < self.total:
            raise RecipeError(
                f"prompt limit {self.prompt} and total limit {self.total} contradict each other: "
                "the prompt limit must be at least 1 and below the total"
            )


@dataclass
class CutCounts:
    """Counts of prompts and responses, seen and cut; the caller keeps them for a whole data set."""

    prompts: int = 0
    prompts_cut: int = 0
    responses: int = 0
    responses_cut: int = 0


def truncate_prompt(ids: Sequence[int], limits: Limits, counts: CutCounts) -> list[int]:
    """Returns the last `limits.prompt` ids of a prompt.

    Raises:
        DataError: the prompt is longer than the cap and `limits.on_long_prompt` is `error`.
    """
    counts.prompts += 1
    if len(ids) <= limits.prompt:
        return list(ids)
    if limits.on_long_prompt == "error":
        raise DataError(
            f"the prompt has {len(ids)} tokens, the cap is {limits.prompt}",
            field="prompt",
            remedy="Raise the prompt limit, shorten the prompt, or set on_long_prompt to truncate",
        )
    counts.prompts_cut += 1
    return list(ids[-limits.prompt :])


def truncate_sequence(
    prompt_ids: Sequence[int], response_ids: Sequence[int], limits: Limits, eos_id: int, counts: CutCounts
) -> tuple[list[int], list[int]]:
    """Returns the prompt and response within the limits: the prompt first, the response in what is left of the total.

    A response that is cut on the right ends with EOS, another one is left as it is.
    """
    prompt = truncate_prompt(prompt_ids, limits, counts)
    room = limits.total - len(prompt)
    counts.responses += 1
    counts.responses_cut += len(response_ids) > room
    return prompt, list(response_ids) if len(response_ids) <= room else [*response_ids[: room - 1], eos_id]


@dataclass(frozen=True)
class EncodedSequence:
    """Token ids of a prompt (template included) and a response (EOS included)."""

    prompt: list[int]
    response: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True)
class EncodedPairs:
    """Preference pairs that the limits left whole.

    Attributes:
        kept: their places among all pairs.
        chosen, rejected: their sequences.
        dropped: number of the other pairs.
    """

    kept: list[int]
    chosen: list[EncodedSequence]
    rejected: list[EncodedSequence]
    dropped: int


def whole_pairs(
    chosen: Sequence[EncodedSequence], rejected: Sequence[EncodedSequence], eos_id: int, *, file: str | None = None
) -> EncodedPairs:
    """Returns pairs without those that prefer nothing: of which both answers have the same tokens, or one has no token
    but EOS, after the cut to the limits.

    Raises:
        DataError: no pair is left.
    """
    kept = [
        place
        for place, (good, bad) in enumerate(zip(chosen, rejected, strict=True))
        if good.response != bad.response and [eos_id] not in (good.response, bad.response)
    ]
    if not kept:
        raise DataError(
            f"none of {len(chosen)} pairs has two answers that differ within the limits",
            file=file,
            remedy="Raise the total limit, or lower that of prompts",
        )
    return EncodedPairs(kept, [chosen[i] for i in kept], [rejected[i] for i in kept], len(chosen) - len(kept))


@contextmanager
def _named(row: Mapping[str, Any]) -> Iterator[None]:
    """Adds a row's id to an error about its data."""
    try:
        yield
    except DataError as error:
        if error.row is not None or not isinstance(row.get("id"), str):
            raise
        raise DataError(
            error.problem, file=error.file, row=row["id"], field=error.field, remedy=error.remedy
        ) from error


@dataclass
class Encoder:
    """Turns rows into token ids the same way everywhere.

    Args:
        tokenizer: any Hugging Face tokenizer.
        template: the chat template.
        limits: length caps; prompts are cut on the left, responses on the right.
        counts: what was cut so far.
        opening: words of the answer that prompts end with, beyond the limits; '' for none.
    """

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    limits: Limits
    counts: CutCounts = field(default_factory=CutCounts)
    opening: str = ""
    _texts: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def eos_id(self) -> int:
        return self.template.eos_id(self.tokenizer)

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        assert isinstance(pad, int)
        return pad

    def prompt(self, row: Mapping[str, Any]) -> list[int]:
        """Returns the prompt ids of a row, up to and including the assistant's opening."""
        with _named(row):
            ids = self.template.prompt_ids(self.tokenizer, prompt_messages(row))
            return self._opened(truncate_prompt(ids, self.limits, self.counts))

    def sequence(self, row: Mapping[str, Any], response: str) -> EncodedSequence:
        """Returns the prompt and response ids of a row within the limits."""
        with _named(row):
            prompt, answer = truncate_sequence(
                self.template.prompt_ids(self.tokenizer, prompt_messages(row)),
                self.template.response_ids(self.tokenizer, response),
                self.limits,
                self.eos_id,
                self.counts,
            )
        return EncodedSequence(self._opened(prompt), answer)

    def _opened(self, prompt: list[int]) -> list[int]:
        return [*prompt, *encode_text(self.tokenizer, self.opening)] if self.opening else prompt

    def sampled(self, row: Mapping[str, Any], response: str, drawn: int, longest: int) -> EncodedSequence:
        """Returns the prompt and response ids of an answer of `drawn` tokens as it was sampled: without EOS where the
        limit of `longest` tokens cut it.
        """
        made = self.sequence(row, response)
        cut = drawn >= longest and len(made.response) > 1 and made.response[-1] == self.eos_id
        return EncodedSequence(made.prompt, made.response[:-1]) if cut else made

    def dialogue(self, row: Mapping[str, Any], response: str, *, ended: bool = True) -> list[int]:
        """Returns the ids of a row's whole dialogue with a response, as a classifier reads them; see
        `ChatTemplate.dialogue_ids`. What is beyond the limits is cut and counted as in `sequence`."""
        cut = self.counts.prompts_cut + self.counts.responses_cut
        made = self.sequence(row, response)
        if self.counts.prompts_cut + self.counts.responses_cut == cut:
            with _named(row):
                ids = self.template.dialogue_ids(self.tokenizer, prompt_messages(row), response, ended=ended)
            if len(ids) <= self.limits.total:
                return ids
        ids = [*made.prompt, *made.response]
        return ids[:-1] if not ended and ids[-1] == self.eos_id else ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each token, decoded once."""
        for i in set(ids) - self._texts.keys():
            self._texts[i] = str(self.tokenizer.decode([i]))
        return [self._texts[i] for i in ids]

    def responses(
        self,
        sequences: Sequence[EncodedSequence],
        entropies: Sequence[Sequence[float]] | None = None,
        *,
        spelled: bool = False,
    ) -> Responses:
        """Returns responses as padded tensors, with their pieces, entropies if given, and characters where
        `spelled`."""
        width = max((len(s.response) for s in sequences), default=0)
        ids = torch.full((len(sequences), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        entropy = torch.zeros(ids.shape)
        ended = torch.zeros(len(sequences), dtype=torch.bool)
        for i, sequence in enumerate(sequences):
            n = len(sequence.response)
            ids[i, :n] = torch.tensor(sequence.response, dtype=torch.long)
            mask[i, :n] = True
            ended[i] = n > 0 and sequence.response[-1] == self.eos_id
            if entropies is not None:
                entropy[i, :n] = torch.as_tensor(entropies[i], dtype=torch.float32)
        return Responses(
            ids=ids,
            mask=mask,
            ended=ended,
            pieces=[self.pieces(s.response) for s in sequences],
            entropies=entropy if entropies is not None else None,
            spelling=[token_spans(self.tokenizer, s.response) for s in sequences] if spelled else None,
        )
