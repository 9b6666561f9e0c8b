"""One kind of table, rendered for a page (templates/parts.html.j2), for a terminal and as Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Mark of a verdict.
MARKS = {"confirmed": "✓", "contradicted": "✗", "equivalent": "=", "undecided": "·", "won": "✓", "hacked": "✗"}
#: Characters of a row's name and of a heading on a terminal, beyond which they are broken.
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
        published: its cells have a published number beside the measured one.
    """

    heading: str
    numeric: bool = True
    group: str = ""
    note: str = ""
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
    """

    text: str = ""
    lines: tuple[str, ...] = ()
    published: str = ""
    mark: str = ""
    absent: bool = False
    link: str = ""
    tip: str = ""
    value: float | None = None

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
    """

    name: str
    cells: tuple[TableCell, ...]
    small: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    main: bool = False
    link: str = ""
    anchor: str = ""


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

    def columns_from(self, start: int, end: int) -> ShownTable:
        """Returns the table with some of its columns."""
        rows = (replace(row, cells=row.cells[start:end]) for row in self.rows)
        return replace(self, columns=self.columns[start:end], rows=tuple(rows), title="" if start else self.title)


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


def simple_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> ShownTable:
    """Returns a table of texts; the first heading and the first text of a row are those of the rows' names."""
    made = (TableRow(name, tuple(map(TableCell, cells))) for name, *cells in rows)
    return ShownTable(tuple(map(TableColumn, headings[1:])), tuple(made), headings[0], title)


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
    from rich.measure import Measurement

    wide = Console(width=1000)
    for table in tables:
        start = 0
        while start < len(table.columns):
            for end in range(len(table.columns), start, -1):
                part = _rich(table.columns_from(start, end))
                least = Measurement.get(wide, wide.options, part).minimum + len(part.columns) + 1
                if least <= console.width:
                    break
            # A single column may be wider than the terminal; fitting it would take digits from it.
            Console(markup=False, highlight=False, width=max(console.width, least)).print(part, crop=False)
            start = end


def _rich(table: ShownTable) -> Any:
    from rich import box
    from rich import table as rich_table

    tall = any(cell.lines or cell.published for row in table.rows for cell in row.cells)
    made = rich_table.Table(
        title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    made.padding = (0, 2, int(tall), 0)
    made.add_column("" if table.head == "row" else table.head, max_width=NAME_WIDTH)
    several = len({column.group for column in table.columns}) > 1
    for place, (before, column) in enumerate(zip((None, *table.columns), table.columns, strict=False)):
        group = column.group if before is None or before.group != column.group else ""
        heading = f"{group}\n{column.heading}" if several else column.heading
        longest = 0 if tall else max(len(row.cells[place].text) for row in table.rows)  # its cells are one line each
        most = None if tall else max(longest, HEADING_WIDTH)
        side: Any = "right" if column.numeric else "left"
        made.add_column(heading, justify=side, min_width=longest, max_width=most)
    places = itertools.zip_longest(*(row.groups for row in table.rows), fillvalue="")
    differing = [len({*place}) > 1 for place in places]
    for row in table.rows:
        groups = [group for group, differs in zip(row.groups, differing, strict=False) if differs and group]
        cells = (_rich_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True))
        made.add_row(" · ".join([row.name, *groups]), *cells, style="bold" if row.main else None)
    return made


def _rich_cell(cell: TableCell, column: TableColumn) -> Any:
    """Returns the published number, the measured one with its mark, and the lines below it."""
    from rich.text import Text

    if not cell.text and not cell.lines:
        return Text(cell.published)
    text = Text(f"{cell.published}\n" if column.published else "", style="dim" if column.published else "")
    mark = f" {MARKS[cell.mark]}" if cell.mark else ""
    shown = "dim italic" if cell.absent else COLOURS.get(cell.mark, "cyan") if column.published else ""
    text.append(f"{cell.text}{mark}", style=f"not dim {shown}".strip())
    for line in cell.lines:
        text.append(f"\n{line}", style="dim")
    return text
