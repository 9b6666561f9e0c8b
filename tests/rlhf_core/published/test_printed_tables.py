"""The printed tables hold what the papers print, string for string."""

from __future__ import annotations

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables, row_map


def test_cells_are_strings_as_printed() -> None:
    segment = next(row for row in printed_tables.table("segment/1").rows if row.condition == "Segment (Ours)")
    assert segment.values["alpaca_lc"].text == "31.05"
    assert segment.values["arena_wr"].text == "34.0"  # the trailing zero is kept
    assert segment.values["alpaca_lc"].mean == pytest.approx(31.05)


def test_every_paper_is_there_with_its_tables_and_figures() -> None:
    papers = [printed_tables.paper(key) for key in printed_tables.PAPERS]
    assert sum(len(p.tables) for p in papers) == 40
    assert sum(len({f.id.rstrip("abcdef") for f in p.figures}) for p in papers) == 42
    assert sum(len(t.rows) for p in papers for t in p.tables) == 261
    assert sum(len(p.raw["experiment_matrix"]["policy_trainings"]) for p in papers) >= 130


def test_every_cell_belongs_to_a_column() -> None:
    for key in printed_tables.PAPERS:
        for table in printed_tables.paper(key).tables:
            columns = {column.key for column in table.columns}
            for row in table.rows:
                assert set(row.values) <= columns, (table.name, row.label)


def test_a_mean_with_its_standard_error_and_a_dash() -> None:
    holistic = printed_tables.table("alarm/1").rows[0].values
    assert str(holistic["vs_factuality"]) == "55.86 ± 4.22"
    assert holistic["vs_holistic"].mean is None


@pytest.mark.parametrize("name", ["segment/1", "Segment/Table 1", "SEGMENT/table 1", "segment/ 1"])
def test_names_of_a_table(name: str) -> None:
    assert printed_tables.table(name).name == "segment/1"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("segmnet/1", "did you mean 'segment'"),
        ("segment/44", "did you mean 'Table 4'"),
        ("segment", "segment/1"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(RecipeError, match=hint):
        printed_tables.table(name)


def test_segment_rows_are_those_of_the_experiment_matrix() -> None:
    rows = [
        mapped
        for table in printed_tables.paper("segment").tables
        if table.is_result
        for mapped in row_map.mapped_rows(table)
    ]
    assert all(mapped.recipe for mapped in rows)
    policies = {m.recipe.name for m in rows if m.recipe and m.recipe.kind == "policy"}
    raw = {m.recipe.name for m in rows if m.recipe and m.recipe.kind == "sft"}
    only_in_figure_3 = {"cutoff-1_5", "cutoff-2_0", "cutoff-2_25"}
    matrix = printed_tables.paper("segment").raw["experiment_matrix"]
    assert len(policies | only_in_figure_3) == len(matrix["policy_trainings"]) == 27
    assert len(raw) == len(matrix["eval_only"]) == 3


def test_every_printed_cell_of_alarm_has_a_row_and_a_metric() -> None:
    tables = [table for table in printed_tables.paper("alarm").tables if table.is_result]
    assert [table.name for table in tables] == [f"alarm/{number}" for number in (*range(1, 8), 9, 10)]
    cells = [
        (table, key, mapped)
        for table in tables
        for mapped in row_map.mapped_rows(table)
        for key in mapped.published.values
    ]
    assert len(cells) == 270
    for table, key, mapped in cells:
        assert mapped.recipe, (table.name, mapped.published.label)
        assert row_map.metric_name(table, key, mapped.published), (table.name, key)
    policies = {mapped.recipe.name for _, _, mapped in cells if mapped.recipe}
    assert len(policies) == len(printed_tables.paper("alarm").raw["experiment_matrix"]["policy_trainings"]) == 14


def test_a_row_is_found_by_any_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one condition differ by evaluator or by switches; the closest key of the map wins."""
    by_evaluator = {"rows": {"ALARM": "alarm"}, "columns": {"avg": "{evaluator}/avg"}}
    switches = {"rows": {" @ TLS=yes & RL=yes & IR=yes": "rlmec", " @ IR=no": "no-imitation"}, "kind": "other"}
    maps = {"alarm": {"tables": {"Table 1": by_evaluator}}, "rlmec": {"tables": {"Table 4": switches}}}
    monkeypatch.setattr(row_map, "_file", maps.get)
    table = printed_tables.table("alarm/1")
    found = [m for m in row_map.mapped_rows(table) if m.recipe]
    assert [m.published.condition for m in found] == ["ALARM"] * 3
    metrics = [row_map.metric_name(table, "avg", m.published) for m in found]
    assert metrics == ["holistic-reward/avg", "factuality-rate/avg", "gpt-3.5-turbo/avg"]
    ablation = row_map.mapped_rows(printed_tables.table("rlmec/4"))
    assert [m.recipe.name if m.recipe else None for m in ablation] == ["rlmec", None, None, "no-imitation"]
    assert ablation[0].recipe == row_map.RecipeRow("rlmec", "rlmec", "other")


@pytest.mark.parametrize("key", printed_tables.PAPERS)
@pytest.mark.parametrize("judged", [False, True])
def test_the_primary_metric_of_a_table_is_one_that_it_has(key: str, judged: bool) -> None:
    for table in printed_tables.paper(key).tables:
        primary = row_map.primary_of(table, judged=judged)
        printed = [column.key for column in table.columns]
        assert {*primary.columns} <= {*printed, *(column.key for column in row_map.also_measured(table))}, table.name
        assert primary.order in (None, *printed)
        assert primary.evaluator in (None, *(row.extra.get("evaluator") for row in table.rows))
        assert primary.margin is None or primary.margin > 0
