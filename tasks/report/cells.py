"""The cells of a published table with what was measured beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlhf_core.evaluation.benchmark_names import OFFICIAL_QUESTIONS
from rlhf_core.evaluation.harness.choice import LEADERBOARD
from rlhf_core.evaluation.verdicts import Direction, RowWord, direction_verdict, verdicts_of
from rlhf_core.evaluation.worlds import Effect
from rlhf_core.published.printed_tables import Column, Printed, Table
from rlhf_core.published.row_map import (
    MappedRow,
    also_measured,
    mapped_rows,
    metric_name,
    primary_of,
    recipe_row,
    row_keys,
)
from tasks.params.scales import is_rehearsal
from tasks.report.games import BENCHMARK, OTHERS, Match, match_of
from tasks.report.numbers import (
    OVER,
    OVER_SFT,
    TableRuns,
    broken,
    has_itself,
    verdicts_word,
)
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.worlds import BySeed, Comparison, compare, compare_constant, exploratory, mean_and_standard_error
from tasks.running.doubtful_numbers import alarm_text, alarms_of

#: Status of a cell where the paper has a dash and this project no row; of a row against itself; of a column that
#: belongs to another row behind the same printed one.
NOT_PRINTED, ITSELF, ELSEWHERE = "not in the paper", "-", "elsewhere"
#: Judged metric -> its benchmark, and the metric with the number of its unparsable verdicts: of prompts, of
#: Arena-Hard's games, of MT-Bench's turns.
JUDGED = {
    "alpaca_wr": (BENCHMARK, "alpaca_invalid"),
    "alpaca_lc": (BENCHMARK, "alpaca_invalid"),
    "arena_wr": ("arena", "arena_invalid"),
    "mtbench": ("mtbench", "mtbench_missing"),
    "mtbench_turn1": ("mtbench", "mtbench_missing"),
    "mtbench_turn2": ("mtbench", "mtbench_missing"),
    "peak_mtbench": ("mtbench", "peak_mtbench_missing"),
}
#: Metrics that are means over tasks or test sets.
AVERAGES = ("average", "seen", "unseen")
UNDECIDED = "no game is decided"


@dataclass
class Cell:
    """One cell: what the paper prints and what was measured.

    Attributes:
        published: the cell as printed; None where the paper has no such column.
        status: 'measured', 'not run' (no run of this row), 'stopped' (`tasks.running.artifacts.Stopped`), 'not
            measured' (the run has no such metric), 'blank' (its judge gave too few valid verdicts), `NOT_PRINTED`,
            `ITSELF` or `ELSEWHERE`.
        mean, se, seeds: over worlds, in the column's unit, and by seed; se is None with one world.
        difference, interval, worlds: to the table's main row, its 95 % interval, and over how many worlds; None on the
            main row, and no interval with one world.
        missing: names the worlds that one of the two rows lacks; None if both have the same.
        against: what `difference` is to: the main row, or the 50 % of a win rate over another row.
        word, p, smallest_visible, reason, verdict: of the primary column alone: the row's verdict and p corrected for
            the table's rows (Holm), the effect found with a power of 80 %, why there is no test, and whether the
            paper's order is confirmed (`rlhf_core.evaluation.verdicts`).
        outcome: of a test, in the paper's words, descriptive; the mean is then its p-value.
        unparsable, one_sided: of a judge, the prompts of all seeds without any verdict, and with one in one of two
            orders; they count for nobody. None where no judge was asked or none is lacking.
        why: why a judged cell is not measured.
        partial: how the metric's benchmark differs from the published one, such as '722 of 805'.
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
    partial: str | None = None

    def measure(self, values: Mapping[int, float]) -> None:
        """Fills in the mean over worlds."""
        self.status, ordered = "measured", sorted(values)
        self.mean, self.se = mean_and_standard_error([values[seed] for seed in ordered])
        self.seeds = {str(seed): values[seed] for seed in ordered}

    def compare(self, found: Comparison) -> None:
        """Fills in the difference, which is descriptive until the table decides."""
        interval = found.effect.interval()
        self.difference, self.worlds, self.missing = found.effect.estimate, found.effect.worlds, found.missing
        self.interval = (interval.lower, interval.upper) if interval else None


