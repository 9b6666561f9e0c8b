"""Rows against each other by a judge: what it is asked, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rlhf_core.evaluation.judges.protocol import JudgeRequest
from tasks.report.games import Match, Matches, matched
from tests.tasks.report.fixture_results import cell_text


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


def played(own: list[str], other: list[str], seeds: int = 1, **settings: Any) -> tuple[Matches, Scripted]:
    def output(texts: list[str]) -> Any:
        answers = [
            {"benchmark": "alpaca", "id": str(i), "prompt": f"Hola {i}.", "response": text, "meta": {}}
            for i, text in enumerate(texts)
        ]
        told = {"data": "translation", "judge": {"kind": "scripted"}, "rows": None, **settings}
        return SimpleNamespace(generations=answers, scores={str(i): {} for i in range(len(texts))}, judge_settings=told)

    rows = {"own": {s: output(own) for s in range(seeds)}, "other": {s: output(other) for s in range(seeds)}}
    made, judge = Matches(cast(Any, rows), Path("none"), {}), Scripted()
    made.__dict__["_judges"] = SimpleNamespace(get=lambda settings: judge)
    return made, judge


def test_prompts_without_a_verdict_count_for_nobody_and_are_counted() -> None:
    same = ["same"] * 8
    matches, _ = played(["good", "broken", "bad", *same], ["bad", "bad", "good", *same], seeds=2)
    assert matches.win_rates("own", "other", "judge") == {0: 50.0, 1: 50.0}
    assert matches.lacking("other", "own", "judge") == {"unparsable": 2, "one_sided": 0}


def test_a_judge_that_answers_nonsense_measures_nothing() -> None:
    """50 % would look like a draw; where verdicts say that all are alike, it is one."""
    matches, _ = played(["broken", "same"], ["bad", "same"])
    assert matches.win_rates("own", "other", "judge") == {}
    assert matches.outcome("own", "other", Match("win-test", "judge")) is None
    row = cast(Any, SimpleNamespace(recipe=SimpleNamespace(name="own"), main="other"))
    for match in (Match("wins", "judge", "other"), Match("win-test", "judge")):
        cell, tested = matched(matches, row, match)
        assert cell.pop("why").startswith("no game is decided between 'o")
        assert (cell, tested) == ({"status": "not measured", "unparsable": 1, "one_sided": 0}, None)
    shown = cell_text({"status": "not measured", "verdict": None, "unparsable": 1}, 1)
    assert shown == "not measured; 1 unparsable"
    assert played(["same"], ["same"])[0].win_rates("own", "other", "judge") == {0: 50.0}


def test_a_win_rate_of_too_few_valid_verdicts_is_left_out() -> None:
    """One verdict in five is unreadable; the others all say that the row wins."""
    matches, _ = played(["broken", *["good"] * 4], ["bad"] * 5)
    assert matches.win_rates("own", "other", "judge") == {}
    assert matches.outcome("own", "other", Match("win-test", "judge")) is None
    matches, _ = played(["broken", *["good"] * 9], ["bad"] * 10)
    assert matches.win_rates("own", "other", "judge") == {0: 100.0}


def test_rows_without_a_shared_prompt_measure_nothing() -> None:
    """50 % would look like a draw."""
    matches, _ = played(["good"], ["bad"])
    for name, prompt in (("own", "a"), ("other", "b")):
        scores = matches.outputs[name][0].scores
        scores.clear()
        scores[prompt] = {"holistic": 1.0}
    assert matches.win_rates("own", "other", "holistic") == {}
    assert matches.outcome("own", "other", Match("win-test", "holistic")) is None
    assert matches.outcome("own", "other", Match("mean-test", "holistic")) is None


def test_the_same_answer_is_a_tie_by_a_score_whatever_its_last_digit() -> None:
    matches, _ = played(["same", "good", "bad"], ["same", "bad", "good"])
    for name, noise in (("own", 1e-7), ("other", 0.0)):
        matches.outputs[name][0].scores.update(
            {str(i): {"holistic": value + noise} for i, value in enumerate((1.0, 2.0, 2.0))}
        )
    assert matches.results_of("own", "other", "holistic", 0).signs == {"0": 0, "1": 1, "2": 1}
