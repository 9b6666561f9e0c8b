"""Win rates: in which order answers are judged, and how verdicts are counted.

    protocol = PROTOCOLS["par"]
    tally = protocol.tally(protocol.play(judge, pairs))
    tally.win_rate          # percent; None where no prompt has a verdict: never 50 % out of nothing
    tally.unparsable, tally.one_sided   # prompts

Each paper counts verdicts in its own way (`PROTOCOLS`). A prompt that lacks a verdict which its protocol needs counts
for nobody: it is `unparsable` without any verdict and `one_sided` with a verdict in one of two orders. Where data has
true rewards, `tally_of_values` gives the same tally from them: the higher reward wins, equal rewards tie.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.games import Game, JudgedPair, combine_orders, play_games
from rlhf_core.evaluation.judges.templates import TEMPLATES, Judge
from rlhf_core.evaluation.statistics import binomial_p, paired_t_test, require_finite
from rlhf_core.typed import Checked, one_of

#: Templates by which a judge compares two answers.
PAIR_TEMPLATES = tuple(name for name, template in TEMPLATES.items() if template.n_answers == 2)
#: The template whose verdicts are probabilities.
SOFT_TEMPLATE = "alpaca_eval"


@dataclass(frozen=True)
class Tally:
    """Verdicts on some prompts, counted.

    Attributes:
        scores: by prompt: 1 wins, 1/2 ties, 0 loses; of a soft protocol the probability of a win.
        ties: 'half' counts a tie as half a win, 'left_out' as no game.
        unparsable: prompts without any verdict; they count for nobody.
        one_sided: prompts with a verdict in one of two orders; they count for nobody.
    """

    scores: Mapping[str, float]
    ties: Literal["half", "left_out"] = "half"
    unparsable: tuple[str, ...] = ()
    one_sided: tuple[str, ...] = ()

    @property
    def wins(self) -> int:
        return sum(score > 0.5 for score in self.scores.values())

    @property
    def losses(self) -> int:
        return sum(score < 0.5 for score in self.scores.values())

    @property
    def _counted(self) -> list[float]:
        """Returns the scores that make the win rate; where ties are left out and nothing else is there, the ties."""
        scores = list(self.scores.values())
        decided = [score for score in scores if score != 0.5]
        return decided if self.ties == "left_out" and decided else scores

    @property
    def win_rate(self) -> float | None:
        """Returns the percentage of wins; 50 where every verdict is a tie, None where no prompt has a verdict."""
        counted = self._counted
        return 100 * (sum(counted) / len(counted)) if counted else None

    @property
    def standard_error(self) -> float | None:
        """Returns the standard error of the win rate (ddof 1) in points; None where no prompt has a verdict."""
        counted = self._counted
        if not counted:
            return None
        mean = sum(counted) / len(counted)
        spread = sum((score - mean) ** 2 for score in counted) / max(1, len(counted) - 1)
        return 100 * math.sqrt(spread / len(counted))

    def on(self, prompts: Collection[str]) -> Tally:
        """Returns the verdicts on some of the prompts."""
        scores = {prompt: score for prompt, score in self.scores.items() if prompt in prompts}
        lacking = (tuple(p for p in each if p in prompts) for each in (self.unparsable, self.one_sided))
        return Tally(scores, self.ties, *lacking)

    def metrics(self, name: str, *, judged: bool) -> dict[str, float]:
        """Returns `<name>` with `_se` and `_p` (two-sided binomial, ties left out); of a judge's verdicts also how many
        prompts are without one.

        Args:
            name: of the win rate among a run's metrics.
            judged: whether the verdicts are a judge's.
        """
        found: dict[str, float] = {}
        rate, error = self.win_rate, self.standard_error
        if rate is not None and error is not None:
            found |= {name: rate, f"{name}_se": error, f"{name}_p": binomial_p(self.wins, self.losses)}
        if judged:
            found |= {f"{name}_unparsable": len(self.unparsable), f"{name}_one_sided": len(self.one_sided)}
        return found


@dataclass(frozen=True)
class Protocol(Checked):
    """The way in which a judge's verdicts on pairs of answers become a win rate.

    Args:
        template: of the judge's prompt.
        orders: 'drawn' is one game, its order drawn by the prompt; 'summed' both orders, where the higher total wins
            and equal totals tie; 'agreed' both orders, a win or a loss only where both say so.
        ties: 'half' counts a tie as half a win, 'left_out' as no game.
        soft: the mean probability of a win instead of the share of wins.
    """

    template: Annotated[str, one_of(PAIR_TEMPLATES)]
    orders: Literal["drawn", "summed", "agreed"]
    ties: Literal["half", "left_out"] = "half"
    soft: bool = False

    def _check_together(self) -> None:
        if self.soft and self.template != SOFT_TEMPLATE:
            raise RecipeError(
                f"soft is true, but template '{self.template}' has no soft verdicts; use '{SOFT_TEMPLATE}'"
            )

    @property
    def games_per_prompt(self) -> int:
        return 1 if self.orders == "drawn" else 2

    def play(self, judge: Judge, pairs: Sequence[JudgedPair]) -> list[Game]:
        """Has every pair judged, in the orders of the protocol."""
        drawn = {"orders": "drawn"} if self.orders == "drawn" else {}
        return play_games(judge, pairs, self.template, **drawn)  # type: ignore[arg-type]

    def tally(self, games: Sequence[Game]) -> Tally:
        """Counts the verdicts of some games."""
        by_prompt: dict[str, list[Game]] = {}
        for game in games:
            by_prompt.setdefault(game.id, []).append(game)
        results = combine_orders(games, "agreement" if self.orders == "agreed" else "sum")
        scores, unparsable, one_sided = dict[str, float](), list[str](), list[str]()
        for prompt, played in by_prompt.items():
            valid = [game for game in played if not math.isnan(game.score_for_model)]
            if len(valid) < self.games_per_prompt:
                (one_sided if valid else unparsable).append(prompt)
            elif self.soft:
                scores[prompt] = sum(game.preference_for_model for game in played) / len(played) - 1
            else:
                scores[prompt] = results[prompt]
        return Tally(scores, self.ties, tuple(unparsable), tuple(one_sided))


#: Protocols of the papers' judges: the comparison of two answers, and the counting of verdicts.
PROTOCOLS: Choices[Protocol] = Choices(
    "protocol",
    {
        # AlpacaEval 2.0, Segment: one game whose order is drawn, soft preference.
        "alpaca_eval": Protocol("alpaca_eval", "drawn", soft=True),
        # Sentence, B.3: AlpacaEval's ranking prompt. The printed rates are multiples of half a prompt of 805.
        "sentence": Protocol("ranking", "drawn"),
        # PAR, §9.1: 1, 1/2 or 0 in each order; the higher total wins, equal totals are half a win.
        "par": Protocol("pairwise", "summed"),
        # ALARM, §3.3 and B.2: verdicts count where both orders agree; wins over decided games.
        "alarm": Protocol("output_pair", "agreed", ties="left_out"),
        # Sentence, figures 3, 8 and 9: Best-of-N against greedy answers, and the second judge.
        "best_of_n": Protocol("ranking", "summed"),
    },
    needs=("template", "orders", "ties", "soft", "play", "tally"),
)


def tally_of_values(
    own: Mapping[str, float],
    other: Mapping[str, float],
    what: str = "the true reward",
    *,
    higher_is_better: bool = True,
    ties: Literal["half", "left_out"] = "half",
) -> Tally:
    """Returns the verdicts of two sides' values on the prompts that both answered, in the order of `own`.

    Args:
        own, other: value by prompt.
        what: the noun of a value in messages.

    Raises:
        NumericsError: a value that is not finite.
    """
    for values in (own, other):
        require_finite(((f"prompt '{prompt}'", value) for prompt, value in values.items()), what)
    shared = [(prompt, value, other[prompt]) for prompt, value in own.items() if prompt in other]
    scores = {prompt: 0.5 if a == b else float((a > b) == higher_is_better) for prompt, a, b in shared}
    return Tally(scores, ties)


# --- tests between two methods -------------------------------------------------------------------------------------

#: A test's p above which two methods tie.
ALPHA = 0.05


@dataclass(frozen=True)
class PairedTestResult:
    """Result of a significance test: win, tie or loss, and the p-value."""

    word: Literal["Win", "Tie", "Lose"]
    p_value: float

    @property
    def text(self) -> str:
        """Returns the verdict as ALARM prints it: 'Tie', 'Win (3e-05)'."""
        return "Tie" if self.word == "Tie" else f"{self.word} ({self.p_value:.0e})"


def _outcome(better: float, p_value: float) -> PairedTestResult:
    return PairedTestResult("Tie" if p_value > ALPHA or better == 0 else "Win" if better > 0 else "Lose", p_value)


def outcome_of_wins(wins: int, losses: int) -> PairedTestResult:
    """Returns the two-sided binomial test of wins (p0 .5, ties left out). Source: ALARM, appendix B.2."""
    return _outcome(wins - losses, binomial_p(wins, losses))


def outcome_of_means(
    own: Sequence[float], other: Sequence[float], *, higher_is_better: bool = True
) -> PairedTestResult:
    """Returns the paired t-test of values of the same prompts and seeds."""
    difference, p_value = paired_t_test(own, other)
    return _outcome(difference if higher_is_better else -difference, p_value)
