"""One kind of table, rendered for a page (templates/parts.html.j2), for a terminal and as Markdown."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {"confirmed": "✓", "contradicted": "✗", "equivalent": "=", "undecided": "·"}
#: Characters of a row's name and of a column's heading on a terminal, beyond which they are broken.
NAME_WIDTH, HEADING_WIDTH = 26, 12
COLOURS = {"confirmed": "green", "contradicted": "red"}


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        heading: its name.
        numeric: aligned to the right.
        group: heading above neighbouring columns.
        note: in small letters below the heading.
        tip: shown under the pointer.
        published: its cells have a published number beside the measured one.
    """

    heading: str
    numeric: bool = True
    group: str = ""
    note: str = ""
    tip: str = ""
    published: bool = False


@dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        text: its content.
        lines: in small letters below it, such as a standard error.
        published: the paper's number.
        mark: verdict, of `MARKS`.
        absent: whether `text` says why there is no number.
        link: address or anchor that `text` leads to.
        tip: shown under the pointer.
        value: by which rows are sorted, unless by the text.
        shade: name of a background.
    """

    text: str = ""
    lines: tuple[str, ...] = ()
    published: str = ""
    mark: str = ""
    absent: bool = False
    link: str = ""
    tip: str = ""
    value: float | None = None
    shade: str = ""

    @property
    def plain(self) -> str:
        """Returns everything in one line: published / text mark; lines."""
        text = f"{self.text} {MARKS[self.mark]}" if self.mark else self.text
        first, *more = self.lines or ("",)
        text = f"{text} {first}".strip() if first.startswith("±") else "; ".join(each for each in (text, first) if each)
        return " / ".join(each for each in (self.published, "; ".join([text, *more])) if each)


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        name: its heading.
        cells: one for each column.
        small: in small letters below the name.
        groups: headings that it shares with its neighbours, the outer one first.
        main: whether it is set off from the others.
        link, anchor: of its heading.
        detail: texts below it by prompt, folded.
        shade: colour of a mark before the name, as CSS.
    """

    name: str
    cells: tuple[TableCell, ...]
    small: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    main: bool = False
    link: str = ""
    anchor: str = ""
    detail: tuple[tuple[str, str], ...] = ()
    shade: str = ""


@dataclass(frozen=True)
class ShownTable:
    """Rows by columns; `head` is the heading of the rows' names."""

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    head: str = "row"
    title: str = ""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Returns the headings above columns, each with the number of columns of a page below it; empty without any."""
        if not any(column.group for column in self.columns):
            return []
        runs = ((name, list(own)) for name, own in itertools.groupby(self.columns, key=lambda column: column.group))
        return [(name, len(own) + sum(column.published for column in own)) for name, own in runs]

    @property
    def width(self) -> int:
        """Returns the number of columns of a page behind the names."""
        return len(self.columns) + sum(column.published for column in self.columns)

    def differs(self, place: int) -> bool:
        """Returns whether rows are in several groups at a place of `Row.groups`."""
        return len({row.groups[place] for row in self.rows if len(row.groups) > place}) > 1

    def taken(self, places: Sequence[int]) -> ShownTable:
        """Returns the table with some of its columns."""
        rows = (replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=tuple(rows))


def format_number(value: float, decimals: int) -> str:
    """Returns a measured number with its column's decimals; -0.0 is 0.0."""
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float, decimals: int) -> str:
    """Returns a number with its sign."""
    text = format_number(value, decimals)
    return text if text.startswith("-") else f"+{text}"


def number_cell(mean: float | None, error: float | None, decimals: int, link: str = "") -> TableCell:
    """Returns a mean with its standard error below it; a dash without one."""
    if mean is None:
        return TableCell("—", absent=True)
    lines = () if error is None else (f"±{format_number(error, decimals)}",)
    return TableCell(format_number(mean, decimals), lines, link=link, value=mean)


def simple_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, text: Iterable[int] = ()) -> ShownTable:
    """Returns a table of texts.

    Args:
        headings: the first one is that of the rows' names.
        rows: name and cells of each row.
        text: places of the columns that are aligned to the left.
    """
    columns = tuple(TableColumn(name, numeric=place not in {*text}) for place, name in enumerate(headings[1:], 1))
    return ShownTable(
        columns, tuple(TableRow(name, tuple(map(TableCell, cells))) for name, *cells in rows), headings[0]
    )


def markdown_text(text: str) -> str:
    """Returns text for a cell of a Markdown table: no pipes, no line breaks, no HTML."""
    for character, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(character, safe)
    return text


