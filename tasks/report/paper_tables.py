"""A paper's tables, measured beside published: what a tables stage wrote, for a page and for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from tasks.report.cells import ELSEWHERE, measured_table
from tasks.report.outputs import ResultTree
from tasks.report.table import (
    ShownTable,
    TableCell,
    TableColumn,
    TableRow,
    effect_text,
    format_number,
    number_cell,
    p_text,
    print_tables,
)
from tasks.report.worlds import EXPLORATORY
from tasks.running.artifacts import read_object

#: Range of a percentage: worlds that see only larger effects decide nothing. No primary column has a larger range.
PERCENT_RANGE = 100.0
LEGEND = (
    "Published, then measured: mean, standard error over worlds. Compared cells of the primary column have the "
    "difference to the main row (bold) with its 95 % interval and a verdict, p < .05 corrected for the table's "
    "rows (Holm), with the smallest effect that these worlds see at 80 %; ✓ confirms the paper's order, ✗ "
    "contradicts it, = is equivalent, · leaves it undecided. Other columns are descriptive."
)
MeasuredRow = Mapping[str, Any]


def _verdict_notes(cell: Mapping[str, Any], decimals: int) -> list[str]:
    """Returns a compared primary cell's effect, verdict, and the smallest effect that its worlds can see; empty for
    other cells."""
    if cell["word"] is None:
        return []
    word, sees = cell["word"], cell["smallest_visible"]
    smallest = format_number(sees, decimals) if sees is not None and sees < PERCENT_RANGE else ""
    if word == "sees only effects above":
        word = f"{word} {smallest}" if smallest else f"{cell['worlds']} worlds cannot decide it"
    elif cell["reason"] or smallest:
        word += f": {cell['reason']}" if cell["reason"] else f" (sees {smallest})"
    return [effect_text(cell["difference"], cell["interval"], decimals), word, cell["missing"] or ""]


def _tip(cell: Mapping[str, Any], decimals: int) -> str:
    """Returns a measured cell's seeds, difference and test, one per line."""
    lines = [f"seed {seed}: {format_number(value, decimals)}" for seed, value in cell["seeds"].items()]
    if cell["difference"] is not None:
        effect = effect_text(cell["difference"], cell["interval"], decimals)
        lines.append(f"− {cell['against']}: {effect}, worlds: {cell['worlds']}")
    if cell["word"] is not None:
        lines.append(f"corrected for the table's rows: {p_text(cell['p'])}")
    return "\n".join(lines)


def run_anchor(group: str, kind: str, name: str, seed: str) -> str:
    """Returns the id that a run has on the report's page, which measured cells lead to."""
    return f"run-{group}-{kind}-{name}-{seed}".replace(".", "_")


def made_cell(row: MeasuredRow, column: Mapping[str, Any], cell: Mapping[str, Any]) -> TableCell:
    """Returns a cell of `tables.json`, which leads to its first run."""
    published, decimals = cell["published"] or "", column["decimals"]
    counts = [(cell["unparsable"], "unparsable"), (cell["one_sided"], "one-sided")]
    lacking = ", ".join(f"{count} {word}" for count, word in counts if count)
    if cell["status"] == ELSEWHERE:
        return TableCell(published=published)
    if cell["status"] != "measured":
        text = f"{cell['status']}: {cell['why']}" if cell["why"] else cell["status"]
        tip = "; ".join(stop_lines(row)) if cell["status"] == "stopped" else ""
        return TableCell(text, notes=(lacking,), published=published, absent=True, tip=tip)
    made = number_cell(cell["mean"], cell["se"], decimals)
    return replace(
        made,
        text=cell["outcome"] or made.text,
        value=None if cell["outcome"] else made.value,
        notes=(*_verdict_notes(cell, decimals), cell["partial"] or "", lacking),
        published=published,
        verdict=cell["verdict"] or "",
        link=f"#{run_anchor(row['group'], row['kind'], row['name'], next(iter(cell['seeds'])))}",
        tip=_tip(cell, decimals + 1),
    )


