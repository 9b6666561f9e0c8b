"""Methods against each other on the same prompts: win rates and the tests between two of them.

Win rate = wins / (wins + losses), 50 % where all games are ties, none without a game. Over seeds: mean and standard
error of the seeds' rates; tests on the answers of all seeds together: paired t-test of means, two-sided binomial test
(p0 .5, ties left out) of wins; p > .05 is a tie. Source: ALARM, Eq. 2, §3.3 and appendix B.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core.evaluation.statistics import binomial_p, paired_t_test, require_finite

ALPHA = 0.05
Word = Literal["Win", "Tie", "Lose"]


@dataclass(frozen=True)
class Record:
    """Wins, ties and losses of one method over another."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    def __add__(self, other: Record) -> Record:
        return Record(self.wins + other.wins, self.ties + other.ties, self.losses + other.losses)

    @property
    def win_rate(self) -> float | None:
        """Returns the percent of the decided games; 50 where all are ties, None without a game."""
        decided = self.wins + self.losses
        if not decided:
            return 50.0 if self.ties else None
        return 100.0 * self.wins / decided

    @property
    def p_value(self) -> float:
        """Returns the two-sided binomial p; 1 without a decided game."""
        return binomial_p(self.wins, self.losses)


def record_of(results: Iterable[int]) -> Record:
    """Returns the record of results 1 (win), 0 (tie) and -1 (loss)."""
    signs = list(results)
    return Record(signs.count(1), signs.count(0), signs.count(-1))


def compared(own: Mapping[str, float], other: Mapping[str, float], *, higher_is_better: bool = True) -> dict[str, int]:
    """Returns 1, 0 or -1 per prompt that both answered: whether the first one's value is the better one.

    Raises:
        NumericsError: a value that is not finite.
    """
    for values in (own, other):
        require_finite(((f"prompt '{prompt}'", value) for prompt, value in values.items()), "the value")
    sign = 1 if higher_is_better else -1
    return {
        prompt: sign * ((own[prompt] > other[prompt]) - (own[prompt] < other[prompt]))
        for prompt in own
        if prompt in other
    }


@dataclass(frozen=True)
class PairedTestResult:
    """Result of a significance test: win, tie or loss, and the p-value."""

    word: Word
    p_value: float

    @property
    def text(self) -> str:
        """Returns the verdict as the paper prints it: 'Tie', 'Win (3e-05)'."""
        return "Tie" if self.word == "Tie" else f"{self.word} ({self.p_value:.0e})"


def _outcome(better: float, p_value: float) -> PairedTestResult:
    word: Word = "Tie" if p_value > ALPHA or better == 0 else "Win" if better > 0 else "Lose"
    return PairedTestResult(word, p_value)


def outcome_of_wins(record: Record) -> PairedTestResult:
    """Returns the binomial test of a record."""
    return _outcome(record.wins - record.losses, record.p_value)


def outcome_of_means(
    own: Sequence[float], other: Sequence[float], *, higher_is_better: bool = True
) -> PairedTestResult:
    """Returns the paired t-test of values of the same prompts and seeds."""
    difference, p_value = paired_t_test(own, other)
    return _outcome(difference if higher_is_better else -difference, p_value)
