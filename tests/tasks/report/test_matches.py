"""Rows against each other by a judge: what it is asked, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rlhf_core.evaluation.judges.protocol import JudgeRequest
from tasks.report.cells import cell_text
from tasks.report.matches import Match, Matches, matched
from tasks.report.measured import Cell, ComparedCell, decide
from tasks.report.significance import Comparison


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


def test_a_judge_of_translations_is_told_the_task_where_the_prompts_do_not_say_it() -> None:
    told = "Translate this Spanish sentence into English: "
    matches, judge = played(["good"], ["bad"], instruction=told)
    assert matches.win_rates("own", "other", "judge") == {0: 100.0}
    assert set(judge.prompts) == {f"{told}Hola 0."}
    matches, judge = played(["good"], ["bad"])
    assert matches.win_rates("own", "other", "judge") == {0: 100.0}
    assert set(judge.prompts) == {"Hola 0."}


def test_prompts_without_a_verdict_count_for_nobody_and_are_counted() -> None:
    matches, _ = played(["good", "broken", "bad", "same"], ["bad", "bad", "good", "same"], seeds=2)
    assert matches.win_rates("own", "other", "judge") == {0: 50.0, 1: 50.0}
    assert matches.unparsable("other", "own") == 2
    assert matches.record("own", "other", "judge").ties == 2


def test_a_judge_that_answers_nonsense_measures_nothing() -> None:
    """50 % would look like a draw; where verdicts say that all are alike, it is one."""
    matches, _ = played(["broken", "same"], ["bad", "same"])
    assert matches.win_rates("own", "other", "judge") == {}
    assert matches.outcome("own", "other", Match("win-test", "judge")) is None
    row = cast(Any, SimpleNamespace(recipe=SimpleNamespace(name="own"), main="other"))
    for match in (Match("wins", "judge", "other"), Match("win-test", "judge")):
        cell, tested = matched(matches, row, match)
        assert (cell, tested) == ({"status": "not measured", "unparsable": 1}, None)
    shown = cell_text({"status": "not measured", "verdict": None, "unparsable": 1}, 1)
    assert shown == "not measured (1 unparsable)"
    assert played(["same"], ["same"])[0].win_rates("own", "other", "judge") == {0: 50.0}


def test_the_test_of_a_win_rate_is_corrected_for_the_cells_of_its_table() -> None:
    """Both cells of a pair are one test."""
    half, other = Comparison(8.0, None, 0.02, True, 2), Comparison(1.0, None, 0.9, True, 2)
    pair = frozenset(("a", "b", "by holistic"))
    cells = [Cell("57", "measured"), Cell("43", "measured"), Cell(None, "measured")]
    mirrored = replace(half, difference=-8.0)
    tested = [ComparedCell(cells[0], half, 57, 50, pair), ComparedCell(cells[1], mirrored, 43, 50, pair)]
    decide(tested)
    assert [(cell.significant, cell.verdict) for cell in cells[:2]] == [(True, "confirmed")] * 2
    decide([*tested, ComparedCell(cells[2], other, None, None)])
    assert [cell.p_corrected for cell in cells] == [0.04, 0.04, 0.9]
    decide([*tested, *(ComparedCell(Cell(None, "measured"), other, None, None) for _ in range(3))])
    assert [(cell.significant, cell.verdict) for cell in cells[:2]] == [(False, "undecided")] * 2


def test_the_same_answer_is_a_tie_by_a_score_whatever_its_last_digit() -> None:
    matches, _ = played(["same", "good", "bad"], ["same", "bad", "good"])
    for name, noise in (("own", 1e-7), ("other", 0.0)):
        matches.outputs[name][0].scores.update(
            {str(i): {"holistic": value + noise} for i, value in enumerate((1.0, 2.0, 2.0))}
        )
    assert matches.results_of("own", "other", "holistic", 0) == {"0": 0, "1": 1, "2": 1}
