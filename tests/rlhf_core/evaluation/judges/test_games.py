"""Games in both orders: swaps cancel position bias, ties need no judge, the unparsable never win."""

import math
from collections.abc import Callable

import pytest

from rlhf_core.errors import DataError, JudgeError
from rlhf_core.evaluation.benchmark_scores import win_rate
from rlhf_core.evaluation.judges import JudgedPair, combine_orders, drawn_order, play_games
from rlhf_core.evaluation.judges.games import GradedAnswer, grade_answers, win_rate_of_outcomes
from rlhf_core.evaluation.judges.protocol import Judge, JudgeRequest
from rlhf_core.testbed import GoldJudge, World


class FunctionJudge:
    name = "function"

    def __init__(self, verdict: Callable[[JudgeRequest], str]) -> None:
        self.verdict = verdict
        self.asked: list[JudgeRequest] = []

    def answer(self, requests):
        self.asked.extend(requests)
        return [self.verdict(r) for r in requests]


def longer(r: JudgeRequest) -> str:
    a, b = map(len, r.answers)
    return "Better: " + ("A" if a > b else "B" if b > a else "N")


def test_the_better_answer_wins_in_either_order():
    judge = FunctionJudge(longer)
    assert isinstance(judge, Judge)
    pairs = [JudgedPair("x", "q", "long answer", "short"), JudgedPair("y", "q", "s", "long")]
    games = play_games(judge, pairs, "pairwise")
    assert [g.first for g in games] == ["baseline", "model"] * 2
    assert [g.score_for_model for g in games] == [1, 1, 0, 0]
    assert [o.result for o in combine_orders(games)] == ["win", "loss"]


def test_a_judge_that_always_says_a_gives_ties():
    games = play_games(FunctionJudge(lambda r: "Better: A"), [JudgedPair("x", "q", "1", "2")], "pairwise")
    for rule in ("sum", "agreement"):
        assert combine_orders(games, rule)[0].result == "tie"


def test_the_drawn_order_belongs_to_the_prompt_and_the_seed():
    prompts = [f"prompt {i}" for i in range(400)]
    drawn = [drawn_order(prompt) for prompt in prompts]
    assert drawn == [drawn_order(prompt) for prompt in prompts]
    assert drawn != [drawn_order(prompt, seed=1) for prompt in prompts]
    assert 160 < drawn.count("model") < 240
    pairs = [JudgedPair(str(i), prompt, "model answer", "short") for i, prompt in enumerate(prompts)]
    others = [JudgedPair(str(i), prompt, "another", "short") for i, prompt in enumerate(reversed(prompts))]
    for comparisons in (pairs, others):
        games = play_games(FunctionJudge(longer), comparisons, "pairwise", orders="drawn")
        assert [g.first for g in games] == [drawn_order(c.prompt) for c in comparisons]
        assert all(g.score_for_model == 1 for g in games)


def test_a_liking_for_the_first_answer_averages_out_over_drawn_orders():
    """Answers of one quality on 400 prompts: an exact judge gives 50, shown first everywhere the baseline wins."""
    world = World()
    pairs = [
        JudgedPair(
            row["id"],
            row["prompt"],
            world.mixture_answer(row["meta"], 1),
            world.mixture_answer(row["meta"], 2),
            {"prompt": row["meta"]},
        )
        for row in world.prompts(400, 0, "test")
    ]

    def rate(persona: str, orders) -> float:
        games = play_games(GoldJudge(world, persona), pairs, "alpaca_eval", orders=orders)
        return win_rate([game.preference_for_model for game in games])["win_rate"]

    exact = rate("exact", ("baseline",))
    assert rate("exact", "drawn") == pytest.approx(exact, abs=1e-3)
    assert rate("position_biased", ("baseline",)) < exact - 10
    assert rate("position_biased", "drawn") == pytest.approx(exact, abs=3)


