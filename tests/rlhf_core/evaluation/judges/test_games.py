"""Games in both orders: swaps cancel position bias, ties need no judge, the unparsable never win."""

import math
from collections.abc import Callable

import pytest

from rlhf_core.errors import JudgeError
from rlhf_core.evaluation.judges.games import (
    JudgedPair,
    combine_orders,
    drawn_order,
    grade_answers,
    play_games,
    win_rate_of_scores,
)
from rlhf_core.evaluation.judges.templates import Judge, JudgeRequest


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
    assert [*combine_orders(games).values()] == [1.0, 0.0]


def test_the_drawn_order_belongs_to_the_prompt_and_the_seed():
    prompts = [f"prompt {i}" for i in range(400)]
    drawn = [drawn_order(prompt) for prompt in prompts]
    assert drawn == [drawn_order(prompt) for prompt in prompts]
    assert 160 < drawn.count("model") < 240
    pairs = [JudgedPair(str(i), prompt, "model answer", "short") for i, prompt in enumerate(prompts)]
    others = [JudgedPair(str(i), prompt, "another", "short") for i, prompt in enumerate(reversed(prompts))]
    for comparisons in (pairs, others):
        games = play_games(FunctionJudge(longer), comparisons, "pairwise", orders="drawn")
        assert [g.first for g in games] == [drawn_order(c.prompt) for c in comparisons]
        assert all(g.score_for_model == 1 for g in games)


def test_identical_texts_tie_without_asking():
    for template in ("pairwise", "arena_hard", "alpaca_eval"):
        judge = FunctionJudge(lambda r: "no")
        games = play_games(judge, [JudgedPair("x", "q", "same", "same")], template)
        assert judge.asked == []
        assert [g.score_for_model for g in games] == [0.5] * 2


def test_unparsable_verdicts_are_asked_again_with_another_attempt_then_counted():
    judge = FunctionJudge(lambda r: longer(r) if r.meta.get("attempt", 0) == 2 else "Both are fine.")
    games = play_games(judge, [JudgedPair("x", "q", "long", "s")], "pairwise", retries=2)
    assert [request.meta.get("attempt", 0) for request in judge.asked] == [0, 0, 1, 1, 2, 2]
    assert combine_orders(games) == {"x": 1.0}
    games = play_games(judge, [JudgedPair("x", "q", "long", "s")], "pairwise", retries=1)
    assert math.isnan(combine_orders(games)["x"])
    summary = win_rate_of_scores([math.nan])
    assert summary["_invalid"] == 1
    assert math.isnan(summary[""]), "50 % would be invented"


def test_grades_are_parsed_one_by_one():
    judge = FunctionJudge(lambda r: f"Rating: [[{len(r.answers[0])}]]")
    games = grade_answers(judge, [JudgeRequest(text, "q", (text,), "mt_bench") for text in ("four", "")], retries=0)
    assert [g.verdict for g in games] == [4.0, None]


def test_a_judge_that_miscounts_is_refused():
    class Short:
        name = "short"

        def answer(self, requests):
            return []

    with pytest.raises(JudgeError, match="0 of 2"):
        play_games(Short(), [JudgedPair("x", "q", "1", "2")], "pairwise")