def markdown_lines(table: ShownTable) -> list[str]:
    """Returns the lines of a table as Markdown, and an empty one below it."""
    head = [table.head, *(f"{one.heading} ({one.note})" if one.note else one.heading for one in table.columns)]
    rows = [
        [" · ".join(part for part in (row.name, *row.groups) if part), *(cell.plain for cell in row.cells)]
        for row in table.rows
    ]
    lines = ["| " + " | ".join(map(markdown_text, line)) + " |" for line in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:], ""]


def print_tables(console: Console, *tables: ShownTable) -> None:
    """Prints tables, each in parts of as many columns as fit the terminal."""
    from rich.console import Console

    for table in tables:
        for part in rich_tables(table, console.width):
            # A single column may be wider than the terminal; fitting it would take digits from it.
            Console(markup=False, highlight=False, width=max(console.width, _least_width(part))).print(part, crop=False)


def rich_tables(table: ShownTable, width: int) -> list[Any]:
    """Returns a table as rich tables, each of as many columns as fit a width."""
    found, places, title = [], list(range(len(table.columns))), table.title
    headings = _headings(table.columns)
    while places:
        taken = len(places)
        if headings[places[0]].startswith("\n"):  # the first column of a part has its group's name
            headings[places[0]] = f"{table.columns[places[0]].group}{headings[places[0]]}"
        while taken > 1 and not _fits(_rich(table.taken(places[:taken]), headings, places, title), width):
            taken -= 1
        found.append(_rich(table.taken(places[:taken]), headings, places, title))
        places, title = places[taken:], ""
    return found


def _headings(columns: Sequence[TableColumn]) -> list[str]:
    """Returns the columns' headings; where they are of several groups, under the first of each its name."""
    if len({column.group for column in columns}) < 2:
        return [column.heading for column in columns]
    found: list[str] = []
    for group, run in itertools.groupby(columns, key=lambda column: column.group):
        first, *others = (column.heading for column in run)
        found += [f"{group}\n{first}", *(f"\n{other}" for other in others)]
    return found


def _rich(table: ShownTable, headings: Sequence[str], places: Sequence[int], title: str) -> Any:
    from rich import box
    from rich import table as rich_table

    head = "" if table.head == "row" else table.head
    if any(cell.lines or cell.published for row in table.rows for cell in row.cells):
        made = rich_table.Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 1, 0))
        made.add_column(head, min_width=14)
        for column, place in zip(table.columns, places, strict=False):
            made.add_column(headings[place], justify="right" if column.numeric else "left")
    else:  # every cell in one line
        made = rich_table.Table(title=title or None, box=None, pad_edge=False, padding=(0, 2, 0, 0))
        made.add_column(head, max_width=NAME_WIDTH)
        for number, (column, place) in enumerate(zip(table.columns, places, strict=False)):
            longest = max(len(row.cells[number].text) for row in table.rows)
            widest, side = max(longest, HEADING_WIDTH), "right" if column.numeric else "left"
            made.add_column(headings[place], justify=side, min_width=longest, max_width=widest)  # type: ignore[arg-type]
    shown = [table.differs(place) for place in range(max((len(row.groups) for row in table.rows), default=0))]
    for row in table.rows:
        groups = [group for group, differs in zip(row.groups, shown, strict=False) if differs and group]
        beside = [group for group in groups if not group.startswith("by ")]
        below = [group for group in groups if group.startswith("by ")]
        name = "\n".join([" · ".join([row.name, *beside]), *below])
        cells = (_rich_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True))
        made.add_row(name, *cells, style="bold" if row.main else None)
    return made


def _rich_cell(cell: TableCell, column: TableColumn) -> Any:
    """Returns the published number, the measured one with its mark, and the lines below it."""
    from rich.text import Text

    if not cell.text:
        return Text(cell.published)
    text = Text(f"{cell.published}\n" if column.published else "", style="dim" if column.published else "")
    if cell.absent:
        text.append(cell.text, style="dim italic")
    elif cell.mark or column.published:
        mark = f" {MARKS[cell.mark]}" if cell.mark else ""
        text.append(f"{cell.text}{mark}", style=f"not dim {COLOURS.get(cell.mark, 'cyan')}")
    else:
        text.append(cell.text)
    for line in cell.lines:
        text.append(f"\n{line}", style="dim")
    return text


def _least_width(table: Any) -> int:
    """Returns the width below which a rich table loses digits."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(markup=False, width=1000)
    return Measurement.get(console, console.options, table).minimum + len(table.columns) + 1


def _fits(table: Any, width: int) -> bool:
    """Returns whether a rich table has all its digits and no line beyond a width."""
    from rich.cells import cell_len
    from rich.console import Console

    if _least_width(table) > width:
        return False
    console = Console(markup=False, width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(table, crop=False)
    return all(cell_len(line) <= width for line in shown.get().splitlines())
