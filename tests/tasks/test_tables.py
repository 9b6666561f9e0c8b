"""The tables stage: cells from the runs, nothing from nowhere."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.alpaca_calibration import read_calibration_rows
from rlhf_core.evaluation.length_controlled import length_controlled_win_rate
from rlhf_core.evaluation.statistics import holm
from tasks import tables
from tasks.data_specs.data_sets import alpaca_calibration
from tasks.graph import names
from tasks.report import terminal
from tasks.report.cells import format_number
from tasks.report.length_controlled import Judged, length_controlled
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import read_json
from tests.tasks.report.fixture_results import make_results


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result folder of a tables stage over made-up outputs."""
    results = make_results(tmp_path_factory.mktemp("tables"), rows=("phi3-mini", "bandit", "segment", "token"))
    tables.main(
        [
            *("--results", str(results), "--paper", "segment", "--seeds", "0", "1"),
            *("--out", str(results / "segment" / "tables"), "--stage-version", str(tables.VERSION)),
        ]
    )
    return results / "segment" / "tables" / "result"


def cell(built: Path, table: str, row: str, column: str) -> dict[str, object]:
    data = next(t for t in read_json(built / "tables.json")["tables"] if t["name"] == table)
    found: dict[str, object] = next(r for r in data["rows"] if r["name"] == row)["cells"][column]
    return found


def test_a_cell_is_the_mean_over_its_runs(built: Path) -> None:
    values = [
        read_json(built.parents[1] / "policy" / "bandit" / str(seed) / "result" / "metrics.json")["alpaca_wr"]
        for seed in (0, 1)
    ]
    found = cell(built, "segment/1", "bandit", "alpaca_wr")
    assert found["mean"] == pytest.approx(sum(values) / 2)
    assert found["se"] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert found["seeds"] == {"0": values[0], "1": values[1]}
    assert found["published"] == "29.07"


def test_rows_that_were_not_run_stay_empty(built: Path) -> None:
    found = cell(built, "segment/1", "sentence", "alpaca_wr")
    assert found["status"] == "not run"
    assert found["mean"] is None
    assert found["verdict"] is None
    assert found["published"] == "32.92"


def test_a_metric_that_a_run_lacks_is_not_measured(built: Path) -> None:
    assert cell(built, "segment/1", "phi3-mini", "kl")["status"] == "not measured"


def test_the_sft_model_stands_at_50_against_itself_and_is_compared_only_where_the_paper_prints_it(built: Path) -> None:
    found = cell(built, "segment/1", "phi3-mini", "win_rate_vs_sft")
    assert (found["status"], found["mean"], found["difference"]) == ("measured", 50.0, None)


def test_verdicts_stand_where_the_paper_orders(built: Path) -> None:
    assert cell(built, "segment/1", "bandit", "alpaca_wr")["verdict"] == "confirmed"
    assert cell(built, "segment/1", "segment", "alpaca_wr")["verdict"] is None  # the main row itself
    assert cell(built, "segment/1", "bandit", "alpaca_chars")["verdict"] is None  # length has no better side


def test_verdicts_and_stars_follow_the_p_corrected_for_the_table(built: Path) -> None:
    table = next(t for t in read_json(built / "tables.json")["tables"] if t["name"] == "segment/1")
    cells = [c for row in table["rows"] for c in row["cells"].values() if c["difference"] is not None]
    deciding = [c["p_seeds"] if c["p_prompts"] is None else c["p_prompts"] for c in cells]
    assert [c["p_corrected"] for c in cells] == pytest.approx(holm(deciding))
    assert any(p < c["p_corrected"] for p, c in zip(deciding, cells, strict=True))
    for c in cells:
        assert not c["significant"] or c["p_corrected"] < 0.05
        assert c["significant"] or c["verdict"] in (None, "undecided")