@dataclass(frozen=True)
class _ComparedCell:
    """A compared cell of the primary column, and the printed numbers whose order its verdict is held against."""

    cell: Cell
    effect: Effect
    printed: float | None
    main: float | None


def _decide(tested: Sequence[_ComparedCell], margin: float | None) -> None:
    """Fills in the verdicts of a table's primary cells, corrected over all of them, those of several main rows
    included."""
    found = verdicts_of([one.effect for one in tested], margin) if tested else []
    for one, verdict in zip(tested, found, strict=True):
        cell = one.cell
        cell.word, cell.p, cell.reason = verdict.word, verdict.p_corrected, one.effect.reason
        cell.smallest_visible = verdict.smallest_visible
        cell.verdict = direction_verdict(one.printed, one.main, verdict.word)


class _TableMaker:
    """A published table, the runs behind it, and its cells."""

    def __init__(self, table: Table, tree: ResultTree) -> None:
        self.table, self.tree, self.rows = table, tree, mapped_rows(table)
        self.outputs = {row.recipe.name: tree.of(row.recipe) for row in self.rows if row.recipe}
        self.judged = verdicts_word(self.outputs) == "judged"
        self.primary = primary_of(table, judged=self.judged)
        self.printed = {column.key for column in table.columns}
        self.columns = [*table.columns, *also_measured(table, judged=self.judged)]
        mains = {row.main: tree.of(recipe_row(table.paper, row.main)) for row in self.rows if row.main}
        sft_outputs = {row.recipe.name: tree.of(row.reference) for row in self.rows if row.recipe and row.reference}
        tasks = {row.recipe.name: row.published.extra.get("task") for row in self.rows if row.recipe}
        self.behind = TableRuns(tree, table.paper, self.outputs, sft_outputs, tasks, mains)

    def runs(self, row: MappedRow) -> Mapping[int, StageOutput]:
        return self.outputs.get(row.recipe.name, {}) if row.recipe else {}

    def metric(self, column: Column, row: MappedRow | None = None) -> str:
        """Returns the metric behind a column, or behind its cell in a row."""
        return metric_name(self.table, column.key, row.published if row else None, judged=self.judged)

    def values(self, name: str, metric: str) -> BySeed:
        """Returns a metric of a row by seed; empty in a table of settings."""
        return self.behind.of(name, metric) if self.table.is_result else {}

    def cells(self) -> list[dict[str, Cell]]:
        """Returns the cells of every row by column; those of the primary column are decided together."""
        tested: list[_ComparedCell] = []
        made = [
            {column.key: self._cell(row, column, self.metric(column, row), tested) for column in self.columns}
            for row in self.rows
        ]
        _decide(tested, self.primary.margin)
        return made

    def _cell(self, row: MappedRow, column: Column, metric: str, tested: list[_ComparedCell]) -> Cell:
        """Returns a cell, compared with the main row's; adds those that have a verdict to `tested`."""
        printed, match = row.published.values.get(column.key), match_of(metric)
        cell = Cell(str(printed) if printed else None, "not run")
        if match is not None and match.other != OTHERS:
            if row.recipe is not None and self.runs(row):
                self._match(cell, row.recipe.name, str(row.main), match)
            return cell
        own = self.values(row.recipe.name, metric) if row.recipe else {}
        if column.key in row.elsewhere:
            cell.status = ELSEWHERE
            return cell
        if row.recipe is None:
            cell.status = NOT_PRINTED if cell.published == "-" else "not run"
        elif own:
            cell.measure(own)
        elif self.runs(row):
            cell.status = "not measured"
        if (found := self._difference(row, column, metric)) is not None:
            cell.compare(found)
            if self.primary.holds(column.key, row.published):
                order, main = self.primary.order or column.key, self._main_under_same_evaluator(row)
                sides = (one.published.values.get(order) if one and column.direction else None for one in (row, main))
                tested.append(_ComparedCell(cell, found.effect, *(one.mean if one else None for one in sides)))
        return cell

    def _match(self, cell: Cell, own: str, main: str, match: Match) -> None:
        """Fills in how a row does against another: a win rate, or what a test says of the main row."""
        first, other = (own, str(match.other)) if match.kind == "wins" else (main, own)
        if match.kind == "wins" and first == other:
            cell.status = ITSELF
            return
        played = self.behind.matches.played(first, other, match.by)
        if match.by == "judge":
            cell.unparsable, cell.one_sided = (
                sum(len(getattr(one, name)) for one in played.values()) for name in ("unparsable", "one_sided")
            )
        if match.kind == "wins":
            if rates := self.behind.matches.win_rates(first, other, match.by):
                cell.measure(rates)
                cell.against, found = "50 %", compare_constant(rates, 50.0)
                assert found is not None
                cell.compare(found)
                return
        elif (outcome := self.behind.matches.outcome(first, own, match)) is not None:
            cell.status, cell.mean, cell.outcome = "measured", outcome.p_value, outcome.text
            cell.seeds = {str(seed): outcome.p_value for seed in played}
            return
        cell.status, cell.why = "not measured", UNDECIDED if played and match.kind != "mean-test" else None

    def _difference(self, row: MappedRow, column: Column, metric: str) -> Comparison | None:
        """Returns a row's difference to its table's main row; None on the main row, where one of them was not measured,
        and of a number that the SFT model has by definition and the paper does not print."""
        if row.recipe is None or row.main is None or row.is_main:
            return None
        held = self.primary.order and self.primary.holds(column.key, row.published)
        order = row.published.values.get(self.primary.order if held and self.primary.order else column.key)
        if row.recipe == row.reference and has_itself(metric) and order is None:
            return None
        own, main = (self.values(name, metric) for name in (row.recipe.name, row.main))
        return compare(row.recipe.name, own, row.main, main)

    def _main_under_same_evaluator(self, row: MappedRow) -> MappedRow | None:
        """Returns the main row of a row's table as it is printed under the row's own evaluator."""
        evaluator = row.published.extra.get("evaluator")
        mains = (other for other in self.rows if other.recipe and other.recipe.name == row.main)
        return next((other for other in mains if other.published.extra.get("evaluator") == evaluator), None)

    def row(self, row: MappedRow, key: str | None, cells: Mapping[str, Cell]) -> dict[str, Any]:
        """Returns a row as plain data: its recipe row, runs and cells."""
        runs, stopped = self.runs(row), self.tree.stopped(row.recipe) if row.recipe else {}
        rehearsal = is_rehearsal(self.tree.root.name)
        for column in self.columns:
            cell, metric = cells[column.key], self.metric(column, row)
            if stopped and cell.status == "not run":
                cell.status = "stopped"
            cell.partial = "rehearsal" if rehearsal else partial_text(metric, runs.values())
            if self.table.is_result and row.recipe and cell.status in ("measured", "not measured") and runs:
                unparsable, one_sided = self._undecided(row.recipe.name, metric)
                cell.unparsable, cell.one_sided = unparsable or cell.unparsable, one_sided or cell.one_sided
                if cell.status == "not measured":
                    blank = next((out.blank[metric] for out in runs.values() if metric in out.blank), None)
                    cell.status = "blank" if blank else cell.status
                    cell.why = cell.why or blank or _why_not_judged(metric, next(iter(runs.values())))
        alarms = {str(seed): alarm_text(alarms_of(output.result)) for seed, output in runs.items()}
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
            "alarms": {seed: text for seed, text in alarms.items() if text},
            "stopped": {str(seed): reason for seed, reason in stopped.items()},
            "runs": {str(seed): out.path.as_posix() for seed, out in runs.items()},
            "cells": {name: asdict(cell) for name, cell in cells.items()},
        }

    def _undecided(self, name: str, metric: str) -> tuple[int, int]:
        """Returns how many prompts (or games, or turns, see `JUDGED`) behind a row's metric are unparsable and how many
        one-sided (`Tally`), over seeds."""
        kind, _, other = metric.partition("/")
        if kind in OVER:
            found = [run.over(other) for run in self.behind.each() if run.name == name]
            tallies = [one[0] for one in found if one]
            return sum(len(one.unparsable) for one in tallies), sum(len(one.one_sided) for one in tallies)
        rate = metric.replace("lc_win_rate", "win_rate")
        counts = (JUDGED[metric][1] if metric in JUDGED else "", "")
        if metric in OVER_SFT:
            counts = (f"{rate}_unparsable", f"{rate}_one_sided")
        every = [output.metrics for output in self.outputs.get(name, {}).values()]
        unparsable, one_sided = (sum(int(one.get(count, 0)) for one in every) for count in counts)
        return unparsable, one_sided

    def column(self, column: Column) -> dict[str, Any]:
        """Returns a column as plain data."""
        return {
            **asdict(column),
            "metric": self.metric(column),
            "published": column.key in self.printed,
            "primary": column.key in self.primary.columns,
            "decimals": decimals(row.published.values.get(column.key) for row in self.rows),
        }


