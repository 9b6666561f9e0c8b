"""A paper's tables, measured beside published: what a tables stage wrote, for a page and for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow, format_number, print_tables, signed
from tasks.running.artifacts import read_object

#: Status of a cell whose column belongs to another row behind the same printed one.
ELSEWHERE = "elsewhere"
#: Statuses of cells without a run.
WITHOUT_RUN = ("not run", ELSEWHERE)
#: Range of a percentage: worlds that see only larger effects decide nothing. No primary column has a larger range.
PERCENT_RANGE = 100.0
EXPLORATORY = "exploratory: settings were made while looking at these seeds"
LEGEND = (
    "Published, then measured: mean, standard error over worlds. Compared cells of the primary column have the "
    "difference to the main row (bold) with its 95 % interval and a verdict, p < .05 corrected for the table's "
    "rows (Holm), with the smallest effect that these worlds see at 80 %; ✓ confirms the paper's order, ✗ "
    "contradicts it, = is equivalent, · leaves it undecided. Other columns are descriptive."
)
MeasuredRow = Mapping[str, Any]


def effect_text(cell: Mapping[str, Any], decimals: int) -> str:
    """Returns a difference with its 95 % interval, such as '-7.0 [-9.1, -4.9]'."""
    bounds = (
        "" if cell["interval"] is None else " [{}, {}]".format(*(signed(one, decimals) for one in cell["interval"]))
    )
    return signed(cell["difference"], decimals) + bounds


def p_value(p: float | None) -> str:
    """'p < .001', 'p = .042'; 'no test' without one."""
    if p is None:
        return "no test"
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".", 1)


def cannot_decide(worlds: int) -> str:
    """Returns that so few worlds see no effect that a percentage can have."""
    return f"{worlds} worlds cannot decide it"


def _verdict_lines(cell: Mapping[str, Any], decimals: int) -> list[str]:
    """Returns a compared primary cell's effect, verdict, and the smallest effect that its worlds can see; empty for
    other cells."""
    if cell["word"] is None:
        return []
    word, sees = cell["word"], cell["smallest_visible"]
    smallest = format_number(sees, decimals) if sees is not None and sees < PERCENT_RANGE else ""
    if word == "sees only effects above":
        word = f"{word} {smallest}" if smallest else cannot_decide(cell["worlds"])
    elif cell["reason"]:
        word = f"{word}: {cell['reason']}"
    elif smallest:
        word = f"{word} (sees {smallest})"
    return [effect_text(cell, decimals), word, *([cell["missing"]] if cell["missing"] else [])]


def _undecided(cell: Mapping[str, Any]) -> list[str]:
    """Returns the numbers of prompts without a verdict of the judge and with one in one order only; empty if all have
    what they need."""
    counts = [(cell.get("unparsable"), "unparsable"), (cell.get("one_sided"), "one-sided")]
    text = ", ".join(f"{count} {word}" for count, word in counts if count)
    return [text] if text else []


def _tip(cell: Mapping[str, Any], decimals: int) -> str:
    """Returns a measured cell's seeds, difference and test, one per line."""
    lines = [f"seed {seed}: {format_number(value, decimals + 1)}" for seed, value in cell["seeds"].items()]
    if cell["difference"] is not None:
        worlds = f"{cell['worlds']} world{'s' * (cell['worlds'] != 1)}"
        lines.append(f"− {cell['against']}: {effect_text(cell, decimals + 1)} over {worlds}")
        lines += [cell["missing"]] if cell["missing"] else []
    if cell["word"] is not None:
        lines.append(f"corrected for the table's rows: {p_value(cell['p'])}")
    return "\n".join(lines)


def run_anchor(group: str, kind: str, name: str, seed: str) -> str:
    """Returns the id that a run has on the report's page, which measured cells lead to."""
    return f"run-{group}-{kind}-{name}-{seed}".replace(".", "_")


def made_cell(row: MeasuredRow, column: Mapping[str, Any], cell: Mapping[str, Any]) -> TableCell:
    """Returns a cell of `tables.json`, which leads to its first run."""
    published, decimals = cell["published"] or "", column["decimals"]
    if cell["status"] == ELSEWHERE:
        return TableCell(published=published)
    if cell["status"] != "measured":
        why = f": {cell['why']}" if cell.get("why") else ""
        tip = "; ".join(stop_lines(row)) if cell["status"] == "stopped" else ""
        return TableCell(f"{cell['status']}{why}", tuple(_undecided(cell)), published, absent=True, tip=tip)
    lines = [] if cell["se"] is None else [f"±{format_number(cell['se'], decimals)}"]
    lines += _verdict_lines(cell, decimals)
    lines += [cell["partial"]] if cell.get("partial") else []
    return TableCell(
        cell["outcome"] or format_number(cell["mean"], decimals),
        (*lines, *_undecided(cell)),
        published,
        cell["verdict"] or "",
        link=f"#{run_anchor(row['group'], row['kind'], row['name'], next(iter(cell['seeds'])))}",
        tip=_tip(cell, decimals),
        value=None if cell["outcome"] else cell["mean"],
    )


@dataclass(frozen=True)
class TableLine:
    """One line of a table as it is printed, which several rows of this project may make together.

    Attributes:
        label: as printed; with the part's name where the line is one part alone.
        rows: the rows behind it, of which the first gives backbone and evaluator.
        cells: per column key the row that measures it, and its cell.
    """

    label: str
    rows: list[MeasuredRow]
    cells: dict[str, tuple[MeasuredRow, dict[str, Any]]]

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the rows that this project has, in order."""
        return tuple(row["name"] for row in self.rows if row["name"])

    @property
    def was_run(self) -> bool:
        """Returns whether a cell has a run."""
        return any(cell["status"] not in WITHOUT_RUN for _, cell in self.cells.values())


def shown_columns(table: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the columns of a table of `tables.json` that the paper prints, with the primary one, and the others."""
    first = [column for column in table["columns"] if column["published"] or column["primary"]]
    return first, [column for column in table["columns"] if column not in first]


