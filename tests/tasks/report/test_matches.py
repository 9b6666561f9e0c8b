"""Rows against each other by a judge: what it is asked, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rlhf_core.evaluation.judges.protocol import JudgeRequest
from tasks.report.matches import Matches


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
