"""The tables stage: cells from the runs, nothing from nowhere."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.length_controlled import length_controlled_win_rate, read_calibration_rows
from rlhf_core.evaluation.verdicts import verdicts_of
from rlhf_core.evaluation.worlds import paired
from rlhf_core.published import printed_tables
from tasks import tables
from tasks.data_specs.data_sets import alpaca_calibration
from tasks.graph import names
from tasks.report.cells import measured_table
from tasks.report.length_control import JudgedRun, calibration_of, length_controlled
from tasks.report.outputs import ResultTree
from tasks.report.paper_tables import print_table, table_notes
from tasks.running.artifacts import read_json
from tests.tasks.report.fixture_results import cell_text, make_results

SEEDS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result folder of a tables stage over made-up outputs."""
    results = make_results(tmp_path_factory.mktemp("tables"), SEEDS, ("phi3-mini", "bandit", "segment", "token"))
    tables.main(
        [
            *("--results", str(results), "--paper", "segment", "--seeds", *map(str, SEEDS)),
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
        for seed in SEEDS
    ]
    found = cell(built, "segment/1", "bandit", "alpaca_wr")
    assert found["mean"] == pytest.approx(mean(values))
    assert found["se"] == pytest.approx(stdev(values) / len(values) ** 0.5)
    assert found["seeds"] == {str(seed): value for seed, value in zip(SEEDS, values, strict=True)}
    assert found["published"] == "29.07"


def test_a_number_of_a_partial_benchmark_says_so_in_its_cell(tmp_path: Path) -> None:
    results = make_results(tmp_path, (0,), ("phi3-mini", "segment"))
    facts = {"alpaca": {"rows": 722, "of": 805}, "arena": {"rows": 500, "of": 500}}
    (results / "segment" / "policy" / "segment" / "0" / "result" / "benchmarks.json").write_text(json.dumps(facts))
    table = measured_table(printed_tables.table("segment/1"), ResultTree(results, (0,)))
    cells = next(row for row in table["rows"] if row["name"] == "segment")["cells"]
    assert cells["alpaca_wr"]["partial"] == "722 of 805"
    assert cells["arena_wr"]["partial"] is None
    assert cell_text(cells["alpaca_wr"], 1).endswith("; 722 of 805")
    assert not any(
        cell["partial"] for row in table["rows"] if row["name"] != "segment" for cell in row["cells"].values()
    )


def test_the_sft_model_stands_at_50_against_itself_and_is_compared_only_where_the_paper_prints_it(built: Path) -> None:
    found = cell(built, "segment/1", "phi3-mini", "win_rate_vs_sft")
    assert (found["status"], found["mean"], found["difference"]) == ("measured", 50.0, None)


def test_the_verdicts_of_a_table_are_by_worlds_and_corrected_over_its_rows(built: Path) -> None:
    table = next(t for t in read_json(built / "tables.json")["tables"] if t["name"] == "segment/1")
    cells = {row["name"]: row["cells"]["lc_win_rate_vs_sft"] for row in table["rows"]}
    values = {name: found["seeds"] for name, found in cells.items() if found["status"] == "measured"}
    rows = [row for row in values if row != "segment"]
    effects = {row: paired(values[row], values["segment"]) for row in rows}
    expected = dict(zip(rows, verdicts_of([*effects.values()]), strict=True))
    assert set(expected) == {"phi3-mini", "bandit", "token"}
    for name, verdict in expected.items():
        found = cells[name]
        assert (found["word"], found["p"]) == (verdict.word, verdict.p_corrected)
        assert found["difference"] == pytest.approx(effects[name].estimate)
        interval = effects[name].interval()
        assert interval is not None
        assert found["interval"] == [interval.lower, interval.upper]
        assert found["smallest_visible"] == verdict.smallest_visible
    assert {found["verdict"] for found in cells.values()} == {"confirmed", None}
    assert cells["segment"]["verdict"] is None, "the main row itself"


def test_a_world_that_one_row_lacks_is_named(built: Path, tmp_path: Path) -> None:
    results = shutil.copytree(built.parents[2], tmp_path / "testbed")
    shutil.rmtree(results / "segment" / "policy" / "bandit" / "2")
    tables.build(results, "segment", SEEDS, tmp_path / "out")
    found = cell(tmp_path / "out" / "result", "segment/1", "bandit", "lc_win_rate_vs_sft")
    assert (found["worlds"], found["missing"]) == (3, "bandit lacks world 2")


def test_a_row_below_its_own_sft_model_is_broken_and_spent_seeds_are_exploratory(built: Path, tmp_path: Path) -> None:
    results = shutil.copytree(built.parents[2], tmp_path / "testbed")
    for seed in SEEDS:
        folder = results / "segment" / "policy" / "bandit" / str(seed) / "result"
        metrics = read_json(folder / "metrics.json") | {"win_rate_vs_sft": 20.0, "peak_win_rate_vs_sft": 40.0}
        (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    tables.build(results, "segment", SEEDS, tmp_path / "out")
    table = read_json(tmp_path / "out" / "result" / "tables.json")["tables"][0]
    assert [row["name"] for row in table["rows"] if row["broken"]] == ["bandit"]
    assert table_notes(table) == [
        "exploratory: settings were made while looking at these seeds.",
        "bandit is broken: below its own SFT model even at its best evaluation.",
    ]


def test_bad_arguments_are_refused(built: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="did you mean 'segment'"):
        tables.build(built.parents[2], "segmen", (0,), tmp_path / "x")
    with pytest.raises(DataError, match="does not exist"):
        ResultTree(tmp_path / "nowhere", (0,))
    with pytest.raises(DataError, match="Give each seed once"):
        ResultTree(tmp_path, (0, 0))


def test_the_newest_tables_are_shown_and_the_demos_last(built: Path, tmp_path: Path) -> None:
    results = tmp_path / "testbed"
    assert names.made_tables(results, "segment") is None
    made = {}
    for age, name in enumerate((names.DEMO, names.TABLES_SO_FAR, names.FULL)):
        made[name] = results / "segment" / name / "result"
        made[name].mkdir(parents=True)
        (made[name] / "tables.json").write_text("{}")
        os.utime(made[name] / "tables.json", (age, age))
        assert names.made_tables(results, "segment") == made[name]
    os.utime(made[names.TABLES_SO_FAR] / "tables.json", (9, 9))
    assert names.made_tables(results, "segment") == made[names.TABLES_SO_FAR]
    os.utime(made[names.DEMO] / "tables.json", (10, 10))
    assert names.made_tables(results, "segment") == made[names.TABLES_SO_FAR]


def test_seeds_so_far_are_those_with_a_result(built: Path) -> None:
    results = built.parents[2]
    assert names.seeds_so_far(results, "segment") == list(SEEDS)
    assert names.seeds_so_far(results, "par") == []


def test_a_table_in_a_narrow_terminal_loses_no_digit(
    built: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {}
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        print_table(built / "tables.json", "segment/1")
        text = capsys.readouterr().out
        shown[columns] = sorted(re.findall(r"\d+\.\d+|±|✓", text))
        assert max(map(len, text.splitlines())) <= int(columns)
        assert "Arena-Hard" in text, "two columns are called WR"
    assert shown["60"] == shown["200"]


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
    model = JudgedRun([item["id"] for item in items], wins.tolist(), own.tolist(), other.tolist())
    difficulty = file["instruction_difficulty"][:n].to_numpy()[::-1]
    official = length_controlled_win_rate(
        range(40), wins, own, other, dict(enumerate(difficulty)), read_calibration_rows(tmp_path / "df_gamed.csv")
    )
    assert length_controlled("model", model, *calibration_of(rows)) == pytest.approx(official, abs=1e-9)

    other_item = {"id": "alpaca_eval-test-000041"}
    with pytest.raises(DataError, match=r"for 1 of 41 instructions, the first is 'alpaca_eval-test-000041'"):
        alpaca_calibration(str(tmp_path / "df_gamed.csv"), [*items, other_item], first=1)