def measured_table(table: Table, tree: ResultTree) -> dict[str, Any]:
    """Returns a published table as plain data: columns, and per row its recipe row, runs and cells."""
    made = _TableMaker(table, tree)
    return {
        "name": table.name,
        "id": table.id,
        "title": table.title,
        "kind": table.kind,
        "is_result": table.is_result,
        "evaluator": made.primary.evaluator,
        "exploratory": exploratory(seed for runs in made.outputs.values() for seed in runs),
        "columns": [made.column(column) for column in made.columns],
        "rows": [made.row(*each) for each in zip(made.rows, row_keys(made.rows), made.cells(), strict=True)],
    }


def _why_not_judged(metric: str, output: StageOutput) -> str | None:
    """Returns why a run lacks a judged metric or one of true rewards; None where nothing says why."""
    benchmark = OVER_SFT.get(metric) or JUDGED.get(metric, ("", ""))[0]
    if metric.partition("/")[0] in OVER or metric == "true_reward":
        return "neither true rewards nor a judge"
    if not benchmark:
        return None
    if not any(row["benchmark"] == benchmark for row in output.generations):
        return f"the data has no benchmark '{benchmark}'"
    return "too few verdicts" if metric in output.win_rate_facts else "no judge was asked"


def decimals(printed: Iterable[Printed | None]) -> int:
    """Decimals of a column's measured numbers: as the paper prints, 1 at least; 2 where it prints none."""
    lengths = [len(cell.text.partition(".")[2]) for cell in printed if cell and cell.mean is not None]
    return min(3, max(1, *lengths)) if lengths else 2