def printed_rows(table: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[MeasuredRow]:
    """Returns the rows of a table as they are printed: parts of a printed row are one row where each has columns of its
    own.

    Columns that several parts measure (`Seen` of question answering and of mathematics) keep a row for each part.
    """
    found: list[MeasuredRow] = []
    for printed, group in itertools.groupby(enumerate(table["rows"]), key=_printed_row):
        parts = [row for _, row in group]
        owners = {
            column["key"]: [part for part in parts if part["cells"][column["key"]]["status"] != ELSEWHERE]
            for column in columns
        }
        if len(parts) > 1 and all(len(own) == 1 for own in owners.values()):
            cells = {key: {**own[0]["cells"][key], "row": own[0]} for key, own in owners.items()}
            names = " ".join(part["name"] for part in parts if part["name"])
            main = all(part["is_main"] for part in parts)
            parts = [{**parts[0], "condition": printed[0], "name": names, "is_main": main, "cells": cells}]
        found += parts
    return found


def _printed_row(numbered: tuple[int, MeasuredRow]) -> tuple[Any, ...]:
    """Returns the key that the parts of one printed row share; a row without parts has a key of its own."""
    number, row = numbered
    part = row["extra"].get("part")
    if part is None:
        return row["condition"], number
    common = {name: value for name, value in row["extra"].items() if name != "part"}
    return row["condition"].removesuffix(f" · {part}"), *common.items()


def was_run(row: MeasuredRow) -> bool:
    """Returns whether a row of a table has a cell with a run."""
    return any(cell["status"] not in ("not run", ELSEWHERE) for cell in row["cells"].values())


def shown_columns(table: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the columns of a table of `tables.json` that the paper prints, with the primary one, and the others."""
    first = [column for column in table["columns"] if column["published"] or column["primary"]]
    return first, [column for column in table["columns"] if column not in first]


def paper_table(
    table: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], rows: Iterable[MeasuredRow], title: str = ""
) -> ShownTable:
    """Returns rows of a table of `tables.json` with some of its columns."""
    several = len({row["backbone"] for row in table["rows"]}) > 1
    primary = f"primary, by {table['evaluator']}" if table["evaluator"] else "primary"
    headings = []
    for column in columns:
        notes = ({"up": "↑", "down": "↓"}.get(column["direction"]), primary if column["primary"] else "")
        note, group = ", ".join(filter(None, notes)), column["benchmark"] or ""
        headings.append(TableColumn(column["printed"], group=group, note=note, has_published=column["published"]))
    shown = []
    for row in rows:
        found = [(column, row["cells"][column["key"]]) for column in columns]
        cells = (
            made_cell(cell.get("row", row), column, cell)
            if table["is_result"]
            else TableCell(published=cell["published"] or "")
            for column, cell in found
        )
        evaluator, small = row["extra"].get("evaluator"), tuple((row["name"] or "").split())
        groups = (row["backbone"] if several else "", f"by {evaluator}" if evaluator else "")
        shown.append(TableRow(row["condition"], tuple(cells), small, " · ".join(filter(None, groups)), row["is_main"]))
    return ShownTable(tuple(headings), tuple(shown), title=title)


def stop_lines(row: Mapping[str, Any]) -> list[str]:
    """Returns a line with seeds for each reason why a row stopped; empty for other rows."""
    seeds: dict[str, list[str]] = {}
    for seed, reason in row["stopped"].items():
        seeds.setdefault(reason, []).append(seed)
    left = f", measured at {', '.join(row['runs'])}" if row["runs"] else ""
    return [f"stopped at seed {', '.join(of)}{left}: {reason}" for reason, of in seeds.items()]


def table_notes(table: Mapping[str, Any]) -> list[str]:
    """Returns the notes on a table: spent seeds, and which rows are broken or stopped or raised the hacking alarm."""
    lines = [EXPLORATORY] if table["exploratory"] else []
    for row in table["rows"]:
        if row["broken"]:
            lines.append(f"{row['name']} is broken: below its own SFT model even at its best evaluation")
        lines += [f"{row['name']} {line}" for line in stop_lines(row)]
        lines += [f"hacking alarm: {row['name']} at seed {seed}: {text}" for seed, text in row["alarms"].items()]
    return [f"{line}." for line in dict.fromkeys(lines)]


def print_table(tables_json: Path, name: str) -> None:
    """Prints one table ('segment/1') to the terminal, measured below published.

    Args:
        tables_json: the `tables.json` of the paper's tables stage; where the file does not exist, the
            published cells are printed alone.
        name: the table's name.

    Raises:
        RecipeError: an unknown paper or table.
    """
    from rich.console import Console

    console = Console(markup=False)
    published = printed_tables.table(name)
    title = f"{published.name}  {published.title}"
    made = read_object(tables_json)["tables"] if tables_json.exists() else []
    table = next((each for each in made if each["name"] == published.name), None)
    if table is None:
        table = measured_table(published, ResultTree(printed_tables.FOLDER, (0,)))  # nothing has run there
        console.print(f"Published only: {tables_json} does not exist; run the paper first.", style="dim")
    own, also = shown_columns(table)
    print_tables(console.width, paper_table(table, own, printed_rows(table, own), title))
    if also and tables_json.exists():
        print_tables(console.width, paper_table(table, also, table["rows"], "Also measured on the testbed"))
    for line in table_notes(table):
        console.print(line, highlight=False)
    console.print(LEGEND, style="dim")