def test_joint_metrics_are_listed_per_row_and_seed(built: Path) -> None:
    metrics = read_json(built / "metrics.json")
    seeds = cell(built, "segment/1", "bandit", "alpaca_lc")["seeds"]
    assert {seed: metrics[f"table-1/bandit/{seed}/alpaca_lc"] for seed in ("0", "1")} == seeds
    assert metrics["table-1/bandit/alpaca_lc"] == pytest.approx(sum(seeds.values()) / 2)
    assert "table-1/bandit/0/alpaca_wr" not in metrics, "a run's own metrics hold it"


def test_length_control_is_joint_and_tested_over_prompts(built: Path) -> None:
    found = cell(built, "segment/1", "bandit", "alpaca_lc")
    assert found["status"] == "measured"
    assert isinstance(found["p_prompts"], float)
    assert cell(built, "segment/1", "bandit", "lc_win_rate_vs_sft")["status"] == "measured"


def test_flat_metrics_and_curves(built: Path) -> None:
    flat = read_json(built / "metrics.json")
    assert flat["table-1/bandit/alpaca_wr"] == cell(built, "segment/1", "bandit", "alpaca_wr")["mean"]
    assert flat["verdicts/confirmed"] >= 1
    assert all(isinstance(value, int | float) for value in flat.values())
    with (built / "curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "seed", "step", "metric", "value"]
    assert {row["row"] for row in rows} == {"phi3-mini", "bandit", "segment", "token"}


def test_the_result_is_the_same_twice(built: Path, tmp_path: Path) -> None:
    tables.build(built.parents[2], "segment", (0, 1), tmp_path / "again")
    for name in ("tables.json", "figures.json", "metrics.json", "curves.csv"):
        assert (tmp_path / "again" / "result" / name).read_bytes() == (built / name).read_bytes()


def test_one_seed_has_no_error_and_no_test_over_seeds(built: Path, tmp_path: Path) -> None:
    tables.build(built.parents[2], "segment", (0,), tmp_path / "one")
    found = cell(tmp_path / "one" / "result", "segment/1", "bandit", "alpaca_wr")
    assert found["se"] is None
    assert found["p_seeds"] is None
    assert found["p_prompts"] is not None


def test_bad_arguments_are_refused(built: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'segment'"):
        tables.build(built.parents[2], "segmen", (0,), tmp_path / "x")
    with pytest.raises(DataError, match="does not exist"):
        ResultTree(tmp_path / "nowhere", (0,))
    with pytest.raises(DataError, match="Give each seed once"):
        ResultTree(tmp_path, (0, 0))


def test_a_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    results = make_results(tmp_path, seeds=(0,), rows=("bandit",))
    path = results / "segment" / "policy" / "bandit" / "0" / "result" / "metrics.json"
    path.write_text(json.dumps({"alpaca_wr": "high"}), encoding="utf-8")
    with pytest.raises(DataError, match="field 'alpaca_wr': 'high' is not a number"):
        tables.build(results, "segment", (0,), tmp_path / "out")
    assert not (tmp_path / "out" / "result").exists()


def test_the_newest_tables_are_shown_and_the_demos_last(built: Path, tmp_path: Path) -> None:
    results = tmp_path / "testbed"
    assert names.made_tables(results, "segment") is None
    made = {}
    for age, name in enumerate((names.DEMO, names.SO_FAR, names.FULL)):
        made[name] = results / "segment" / name / "result"
        made[name].mkdir(parents=True)
        (made[name] / "tables.json").write_text("{}")
        os.utime(made[name] / "tables.json", (age, age))
        assert names.made_tables(results, "segment") == made[name]
    os.utime(made[names.SO_FAR] / "tables.json", (9, 9))
    assert names.made_tables(results, "segment") == made[names.SO_FAR]
    os.utime(made[names.DEMO] / "tables.json", (10, 10))
    assert names.made_tables(results, "segment") == made[names.SO_FAR]


def test_seeds_so_far_are_those_with_a_result(built: Path) -> None:
    results = built.parents[2]
    assert names.seeds_so_far(results, "segment") == [0, 1]
    assert names.seeds_so_far(results, "par") == []


def test_a_table_in_the_terminal(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(built / "tables.json", "segment/1")
    text = capsys.readouterr().out
    assert "31.05" in text
    assert "not run" in text
    terminal.print_table(built / "nowhere.json", "alarm/1")
    assert "Published only" in capsys.readouterr().out


def test_a_table_in_a_narrow_terminal_loses_no_digit(
    built: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {}
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        terminal.print_table(built / "tables.json", "segment/1")
        text = capsys.readouterr().out
        shown[columns] = sorted(re.findall(r"\d+\.\d+|±|✓|Arena-Hard|MT-Bench", text))
    assert shown["60"] == shown["200"]
    assert shown["60"].count("Arena-Hard") == 1, "two columns are called WR"


@pytest.mark.parametrize(
    ("value", "decimals", "text"), [(45.678, 1, "45.7"), (-0.001, 1, "0.0"), (1795.2, 1, "1795.2")]
)
def test_numbers(value: float, decimals: int, text: str) -> None:
    assert format_number(value, decimals) == text


def test_length_control_takes_away_what_length_alone_wins() -> None:
    generator = np.random.default_rng(0)
    prompts = [f"p{i}" for i in range(200)]
    judged = {}
    for name, extra in (("short", -30.0), ("even", 0.0), ("long", 30.0), ("longer", 40.0)):
        difference = generator.normal(extra, 30, size=200)
        wins = 1.0 + (1 / (1 + np.exp(-0.06 * difference)) > generator.uniform(size=200))
        judged[name] = Judged(prompts, wins.tolist(), (100 + difference).tolist(), [100.0] * 200)
    found = length_controlled(judged)
    raw = {name: 100 * (float(np.mean(rows.preferences)) - 1) for name, rows in judged.items()}
    assert found["longer"][0] < raw["longer"] - 5
    assert found["short"][0] > raw["short"] + 5
    assert found["longer"][0] - found["short"][0] < 0.7 * (raw["longer"] - raw["short"])
    assert set(found["even"][1]) == set(prompts)


def test_published_calibration_rows_bring_their_difficulties(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    n = 40
    file = pd.DataFrame(
        {
            "preference": generator.uniform(size=2 * n),
            "index": [*range(n), *range(n)],
            "std_delta_len": generator.normal(size=2 * n),
            "instruction_difficulty": np.tile(generator.normal(size=n), 2),
            "not_gamed_baseline": False,
            "model": "gamed",
        }
    )
    file.loc[3, "preference"] = np.nan
    file.to_csv(tmp_path / "df_gamed.csv", index=False)
    items = [{"id": f"alpaca_eval-test-{k + 1:06d}"} for k in reversed(range(n))]
    rows = json.loads(json.dumps(alpaca_calibration(str(tmp_path / "df_gamed.csv"), items, first=1)))
    assert (len(rows), rows[0]["id"], rows[3]["preference"]) == (2 * n, "alpaca_eval-test-000001", None)

    wins, own, other = 1 + generator.uniform(size=n), generator.integers(200, 900, n), generator.integers(200, 900, n)
    model = Judged([item["id"] for item in items], wins.tolist(), own.tolist(), other.tolist())
    difficulty = file["instruction_difficulty"][:n].to_numpy()[::-1]
    official = length_controlled_win_rate(
        wins, own, other, difficulty, read_calibration_rows(tmp_path / "df_gamed.csv")
    )
    assert length_controlled({"model": model}, rows)["model"][0] == pytest.approx(official.lc_win_rate, abs=1e-9)

    other_item = {"id": "alpaca_eval-test-000041"}
    with pytest.raises(DataError, match=r"for 1 of 41 instructions, the first is 'alpaca_eval-test-000041'"):
        alpaca_calibration(str(tmp_path / "df_gamed.csv"), [*items, other_item], first=1)


def test_too_few_preferences_are_not_measured() -> None:
    assert length_controlled({"few": Judged(["a"], [2.0], [1.0], [1.0])}) == {}
