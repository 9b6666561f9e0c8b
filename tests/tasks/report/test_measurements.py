"""Length control by run: a number that no other row changes; lengths and preferences that are refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from rlhf_core.published.row_map import RecipeRow
from tasks.report.measurements import TableRuns, broken, measurements
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tests.tasks.report.fixture_results import make_results

METRICS = ("alpaca_lc", "lc_win_rate_vs_sft")
SFT = RecipeRow("phi3-mini", "shared", "sft")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return make_results(tmp_path, seeds=(0, 1), rows=("phi3-mini", "bandit", "segment", "token"))


def runs_of(results: Path, *names: str) -> TableRuns:
    tree = ResultTree(results, (0, 1))
    outputs = {name: tree.of(RecipeRow(name, "segment", "policy")) for name in names}
    return TableRuns(outputs, dict.fromkeys(names, tree.of(SFT)), tree.alpaca_calibration("dialogue"))


def change(results: Path, file: str, **fields: Any) -> None:
    """Changes the fields of AlpacaEval's rows in a file of bandit at seed 1."""
    path = results / "segment" / "policy" / "bandit" / "1" / "result" / file
    rows = [{**row, **fields} if row["benchmark"] == "alpaca" else row for row in read_jsonl(path)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("metric", METRICS)
def test_a_runs_number_does_not_depend_on_the_tables_other_rows(results: Path, metric: str) -> None:
    alone = measurements(runs_of(results, "bandit"), metric)["bandit"]
    beside = measurements(runs_of(results, "segment", "bandit", "token"), metric)["bandit"]
    assert set(alone) == {0, 1}
    assert alone == beside


@pytest.mark.parametrize("metric", METRICS)
def test_a_runs_number_does_not_depend_on_other_worlds(results: Path, metric: str) -> None:
    both = measurements(runs_of(results, "bandit"), metric)["bandit"]
    outputs = {"bandit": {0: runs_of(results, "bandit").outputs["bandit"][0]}}
    one = runs_of(results, "bandit")
    assert measurements(TableRuns(outputs, one.references, one.calibration), metric)["bandit"] == {0: both[0]}


@pytest.mark.parametrize("metric", METRICS)
def test_a_length_that_is_not_finite_is_refused_by_run(results: Path, metric: str) -> None:
    """It used to make every difference of lengths 0, so that the win rate was not length-controlled."""
    change(results, "generations.jsonl", n_chars=math.nan)
    with pytest.raises(DataError, match="bandit at seed 1 has an answer to prompt 'a-0' of length nan"):
        measurements(runs_of(results, "bandit"), metric)


def test_judgements_without_a_valid_preference_are_refused_by_run(results: Path) -> None:
    change(results, "judgements.jsonl", valid=False, preference=None)
    with pytest.raises(DataError, match="bandit at seed 1 has 96 judgements and no valid preference"):
        measurements(runs_of(results, "bandit"), "alpaca_lc")


def test_without_calibration_there_is_no_length_controlled_rate_against_the_baseline(results: Path) -> None:
    found = runs_of(results, "bandit")
    assert measurements(TableRuns(found.outputs, found.references), "alpaca_lc") == {}


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
