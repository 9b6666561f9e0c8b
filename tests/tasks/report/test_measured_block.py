"""Measured tables in documents: rows in their order, means with standard errors, and nothing without a reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from tasks.report.measured_block import with_measured

PAGE = "# Page\n\n<!-- measured: {} -->\nold\n<!-- end of measured -->\n\nBelow\n"
DOCUMENT = Path("docs/par.md")


def stage(kind: str, **metrics: float) -> dict[str, object]:
    return {"kind": kind, "metrics": metrics}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose reference has three rows of one paper, one of them a backbone, at two seeds."""
    listed = {"demo_all": {"par": {"seeds": [0, 1], "rows": ["gemma2-2b", "vanilla", "par"]}}, "demo": {}}
    (tmp_path / "params.yaml").write_text(json.dumps(listed), encoding="utf-8")
    stages = {
        "par/policy/par/0": stage("policy", win_rate_vs_sft=60.0, kl=2.0, loss=9.0),
        "par/policy/par/1": stage("policy", win_rate_vs_sft=64.0, kl=3.0, loss=9.0),
        "par/policy/vanilla/0": stage("policy", win_rate_vs_sft=50.0, kl=4.0),
        "par/reward_model/par/0": stage("reward_model", accuracy=0.7),
        "segment/policy/other/0": stage("policy", win_rate_vs_sft=1.0),
        "shared/sft/gemma2-2b/0": stage("sft", validation_nll=1.5),
    }
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "demo_all.json").write_text(json.dumps({"stages": stages}), encoding="utf-8")
    return tmp_path


def test_a_block_has_the_rows_of_its_paper_in_their_order(root: Path) -> None:
    text = with_measured(root, PAGE.format("par"), DOCUMENT)
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    assert rows == ["| `gemma2-2b`", "| `vanilla`", "| `par`"]
    assert "| `par` | 2 |  | 62 ± 2 | 2.5 ± 0.5 |" in text, "mean ± deviation of two seeds over the root of 2"
    assert "| `vanilla` | 1 |  | 50 | 4 |" in text
    assert "loss" not in text, "no headline metric"
    assert text.startswith("# Page\n")
    assert text.endswith("-->\n\nBelow\n")
    assert "old" not in text


def test_a_block_written_again_stays_as_it_is(root: Path) -> None:
    once = with_measured(root, PAGE.format("par"), DOCUMENT)
    assert with_measured(root, once, DOCUMENT) == once


def test_an_unknown_paper_and_a_missing_reference_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match=r"par\.md.*'pra' has no row in demo_all\.json; did you mean 'par'"):
        with_measured(root, PAGE.format("pra"), DOCUMENT)
    (root / "reference" / "demo_all.json").unlink()
    with pytest.raises(DataError, match="there is no reference"):
        with_measured(root, PAGE.format("par"), DOCUMENT)
