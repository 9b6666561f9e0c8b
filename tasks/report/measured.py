"""The cells of a published table with what was measured beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlhf_core.evaluation.statistics import direction_verdict
from rlhf_core.published.printed_tables import Column, Printed, Table
from rlhf_core.published.row_map import MappedRow, also_measured, data_set, mapped_rows, metric_name, row_keys
from tasks.report.matches import ITSELF, OTHERS, Matches, match_of, matched, table_matches, word_verdict
from tasks.report.measurements import Measurements, Outputs, TableRuns, has_itself, measurements
from tasks.report.outputs import ResultTree, mean_and_standard_error
from tasks.report.printed_rows import ELSEWHERE
from tasks.report.significance import Comparison, compare, corrected_p

#: Status of a cell where the paper has a dash and this project no row.
NOT_PRINTED = "not in the paper"


@dataclass
class Cell:
    """One cell: what the paper prints and what was measured.

    Attributes:
        published: the cell as printed; None where the paper has no such column.
        status: 'measured', 'not run' (no run of this row), 'stopped' (what was measured before it forbids it, see
            `tasks.running.artifacts.Stopped`), 'not measured' (the run has no such metric), 'not in the paper' (it
            prints a dash, and there is no such row), 'elsewhere' (the column belongs to another row behind the same
            printed one) or '-' (a row against itself).
        mean, se: over seeds, in the column's unit; se is None with one seed.
        seeds: value by seed.
        difference, p_seeds, p_prompts: against the table's main row; None on the main row.
        p_corrected: the deciding p, over prompts where there are any, corrected for the table's compared cells.
        significant: whether that is below .05 and every seed has the same sign.
        verdict: 'confirmed', 'contradicted' or 'undecided'; None where the paper orders nothing.
        against: what `difference` is to: the main row, or the 50 % of a win rate over another row.
        outcome: of a test, in the paper's words; the mean is then its p-value.
        unparsable: of a judge, the prompts of all seeds for which it gave no verdict; they count for nobody.
    """

    published: str | None
    status: str
    mean: float | None = None
    se: float | None = None
    seeds: dict[str, float] = field(default_factory=dict)
    difference: float | None = None
    p_seeds: float | None = None
    p_prompts: float | None = None
    p_corrected: float | None = None
    significant: bool | None = None
    verdict: str | None = None
    against: str = "the main row"
    outcome: str | None = None
    unparsable: int | None = None


@dataclass(frozen=True)
class ComparedCell:
    """A compared cell: the printed numbers whose order gives the verdict, and the pair of a win rate.

    Both cells of a pair are one test: A's win rate over B is 100 % less B's over A.
    """

    cell: Cell
    found: Comparison
    printed: float | None
    main: float | None
    pair: frozenset[str] | None = None


def _cell(mapped: MappedRow, column: Column, values: Measurements, was_run: bool) -> Cell:
    printed = mapped.published.values.get(column.key)
    cell = Cell(published=str(printed) if printed else None, status="not run")
    if column.key in mapped.elsewhere:
        cell.status = ELSEWHERE
        return cell
    if mapped.recipe is None and cell.published == "-":
        cell.status = NOT_PRINTED
        return cell
    if mapped.recipe is None or not was_run:
        return cell
    own = values.get(mapped.recipe.name, {})
    if not own:
        cell.status = "not measured"
        return cell
    cell.status = "measured"
    cell.mean, cell.se = mean_and_standard_error([own[seed].value for seed in sorted(own)])
    cell.seeds = {str(seed): own[seed].value for seed in sorted(own)}
    return cell


def _compared(mapped: MappedRow, values: Measurements) -> Comparison | None:
    """Returns a row against its table's main row; None on the main row and where one of them was not measured."""
    if mapped.recipe is None or mapped.main is None or mapped.is_main:
        return None
    return compare(values.get(mapped.recipe.name, {}), values.get(mapped.main, {}))