def partial_text(metric: str, outputs: Iterable[StageOutput]) -> str | None:
    """Returns how a metric's benchmark differs from the published one, such as '722 of 805'; None if it does not.

    The benchmark is the one that the metric's name begins with, AlpacaEval of win rates over the SFT model, and of
    means every task and test set.
    """
    return "; ".join(dict.fromkeys(text for out in outputs for text in _partial_texts(metric, out.benchmarks))) or None


def _partial_texts(metric: str, benchmarks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if metric in AVERAGES:
        for name in (name for name in benchmarks if name in {*LEADERBOARD, *OFFICIAL_QUESTIONS}):
            if text := partial_benchmark(name, benchmarks[name]):
                yield f"{name}: {text}"
        return
    named = sorted((name for name in benchmarks if f"{metric}_".startswith(f"{name}_")), key=len)
    if not named and "win_rate_vs_sft" in metric and BENCHMARK in benchmarks:
        named = [BENCHMARK]
    if named and (text := partial_benchmark(named[-1], benchmarks[named[-1]])):
        yield text


def partial_benchmark(name: str, facts: Mapping[str, Any]) -> str:
    """Returns how a benchmark differs from the published one; empty if it does not."""
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


def verdict_counts(tables: list[dict[str, Any]]) -> dict[str, int]:
    """Returns counts of measured published cells, and of the primary cells' verdicts on the paper's ordering."""
    counts = {"confirmed": 0, "contradicted": 0, "equivalent": 0, "undecided": 0, "not run": 0, "measured": 0}
    cells = (cell for table in tables if table["is_result"] for row in table["rows"] for cell in row["cells"].values())
    for cell in cells:
        if cell["verdict"]:
            counts[cell["verdict"]] += 1
        if cell["published"] is not None and cell["status"] not in (ITSELF, NOT_PRINTED):
            counts["measured" if cell["status"] == "measured" else "not run"] += 1
    return counts
