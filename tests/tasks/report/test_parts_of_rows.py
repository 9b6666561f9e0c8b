"""A printed row behind which several rows stand: each has its own columns, and the table prints them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_core.published import registry
from tasks.report.measured import measured_table, verdict_counts
from tasks.report.outputs import ResultTree
from tasks.tables import rich_tables


@pytest.fixture
def tree(tmp_path: Path) -> ResultTree:
    for name, values in {
        "math-rlmec": {"gsm8k": 60.0, "average": 55.0},
        "math-rft": {"gsm8k": 50.0, "average": 50.0},
        "qa-rlmec": {"ecqa": 70.0, "average": 65.0},
    }.items():
        folder = tmp_path / "rlmec" / "policy" / name / "0" / "result"
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(values))
    return ResultTree(tmp_path, (0,))


def test_each_part_fills_its_own_columns(tree: ResultTree) -> None:
    table = measured_table(registry.table("rlmec/3"), tree)
    rows = {row["name"]: row["cells"] for row in table["rows"] if row["name"]}
    assert (rows["math-rlmec"]["gsm8k"]["mean"], rows["math-rlmec"]["math_avg"]["mean"]) == (60.0, 55.0)
    assert rows["math-rlmec"]["qa_avg"]["status"] == "elsewhere"
    assert (rows["qa-rlmec"]["qa_avg"]["mean"], rows["qa-rlmec"]["qa_avg"]["published"]) == (65.0, "62.12")
    assert rows["math-rft"]["gsm8k"]["difference"] == -10.0
    assert rows["math-rft"]["ecqa"]["difference"] is None
    assert rows["math-sft"]["gsm8k"]["status"] == "not run"
    assert verdict_counts([table])["measured"] == 6


def test_a_cell_that_the_paper_does_not_have_says_so(tree: ResultTree) -> None:
    table = measured_table(registry.table("rlmec/3"), tree)
    missing = [row for row in table["rows"] if row["condition"] == "+ FIGA · 7B · math"]
    assert [(row["name"], row["cells"]["gsm8k"]["published"]) for row in missing] == [(None, "-")]


def test_the_table_prints(tree: ResultTree, tmp_path: Path) -> None:
    file = tmp_path / "tables.json"
    file.write_text(json.dumps({"tables": [measured_table(registry.table("rlmec/3"), tree)]}))
    printed = rich_tables(file, "rlmec/3")
    assert printed[0].row_count == 2 * len(registry.table("rlmec/3").rows)
    alone = rich_tables(tmp_path / "none.json", "rlmec/3")
    assert alone[0].row_count == len(registry.table("rlmec/3").rows)
