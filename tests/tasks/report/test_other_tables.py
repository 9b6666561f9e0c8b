"""Tables without measurements: every printed value beside the one of settings, data or prompts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlhf_core.published import printed_tables
from rlhf_core.reasoning.templates import PAPER, TEACHER
from tasks.report.other_tables import NO_ROW, NOT_PREPARED, OtherTable, other_tables
from tasks.running.artifacts import write_json, write_jsonl

ROOT = Path(__file__).resolve().parents[3]
#: The tables that no measurement fills, and ALARM's prompt.
SHOWN = {
    "segment": ["Table 8", "Table 9"],
    "sentence": ["Table 4", "Table 5"],
    "alarm": ["Table 8", "Figure 5"],
    "rlmec": ["Table 1", "Table 2", "Table 5", "Table 6"],
    "par": ["Table 2"],
}


def shown(paper: str, results: Path = ROOT / "results" / "none", root: Path = ROOT) -> dict[str, OtherTable]:
    return {table.id: table for table in other_tables(root, results, paper)}


@pytest.mark.parametrize("paper", printed_tables.PAPERS)
def test_every_table_without_measurements_is_shown(paper: str) -> None:
    found = shown(paper)
    assert list(SHOWN[paper]) == [name for name in found if name in SHOWN[paper]]
    for table in found.values():
        assert table.rows or table.prompts
        assert "Not compared" not in table.note
        assert all(len(cells) == len(table.headings) for _, cells in table.rows)


def test_settings_have_the_printed_value_and_ours_side_by_side() -> None:
    rows = dict(shown("segment")["Table 9"].rows)
    assert rows["Training Epochs"] == ("2", "2", "1", "1")
    assert rows["Entropy threshold c_ent"] == ("1.75", "1.75", "2.0", "2.0")
    assert dict(shown("sentence")["Table 4"].rows)["Scheduler Type"] == ("cosine", "cosine")


def test_every_resource_and_every_notation_says_what_stands_for_it() -> None:
    printed = [row.condition for row in printed_tables.table("alarm/8").rows]
    rows = shown("alarm")["Table 8"].rows
    assert [name for name, _ in rows] == printed
    assert dict(rows)["UltraRM-13b"][1] == "openbmb/UltraRM-13b"
    assert dict(shown("par")["Table 2"].rows)["eta"][1] == "0.005"


def test_the_methods_of_rlmec_are_told_apart_as_printed_where_it_is_printed() -> None:
    rows = dict(shown("rlmec")["Table 1"].rows)
    assert rows["RLMEC"] == ("yes", "yes", "yes", "yes", "yes", "yes", "GEN", "GEN")
    assert rows["ToRA"][1::2] == (NO_ROW,) * 4
    for name in ("SFT", "CoH", "DPO", "FIGA", "PPO", "RLMEC"):
        for printed, ours in zip(rows[name][:6:2], rows[name][1:6:2], strict=True):
            assert printed.split()[0] == ours, name


def test_numbers_of_examples_are_those_of_the_prepared_data(tmp_path: Path) -> None:
    assert {cells[1] for _, cells in shown("rlmec")["Table 2"].rows} == {NOT_PREPARED}
    folder = tmp_path / "shared" / "data" / "questions" / "result"
    folder.mkdir(parents=True)
    write_json(folder / "data.json", {"rows": {"questions": 3, "tests/obqa": 7}})
    write_jsonl(folder / "questions.jsonl", [{"source": "ecqa"}, {"source": "qasc"}, {"source": "ecqa"}])
    rows = dict(shown("rlmec", tmp_path)["Table 2"].rows)
    assert rows["QA, Train: ECQA"] == ("7598", "2")
    assert rows["QA, Train: QASC"] == ("8134", "1")
    assert rows["QA, Test: OBQA"] == ("500", "7")
    assert rows["QA, Test: ARC"][1] == NOT_PREPARED


def test_prompts_are_those_that_are_asked() -> None:
    tables = shown("rlmec")
    assert tables["Table 5"].prompts == {"Error Locating": TEACHER.locate, "Solution Rewriting": TEACHER.rewrite}
    assert tables["Table 6"].prompts == {"Error Locating": PAPER.locate, "Solution Rewriting": PAPER.rewrite}


def test_a_scale_that_cannot_be_read_leaves_the_printed_values_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert shown("segment", root=tmp_path / "empty")["Table 8"].headings == ("Value",)
    root = tmp_path / "broken"
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copy(ROOT / "params.yaml", root)
    page = root / "params" / "scales" / "paper" / "stages_reward_models.yaml"
    page.write_text(page.read_text().replace("  learning_rate: 1.0e-6\n", "  learning_rat: 1.0e-6\n"))
    table = shown("segment", root=root)["Table 8"]
    assert table.headings == ("Value",)
    assert "Not compared: " in table.note
    assert "learning_rat" in table.note
