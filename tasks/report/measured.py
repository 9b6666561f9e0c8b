"""The cells of a published table with what was measured beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rlhf_core.evaluation.verdicts import Direction, RowWord, direction_verdict, verdicts_of
from rlhf_core.evaluation.worlds import Effect
from rlhf_core.published.printed_tables import Column, Printed, Table
from rlhf_core.published.row_map import (
    MappedRow,
    also_measured,
    data_set,
    mapped_rows,
    metric_name,
    primary_of,
    row_keys,
)
from tasks.params.scales import is_rehearsal
from tasks.report.cell_notes import blank_reason, judge_notes, length_note, partial_text, undecided_prompts
from tasks.report.games import ITSELF, OTHERS, match_of, matched, table_matches
from tasks.report.numbers import Measurements, TableRuns, broken, has_itself, measurements, verdicts_word
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error
from tasks.report.paper_tables import ELSEWHERE
from tasks.report.significance import Comparison, compare, exploratory
from tasks.running.doubtful_numbers import alarm_text, alarms_of

#: Status of a cell where the paper has a dash and this project no row.
NOT_PRINTED = "not in the paper"


@dataclass
class Cell:
    """One cell: what the paper prints and what was measured.

    Attributes:
        published: the cell as printed; None where the paper has no such column.
        status: 'measured', 'not run' (no run of this row), 'stopped' (what was measured before it forbids it, see
            `tasks.running.artifacts.Stopped`), 'not measured' (the run has no such metric), 'blank' (its judge gave too
            few valid verdicts, see `tasks.running.doubtful_numbers`), 'not in the paper' (it prints a dash, and there
            is no such row), 'elsewhere' (the column belongs to another row behind the same printed one) or '-' (a row
            against itself).
        mean, se: over worlds, in the column's unit; se is None with one world.
        seeds: value by seed; a run's seed is its world.
        difference, interval: to the table's main row, with its 95 % interval; None on the main row, and no interval
            with one world.
        worlds: those that the difference is over.
        missing: names the worlds that one of the two rows lacks; None if both have the same.
        against: what `difference` is to: the main row, or the 50 % of a win rate over another row.
        word: of the verdict, see `rlhf_core.evaluation.verdicts.RowVerdict`; None outside of the primary column, as
            are all fields below but `outcome` and those of a judge.
        p: corrected for the table's rows (Holm).
        smallest_visible: the effect that these worlds find with a power of 80 %.
        reason: why there is no test.
        verdict: 'confirmed', 'contradicted', 'equivalent' or 'undecided'; None where the paper orders nothing.
        outcome: of a test, in the paper's words, descriptive; the mean is then its p-value.
        unparsable, one_sided: of a judge, the prompts of all seeds without any verdict, and with one in one of two
            orders; they count for nobody. None where no judge was asked or none is lacking.
        why: why a judged cell is not measured.
        note: on how the number was made, shown once under the table.
    """

    published: str | None
    status: str
    mean: float | None = None
    se: float | None = None
    seeds: dict[str, float] = field(default_factory=dict)
    difference: float | None = None
    interval: tuple[float, float] | None = None
    worlds: int | None = None
    missing: str | None = None
    against: str = "the main row"
    word: RowWord | None = None
    p: float | None = None
    smallest_visible: float | None = None
    reason: str | None = None
    verdict: Direction | None = None
    outcome: str | None = None
    unparsable: int | None = None
    one_sided: int | None = None
    why: str | None = None
    note: str | None = None

    def compare(self, found: Comparison) -> None:
        """Fills in the difference, which is descriptive until the table decides."""
        interval = found.effect.interval()
        self.difference, self.worlds, self.missing = found.effect.estimate, found.effect.worlds, found.missing
        self.interval = (interval.lower, interval.upper) if interval else None


@dataclass(frozen=True)
class ComparedCell:
    """A compared cell of the primary column, and the printed numbers whose order its verdict is held against."""

    cell: Cell
    effect: Effect
    printed: float | None
    main: float | None


def decide(tested: Sequence[ComparedCell], margin: float | None = None) -> None:
    """Fills in the verdicts of a table's primary cells, corrected over all of them, those of several main rows
    included."""
    found = verdicts_of([one.effect for one in tested], margin) if tested else []
    for one, verdict in zip(tested, found, strict=True):
        cell = one.cell
        cell.word, cell.p, cell.reason = verdict.word, verdict.p_corrected, one.effect.reason
        cell.smallest_visible = verdict.smallest_visible
        cell.verdict = direction_verdict(one.printed, one.main, verdict.word)


def _mean(printed: Printed | None) -> float | None:
    return printed.mean if printed else None


class _TableMaker:
    """A published table, the runs behind it, and its cells.

    Args:
        table: the published table.
        tree: the stage outputs to read.
    """

    def __init__(self, table: Table, tree: ResultTree) -> None:
        self.table, self.tree = table, tree
        self.rows = mapped_rows(table)
        self.outputs = {row.recipe.name: tree.of(row.recipe) for row in self.rows if row.recipe}
        self.judged = verdicts_word(self.outputs) == "judged"
        self.primary = primary_of(table, judged=self.judged)
        columns = [(column, metric_name(table, column.key, judged=self.judged)) for column in table.columns]
        columns += [(column, column.key) for column in also_measured(table, judged=self.judged)]
        self.columns = columns
        sft_outputs = {row.recipe.name: tree.of(row.reference) for row in self.rows if row.recipe and row.reference}
        calibrations = tree.alpaca_calibrations(data_set(table.paper))
        self.behind = TableRuns(self.outputs, sft_outputs, calibrations, table.paper, tree)
        self.matches = table_matches(table.paper, self.rows, self.outputs, tree)
        self._values: dict[str, Measurements] = {}

    @cached_property
    def printed(self) -> set[str]:
        """Returns the keys of the columns that the paper prints."""
        return {column.key for column in self.table.columns}

    def runs(self, row: MappedRow) -> Mapping[int, StageOutput]:
        return self.outputs.get(row.recipe.name, {}) if row.recipe else {}

    def metric(self, row: MappedRow, column: Column, pattern: str) -> str:
        """Returns the metric behind a row's cell: the column's, with the row's evaluator where the map says so."""
        if column.key not in self.printed:
            return pattern
        return metric_name(self.table, column.key, row.published, judged=self.judged)

    def values(self, metric: str) -> Measurements:
        """Returns a metric of every row by seed."""
        if metric not in self._values:
            match = match_of(metric) if self.table.is_result else None
            if match is not None:
                self._values[metric] = {name: self.matches.against_others(name, match.by) for name in self.outputs}
            else:
                self._values[metric] = measurements(self.behind, metric) if self.table.is_result else {}
        return self._values[metric]

    def cells(self) -> list[dict[str, Cell]]:
        """Returns the cells of every row by column; those of the primary column are decided together."""
        tested: list[ComparedCell] = []
        made = [
            {
                column.key: self._cell(row, column, self.metric(row, column, pattern), tested)
                for column, pattern in self.columns
            }
            for row in self.rows
        ]
        decide(tested, self.primary.margin)
        return made

    def _cell(self, row: MappedRow, column: Column, metric: str, tested: list[ComparedCell]) -> Cell:
        """Returns a cell, compared with the main row's; adds those that have a verdict to `tested`."""
        printed, match = row.published.values.get(column.key), match_of(metric)
        published = str(printed) if printed else None
        if match is not None and match.other != OTHERS:
            fields, against_half = matched(self.matches, row, match)
            cell = Cell(published, **fields)
            if against_half is not None:
                cell.compare(against_half)
            return cell
        cell = Cell(published, status="not run")
        own = self.values(metric).get(row.recipe.name, {}) if row.recipe else {}
        if column.key in row.elsewhere:
            cell.status = ELSEWHERE
        elif row.recipe is None:
            cell.status = NOT_PRINTED if cell.published == "-" else "not run"
        elif self.runs(row):
            cell.status = "measured" if own else "not measured"
        if cell.status != ELSEWHERE and (found := self._difference(row, column, metric)) is not None:
            cell.compare(found)
            if self.primary.holds(column.key, row.published):
                order = self.primary.order or column.key
                main = self._main_under_same_evaluator(row)
                ordered = (
                    _mean(one.published.values.get(order)) if one and column.direction else None for one in (row, main)
                )
                tested.append(ComparedCell(cell, found.effect, *ordered))
        if cell.status == "measured":
            cell.mean, cell.se = mean_and_standard_error([own[seed] for seed in sorted(own)])
            cell.seeds = {str(seed): own[seed] for seed in sorted(own)}
        return cell

    def _difference(self, row: MappedRow, column: Column, metric: str) -> Comparison | None:
        """Returns a row's difference to its table's main row; None on the main row, where one of them was not measured,
        and of a number that the SFT model has by definition and the paper does not print."""
        if row.recipe is None or row.main is None or row.is_main:
            return None
        held = self.primary.order and self.primary.holds(column.key, row.published)
        order = row.published.values.get(self.primary.order if held and self.primary.order else column.key)
        if row.recipe == row.reference and has_itself(metric) and order is None:
            return None
        values = self.values(metric)
        return compare(row.recipe.name, values.get(row.recipe.name, {}), row.main, values.get(row.main, {}))

    def _main_under_same_evaluator(self, row: MappedRow) -> MappedRow | None:
        """Returns the main row of a row's table as it is printed under the row's own evaluator."""
        evaluator = row.published.extra.get("evaluator")
        mains = (other for other in self.rows if other.recipe and other.recipe.name == row.main)
        return next((other for other in mains if other.published.extra.get("evaluator") == evaluator), None)

    def row(self, row: MappedRow, key: str | None, cells: Mapping[str, Cell]) -> dict[str, Any]:
        """Returns a row as plain data: its recipe row, runs and cells with their notes."""
        runs, stopped = self.runs(row), self.tree.stopped(row.recipe) if row.recipe else {}
        metrics = {column.key: self.metric(row, column, pattern) for column, pattern in self.columns}
        blank = _blank(runs, cells, metrics)
        partial = {name: text for name, metric in metrics.items() if (text := partial_text(metric, runs.values()))}
        if is_rehearsal(self.tree.root.name):
            partial = dict.fromkeys(cells, "rehearsal")
        for name, cell in cells.items():
            if stopped and cell.status == "not run":
                cell.status = "stopped"
            if self.table.is_result and row.recipe and runs and cell.status in ("measured", "not measured"):
                self._annotate(cell, row.recipe.name, metrics[name])
        rang = {str(seed): alarm_text(alarms_of(output.result)) for seed, output in runs.items()}
        alarms = {seed: text for seed, text in rang.items() if text}
        return {
            "condition": row.condition,
            "backbone": row.published.backbone,
            "extra": dict(row.published.extra),
            "name": row.recipe.name if row.recipe else None,
            "key": key,
            "group": row.recipe.group if row.recipe else None,
            "kind": row.recipe.kind if row.recipe else None,
            "main": row.main,
            "is_main": row.is_main,
            "broken": bool(row.reference and not row.is_main and broken(runs)),
            **({"alarms": alarms} if alarms else {}),
            "runs": {str(seed): out.path.as_posix() for seed, out in runs.items()},
            "cells": {
                name: {**asdict(cell), **({"partial": partial[name]} if name in partial else {})}
                for name, cell in cells.items()
            },
            **({"stopped": {str(seed): reason for seed, reason in stopped.items()}} if stopped else {}),
            **({"blank": blank} if blank else {}),
        }

    def _annotate(self, cell: Cell, name: str, metric: str) -> None:
        """Adds to a judged cell the prompts that lack a verdict, the reason of a blank, and the source of
        difficulties."""
        unparsable, one_sided = undecided_prompts(self.behind, name, metric)
        cell.unparsable, cell.one_sided = unparsable or cell.unparsable, one_sided or cell.one_sided
        if cell.status == "measured":
            cell.note = length_note(self.behind, name, metric)
        elif not cell.why:
            first = next(iter(self.outputs[name].values()))
            cell.why = blank_reason(first, metric, calibrated=any(self.behind.calibrations.values()))

    def column(self, column: Column, metric: str) -> dict[str, Any]:
        """Returns a column as plain data."""
        return {
            **asdict(column),
            "metric": metric,
            "published": column.key in self.printed,
            "primary": column.key in self.primary.columns,
            "decimals": decimals(row.published.values.get(column.key) for row in self.rows),
        }


