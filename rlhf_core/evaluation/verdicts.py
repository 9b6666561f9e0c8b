"""Verdicts of a table and of a claim over effects by worlds.

A table has one primary metric. Each row is compared with the main row; Holm's correction over the table's rows keeps
the chance of one or more false 'above' or 'below' at 5 %, and likewise that of one or more false 'equivalent'. Other
columns are descriptive and have no verdict. The interval beside a comparison is that of the comparison alone, 95 %, not
corrected: a row whose interval excludes 0 can be without a verdict.

A claim confirms only if all of its parts hold, each tested at .05 without correction (intersection-union: a false
confirmation takes a false part, whose own test errs at most that often). It is contradicted if any part is, so the p of
the contrary direction is corrected over the parts (Holm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core.evaluation.statistics import holm
from rlhf_core.evaluation.worlds import ALPHA, Effect

RowWord = Literal["above", "below", "equivalent", "sees only effects above", "not decided"]
Direction = Literal["confirmed", "contradicted", "equivalent", "undecided"]
ClaimWord = Literal["confirmed", "contradicted", "undecided", "not run"]
ClaimSide = Literal["above", "below", "beside"]


@dataclass(frozen=True)
class RowVerdict:
    """A row's place in its table's primary metric.

    Attributes:
        word: 'above' and 'below' are the metric's, not the better side; 'equivalent' takes a margin.
        p_corrected: corrected for the rows of the table (Holm); None without a test.
        smallest_visible: effect that these worlds find with a power of 80 % whatever the other rows do; None without a
            test.
        text: the verdict in words, such as 'sees only effects above 3.1'.
    """

    word: RowWord
    p_corrected: float | None
    smallest_visible: float | None
    text: str


def verdicts_of(effects: Sequence[Effect], margin: float | None = None) -> list[RowVerdict]:
    """Returns the verdict of each effect of a table, differences and equivalences each corrected over all of them
    (Holm); a table with several main rows has the effects of all."""
    corrected = holm([1.0 if effect.p is None else effect.p for effect in effects])
    inside = [None if margin is None else effect.p_within(margin) for effect in effects]
    within = holm([1.0 if p is None else p for p in inside])
    return [_row_verdict(*one, ALPHA / len(effects)) for one in zip(effects, corrected, within, strict=True)]


def _row_verdict(effect: Effect, p: float, p_within: float, alpha: float) -> RowVerdict:
    if effect.reason is not None:
        return RowVerdict("not decided", None, None, f"not decided: {effect.reason}")
    visible = effect.smallest_visible(alpha)
    if p < ALPHA:
        word: RowWord = "above" if effect.estimate > 0 else "below"
    elif p_within < ALPHA:
        word = "equivalent"
    else:
        return RowVerdict("sees only effects above", p, visible, f"sees only effects above {visible:.3g}")
    return RowVerdict(word, p, visible, word)


def direction_verdict(published: float | None, published_main: float | None, word: RowWord) -> Direction | None:
    """Returns whether a row's verdict repeats the published order of the row and its main row.

    Args:
        published, published_main: as printed; None where the paper prints a dash or words.
        word: of the row's verdict.

    Returns:
        confirmed: on the printed side; contradicted: on the other side; equivalent: neither, within the margin;
        undecided: any other word. None where the paper prints no order.
    """
    if published is None or published_main is None or published == published_main:
        return None
    if word == "equivalent":
        return "equivalent"
    if word not in ("above", "below"):
        return "undecided"
    return "confirmed" if (word == "above") == (published > published_main) else "contradicted"


@dataclass(frozen=True)
class TestedComparison:
    """One comparison of a claim.

    Attributes:
        effect: the first number less the second; None where it was not measured.
        side: the side of the second on which the claim has the first.
        margin: of 'beside', in the metric's unit.
    """

    effect: Effect | None
    side: ClaimSide
    margin: float | None = None

    @property
    def p_holds(self) -> float | None:
        """Returns the p that rejects the comparison's contrary: two-sided on the claimed side, else 1; None without a
        test."""
        if self.effect is None:
            return None
        if self.margin is not None and self.side == "beside":
            return self.effect.p_within(self.margin)
        return self.effect.p if self._claimed(self.effect) or self.effect.p is None else 1.0

    @property
    def p_contrary(self) -> float | None:
        """Returns the p that rejects the comparison: two-sided on the contrary side, of 'beside' beyond the margin,
        else 1; None without a test."""
        if self.effect is None:
            return None
        if self.margin is not None and self.side == "beside":
            return self.effect.p_beyond(self.margin)
        return 1.0 if self._claimed(self.effect) and self.effect.p is not None else self.effect.p

    def _claimed(self, effect: Effect) -> bool:
        return (effect.estimate > 0) == (self.side == "above")


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim's verdict.

    Attributes:
        p_contradicted: p of each comparison's contrary, corrected over the comparisons; None for one without a test.
    """

    word: ClaimWord
    p_contradicted: tuple[float | None, ...]


def claim_verdict(comparisons: Sequence[TestedComparison]) -> ClaimVerdict:
    """Returns the verdict of a claim that is true when all its comparisons are.

    A comparison without a test counts among those that are corrected for, and keeps the claim from being confirmed.
    """
    if all(one.effect is None for one in comparisons):
        return ClaimVerdict("not run", tuple(None for _ in comparisons))
    contrary = [one.p_contrary for one in comparisons]
    corrected = holm([1.0 if p is None else p for p in contrary])
    shown = tuple(None if p is None else q for p, q in zip(contrary, corrected, strict=True))
    holds = [one.p_holds for one in comparisons]
    word: ClaimWord = "undecided"
    if min(corrected) < ALPHA:
        word = "contradicted"
    elif all(p is not None and p < ALPHA for p in holds):
        word = "confirmed"
    return ClaimVerdict(word, shown)
