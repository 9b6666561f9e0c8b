"""Truncation: prompts lose their left end, responses their right end, and every cut is counted.

A cut response gets EOS as its last token, an uncut one is left as it is. The cut is plain: it may fall inside
a turn of the chat template, as in the paper.

Source: Segment, Appendix A (prompt cap 1728 of 2048 tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.typed import Checked

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

    def __str__(self) -> str:
        return (
            f"{self.prompts_cut} of {self.prompts} prompts cut on the left, "
            f"{self.responses_cut} of {self.responses} responses cut on the right"
        )


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


def truncate_response(ids: Sequence[int], room: int, eos_id: int, counts: CutCounts) -> list[int]:
    """Returns the first `room` ids of a response; if that cuts it, its last token becomes EOS.

    Args:
        ids: response ids, normally ending with EOS.
        room: tokens left for it, at least 1.
        eos_id: id of the template's end-of-turn token.
    """
    counts.responses += 1
    if len(ids) <= room:
        return list(ids)
    counts.responses_cut += 1
    return [*ids[: room - 1], eos_id]


def truncate_sequence(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    limits: Limits,
    eos_id: int,
    counts: CutCounts,
) -> tuple[list[int], list[int]]:
    """Returns the prompt and response within the limits: the prompt first, the response in what is left of the
    total."""
    prompt = truncate_prompt(prompt_ids, limits, counts)
    return prompt, truncate_response(response_ids, limits.total - len(prompt), eos_id, counts)
