"""One sheet of verdicts by hand, and each paper's win rate from it by hand arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from scipy import stats

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.games import Game, JudgedPair, play_games
from rlhf_core.evaluation.judges.templates import JudgeRequest
from rlhf_core.evaluation.protocols import (
    PROTOCOLS,
    Protocol,
    Tally,
    outcome_of_means,
    outcome_of_wins,
    tally_of_values,
)

#: Prompt -> what the judge says of the model's answer: shown second (the baseline first), and shown first.
#: W wins, T tie, L loses, - no verdict that can be read.
SHEET = {
    "p01": "WW",
    "p02": "WW",
    "p03": "WL",
    "p04": "LW",
    "p05": "LL",
    "p06": "WT",
    "p07": "TL",
    "p08": "TT",
    "p09": "W-",
    "p10": "-L",
    "p11": "--",
    "p12": "WW",
}
#: Prompt -> probability that the judge of soft preferences gives the model, in its one game; None without a verdict.
SOFT = {
    "p01": 0.9,
    "p02": 0.8,
    "p03": 0.7,
    "p04": 0.3,
    "p05": 0.1,
    "p06": 0.6,
    "p07": 0.4,
    "p08": 0.5,
    "p09": 1.0,
    "p10": 0.2,
    "p11": None,
    "p12": 0.5,
}


class Sheet:
    """A judge that reads its verdicts from a sheet, in the words of each template."""

    name = "sheet"

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        return [WORDS[request.template](request.prompt, request.answers[0] == "model") for request in requests]


def better(prompt: str, model_first: bool) -> str:
    """The better side as A, B, N, or '' without a verdict."""
    said = SHEET[prompt][1 if model_first else 0]
    return {"W": "AB"[not model_first], "L": "BA"[not model_first], "T": "N", "-": ""}[said]


def soft(prompt: str, model_first: bool) -> str:
    chance = SOFT[prompt]
    return "I cannot say." if chance is None else f"preference: {2 - chance if model_first else 1 + chance}"


def ranking(prompt: str, model_first: bool) -> str:
    ranks = {"A": (1, 2), "B": (2, 1), "N": (1, 1)}.get(better(prompt, model_first))
    if ranks is None:
        return "Both are fine."
    return str([{"model": f"model_{number}", "rank": rank} for number, rank in enumerate(ranks, 1)])


def pairwise(prompt: str, model_first: bool) -> str:
    return f"Better: {better(prompt, model_first) or 'A or B'}"


def output_pair(prompt: str, model_first: bool) -> str:
    return {"A": "Output (a)", "B": "Output (b)"}.get(better(prompt, model_first), "Output (a) or Output (b)")


WORDS: dict[str, Callable[[str, bool], str]] = {
    "alpaca_eval": soft,
    "ranking": ranking,
    "pairwise": pairwise,
    "output_pair": output_pair,
}


def games(template: str, shown_first: dict[str, str] | None = None) -> list[Game]:
    """Both orders of every prompt; or one, with the given side first."""
    found = []
    for prompt in SHEET:
        orders = ("baseline", "model") if shown_first is None else (shown_first[prompt],)
        pair = [JudgedPair(prompt, prompt, "model", "baseline")]
        found += play_games(Sheet(), pair, template, orders=orders, retries=0)  # type: ignore[arg-type]
    return found


def test_segment_is_the_mean_soft_preference() -> None:
    """AlpacaEval 2.0: .9 + .8 + .7 + .3 + .1 + .6 + .4 + .5 + 1 + .2 + .5 = 6.0 over 11 prompts with a verdict."""
    tally = PROTOCOLS["alpaca_eval"].tally(games("alpaca_eval", dict.fromkeys(SHEET, "model")))
    assert tally.win_rate == pytest.approx(600 / 11)
    assert (tally.unparsable, tally.one_sided) == (("p11",), ())


def test_sentence_is_the_share_of_wins_in_one_game_with_ties_half() -> None:
    """The model second on p01 to p06, else first: W W W L L W | L T - L - W: 5 wins, 4 losses, 1 tie; 5.5 of 10."""
    first = {prompt: "baseline" if prompt <= "p06" else "model" for prompt in SHEET}
    tally = PROTOCOLS["sentence"].tally(games("ranking", first))
    assert (tally.wins, tally.losses, len(tally.scores)) == (5, 4, 10)
    assert tally.win_rate == pytest.approx(55.0)
    assert (tally.unparsable, tally.one_sided) == (("p09", "p11"), ())


def test_par_sums_both_orders_and_a_draw_is_half() -> None:
    """Totals: p01 2, p02 2, p03 1, p04 1, p05 0, p06 1.5, p07 .5, p08 1, p12 2: 4 wins, 2 losses, 3 draws; 5.5/9."""
    tally = PROTOCOLS["par"].tally(games("pairwise"))
    assert (tally.wins, tally.losses, len(tally.scores)) == (4, 2, 9)
    assert tally.win_rate == pytest.approx(100 * 5.5 / 9)
    assert (tally.unparsable, tally.one_sided) == (("p11",), ("p09", "p10"))


def test_alarm_counts_wins_over_decided_games_in_which_both_orders_agree() -> None:
    """Its prompt knows no tie, so T cannot be read. Wins p01, p02, p12, loss p05, disagreement p03, p04: 3/4."""
    tally = PROTOCOLS["alarm"].tally(games("output_pair"))
    assert (tally.wins, tally.losses, len(tally.scores)) == (3, 1, 6)
    assert tally.win_rate == 75.0
    assert (tally.unparsable, tally.one_sided) == (("p08", "p11"), ("p06", "p07", "p09", "p10"))


def test_a_judge_of_one_order_only_decides_nothing_where_both_are_needed() -> None:
    tally = PROTOCOLS["par"].tally(games("pairwise", dict.fromkeys(SHEET, "model")))
    assert (tally.scores, tally.win_rate, tally.standard_error) == ({}, None, None)
    assert len(tally.one_sided) == 10
    assert tally.metrics("rate", judged=True) == {"rate_unparsable": 2, "rate_one_sided": 10}


def test_true_rewards_make_the_same_tally() -> None:
    tally = tally_of_values({"a": 2.0, "b": 1.0, "c": 0.0, "d": 9.0}, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert tally.scores == {"a": 1.0, "b": 0.5, "c": 0.0}
    assert tally.metrics("rate", judged=False) == pytest.approx({"rate": 50.0, "rate_se": 100 / 12**0.5, "rate_p": 1.0})


def test_soft_verdicts_need_a_template_that_has_them() -> None:
    with pytest.raises(RecipeError, match="template 'pairwise' has no soft verdicts; use 'alpaca_eval'"):
        Protocol("pairwise", "summed", soft=True)


def test_a_tally_without_ties_is_a_half_where_all_are_ties() -> None:
    scores = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 0.5, "f": 0.5}
    assert Tally(scores, "left_out").win_rate == 75.0
    assert Tally({"e": 0.5, "f": 0.5}, "left_out").win_rate == 50.0
    assert Tally({}, "left_out").win_rate is None, "without a game 50 % would be invented"
    assert tally_of_values({"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 2}, higher_is_better=False).scores == {
        "a": 0.0, "b": 0.5,
    }  # fmt: skip


def test_methods_are_compared_by_their_wins_and_means() -> None:
    won = outcome_of_wins(55, 25)
    assert (won.word, won.p_value) == ("Win", pytest.approx(stats.binomtest(55, 80, 0.5).pvalue))
    assert [outcome_of_wins(*record).text for record in ((25, 55), (28, 25), (0, 0))] == [
        f"Lose ({won.p_value:.0e})", "Tie", "Tie",
    ]  # fmt: skip
    own, other = [1.0, 2.0, 3.5, 4.0], [0.5, 1.6, 2.9, 3.5]
    found = outcome_of_means(own, other)
    assert (found.word, found.p_value) == ("Win", pytest.approx(stats.ttest_rel(own, other).pvalue))
    assert outcome_of_means(own, other, higher_is_better=False).word == "Lose"
    assert outcome_of_means([1.0, 2.0], [1.0, 2.0]).word == "Tie"