def printed_lines(table: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[TableLine]:
    """Returns the lines of a table for some of its columns: parts of a printed row side by side where each has its own
    columns.

    Columns that several parts measure (`Seen` of question answering and of mathematics) keep a line for each part.
    """
    keys = [column["key"] for column in columns]
    lines: list[TableLine] = []
    for printed, group in itertools.groupby(enumerate(table["rows"]), key=_printed_row):
        rows = [row for _, row in group]
        owners = {key: [row for row in rows if row["cells"][key]["status"] != ELSEWHERE] for key in keys}
        if len(rows) > 1 and all(len(owning) == 1 for owning in owners.values()):
            cells = {key: (owning[0], owning[0]["cells"][key]) for key, owning in owners.items()}
            lines.append(TableLine(str(printed[0]), rows, cells))
            continue
        lines += [TableLine(row["condition"], [row], {key: (row, row["cells"][key]) for key in keys}) for row in rows]
    return lines


def _printed_row(numbered: tuple[int, MeasuredRow]) -> tuple[Any, ...]:
    """Returns the key that the parts of one printed row share; a row without parts has a key of its own."""
    number, row = numbered
    part = row["extra"].get("part")
    if part is None:
        return row["condition"], number
    common = {name: value for name, value in row["extra"].items() if name != "part"}
    return row["condition"].removesuffix(f" · {part}"), *common.items()


def paper_table(
    table: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    lines: Iterable[TableLine] | None = None,
    title: str = "",
) -> ShownTable:
    """Returns lines of a table of `tables.json`, all unless given, with some of its columns."""
    several = len({row["backbone"] for row in table["rows"]}) > 1
    primary = {True: f"primary, by {table['evaluator']}" if table["evaluator"] else "primary", False: ""}
    arrows = {"up": "↑", "down": "↓"}
    headings = tuple(
        TableColumn(
            column["printed"],
            group=column["benchmark"] or "",
            note=", ".join(note for note in (arrows.get(column["direction"]), primary[column["primary"]]) if note),
            tip=column.get("unit") or "",
            published=column["published"],
        )
        for column in columns
    )
    rows = []
    for line in printed_lines(table, columns) if lines is None else lines:
        cells = (
            made_cell(own, column, cell) if table["is_result"] else TableCell(published=cell["published"] or "")
            for column in columns
            for own, cell in [line.cells[column["key"]]]
        )
        main = all(row["is_main"] for row in line.rows)
        rows.append(TableRow(line.label, tuple(cells), line.names, _groups(line.rows[0], several=several), main))
    return ShownTable(headings, tuple(rows), title=title)


def _groups(row: MeasuredRow, *, several: bool) -> tuple[str, ...]:
    evaluator = row["extra"].get("evaluator")
    return (row["backbone"] or "") if several else "", f"by {evaluator}" if evaluator else ""


def printed_alone(published: printed_tables.Table, title: str = "") -> ShownTable:
    """Returns a table as printed."""
    several = len({row.backbone for row in published.rows}) > 1
    columns = tuple(TableColumn(column.printed, group=column.benchmark or "") for column in published.columns)
    mapped = mapped_rows(published)
    firsts = mapped[:: max(1, len(mapped) // max(1, len(published.rows)))]
    rows = (
        TableRow(
            first.printed_condition,
            tuple(TableCell(published=str(row.values.get(column.key, ""))) for column in published.columns),
            groups=_groups({"backbone": row.backbone, "extra": row.extra}, several=several),
        )
        for row, first in zip(published.rows, firsts, strict=True)
    )
    return ShownTable(columns, tuple(rows), title=title)


def stop_lines(row: Mapping[str, Any]) -> list[str]:
    """Returns a line with seeds for each reason why a row stopped; empty for other rows."""
    seeds: dict[str, list[str]] = {}
    for seed, reason in row.get("stopped", {}).items():
        seeds.setdefault(reason, []).append(seed)
    left = f", measured at {', '.join(row['runs'])}" if row["runs"] else ""
    return [f"stopped at seed {', '.join(of)}{left}: {reason}" for reason, of in seeds.items()]


def table_notes(table: Mapping[str, Any]) -> list[str]:
    """Returns the notes on a table: spent seeds, who judged and how, how lengths were controlled, and which rows are
    broken or stopped or raised the hacking alarm."""
    lines = [EXPLORATORY] if table["exploratory"] else []
    lines += table.get("judges", [])
    noted = ((column, row["cells"][column["key"]]) for column in table["columns"] for row in table["rows"])
    lines += [f"{column['printed']}: {cell['note']}" for column, cell in noted if cell.get("note")]
    for row in table["rows"]:
        if row["broken"]:
            lines.append(f"{row['name']} is broken: below its own SFT model even at its best evaluation")
        lines += [f"{row['name']} {line}" for line in stop_lines(row)]
        alarms = row.get("alarms", {}).items()
        lines += [f"hacking alarm: {row['name']} at seed {seed}: {text}" for seed, text in alarms]
        lines += [f"{row['name']}: {line}" for line in row.get("blank", ())]
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
        print_tables(console, printed_alone(published, title))
        console.print(f"Published only: {tables_json} does not exist; run the paper first.", style="dim")
        return
    own, also = shown_columns(table)
    print_tables(console, paper_table(table, own, title=title))
    if also:
        print_tables(console, paper_table(table, also, title="Also measured on the testbed"))
    for line in table_notes(table):
        console.print(line, highlight=False)
    console.print(LEGEND, style="dim")
