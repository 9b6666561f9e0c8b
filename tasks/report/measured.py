"""The cells of a published table with what was measured beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlhf_core.evaluation.benchmark_names import OFFICIAL_QUESTIONS
from rlhf_core.evaluation.harness.choice import LEADERBOARD
from rlhf_core.evaluation.verdicts import Direction, RowWord, direction_verdict, verdicts_of
from rlhf_core.evaluation.worlds import Effect
from rlhf_core.published.printed_tables import Column, Printed, Table
from rlhf_core.published.row_map import (
    MappedRow,
    Primary,
    also_measured,
    data_set,
    mapped_rows,
    metric_name,
    primary_of,
    row_keys,
)
from tasks.params.scales import is_rehearsal
from tasks.report.matches import ITSELF, OTHERS, Match, Matches, match_of, matched, table_matches
from tasks.report.measurements import Measurements, broken, has_itself, measurements
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error
from tasks.report.paper_tables import ELSEWHERE
from tasks.report.significance import Comparison, compare, exploratory
from tasks.report.win_rates import (
    Outputs,
    TableRuns,
    blank_reason,
    judge_notes,
    length_note,
    undecided_prompts,
    verdicts_word,
)
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
    cell.mean, cell.se = mean_and_standard_error([own[seed] for seed in sorted(own)])
    cell.seeds = {str(seed): own[seed] for seed in sorted(own)}
    return cell


def _compared(mapped: MappedRow, values: Measurements) -> Comparison | None:
    """Returns a row against its table's main row; None on the main row and where one of them was not measured."""
    if mapped.recipe is None or mapped.main is None or mapped.is_main:
        return None
    name, main = mapped.recipe.name, mapped.main
    return compare(name, values.get(name, {}), main, values.get(main, {}))


def _printed(row: MappedRow | None, column: str) -> float | None:
    cell = row.published.values.get(column) if row else None
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
    """Returns the cells of every row by column; those of the primary column are decided together."""
    judged = verdicts_word(runs) == "judged"
    primary = primary_of(table, judged=judged)
    made: list[dict[str, Cell]] = []
    tested: list[ComparedCell] = []
    for row in rows:
        cells: dict[str, Cell] = {}
        for column, pattern in columns:
            metric = row_metric(table, row, column, pattern, judged=judged)
            match = match_of(metric)
            if match is not None and match.other != OTHERS:
                cells[column.key] = _matched_cell(row, column, matches, match)
                continue
            measured = values.get(metric, {})
            cell = cells[column.key] = _cell(row, column, measured, bool(row.recipe and runs.get(row.recipe.name)))
            by_definition = row.recipe == row.reference and has_itself(metric) and _order(primary, row, column) is None
            found = None if column.key in row.elsewhere or by_definition else _compared(row, measured)
            if found is not None:
                cell.compare(found)
                if primary.holds(column.key, row.published):
                    order = primary.order or column.key
                    ordered = (_printed(row, order), _printed(_same_evaluator(rows, row), order))
                    tested.append(ComparedCell(cell, found.effect, *(ordered if column.direction else (None, None))))
        made.append(cells)
    decide(tested, primary.margin)
    return made


def _order(primary: Primary, row: MappedRow, column: Column) -> Printed | None:
    """Returns the printed cell that a cell's verdict is held against; of other columns, their own."""
    key = primary.order if primary.order and primary.holds(column.key, row.published) else column.key
    return row.published.values.get(key)


def _matched_cell(row: MappedRow, column: Column, matches: Matches, match: Match) -> Cell:
    """Returns the cell of a row against another row on the same prompts: descriptive."""
    printed = row.published.values.get(column.key)
    asked, against_half = matched(matches, row, match)
    cell = Cell(published=str(printed) if printed else None, **asked)
    if against_half is not None:
        cell.compare(against_half)
    return cell


def decide(tested: Sequence[ComparedCell], margin: float | None = None) -> None:
    """Fills in the verdicts of a table's primary cells, corrected over all of them, those of several main rows
    included."""
    found = verdicts_of([one.effect for one in tested], margin) if tested else []
    for one, verdict in zip(tested, found, strict=True):
        cell = one.cell
        cell.word, cell.p, cell.reason = verdict.word, verdict.p_corrected, one.effect.reason
        cell.smallest_visible = verdict.smallest_visible
        cell.verdict = direction_verdict(one.printed, one.main, verdict.word)


def _annotate(cell: Cell, row: MappedRow, metric: str, behind: TableRuns) -> None:
    """Adds to a judged cell the prompts that lack a verdict, the reason of a blank, and the source of difficulties."""
    runs = behind.outputs.get(row.recipe.name, {}) if row.recipe else {}
    if not runs or cell.status not in ("measured", "not measured"):
        return
    unparsable, one_sided = undecided_prompts(behind, row.recipe.name if row.recipe else "", metric)
    cell.unparsable, cell.one_sided = unparsable or cell.unparsable, one_sided or cell.one_sided
    if cell.status == "measured":
        cell.note = length_note(behind, row.recipe.name if row.recipe else "", metric)
    else:
        cell.why = cell.why or blank_reason(runs, metric, any(behind.calibrations.values()))


