"""Rows against each other by a judge: what it is asked, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf_core.evaluation.judges.templates import JudgeRequest
from tasks.report import games
from tasks.report.games import Match, Matches
from tasks.report.outputs import ResultTree


class Scripted:
    """Prefers answers with 'good' in them and answers 'broken' ones with nonsense; keeps what it was asked."""

    name = "scripted"

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        self.prompts += [request.prompt for request in requests]
        return [self._verdict(*request.answers) for request in requests]

    def _verdict(self, first: str, second: str) -> str:
        if "broken" in first + second:
            return "Service unavailable"
        return f"Output ({'a' if 'good' in first else 'b'})"


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games, "_judge_of", lambda tree, settings: Scripted())


def played(own: list[str], other: list[str], seeds: int = 1) -> Matches:
    def output(texts: list[str], path: str) -> Any:
        answers = [
            {"benchmark": "alpaca", "id": str(i), "prompt": f"Hola {i}.", "response": text, "meta": {}}
            for i, text in enumerate(texts)
        ]
        told = {"data": "translation", "judge": {"kind": "scripted"}, "rows": None}
        scores: dict[str, Any] = {str(i): {} for i in range(len(texts))}
        return SimpleNamespace(path=path, generations=answers, scores=scores, judge_settings=told)

    sides = {"own": own, "other": other}
    rows = {name: {s: output(texts, f"{name}/{s}") for s in range(seeds)} for name, texts in sides.items()}
    return Matches(cast(Any, rows), ResultTree(Path(), (0,)), {})


def test_prompts_without_a_verdict_count_for_nobody_and_are_counted() -> None:
    same = ["same"] * 8
    matches = played(["good", "broken", "bad", *same], ["bad", "bad", "good", *same], seeds=2)
    assert matches.win_rates("own", "other", "judge") == {0: 50.0, 1: 50.0}
    assert [len(one.unparsable) for one in matches.played("other", "own", "judge").values()] == [1, 1]


def test_a_judge_that_answers_nonsense_measures_nothing() -> None:
    """50 % would look like a draw; where verdicts say that all are alike, it is one."""
    matches = played(["broken", "same"], ["bad", "same"])
    assert matches.win_rates("own", "other", "judge") == {}
    assert matches.outcome("own", "other", Match("win-test", "judge")) is None
    assert played(["same"], ["same"]).win_rates("own", "other", "judge") == {0: 50.0}


def test_a_win_rate_of_too_few_valid_verdicts_is_left_out() -> None:
    """One verdict in five is unreadable; the others all say that the row wins."""
    matches = played(["broken", *["good"] * 4], ["bad"] * 5)
    assert matches.win_rates("own", "other", "judge") == {}
    assert matches.outcome("own", "other", Match("win-test", "judge")) is None
    matches = played(["broken", *["good"] * 9], ["bad"] * 10)
    assert matches.win_rates("own", "other", "judge") == {0: 100.0}


def test_rows_without_a_shared_prompt_measure_nothing() -> None:
    """50 % would look like a draw."""
    matches = played(["good"], ["bad"])
    for name, prompt in (("own", "a"), ("other", "b")):
        scores = matches.outputs[name][0].scores
        scores.clear()
        scores[prompt] = {"holistic": 1.0}
    assert matches.win_rates("own", "other", "holistic") == {}
    assert matches.outcome("own", "other", Match("win-test", "holistic")) is None
    assert matches.outcome("own", "other", Match("mean-test", "holistic")) is None


def test_the_same_answer_is_a_tie_by_a_score_whatever_its_last_digit() -> None:
    matches = played(["same", "good", "bad"], ["same", "bad", "good"])
    for name, noise in (("own", 1e-7), ("other", 0.0)):
        matches.outputs[name][0].scores.update(
            {str(i): {"holistic": value + noise} for i, value in enumerate((1.0, 2.0, 2.0))}
        )
    assert matches.played("own", "other", "holistic")[0].scores == {"0": 0.5, "1": 1.0, "2": 1.0}
