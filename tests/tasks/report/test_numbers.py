"""Length control by run: a number that no other row changes; lengths and preferences that are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import RecipeRow
from tasks.report.cells import measured_table
from tasks.report.numbers import TableRuns, broken, measurements
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.doubtful_numbers import blank_numbers
from tests.tasks.report.fixture_results import make_results

METRICS = ("alpaca_lc", "lc_win_rate_vs_sft")
SFT = RecipeRow("phi3-mini", "shared", "sft")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return make_results(tmp_path, seeds=(0, 1), rows=("phi3-mini", "bandit", "segment", "token"))


def runs_of(results: Path, *names: str) -> TableRuns:
    tree = ResultTree(results, (0, 1))
    outputs = {name: tree.of(RecipeRow(name, "segment", "policy")) for name in names}
    return TableRuns(tree, "segment", outputs, dict.fromkeys(names, tree.of(SFT)))


@pytest.mark.parametrize("metric", METRICS)
def test_a_runs_number_does_not_depend_on_the_tables_other_rows(results: Path, metric: str) -> None:
    alone = measurements(runs_of(results, "bandit"), metric)["bandit"]
    beside = measurements(runs_of(results, "segment", "bandit", "token"), metric)["bandit"]
    assert set(alone) == {0, 1}
    assert alone == beside


def spoil(results: Path, count: int, benchmark: str = "alpaca") -> None:
    """Makes the judge's first verdicts of bandit at seed 1 unreadable."""
    path = results / "segment" / "policy" / "bandit" / "1" / "result" / "judgements.jsonl"
    rows = read_jsonl(path)
    for row in [row for row in rows if row["benchmark"] == benchmark][:count]:
        row |= {"valid": False, "preference": None, "label": None, "value": None}
    write_jsonl(path, rows)


@pytest.mark.parametrize(("metric", "count"), [("alpaca_lc", 10), ("alpaca_wr", 96)])
def test_a_number_of_too_few_valid_verdicts_is_blank_with_the_reason(results: Path, metric: str, count: int) -> None:
    """It used to be that of the verdicts that were left, and without any the whole table was refused."""
    before = measurements(runs_of(results, "bandit", "token"), metric)
    spoil(results, count)
    runs = runs_of(results, "bandit", "token")
    found = measurements(runs, metric)
    assert found == {"bandit": {0: before["bandit"][0]}, "token": before["token"]}
    reason = f"{96 - count} of 96 judged pairs have a valid verdict, below 90 %"
    assert runs.outputs["bandit"][1].blank[metric] == reason
    assert runs.outputs["bandit"][0].blank == {}


def test_the_table_says_why_a_number_is_blank(results: Path) -> None:
    spoil(results, 96)
    table = measured_table(printed_tables.table("segment/1"), ResultTree(results, (1,)))
    (row,) = (row for row in table["rows"] if row["name"] == "bandit")
    assert (row["cells"]["alpaca_wr"]["status"], row["cells"]["alpaca_lc"]["status"]) == ("blank", "blank")
    assert row["cells"]["arena_wr"]["status"] == "measured"
    assert row["cells"]["alpaca_wr"]["why"] == "0 of 96 judged pairs have a valid verdict, below 90 %"


def test_verdicts_of_best_of_n_and_of_a_second_judge_count_too(tmp_path: Path) -> None:
    choices = [{"benchmark": "alpaca", "id": str(i)} for i in range(20)]
    write_jsonl(tmp_path / "choices.jsonl", choices)
    invalid = {"judge_invalid/alpaca/2": 2.0, "judge_invalid/alpaca/4": 3.0, "second_invalid/alpaca/2": 20.0}
    write_json(tmp_path / "metrics.json", {"judge/alpaca/2": 50.0, "judge/alpaca/4": 50.0, **invalid})
    few, none = (f"{valid} of 20 judged pairs have a valid verdict, below 90 %" for valid in (17, 0))
    expected = dict.fromkeys(("judge/alpaca/4", "judge_se/alpaca/4"), few)
    expected |= dict.fromkeys(("second/alpaca/2", "second_se/alpaca/2"), none)
    assert blank_numbers(tmp_path) == expected
    games = [{"opponent": name, "id": str(i), "valid": name == "dpo"} for name in ("dpo", "token") for i in range(4)]
    other = tmp_path / "second"
    other.mkdir()
    write_jsonl(other / "judgements.jsonl", games)
    assert set(blank_numbers(other)) == {"second/token", "second_se/token"}


def test_the_win_rate_over_the_sft_model_by_a_judge_counts_its_unparsable_verdicts(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "checkpoints.jsonl", [{"step": 5, "n": 30}])
    write_json(tmp_path / "metrics.json", {"judged_win_rate_vs_sft": 50.0, "judged_unparsable": 4.0})
    assert set(blank_numbers(tmp_path)) == {"judged_win_rate_vs_sft"}
    write_json(tmp_path / "metrics.json", {"judged_win_rate_vs_sft": 50.0, "judged_unparsable": 3.0})
    assert blank_numbers(tmp_path) == {}


def test_a_row_is_broken_that_is_below_the_sft_model_at_its_best(results: Path) -> None:
    outputs = runs_of(results, "bandit").outputs["bandit"]
    assert not broken(outputs)
    for output in outputs.values():
        metrics = read_json(output.result / "metrics.json")
        write_json(output.result / "metrics.json", metrics | {"win_rate_vs_sft": 30.0})
        rows = [{"step": step, "win_rate_vs_sft": rate} for step, rate in ((5, 40.0), (10, 48.0 + output.seed))]
        write_jsonl(output.result / "checkpoints.jsonl", rows)
    assert broken(runs_of(results, "bandit").outputs["bandit"])
    for output in outputs.values():
        write_jsonl(output.result / "checkpoints.jsonl", [{"step": 5, "win_rate_vs_sft": 55.0}])
    assert not broken(runs_of(results, "bandit").outputs["bandit"]), "it collapsed after a good evaluation"
    assert not broken({}), "nothing is known of a row that was not run"
