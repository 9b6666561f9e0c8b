"""The list at the end of a rehearsal: printed cells that stay empty, in the tables' words, and failed stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS, CODE_BENCHMARKS, DIALOGUE_BENCHMARKS, OFFICIAL_QUESTIONS
from tasks.graph.matrix import printed_backbones
from tasks.graph.names import made_tables
from tasks.graph.rows import raw_row, read_rows, row_named
from tasks.graph.scale import Scale
from tasks.rehearsal.tree import SEED
from tasks.report.cells import ELSEWHERE, ITSELF, NOT_PRINTED
from tasks.running.artifacts import read_json

_BENCHMARKS = (*DIALOGUE_BENCHMARKS, *CHOICE_TASKS, *CODE_BENCHMARKS, *OFFICIAL_QUESTIONS)


class EmptyCell(NamedTuple):
    """A printed cell without a number, with the reason in the tables' words; empty where they say none of a row that
    was run."""

    table: str
    row: str
    column: str
    reason: str


@dataclass
class Listing:
    """A line for each paper with its rows and cells, printed cells without a number, and failed stages' messages."""

    papers: list[str] = field(default_factory=list)
    empty: list[EmptyCell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """Returns the exit status: 1 if a cell is empty without a reason or a stage failed."""
        return int(bool(self.failed) or not all(cell.reason for cell in self.empty))

    def text(self, scale: str) -> str:
        """Returns the list as Markdown."""
        grouped: dict[tuple[str, str], Counter[str]] = {}
        for cell in sorted(self.empty):
            reason = cell.reason or f"WITHOUT A REASON: {cell.row}"
            grouped.setdefault((cell.table, reason), Counter())[cell.column] += 1
        cells = [
            f"{table}: {reason}: {', '.join(f'{column} ({count})' for column, count in columns.items())}"
            for (table, reason), columns in sorted(grouped.items())
        ]
        failed = [f"{stage}: {message}" for stage, message in self.failed.items()]
        lines = [f"# Rehearsal of scale {scale}", "", "**No number of a rehearsal is a result.**", ""]
        lines += [f"- {line}" for line in self.papers]
        for title, items in (("Empty cells", cells), ("Failed stages", failed)):
            lines += ["", f"## {title}", "", *(f"- {item}" for item in items or ["none"])]
        return "\n".join(lines) + "\n"


def listing_of(tree: Path, scale: str, asked: Mapping[str, Collection[str]]) -> Listing:
    """Returns the list of a rehearsal that has run, of the rows asked for by paper; none for all rows of the paper."""
    here, found, lacking = Scale(tree, scale), Listing(), set[str]()
    for paper, names in asked.items():
        rows = read_rows(tree, paper)[0]
        raw = {row.backbone for row in rows.values()} | printed_backbones(paper)
        rows |= {name: raw_row(tree, paper, name) for name in sorted(raw) if name not in rows}
        known = {name: row for name, row in rows.items() if here.has(row)}
        chosen = {name: rows.get(name) or row_named(tree, paper, name) for name in names or known}
        outs = {name: {item.out for item in here.row(row, SEED)} for name, row in chosen.items()}
        lacking |= {out for own in outs.values() for out in own if not (tree / out / "result").exists()}
        states = dict.fromkeys(known, "the rehearsal was asked for other rows")
        states |= {name: "a stage failed" if lacking & own else "" for name, own in outs.items()}
        filled, empty = cells_of(made_tables(tree / here.results, paper), states)
        found.papers.append(f"{paper}: {len(chosen)} rows, {filled} of {filled + len(empty)} printed cells filled")
        found.empty += empty
    for file in sorted((tree / ".work" / "failures").glob("*.json")):
        note = read_json(file)
        if note["out"] in lacking:
            found.failed[note["stage"].rpartition(":")[2]] = note["message"]
    return found


def cells_of(tables: Path | None, states: Mapping[str, str]) -> tuple[int, list[EmptyCell]]:
    """Returns the number of printed cells in a result of the tables stage that have a number, and the others.

    Args:
        states: of the rows that the scale has: why they have no result, empty if they have one.
    """
    filled, empty = 0, []
    for table in read_json(tables / "tables.json")["tables"] if tables is not None else ():
        for row in table["rows"] if table["is_result"] else ():
            for column in table["columns"]:
                cell = row["cells"][column["key"]]
                if cell["published"] is None or cell["status"] in (ITSELF, NOT_PRINTED, ELSEWHERE):
                    continue
                if cell["status"] == "measured":
                    filled += 1
                    continue
                state = states.get(row["name"], "the scale has no backbone, data or evaluation of the row")
                reason = state or cell["why"] or _reason_by_metric(column["metric"], cell["status"])
                if row["name"] is None:
                    reason = "this project has no row for the printed line"
                label = " · ".join(filter(None, (row["condition"], row["backbone"])))
                empty.append(EmptyCell(table["name"], label, column["printed"], reason))
    return filled, empty


def _reason_by_metric(metric: str, status: str) -> str:
    """Returns why a row that was run has no number where the tables do not say it; empty where it should have one."""
    if metric.split("/")[0] in ("wins", "win-test", "mean-test"):
        return "it compares with a row that has no result"
    if metric.removeprefix("peak_").startswith(_BENCHMARKS):
        return "the scale's data do not name the benchmark"
    return "" if status in ("not run", "not measured") else status