def _printed(row: MappedRow | None, column: Column) -> float | None:
    cell = row.published.values.get(column.key) if row else None
    return cell.mean if cell else None


def _same_evaluator(rows: Sequence[MappedRow], row: MappedRow) -> MappedRow | None:
    """Returns the main row of a row's table as it is printed under the row's own evaluator."""
    mains = [other for other in rows if other.recipe and other.recipe.name == row.main]
    evaluator = row.published.extra.get("evaluator")
    return next((other for other in mains if other.published.extra.get("evaluator") == evaluator), None)


def _cells(
    table: Table,
    rows: Sequence[MappedRow],
    columns: Sequence[tuple[Column, str]],
    values: Mapping[str, Measurements],
    runs: Outputs,
    matches: Matches,
) -> list[dict[str, Cell]]:
    """Returns the cells of every row by column; p-values are corrected over all of them, win rates over others
    included."""
    made: list[dict[str, Cell]] = []
    tested: list[ComparedCell] = []
    for row in rows:
        cells: dict[str, Cell] = {}
        for column, pattern in columns:
            metric = row_metric(table, row, column, pattern)
            match = match_of(metric)
            if match is not None and match.other != OTHERS:
                printed_cell = row.published.values.get(column.key)
                asked, against_half = matched(matches, row, match)
                cell = Cell(published=str(printed_cell) if printed_cell else None, **asked)
                if against_half is not None and row.recipe is not None:
                    wins = printed_cell.mean if column.direction and printed_cell else None
                    pair = frozenset((row.recipe.name, str(match.other), f"by {match.by}"))
                    tested.append(ComparedCell(cell, against_half, wins, 50.0, pair))
                if cell.outcome and cell.published:
                    cell.verdict = word_verdict(cell.published, cell.outcome)
                cells[column.key] = cell
                continue
            measured = values.get(metric, {})
            cell = _cell(row, column, measured, bool(row.recipe and runs.get(row.recipe.name)))
            by_definition = row.recipe == row.reference and has_itself(metric) and cell.published is None
            found = None if column.key in row.elsewhere or by_definition else _compared(row, measured)
            if found is not None:
                ordered = (_printed(row, column), _printed(_same_evaluator(rows, row), column))
                tested.append(ComparedCell(cell, found, *(ordered if column.direction else (None, None))))
            cells[column.key] = cell
        made.append(cells)
    decide(tested)
    return made


def decide(tested: Sequence[ComparedCell]) -> None:
    """Fills in what the tests of a table say, each test corrected for the number of them."""
    keys = [one.pair or number for number, one in enumerate(tested)]
    tests = dict(zip(keys, (one.found for one in tested), strict=True))
    corrections = dict(zip(tests, corrected_p(list(tests.values())), strict=True))
    for key, one in zip(keys, tested, strict=True):
        cell, found, corrected = one.cell, one.found, corrections[key]
        cell.difference, cell.p_seeds, cell.p_prompts = found.difference, found.p_seeds, found.p_prompts
        cell.p_corrected, cell.significant = corrected, found.significant(corrected)
        cell.verdict = direction_verdict(one.printed, one.main, found.difference, cell.significant)


def row_metric(table: Table, row: MappedRow, column: Column, pattern: str) -> str:
    """Returns the metric behind a row's cell: the column's, with the row's evaluator in it where the map says so."""
    printed = any(own.key == column.key for own in table.columns)
    return metric_name(table, column.key, row.published) if printed else pattern


def _values(behind: TableRuns, matches: Matches, metric: str) -> Measurements:
    """Returns a metric of every row of a table, by seed; matches between two rows are asked row by row."""
    match = match_of(metric)
    if match is None:
        return measurements(behind, metric)
    if match.other != OTHERS:
        return {}
    return {name: matches.against_others(name, match.by) for name in behind.outputs}


