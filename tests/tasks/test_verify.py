"""The demo against its reference: what deviates is named, what is missing counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.commands import verify
from tasks.commands.verify import CheckedMetric
from tests import small_repository

METRICS = {"win_rate_vs_sft": 60.0, "alpaca_wr": 55.0, "validation_nll": 1.2, "parameters": 300000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = small_repository.create(tmp_path)
    for out in verify.demo_outputs(root).values():
        (out / "result").mkdir(parents=True)
        (out / "result" / "metrics.json").write_text(json.dumps(METRICS))
    assert verify.main(["--root", str(root), "--write-reference"]) == 0
    return root


def set_metric(root: Path, stage: str, **values: float) -> None:
    path = root / "results" / "testbed" / stage / "result" / "metrics.json"
    path.write_text(json.dumps(METRICS | values))


def test_same_results_agree(root: Path) -> None:
    assert verify.main(["--root", str(root)]) == 0


def test_reference_holds_every_trained_model_of_the_demo(root: Path) -> None:
    stages = json.loads((root / verify.REFERENCE).read_text())["stages"]
    assert set(stages) == {
        *(f"shared/sft/phi3-mini/{seed}" for seed in (0, 1)),
        *(f"segment/reward_model/{name}/{seed}" for name in ("bandit", "segment") for seed in (0, 1)),
        *(f"segment/policy/{name}/{seed}" for name in ("bandit", "segment") for seed in (0, 1)),
        "segment/tables-demo",
    }
    assert "parameters" not in stages["shared/sft/phi3-mini/0"], "only metrics with a tolerance are compared"


def test_within_tolerance_agrees_and_beyond_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_metric(root, "segment/policy/segment/0", win_rate_vs_sft=70.0)
    assert verify.main(["--root", str(root)]) == 0
    set_metric(root, "segment/policy/segment/0", win_rate_vs_sft=80.0)
    assert verify.main(["--root", str(root)]) == 1
    assert "segment/policy/segment/0: win_rate_vs_sft is 80.0000, reference 60.0000 ± 15" in capsys.readouterr().out


def test_length_controlled_win_rates_of_the_tables_are_compared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {"table-1/segment/0/alpaca_lc": 40.0, "table-1/segment/alpaca_lc": 41.0, "table-1/segment/alpaca_wr": 9.0}
    path = root / "results/testbed/segment/tables-demo/result/metrics.json"
    path.write_text(json.dumps(tables))
    assert verify.main(["--root", str(root), "--write-reference"]) == 0
    kept = json.loads((root / verify.REFERENCE).read_text())["stages"]["segment/tables-demo"]
    assert kept == {"table-1/segment/0/alpaca_lc": 40.0}, "means over seeds repeat what is compared"
    path.write_text(json.dumps(tables | {"table-1/segment/0/alpaca_lc": 60.0}))
    assert verify.main(["--root", str(root)]) == 1
    assert "segment/tables-demo: table-1/segment/0/alpaca_lc is 60.0000" in capsys.readouterr().out


def test_rows_of_a_table_are_summed_up_by_metric(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {f"table-1/{row}/{seed}/alpaca_lc": 40.0 for row in ("bandit", "segment") for seed in (0, 1)}
    path = root / "results/testbed/segment/tables-demo/result/metrics.json"
    path.write_text(json.dumps(tables))
    verify.main(["--root", str(root), "--write-reference"])
    path.write_text(json.dumps(tables | {"table-1/segment/1/alpaca_lc": 41.0}))
    capsys.readouterr()
    assert verify.main(["--root", str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("alpaca_lc") == 1
    assert re.search(r"alpaca_lc\s*│\s*4 │\s*4 │\s*\+1\.0000", printed)


def test_missing_result_is_a_deviation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "results/testbed/segment/policy/bandit/1/result/metrics.json").unlink()
    assert verify.main(["--root", str(root)]) == 1
    assert "segment/policy/bandit/1: alpaca_wr is missing" in capsys.readouterr().out


def test_without_reference_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--root", str(tmp_path)]) == 2
    assert "rewardsmith verify --write-reference" in capsys.readouterr().err


@given(st.floats(-10, 10), st.floats(-10, 10), st.floats(0, 5))
def test_agreement_is_symmetric(reference: float, measured: float, tolerance: float) -> None:
    there = CheckedMetric("s", "m", reference, measured, tolerance).agrees
    assert there == CheckedMetric("s", "m", measured, reference, tolerance).agrees
    assert not CheckedMetric("s", "m", reference, None, tolerance).agrees