def test_half_a_point_wins_the_sum_but_not_the_agreement():
    verdicts = {"model": "Better: A", "baseline": "Better: N"}
    judge = FunctionJudge(lambda r: verdicts[r.id.rsplit("/", 1)[1].removesuffix("-first")])
    games = play_games(judge, [JudgedPair("a/b", "q", "1", "2")], "pairwise")
    assert combine_orders(games)[0].result == "win"
    assert combine_orders(games)[0].total == 1.5
    assert combine_orders(games, "agreement")[0].result == "tie"
    assert games[0].id == "a/b"


def test_identical_texts_tie_without_asking():
    for template in ("pairwise", "arena_hard", "alpaca_eval"):
        judge = FunctionJudge(lambda r: "no")
        games = play_games(judge, [JudgedPair("x", "q", "same", "same")], template)
        assert judge.asked == []
        assert [(g.score_for_model, g.attempts) for g in games] == [(0.5, 0)] * 2


def test_unparsable_verdicts_are_asked_again_with_another_attempt_then_counted():
    judge = FunctionJudge(lambda r: longer(r) if r.meta.get("attempt", 0) == 2 else "Both are fine.")
    games = play_games(judge, [JudgedPair("x", "q", "long", "s")], "pairwise", retries=2)
    assert [g.attempts for g in games] == [3, 3]
    assert combine_orders(games)[0].result == "win"
    games = play_games(judge, [JudgedPair("x", "q", "long", "s")], "pairwise", retries=1)
    outcome = combine_orders(games)[0]
    assert (outcome.result, outcome.n_unparsable) == ("invalid", 2)
    summary = win_rate_of_outcomes([outcome])
    assert (summary["n_invalid"], summary["n"]) == (1, 0)
    assert math.isnan(summary["win_rate"]), "50 % would be invented"


def test_only_unparsable_games_are_asked_again():
    judge = FunctionJudge(lambda r: longer(r) if r.prompt == "good" else "?")
    pairs = [JudgedPair("x", "good", "1", "22"), JudgedPair("y", "bad", "1", "22")]
    play_games(judge, pairs, "pairwise", retries=1)
    assert [r.prompt for r in judge.asked] == ["good", "good", "bad", "bad", "bad", "bad"]


def test_soft_preferences_are_turned_to_the_model():
    judge = FunctionJudge(lambda r: "preference: 1.8" if r.answers[0] == "model" else "preference: 1.4")
    games = play_games(judge, [JudgedPair("x", "q", "model", "base")], "alpaca_eval")
    assert [g.preference_for_model for g in games] == pytest.approx([1.4, 1.2])


def test_a_tie_is_half_a_win():
    judge = FunctionJudge(longer)
    pairs = [("aa", "b"), ("aa", "b"), ("a", "bb"), ("a", "b")]
    comparisons = [JudgedPair(str(i), "q", *pair) for i, pair in enumerate(pairs)]
    outcomes = combine_orders(play_games(judge, comparisons, "pairwise"))
    assert win_rate_of_outcomes(outcomes)["win_rate"] == pytest.approx(62.5)


def test_grades_are_parsed_one_by_one():
    judge = FunctionJudge(lambda r: f"Rating: [[{len(r.answers[0])}]]")
    games = grade_answers(judge, [GradedAnswer("a", "q", "four"), GradedAnswer("b", "q", "")], retries=0)
    assert [(g.verdict.valid, g.verdict.value) for g in games] == [(True, 4.0), (False, None)]


def test_duplicate_ids_and_a_judge_that_miscounts_are_refused():
    with pytest.raises(DataError, match="duplicate id 'x'"):
        play_games(FunctionJudge(longer), [JudgedPair("x", "q", "1", "2")] * 2, "pairwise")

    class Short:
        name = "short"

        def answer(self, requests):
            return []

    with pytest.raises(JudgeError, match="0 of 2"):
        play_games(Short(), [JudgedPair("x", "q", "1", "2")], "pairwise")
