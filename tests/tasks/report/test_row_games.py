"""Sentence's Table 3: aggregations over *Response*, by true rewards and by a judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.evaluation.judges.templates import JudgeRequest
from tasks import tables
from tasks.report import games
from tasks.running.artifacts import read_json
from tests.tasks.report.fixture_results import write

PROMPTS = 12
ROWS = ("va-without-end", "vw-without-end", "sentence-without-end", "response")
#: Invented: how many prompts each row answers well.
GOOD = dict(zip(ROWS, (6, 8, 9, 3), strict=True))


class GoodWins:
    """Ranks the answer with 'good' in it first and likes both of two such answers; cannot read prompt 11."""

    name = "scripted"

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        return [self._verdict(request) for request in requests]

    def _verdict(self, request: JudgeRequest) -> str:
        assert request.template == "ranking"
        first, second = ("good" in text for text in request.answers)
        if request.prompt == "p11":
            return "I would rather not."
        ranks = (1, 1) if first == second else (1, 2) if first else (2, 1)
        return str([{"model": f"model_{i}", "rank": rank} for i, rank in enumerate(ranks, 1)])


def make(root: Path, *, true: bool) -> Path:
    """`results/small` with made-up answers of the rows; with true rewards, or with a judge's settings."""
    results = root / "results" / "small"
    for name, good in GOOD.items():
        folder = results / "sentence" / "policy" / name / "0" / "result"
        rows: list[dict[str, Any]] = [
            {"benchmark": "alpaca", "id": f"a{i}", "turn": 1, "prompt": f"p{i}", "baseline": "", "meta": {},
             "response": f"{name} {'good' if i < good else 'bad'}", "n_chars": 40 + 3 * i + len(name),
             "true_reward": float(i < good) if true else None}
            for i in range(PROMPTS)
        ]  # fmt: skip
        write(folder / "generations.jsonl", rows)
        write(folder / "metrics.json", {"alpaca_chars": 50.0})
        if not true:
            protocol = {"template": "ranking", "orders": "drawn", "ties": "half", "soft": False}
            facts = {"reference": "sft", "benchmark": "alpaca", "protocol": protocol, "judge": "scripted"}
            counts = {"prompts": PROMPTS, "unparsable": 0, "one_sided": 0, "sft": "llama32-3b-sft"}
            write(folder / "win_rates.json", {"win_rate_vs_sft": {**facts, **counts}})
            write(folder / "judge.json", {"data": "hh", "judge": {"kind": "x"}, "rows": None, "protocol": protocol})
    return results


def table_3(results: Path, out: Path) -> dict[str, Any]:
    tables.build(results, "sentence", (0,), out)
    made = read_json(out / "result" / "tables.json")["tables"]
    table: dict[str, Any] = next(table for table in made if table["id"] == "Table 3")
    return table


def cell(table: dict[str, Any], row: str, column: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in table["rows"] if each["name"] == row)["cells"][column]
    return found


def test_a_judge_decides_table_3_over_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VA has 6 good answers and Response 3 of the 11 that can be read: 3 wins, 8 ties; Ours has 6 wins, 5 ties."""
    monkeypatch.setattr(games, "_judge_of", lambda tree, settings: GoodWins())
    table = table_3(make(tmp_path, true=False), tmp_path / "tables")
    assert cell(table, "va-without-end", "alpaca_wr")["mean"] == pytest.approx(100 * (3 + 4) / 11)
    ours = cell(table, "sentence-without-end", "alpaca_wr")
    assert (ours["mean"], ours["unparsable"]) == (pytest.approx(100 * (6 + 2.5) / 11), 1)
    assert [column["metric"] for column in table["columns"][:2]] == [
        "win_rate_over/response",
        "lc_win_rate_over/response",
    ]
    assert cell(table, "sentence-without-end", "alpaca_lc")["status"] == "measured"


def test_with_true_rewards_the_printed_columns_stay_over_the_sft_model_and_response_is_beside_them(
    tmp_path: Path,
) -> None:
    table = table_3(make(tmp_path, true=True), tmp_path / "tables")
    assert [column["metric"] for column in table["columns"][:2]] == ["win_rate_vs_sft", "lc_win_rate_vs_sft"]
    found = cell(table, "va-without-end", "win_rate_over/response")
    assert found["mean"] == pytest.approx(100 * (3 + 4.5) / 12)
    headings = {column["key"]: column["printed"] for column in table["columns"]}
    assert headings["win_rate_over/response"] == "True WR vs Response"


def test_without_a_judge_the_cell_is_blank(tmp_path: Path) -> None:
    results = make(tmp_path, true=False)
    for name in ROWS:
        folder = results / "sentence" / "policy" / name / "0" / "result"
        (folder / "judge.json").unlink()
    found = cell(table_3(results, tmp_path / "tables"), "va-without-end", "alpaca_wr")
    assert (found["status"], found["mean"]) == ("not measured", None)
    assert found["why"] == "neither true rewards nor a judge"
