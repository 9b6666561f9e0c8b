"""Selection of data that a settings file states: a data set of the hub, and filters of preference pairs.

Each removal of a pair is counted under its reason. Source: PAR, experimental setup: prompt, chosen and rejected under
512 tokens each, the chosen response's score above the rejected one's, no "confidence" in either response, each prompt
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.typed import Checked, at_least

if TYPE_CHECKING:
    from rlhf_core.data.schemas import Record

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class HubSet(Checked):
    """One Hugging Face data set and how its columns become our fields.

    Args:
        path: hub id, a folder written by `save_to_disk`, or a packaged loader ("json") with `data_files`.
        mapping: {our field: their column, or a dotted path into it such as "chosen.1.content"}. A step may
            be a key, an index (negative from the end) or a slice ("chosen.:-1"). A list of chat messages
            given as `prompt` is kept as `messages`, and its text form becomes the prompt. An index or slice into a
            text reads it as a dialogue of "Human:" and "Assistant:" turns.
        kind: record type; None takes the one that fits.
        config: configuration name of the data set.
        revision: commit or tag; pin it, or the data may change under a result.
        splits: {our split: their split}.
        data_files: {their split: file for a packaged loader, or files}.
    """

    path: str
    mapping: Mapping[str, str]
    kind: str | None = None
    config: str | None = None
    revision: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    data_files: Mapping[str, str | tuple[str, ...]] | None = None


@dataclass(frozen=True)
class PreferenceFilter(Checked):
    """A filter of preference pairs.

    Args:
        max_tokens: prompt, chosen and rejected must each have fewer tokens than this.
        require_score_order: `score_chosen` must exceed `score_rejected`; pairs without scores fail.
        forbidden_words: neither response may contain one of these, compared without case.
        unique_prompts: only the first remaining pair of a prompt stays.

    Raises:
        RecipeError: a limit below 1, or an empty word, which every response contains.
    """

    max_tokens: Annotated[int, at_least(1)] | None = 512
    require_score_order: bool = True
    forbidden_words: Sequence[str] = ("confidence",)
    unique_prompts: bool = True

    def _check_together(self) -> None:
        if any(not word.strip() for word in self.forbidden_words):
            raise RecipeError("forbidden_words contains an empty word, which would remove every pair")

    def apply(
        self, rows: Sequence[Record], count_tokens: CountTokens, *, file: str | None = None
    ) -> tuple[list[Record], Counter[str]]:
        """Returns rows that stay, in order, and {reason: rows removed}; a row counts under its first reason.

        Raises:
            DataError: nothing stays.
        """
        kept: list[Record] = []
        removed: Counter[str] = Counter()
        prompts: set[str] = set()
        for row in rows:
            reason = self._reason(row, count_tokens)
            if reason is None and self.unique_prompts and row["prompt"] in prompts:
                reason = "prompt seen before"
            if reason is None:
                prompts.add(row["prompt"])
                kept.append(row)
            else:
                removed[reason] += 1
        if not kept:
            counts = ", ".join(f"{reason} {count}" for reason, count in removed.most_common())
            raise DataError(
                f"no pair passes the preference filters ({counts or 'no pairs given'})",
                file=file,
                remedy="Loosen the filters, or give pairs with score_chosen and score_rejected",
            )
        return kept, removed

    def _reason(self, row: Mapping[str, Any], count_tokens: CountTokens) -> str | None:
        responses = (row["chosen"], row["rejected"])
        if self.require_score_order:
            scores = (row.get("score_chosen"), row.get("score_rejected"))
            if scores[0] is None or scores[1] is None:
                return "no scores"
            if not scores[0] > scores[1]:
                return "chosen score not above rejected"
        for word in self.forbidden_words:
            if any(word.casefold() in response.casefold() for response in responses):
                return f"contains '{word}'"
        if self.max_tokens is not None:
            for name in ("prompt", "chosen", "rejected"):
                if count_tokens(row[name]) >= self.max_tokens:
                    return f"{name} has {self.max_tokens} tokens or more"
        return None