def measured_table(table: Table, tree: ResultTree) -> dict[str, Any]:
    """Returns a table as plain data: columns, and per row its recipe row, runs and cells.

    Args:
        table: the published table.
        tree: the stage outputs to read.
    """
    made = _TableMaker(table, tree)
    notes = judge_notes(made.outputs)
    return {
        "name": table.name,
        "id": table.id,
        "title": table.title,
        "kind": table.kind,
        "is_result": table.is_result,
        "evaluator": made.primary.evaluator,
        "exploratory": exploratory(seed for runs in made.outputs.values() for seed in runs),
        **({"judges": notes} if notes else {}),
        "columns": [made.column(column, metric) for column, metric in made.columns],
        "rows": [made.row(*each) for each in zip(made.rows, row_keys(made.rows), made.cells(), strict=True)],
    }


def _blank(runs: Mapping[int, StageOutput], cells: Mapping[str, Cell], metrics: Mapping[str, str]) -> list[str]:
    """Returns a line for each judged number of a row that is blank; marks the cells that have no other."""
    lines = []
    for key, metric in metrics.items():
        for seed, output in runs.items():
            if metric in output.blank:
                lines.append(f"{metric} is blank at seed {seed}: {output.blank[metric]}")
                cells[key].status = "blank" if cells[key].status == "not measured" else cells[key].status
    return lines


def decimals(printed: Iterable[Printed | None]) -> int:
    """Decimals of a column's measured numbers: as the paper prints, 1 at least; 2 where it prints none."""
    lengths = [len(cell.text.partition(".")[2]) for cell in printed if cell and cell.mean is not None]
    return min(3, max(1, *lengths)) if lengths else 2


def verdict_counts(tables: list[dict[str, Any]]) -> dict[str, int]:
    """Returns counts of measured published cells, and of the primary cells' verdicts on the paper's ordering."""
    counts = {"confirmed": 0, "contradicted": 0, "equivalent": 0, "undecided": 0, "not run": 0, "measured": 0}
    for table in tables:
        if not table["is_result"]:
            continue
        for row in table["rows"]:
            for cell in row["cells"].values():
                if cell["verdict"]:
                    counts[cell["verdict"]] += 1
                if cell["published"] is None or cell["status"] in (ITSELF, NOT_PRINTED):
                    continue
                counts["measured" if cell["status"] == "measured" else "not run"] += 1
    return counts