def row_metric(table: Table, row: MappedRow, column: Column, pattern: str, *, judged: bool = False) -> str:
    """Returns the metric behind a row's cell: the column's, with the row's evaluator in it where the map says so."""
    printed = any(own.key == column.key for own in table.columns)
    return metric_name(table, column.key, row.published, judged=judged) if printed else pattern


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
    judged = verdicts_word(outputs) == "judged"
    columns = [(column, metric_name(table, column.key, judged=judged)) for column in table.columns]
    columns += [(column, column.key) for column in also_measured(table, judged=judged)]
    sft_outputs = {row.recipe.name: tree.of(row.reference) for row in rows if row.recipe and row.reference}
    behind = TableRuns(outputs, sft_outputs, tree.alpaca_calibrations(data_set(table.paper)), table.paper, tree)
    matches = table_matches(table.paper, rows, outputs, tree)
    asked = {row_metric(table, row, *column, judged=judged) for row in rows for column in columns if table.is_result}
    values = {metric: _values(behind, matches, metric) for metric in sorted(asked)}
    rendered = []
    for row, key, cells in zip(rows, keys, _cells(table, rows, columns, values, outputs, matches), strict=True):
        runs = outputs.get(row.recipe.name, {}) if row.recipe else {}
        stopped = tree.stopped(row.recipe) if row.recipe else {}
        blank = _blank(runs, cells, {column.key: row_metric(table, row, column, name) for column, name in columns})
        marks = {
            column.key: {"partial": text}
            for column, pattern in columns
            if (text := partial_text(row_metric(table, row, column, pattern, judged=judged), runs.values()))
        }
        if is_rehearsal(tree.root.name):
            marks = {key: {"partial": "rehearsal"} for key in cells}
        for cell in cells.values() if stopped else ():
            cell.status = "stopped" if cell.status == "not run" else cell.status
        for column, pattern in columns if table.is_result else ():
            _annotate(cells[column.key], row, row_metric(table, row, column, pattern, judged=judged), behind)
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
                "broken": bool(row.reference and not row.is_main and broken(runs)),
                **({"alarms": rang} if (rang := _alarms(runs)) else {}),
                "runs": {str(seed): out.path.as_posix() for seed, out in runs.items()},
                "cells": {key: {**asdict(cell), **marks.get(key, {})} for key, cell in cells.items()},
                **({"stopped": {str(seed): reason for seed, reason in stopped.items()}} if stopped else {}),
                **({"blank": blank} if blank else {}),
            }
        )
    printed = {column.key for column in table.columns}
    primary = primary_of(table, judged=judged)
    return {
        "name": table.name,
        "id": table.id,
        "title": table.title,
        "kind": table.kind,
        "is_result": table.is_result,
        "evaluator": primary.evaluator,
        "exploratory": exploratory(seed for runs in outputs.values() for seed in runs),
        **({"judges": notes} if (notes := judge_notes(outputs)) else {}),
        "columns": [
            {
                **asdict(column),
                "metric": metric,
                "published": column.key in printed,
                "primary": column.key in primary.columns,
                "decimals": decimals(row.published.values.get(column.key) for row in rows),
            }
            for column, metric in columns
        ],
        "rows": rendered,
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


def _alarms(runs: Mapping[int, StageOutput]) -> dict[str, str]:
    """Returns the kinds and steps of the hacking alarms of a row's runs, by seed; empty without any."""
    rang = {str(seed): alarm_text(alarms_of(output.result)) for seed, output in runs.items()}
    return {seed: told for seed, told in rang.items() if told}


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


#: Metrics that are means over tasks or test sets.
AVERAGES = ("average", "seen", "unseen")


def partial_text(metric: str, outputs: Iterable[StageOutput]) -> str | None:
    """Returns how a metric's benchmark differs from the published one, such as '722 of 805'; None if it does not.

    Args:
        metric: of a column; its benchmark is the one that its name begins with, AlpacaEval of win rates over the SFT
            model, and of means every task and test set.
        outputs: of the runs behind the cell.
    """
    found = dict.fromkeys(text for output in outputs for text in _partial_texts(metric, output.benchmarks))
    return "; ".join(found) or None


def _partial_texts(metric: str, benchmarks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if metric in AVERAGES:
        named = [name for name in benchmarks if name in {*LEADERBOARD, *OFFICIAL_QUESTIONS}]
        return [f"{name}: {text}" for name in named if (text := _partial_text(name, benchmarks[name]))]
    named = sorted((name for name in benchmarks if f"{metric}_".startswith(f"{name}_")), key=len)
    if not named and "win_rate_vs_sft" in metric and "alpaca" in benchmarks:
        named = ["alpaca"]
    text = _partial_text(named[-1], benchmarks[named[-1]]) if named else ""
    return [text] if text else []


def _partial_text(name: str, facts: Mapping[str, Any]) -> str:
    rows, of = int(facts["rows"]), facts.get("of")
    parts = [] if rows == of else [f"{rows:,} of {of:,}" if of else f"{rows:,} {facts.get('set', 'local rows')}"]
    official = LEADERBOARD.get(name)
    if official is not None and "task" in facts:
        parts += [facts["task"]] if facts["task"] != official.task else []
        parts += [f"{facts['shots']}-shot"] if facts["shots"] != official.shots else []
        parts += ["in a chat template"] if facts["chat_template"] else []
    if facts.get("window"):
        parts.append(f"from {facts['window'][0] or 'the first'} to {facts['window'][1] or 'the last'}")
    if facts.get("cut"):
        parts.append(f"{facts['cut']:,} requests cut")
    return ", ".join(parts)
