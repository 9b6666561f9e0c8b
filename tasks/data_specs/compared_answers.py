"""Published rows of several answers to a prompt, with a verdict, a rank or a score instead of `chosen` and `rejected`.

SHP, PKU-SafeRLHF, WebGPT's comparisons, HelpSteer, arenas of two models, AlpacaFarm; Nectar's and Stack Exchange's
lists of answers. A pair is the better of two answers and the other, or the best of a list and the worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.data.schemas import Record

#: Why a row is not a pair.
NO_PREFERENCE, NO_VERDICT = "no answer is preferred", "no verdict that says which answer is better"
#: Names of the text and of the rank of one answer in a list; a rank counts from the best, a score to the best.
_TEXTS, _RANKS, _SCORES = ("answer", "response", "text", "content"), ("rank",), ("overall_score", "score", "pm_score")
_LISTS = ("answers", "completions", "responses")


@dataclass(frozen=True)
class TwoAnswers:
    """A form of rows with two answers.

    Args:
        title: for people.
        first, second: columns of the answers.
        verdict: columns that say which answer is better.
        better: their values to a number: above 0 the first is better, below 0 the second, 0 neither; NaN for values
            that say nothing.
        prompt: column of the prompt.
    """

    title: str
    first: str
    second: str
    verdict: tuple[str, ...]
    better: Callable[..., float]
    prompt: str = "prompt"

    def fits(self, row: Record) -> bool:
        return all(name in row for name in (self.prompt, self.first, self.second, *self.verdict))

    def convert(self, row: Record) -> Record | str:
        """Returns a row's prompt, chosen and rejected; or why it is not a pair."""
        side = self.better(*(row[name] for name in self.verdict))
        if math.isnan(side) or side == 0:
            return NO_PREFERENCE if side == 0 else NO_VERDICT
        chosen, rejected = (self.first, self.second) if side > 0 else (self.second, self.first)
        return {"prompt": row[self.prompt], "chosen": row[chosen], "rejected": row[rejected]}


def number(value: Any) -> float:
    """Returns a number, also one that is written as text or as a truth value; NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return math.nan


def _one_of(first: float, second: float) -> Callable[[Any], float]:
    """Returns which side a column names by one of two numbers."""
    sides = {first: 1.0, second: -1.0}
    return lambda value: sides.get(number(value), math.nan)


def _winner(value: Any) -> float:
    """Returns which side an arena's verdict names."""
    said = str(value).strip().lower().removeprefix("model_").removeprefix("response_")
    return {"a": 1.0, "b": -1.0}.get(said, 0.0 if "tie" in said or "both" in said else math.nan)


#: Known forms of two answers.
TWO_ANSWERS = (
    TwoAnswers("SHP", "human_ref_A", "human_ref_B", ("labels",), _one_of(1, 0), "history"),
    TwoAnswers("PKU-SafeRLHF", "response_0", "response_1", ("better_response_id",), _one_of(0, 1)),
    TwoAnswers("WebGPT", "answer_0", "answer_1", ("score_0", "score_1"), lambda one, two: number(one) - number(two)),
    TwoAnswers("HelpSteer2", "response_1", "response_2", ("preference_strength",), lambda value: -number(value)),
    TwoAnswers(
        "HelpSteer3", "response1", "response2", ("overall_preference",), lambda value: -number(value), "context"
    ),
    TwoAnswers("AlpacaFarm", "output_1", "output_2", ("preference",), _one_of(1, 2)),
    TwoAnswers("an arena's conversations", "conversation_a", "conversation_b", ("winner",), _winner, "conversation_a"),
    TwoAnswers("an arena", "response_a", "response_b", ("winner",), _winner),
    TwoAnswers(
        "an arena's votes", "response_a", "response_b", ("winner_model_a", "winner_model_b"),
        lambda one, two: number(one) - number(two),
    ),
)  # fmt: skip


def pair_from_list(row: Record) -> Record | str:
    """Returns the best answer of a row's list beside its worst; or why it is not a pair."""
    answers = next(row[name] for name in _LISTS if is_list(row.get(name)))
    found = [(*told, str(text)) for one in answers if (told := _told(one)) and isinstance(text := _text(one), str)]
    if len(found) < 2 or len({shown is None for _, shown, _ in found}) == 2:  # ranks and scores are not compared
        return NO_VERDICT
    (high, shown_high, chosen), (low, shown_low, rejected) = max(found), min(found)
    if high == low:
        return NO_PREFERENCE
    return {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected} | (
        {} if shown_high is None else {"score_chosen": shown_high, "score_rejected": shown_low}
    )


def is_list(value: Any) -> bool:
    """Returns whether a value is a list of answers with ranks or scores."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, Mapping) and isinstance(_text(one), str) for one in value)
        and any(_told(one) is not None for one in value)
    )


def has_list(row: Record) -> bool:
    """Returns whether a row has a prompt and a list of answers with ranks or scores."""
    return "prompt" in row and any(is_list(row.get(name)) for name in _LISTS)


def _text(one: Mapping[str, Any]) -> Any:
    return next((one[name] for name in _TEXTS if name in one), None)


def _told(one: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """Returns how good an answer is, and the score that says so; None where it has neither rank nor score."""
    for names, sign in ((_RANKS, -1.0), (_SCORES, 1.0)):
        for name in names:
            if not math.isnan(value := number(one.get(name))):
                return sign * value, value if sign > 0 else None
    return None
