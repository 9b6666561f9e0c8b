"""The list at the end of a rehearsal: printed cells that stay empty, in the tables' words, and failed stages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS, CODE_BENCHMARKS, DIALOGUE_BENCHMARKS, OFFICIAL_QUESTIONS
from tasks.graph.matrix import printed_backbones
from tasks.graph.names import made_tables
from tasks.graph.rows import raw_row, read_rows, row_named
from tasks.graph.scale import Scale
from tasks.rehearsal.tree import SEED, Rehearsal
from tasks.report.games import ITSELF
from tasks.report.measured import NOT_PRINTED
from tasks.report.paper_tables import ELSEWHERE
from tasks.running.artifacts import read_json

_BENCHMARKS = (*DIALOGUE_BENCHMARKS, *CHOICE_TASKS, *CODE_BENCHMARKS, *OFFICIAL_QUESTIONS)


@dataclass(frozen=True)
class EmptyCell:
    """A printed cell without a number.

    Attributes:
        table: such as 'segment/1'.
        row, column: as printed.
        reason: in the tables' words; empty where they say none of a row that was run.
    """

    table: str
    row: str
    column: str
    reason: str


@dataclass
class RehearsedPaper:
    """A paper in a rehearsal: how many rows were run, how many printed cells have a number, and the other cells."""

    rows: int
    filled: int = 0
    empty: list[EmptyCell] = field(default_factory=list)


@dataclass
class Listing:
    """List of what a rehearsal found.

    Attributes:
        papers: by name.
        failed: message of each failed stage.
        origins: of the rows of each data set.
        tokenizers: of the stand-in for each model.
    """

    papers: dict[str, RehearsedPaper] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    tokenizers: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """Returns the exit status: 1 if a cell is empty without a reason or a stage failed."""
        return int(bool(self.failed) or any(not cell.reason for own in self.papers.values() for cell in own.empty))

    def text(self, scale: str) -> str:
        """Returns the list as Markdown."""
        lines = [f"# Rehearsal of scale {scale}", "", "**No number of a rehearsal is a result.**", ""]
        for paper, own in self.papers.items():
            whole = own.filled + len(own.empty)
            lines.append(f"- {paper}: {own.rows} rows, {own.filled} of {whole} printed cells filled")
        lines += ["", "## Empty cells", ""]
        cells = [cell for own in self.papers.values() for cell in own.empty]
        counts = Counter((cell.table, cell.reason or f"WITHOUT A REASON: {cell.row}", cell.column) for cell in cells)
        grouped: dict[tuple[str, str], list[str]] = {}
        for (table, reason, column), count in sorted(counts.items()):
            grouped.setdefault((table, reason), []).append(f"{column} ({count})")
        lines += [f"- {table}: {reason}: {', '.join(own)}" for (table, reason), own in grouped.items()] or ["- none"]
        lines += ["", "## Failed stages", ""]
        lines += [f"- {stage}: {message}" for stage, message in self.failed.items()] or ["- none"]
        lines += ["", "## Replaced", "", "- models: tiny ones with random weights of the same architecture class"]
        lines += [f"- {name}: {text}" for name, text in {**self.origins, **self.tokenizers}.items()]
        return "\n".join(lines) + "\n"

    def write(self, rehearsal: Rehearsal) -> Path:
        """Writes the list as JSON and as Markdown into the tree; returns the second."""
        file = rehearsal.tree / "rehearsal.md"
        file.with_suffix(".json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        file.write_text(self.text(rehearsal.scale), encoding="utf-8")
        return file


def listing_of(rehearsal: Rehearsal, asked: Mapping[str, Collection[str]]) -> Listing:
    """Returns the list of a rehearsal that has run.

    Args:
        asked: names of the rows by paper; empty for all rows of the paper.
    """
    here = Scale(rehearsal.tree, rehearsal.name)
    found = Listing(origins=rehearsal.rows.origins, tokenizers=rehearsal.stand_ins.tokenizers)
    lacking: set[str] = set()
    for paper, names in asked.items():
        rows = read_rows(rehearsal.tree, paper)[0]
        raw = {row.backbone for row in rows.values()} | printed_backbones(paper)
        rows |= {name: raw_row(rehearsal.tree, paper, name) for name in sorted(raw) if name not in rows}
        known = {name: row for name, row in rows.items() if here.has(row)}
        chosen = {name: rows.get(name) or row_named(rehearsal.tree, paper, name) for name in names or known}
        outs = {name: [item.out for item in here.row(row, SEED)] for name, row in chosen.items()}
        lacking |= {out for own in outs.values() for out in own if not (rehearsal.tree / out / "result").exists()}
        found.papers[paper] = own = RehearsedPaper(len(chosen))
        ended = {name for name, some in outs.items() if not lacking & {*some}}
        states = dict.fromkeys(known, "the rehearsal was asked for other rows") | dict.fromkeys(
            chosen, "a stage failed"
        )
        fill(own, made_tables(rehearsal.tree / here.results, paper), states | dict.fromkeys(ended, ""))
    for file in sorted((rehearsal.tree / ".work" / "failures").glob("*.json")):
        note = read_json(file)
        if note["out"] in lacking:
            found.failed[note["stage"].rpartition(":")[2]] = note["message"]
    return found


def fill(paper: RehearsedPaper, tables: Path | None, states: Mapping[str, str]) -> None:
    """Counts the printed cells of a paper's tables and lists the empty ones.

    Args:
        tables: result of the tables stage.
        states: of the rows that the scale has: why they have no result, empty if they have one.
    """
    for table in read_json(tables / "tables.json")["tables"] if tables is not None else ():
        for row in table["rows"] if table["is_result"] else ():
            for column in table["columns"]:
                cell = row["cells"][column["key"]]
                if cell["published"] is None or cell["status"] in (ITSELF, NOT_PRINTED, ELSEWHERE):
                    continue
                if cell["status"] == "measured":
                    paper.filled += 1
                    continue
                state = states.get(row["name"], "the scale has no backbone, data or evaluation of the row")
                reason = state or cell["why"] or reason_by_metric(column["metric"], cell["status"])
                if row["name"] is None:
                    reason = "this project has no row for the printed line"
                label = " · ".join(filter(None, (row["condition"], row["backbone"])))
                paper.empty.append(EmptyCell(table["name"], label, column["printed"], reason))


def reason_by_metric(metric: str, status: str) -> str:
    """Returns why a row that was run has no number where the tables do not say it; empty where it should have one."""
    if metric.split("/")[0] in ("wins", "win-test", "mean-test"):
        return "it compares with a row that has no result"
    if metric.removeprefix("peak_").startswith(_BENCHMARKS):
        return "the scale's data do not name the benchmark"
    return "" if status in ("not run", "not measured") else status
