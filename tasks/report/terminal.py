"""A paper's table in the terminal, measured below published."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.report.cells import MARKS, format_number, status_text, unparsable_text, verdict_lines
from tasks.report.measured import table_notes
from tasks.report.printed_rows import ELSEWHERE, printed_lines, shown_columns
from tasks.running.artifacts import read_object
from tasks.running.result_digests import exists_or_raise_if_lost


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
    for table in rich_tables(tables_json, name, console.width):
        # A single column may be wider than the terminal; fitting it would take digits from it.
        Console(markup=False, width=max(console.width, _least_width(table))).print(table, crop=False)
    for line in _notes(tables_json, name):
        console.print(line, highlight=False)
    if exists_or_raise_if_lost(tables_json):
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
    made = read_object(tables_json)["tables"] if exists_or_raise_if_lost(tables_json) else []
    own = [table for table in made if table["name"] == printed_tables.table(name).name]
    return [line for table in own for line in table_notes(table)]


def rich_tables(tables_json: Path, name: str, width: int) -> list[Any]:
    """Returns the table as rich tables: the paper's columns, and apart from them what only the testbed measures; each
    in parts of as many columns as fit a width."""
    published = printed_tables.table(name)
    measured = read_object(tables_json)["tables"] if exists_or_raise_if_lost(tables_json) else []
    data = next((table for table in measured if table["name"] == published.name), None)
    title = f"{published.name}  {published.title}"
    if data is None:
        columns = [
            {"key": c.key, "printed": c.printed, "published": True, "benchmark": c.benchmark} for c in published.columns
        ]
        return _in_parts(published, columns, None, title, width)
    own, also = shown_columns(data)
    tables = _in_parts(published, own, data, title, width)
    return [*tables, *_in_parts(published, also, data, "Also measured on the testbed", width)] if also else tables


def _in_parts(
    published: printed_tables.Table,
    columns: list[dict[str, Any]],
    data: Mapping[str, Any] | None,
    title: str,
    width: int,
) -> list[Any]:
    headers = _headers(columns)
    found: list[Any] = []
    while columns:
        taken = len(columns)
        if headers[0].startswith("\n"):  # the first part has its benchmark's name
            headers = [f"{columns[0]['benchmark'] or ''}{headers[0]}", *headers[1:]]
        table = _rich_table(published, columns, headers, data, title)
        while taken > 1 and not _fits(table, width):
            taken -= 1
            table = _rich_table(published, columns[:taken], headers[:taken], data, title)
        found.append(table)
        columns, headers, title = columns[taken:], headers[taken:], ""
    return found


def _least_width(table: Any) -> int:
    """Returns the width below which a table loses digits."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(markup=False, width=1000)
    return Measurement.get(console, console.options, table).minimum + len(table.columns) + 1


def _fits(table: Any, width: int) -> bool:
    """Returns whether a table has all its digits and no line beyond a width."""
    from rich.cells import cell_len
    from rich.console import Console

    if _least_width(table) > width:
        return False
    console = Console(markup=False, width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(table, crop=False)
    return all(cell_len(line) <= width for line in shown.get().splitlines())


def _rich_table(
    published: printed_tables.Table,
    columns: list[dict[str, Any]],
    headers: list[str],
    data: Mapping[str, Any] | None,
    title: str,
) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 1, 0))
    several = len({row.backbone for row in published.rows}) > 1
    evaluators = {row.extra.get("evaluator") for row in published.rows} - {None}
    table.add_column("", min_width=14)
    for header in headers:
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
    lost = f"\n{words}" if (words := unparsable_text(cell)) else ""
    if cell["status"] != "measured":
        return text.append(f"{status_text(cell)}{lost}", style="dim italic")
    mark = f" {MARKS[cell['verdict']]}" if cell["verdict"] else ""
    colour = {"confirmed": "green", "contradicted": "red"}.get(cell["verdict"], "cyan")
    shown = cell["outcome"] or format_number(cell["mean"], column["decimals"])
    text.append(f"{shown}{mark}", style=f"not dim {colour}")
    if cell["se"] is not None:
        text.append(f"\n±{format_number(cell['se'], column['decimals'])}", style="dim")
    for line in verdict_lines(cell, column["decimals"]):
        text.append(f"\n{line}", style="dim")
    if cell.get("partial"):
        text.append(f"\n{cell['partial']}", style="dim")
    return text.append(lost, style="dim")