def measured_table(table: Table, tree: ResultTree) -> dict[str, Any]:
    """Returns a table as plain data: columns, and per row its recipe row, runs and cells.

    Args:
        table: the published table.
        tree: the stage outputs to read.
    """
    rows = mapped_rows(table)
    keys = row_keys(rows)
    outputs = {row.recipe.name: tree.of(row.recipe) for row in rows if row.recipe}
    columns = [(column, metric_name(table, column.key)) for column in table.columns]
    columns += [(column, column.key) for column in also_measured(table)]
    references = {row.recipe.name: tree.of(row.reference) for row in rows if row.recipe and row.reference}
    behind = TableRuns(outputs, references, tree.alpaca_calibration(data_set(table.paper)))
    matches = table_matches(table.paper, rows, outputs, tree)
    asked = {row_metric(table, row, *column) for row in rows for column in columns if table.is_result}
    values = {metric: _values(behind, matches, metric) for metric in sorted(asked)}
    rendered = []
    for row, key, cells in zip(rows, keys, _cells(table, rows, columns, values, outputs, matches), strict=True):
        runs = outputs.get(row.recipe.name, {}) if row.recipe else {}
        stopped = tree.stopped(row.recipe) if row.recipe else {}
        for cell in cells.values() if stopped else ():
            cell.status = "stopped" if cell.status == "not run" else cell.status
        rendered.append(
            {
                "condition": row.condition,
                "backbone": row.published.backbone,
                "extra": dict(row.published.extra),
                "name": row.recipe.name if row.recipe else None,
                "key": key,
                "group": row.recipe.group if row.recipe else None,
                "kind": row.recipe.kind if row.recipe else None,
                "main": row.main,
                "is_main": row.is_main,
                "runs": {str(seed): out.path.as_posix() for seed, out in runs.items()},
                "cells": {key: asdict(cell) for key, cell in cells.items()},
                **({"stopped": {str(seed): reason for seed, reason in stopped.items()}} if stopped else {}),
            }
        )
    printed = {column.key for column in table.columns}
    return {
        "name": table.name,
        "id": table.id,
        "title": table.title,
        "kind": table.kind,
        "is_result": table.is_result,
        "columns": [
            {
                **asdict(column),
                "metric": metric,
                "published": column.key in printed,
                "decimals": decimals(row.published.values.get(column.key) for row in rows),
            }
            for column, metric in columns
        ],
        "rows": rendered,
    }


def stop_lines(row: Mapping[str, Any]) -> list[str]:
    """Returns a line with seeds for each reason why a row stopped; empty for other rows."""
    seeds: dict[str, list[str]] = {}
    for seed, reason in row.get("stopped", {}).items():
        seeds.setdefault(reason, []).append(seed)
    left = f", measured at {', '.join(row['runs'])}" if row["runs"] else ""
    return [f"stopped at seed {', '.join(of)}{left}: {reason}" for reason, of in seeds.items()]


def decimals(printed: Iterable[Printed | None]) -> int:
    """Decimals of a column's measured numbers: as the paper prints, 1 at least; 2 where it prints none."""
    lengths = [len(cell.text.partition(".")[2]) for cell in printed if cell and cell.mean is not None]
    return min(3, max(1, *lengths)) if lengths else 2


def verdict_counts(tables: list[dict[str, Any]]) -> dict[str, int]:
    """Returns counts of measured published cells, and of their verdicts on the paper's ordering."""
    counts = {"confirmed": 0, "contradicted": 0, "undecided": 0, "not run": 0, "measured": 0}
    for table in tables:
        if not table["is_result"]:
            continue
        for row in table["rows"]:
            for cell in row["cells"].values():
                if cell["published"] is None or cell["status"] in (ITSELF, NOT_PRINTED):
                    continue
                counts["measured" if cell["status"] == "measured" else "not run"] += 1
                if cell["verdict"]:
                    counts[cell["verdict"]] += 1
    return counts
