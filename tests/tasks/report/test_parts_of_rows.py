"""A printed row behind which several rows stand: each has its own columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_core.published import printed_tables
from tasks.report.cells import measured_table, verdict_counts
from tasks.report.outputs import ResultTree
from tasks.report.paper_tables import _verdict_notes, printed_rows


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
    table = measured_table(printed_tables.table("rlmec/3"), tree)
    rows = {row["name"]: row["cells"] for row in table["rows"] if row["name"]}
    assert (rows["math-rlmec"]["gsm8k"]["mean"], rows["math-rlmec"]["math_avg"]["mean"]) == (60.0, 55.0)
    assert rows["math-rlmec"]["qa_avg"]["status"] == "elsewhere"
    assert (rows["qa-rlmec"]["qa_avg"]["mean"], rows["qa-rlmec"]["qa_avg"]["published"]) == (65.0, "62.12")
    assert rows["math-rft"]["gsm8k"]["difference"] == -10.0
    assert rows["math-rft"]["ecqa"]["difference"] is None
    assert rows["math-sft"]["gsm8k"]["status"] == "not run"
    assert verdict_counts([table])["measured"] == 6


def test_the_parts_of_a_printed_row_are_one_row(tree: ResultTree) -> None:
    table = measured_table(printed_tables.table("rlmec/3"), tree)
    rows = printed_rows(table, [column for column in table["columns"] if column["published"]])
    assert [row["condition"] for row in rows[:2]] == ["LLaMA 2 · 7B", "Vicuna · 7B"]
    row = next(row for row in rows if row["condition"] == "+ RLMEC · 7B")
    assert row["name"] == "qa-rlmec math-rlmec"
    assert [row["cells"][key]["mean"] for key in ("ecqa", "gsm8k")] == [70.0, 60.0]


@pytest.mark.parametrize(
    ("word", "sees", "said"),
    [
        ("sees only effects above", 1414.98, "2 worlds cannot decide it"),
        ("sees only effects above", 12.34, "sees only effects above 12.3"),
        ("below", 140.0, "below"),
        ("below", 12.34, "below (sees 12.3)"),
    ],
)
def test_no_effect_is_named_that_a_percentage_cannot_have(word: str, sees: float, said: str) -> None:
    cell = {"difference": -7.0, "interval": None, "word": word, "smallest_visible": sees, "worlds": 2}
    assert _verdict_notes(cell | {"reason": None, "missing": None}, 1) == ["−7.0", said, ""]
