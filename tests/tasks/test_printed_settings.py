"""The scale `paper` against every hyperparameter that the five papers print, cell by cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables
from rlhf_core.typed import typed
from tasks.report.printed_settings import PaperScale, SettingCell, StatedCell, problems, same, setting_cells

ROOT = Path(__file__).resolve().parents[2]
#: Tables whose cells are settings.
TABLES = ("segment/8", "segment/9", "sentence/4", "sentence/5")


@pytest.mark.parametrize("paper", printed_tables.PAPERS)
def test_the_paper_scale_has_what_is_printed_or_says_why_not(paper: str) -> None:
    assert problems(paper, setting_cells(ROOT, paper)) == []


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_a_table_of_settings_is_compared_once(name: str) -> None:
    table = printed_tables.table(name)
    printed = {(row.condition, key): str(cell) for row in table.rows for key, cell in row.values.items()}
    cells = [
        cell for cell in setting_cells(ROOT, table.paper) if cell.stated.table and cell.stated.table[0] == table.id
    ]
    mapped = [(cell.stated.table[1], cell.stated.table[2]) for cell in cells if cell.stated.table]
    assert sorted(mapped) == sorted(printed)
    for cell in cells:
        assert cell.stated.table is not None
        if cell.stated.printed is not None:
            assert cell.stated.printed == printed[cell.stated.table[1], cell.stated.table[2]]


def of(name: str) -> SettingCell:
    return next(cell for cell in setting_cells(ROOT, "segment") if cell.hyperparameter == name)


def test_a_difference_without_a_reason_and_a_reason_without_a_difference_are_found() -> None:
    whole = setting_cells(ROOT, "segment")
    batch = of("RM batch size (global)")
    changed = [replace(cell, ours=64) if cell is batch else cell for cell in whole]
    assert problems("segment", changed) == ["RM batch size (global), batch: printed 128, ours 64, without a reason"]
    listed = replace(batch, stated=replace(batch.stated, reason="because"))
    found = problems("segment", [listed if cell is batch else cell for cell in whole])
    assert found == [
        "RM batch size (global), batch: listed as different, but 128 is what is printed; leave 'reason' out"
    ]


def test_hyperparameters_without_a_cell_and_values_that_are_not_printed_are_found() -> None:
    whole = setting_cells(ROOT, "segment")
    rate = of("RM learning rate")
    assert problems("segment", [cell for cell in whole if cell is not rate]) == [
        "RM learning rate: the map has no cell of it"
    ]
    other = replace(rate, stated=replace(rate.stated, printed="2e-6", reason="because"))
    found = problems("segment", [other if cell is rate else cell for cell in whole])
    assert found == ["RM learning rate, learning_rate: the registry does not print '2e-6'"]
    invented = replace(rate, hyperparameter="RM warm-up")
    assert "RM warm-up: the registry has no such hyperparameter" in problems("segment", [*whole, invented])


@pytest.mark.parametrize(
    ("printed", "ours", "agrees"),
    [
        ("1e-6", 1.0e-6, True),
        ("60,000", 60_000, True),
        ("1.0", 1, True),
        ("1e-6", 1.1e-6, False),
        ("0", 1e-12, False),
        ("cosine", "cosine", True),
        ("Entropy", "entropy", True),
        ("disabled", 0, False),
        ("1", True, False),
    ],
)
def test_numbers_are_compared_as_numbers_and_words_as_words(printed: str, ours: object, agrees: bool) -> None:
    assert same(printed, ours) is agrees


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"printed": "1"}, "give either 'instead', or 'printed' with 'setting' or 'passes'"),
        ({"instead": "x", "printed": "1", "row": "bandit", "setting": "a"}, "give either 'instead'"),
        ({"printed": "1", "setting": "a"}, "give either 'row' or 'backbone'"),
        ({"printd": "1"}, "unknown setting 'printd'; did you mean 'printed'"),
    ],
)
def test_a_wrong_cell_is_refused(cell: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        typed(StatedCell, cell, "segment.yaml")


def test_a_setting_that_no_stage_has_is_named() -> None:
    known = PaperScale(ROOT, "segment")
    with pytest.raises(RecipeError, match=r"reward_model-segment-segment-0: scale has no setting 'batchsize'"):
        known.value(StatedCell(printed="1", row="segment", stage="reward_model", setting="batchsize"))
    with pytest.raises(RecipeError, match="unknown row 'segmnt'; did you mean 'segment'"):
        known.value(StatedCell(printed="1", row="segmnt", setting="optimiser.clip"))
