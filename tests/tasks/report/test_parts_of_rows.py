"""A printed row behind which several rows stand: each has its own columns, and the table prints them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_core.published import printed_tables
from tasks.report.measured import measured_table, verdict_counts
from tasks.report.outputs import ResultTree
from tasks.report.paper_tables import _verdict_lines, printed_lines


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


def test_a_cell_that_the_paper_does_not_have_says_so(tree: ResultTree) -> None:
    table = measured_table(printed_tables.table("rlmec/3"), tree)
    missing = [row for row in table["rows"] if row["condition"] == "+ FIGA · 7B · math"]
    assert [(row["name"], row["cells"]["gsm8k"]["published"]) for row in missing] == [(None, "-")]
    assert {missing[0]["cells"][key]["status"] for key in ("gsm8k", "math_avg")} == {"not in the paper"}
    counts = verdict_counts([table])
    printed = sum(str(cell) != "-" for row in printed_tables.table("rlmec/3").rows for cell in row.values.values())
    assert counts["measured"] + counts["not run"] == printed


def test_the_parts_of_a_printed_row_stand_on_one_line(tree: ResultTree) -> None:
    table = measured_table(printed_tables.table("rlmec/3"), tree)
    own = [column for column in table["columns"] if column["published"]]
    lines = printed_lines(table, own)
    assert [line.label for line in lines[:4]] == ["LLaMA 2 · 7B", "Vicuna · 7B", "WizardLM · 7B", "SFT LLM · 7B"]
    line = next(line for line in lines if line.label == "+ RLMEC · 7B")
    assert line.names == ("qa-rlmec", "math-rlmec")
    assert [line.cells[key][1]["mean"] for key in ("ecqa", "gsm8k")] == [70.0, 60.0]
    scaling = measured_table(printed_tables.table("rlmec/7"), tree)
    first, second = printed_lines(scaling, scaling["columns"])
    assert (first.label, second.label) == ("7B GRM", "13B GRM")
    assert [row["is_main"] for row, _ in first.cells.values()] == [True, True, False, False]


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
    assert _verdict_lines(cell | {"reason": None, "missing": None}, 1) == ["-7.0", said]
