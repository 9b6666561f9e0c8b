"""A paper's table in the terminal, measured below published."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.report.cells import MARKS, format_number, unparsable_text, verdict_lines
from tasks.report.measured import table_notes
from tasks.report.printed_rows import ELSEWHERE, printed_lines, shown_columns
from tasks.running.artifacts import read_json


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
    from rich.measure import Measurement

    console = Console()
    for table in rich_tables(tables_json, name):
        # A narrow terminal may break the lines; fitting the table to it would take digits from its columns.
        words = Measurement.get(console, console.options.update_width(1000), table).minimum
        Console(width=max(console.width, words + len(table.columns) + 1)).print(table, crop=False)
    for line in _notes(tables_json, name):
        console.print(line, markup=False, highlight=False)
    if tables_json.exists():
        console.print(
            "Published, then measured: mean, standard error over worlds. Compared cells of the primary column have the "
            "difference to the main row (bold) with its 95 % interval and a verdict, p < .05 corrected for the table's "
            "rows (Holm), with the smallest effect that these worlds see at 80 %; ✓ confirms the paper's order, ✗ "
            "contradicts it, = is equivalent, · leaves it undecided. Other columns are descriptive.",
            style="dim",
        )
    else:
        console.print(f"Published only: {tables_json} does not exist; run the paper first.", style="dim")


def _notes(tables_json: Path, name: str) -> list[str]:
    """Returns the notes on a table: that it is exploratory, its broken and its stopped rows."""
    made = read_json(tables_json)["tables"] if tables_json.exists() else []
    own = [table for table in made if table["name"] == printed_tables.table(name).name]
    return [line for table in own for line in table_notes(table)]


def rich_tables(tables_json: Path, name: str) -> list[Any]:
    """Returns the table as rich tables: the paper's columns, and apart from them what only the testbed measures."""
    published = printed_tables.table(name)
    measured = read_json(tables_json)["tables"] if tables_json.exists() else []
    data = next((table for table in measured if table["name"] == published.name), None)
    if data is None:
        columns = [
            {"key": c.key, "printed": c.printed, "published": True, "benchmark": c.benchmark} for c in published.columns
        ]
        return [_rich_table(published, columns, None, f"{published.name}  {published.title}")]
    title = f"{published.name}  {published.title}"
    own, also = shown_columns(data)
    tables = [_rich_table(published, own, data, title)]
    return [*tables, _rich_table(published, also, data, "Also measured on the testbed")] if also else tables


def _rich_table(
    published: printed_tables.Table, columns: list[dict[str, Any]], data: Mapping[str, Any] | None, title: str
) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 1, 0))
    several = len({row.backbone for row in published.rows}) > 1
    evaluators = {row.extra.get("evaluator") for row in published.rows} - {None}
    table.add_column("", min_width=14)
    for header in _headers(columns):
        table.add_column(header, justify="right")

    def label(condition: str, backbone: str | None, extra: Mapping[str, Any]) -> str:
        name = " · ".join(part for part in (condition, backbone if several else None) if part)
        return name + (f"\nby {extra['evaluator']}" if len(evaluators) > 1 else "")

    if data is None:
        mapped = mapped_rows(published)
        firsts = mapped[:: max(1, len(mapped) // max(1, len(published.rows)))]
        for printed, first in zip(published.rows, firsts, strict=True):
            cells = [str(printed.values.get(column["key"], "")) for column in columns]
            table.add_row(label(first.printed_condition, printed.backbone, printed.extra), *cells)
        return table
    for line in printed_lines(data, columns):
        shown = []
        for column in columns:
            own, cell = line.cells[column["key"]]
            shown.append(_rich_cell(cell["published"] or "", column, own, data["is_result"]))
        name = label(line.label, line.rows[0]["backbone"], line.rows[0]["extra"])
        table.add_row(name, *shown, style="bold" if line.is_main else None)
    return table


def _headers(columns: list[dict[str, Any]]) -> list[str]:
    """Returns the columns' printed names; where they are of several benchmarks, under the first of each its name."""
    if len({column["benchmark"] for column in columns}) < 2:
        return [column["printed"] for column in columns]
    headers: list[str] = []
    for benchmark, run in itertools.groupby(columns, key=lambda column: column["benchmark"]):
        first, *others = (column["printed"] for column in run)
        headers += [f"{benchmark or ''}\n{first}", *(f"\n{other}" for other in others)]
    return headers


def _rich_cell(printed: str, column: Mapping[str, Any], row: Mapping[str, Any], is_result: bool) -> Any:
    """Returns the published number, measured mean with mark, standard error, effect and verdict: one line each."""
    from rich.text import Text

    if not is_result:
        return Text(printed)
    text = Text(f"{printed}\n" if column["published"] else "", style="dim")
    cell = row["cells"][column["key"]]
    if cell["status"] == ELSEWHERE:
        return text
    lost = f"\n{unparsable_text(cell)}" if cell.get("unparsable") else ""
    if cell["status"] != "measured":
        return text.append(f"{cell['status']}{lost}", style="dim italic")
    mark = f" {MARKS[cell['verdict']]}" if cell["verdict"] else ""
    colour = {"confirmed": "green", "contradicted": "red"}.get(cell["verdict"], "cyan")
    shown = cell["outcome"] or format_number(cell["mean"], column["decimals"])
    text.append(f"{shown}{mark}", style=f"not dim {colour}")
    if cell["se"] is not None:
        text.append(f"\n±{format_number(cell['se'], column['decimals'])}", style="dim")
    for line in verdict_lines(cell, column["decimals"]):
        text.append(f"\n{line}", style="dim")
    return text.append(lost, style="dim")
