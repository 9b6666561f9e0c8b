"""Cells of the printed tables that stay empty in a rehearsal, and why: one of a closed list of reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS, CODE_BENCHMARKS, DIALOGUE_BENCHMARKS, OFFICIAL_QUESTIONS
from tasks.graph.names import made_tables
from tasks.report.matches import ITSELF, UNDECIDED
from tasks.report.measured import NOT_PRINTED
from tasks.report.paper_tables import ELSEWHERE
from tasks.running.artifacts import read_json

#: Every reason for which a cell may stay empty, by name.
REASONS = {
    "failed": "a stage behind it failed",
    "no row": "this project has no row for the printed line",
    "no scale": "the scale has no backbone, data or evaluation of the row",
    "not asked": "the rehearsal was asked for other rows",
    "no benchmark": "the scale's data do not name the benchmark",
    "no calibration": "the scale's data name no calibration rows for length control",
    "no judge": "the scale names no judge for it",
    "true rewards": "only the testbed's true rewards give it",
    "stopped": "a stage before it stopped and says why",
    "few verdicts": "too few of the judge's verdicts count, or no game is decided",
    "itself": "it is what the column compares with: the SFT model, or the reference row",
    "other row": "it compares with a row that has no result",
}
#: Reasons by the words with which the tables explain an empty cell.
BY_WORDS = {
    "no judge": "no judge",
    "the data has no calibration": "no calibration",
    "the data has no benchmark": "no benchmark",
    "true rewards are not known": "true rewards",
}
#: The tables' words for a row that was not trained, and so has no best evaluation.
NOT_KEPT = "the best evaluation's weights were not kept"
#: Reasons that say that something is broken.
BROKEN = ("failed",)
_BENCHMARKS = (*DIALOGUE_BENCHMARKS, *CHOICE_TASKS, *CODE_BENCHMARKS, *OFFICIAL_QUESTIONS)


@dataclass(frozen=True)
class EmptyCell:
    """A printed cell without a number.

    Attributes:
        table: such as 'segment/1'.
        row, column: as printed.
        reason: a name in `REASONS`; None where none is known.
        detail: what the tables say of it.
    """

    table: str
    row: str
    column: str
    reason: str | None
    detail: str = ""


@dataclass(frozen=True)
class Walked:
    """The printed cells of the papers of a rehearsal.

    Attributes:
        filled: how many have a number.
        empty: the others.
    """

    filled: int
    empty: list[EmptyCell]


@dataclass(frozen=True)
class AskedRows:
    """Rows of a paper in a rehearsal, by name.

    Attributes:
        here: rows that the scale has.
        rows: rows that were run.
        failed: rows of which a stage failed.
    """

    here: frozenset[str]
    rows: frozenset[str]
    failed: frozenset[str]


def walked_cells(results: Path, paper: str, asked: AskedRows) -> Walked:
    """Returns the printed cells of a paper's tables.

    Args:
        results: of the rehearsed scale.
        asked: what was run of the paper.
    """
    folder = made_tables(results, paper)
    tables = [] if folder is None else read_json(folder / "tables.json")["tables"]
    filled, empty = 0, []
    for table in (table for table in tables if table["is_result"]):
        for row in table["rows"]:
            for column in table["columns"]:
                cell = row["cells"][column["key"]]
                if cell["published"] is None or cell["status"] in (ITSELF, NOT_PRINTED, ELSEWHERE):
                    continue
                if cell["status"] == "measured":
                    filled += 1
                    continue
                reason = reason_of(cell, row, column, asked)
                label = " · ".join(filter(None, (row["condition"], row["backbone"])))
                detail = cell.get("why") or f"{cell['status']}: {column['metric']}"
                empty.append(EmptyCell(table["name"], label, column["printed"], reason, detail))
    return Walked(filled, empty)


def reason_of(
    cell: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any], asked: AskedRows
) -> str | None:
    """Returns why a cell of `tables.json` has no number: a name in `REASONS`, or None."""
    name, why = row["name"], str(cell.get("why") or "")
    if name is None:
        return "no row"
    if cell["status"] == "stopped":
        return "stopped"
    if name in asked.failed:
        return "failed"
    if cell["status"] == "not run":
        return "no scale" if name not in asked.here else "not asked" if name not in asked.rows else None
    if (
        cell["status"] == "blank"
        or why.startswith(UNDECIDED)
        or "prompts have a verdict" in why
        or "can be read" in why
    ):
        return "few verdicts"
    if why.startswith("no judge compared") and why.endswith(f"'{name}'"):
        return "itself"
    if row["kind"] == "sft" and why in ("no judge compared the answers with the SFT model's", NOT_KEPT):
        return "itself"
    for words, reason in BY_WORDS.items():
        if why.startswith(words):
            return reason
    metric = str(column["metric"])
    if any(metric.removeprefix("peak_").startswith(one) for one in _BENCHMARKS):
        return "no benchmark"
    if metric.split("/")[0] in ("wins", "win-test", "mean-test"):
        return "other row"
    return None
