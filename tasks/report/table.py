"""One kind of table, rendered for a page (templates/parts.html.j2), for a terminal and as Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

#: Verdicts on a paper's order.
VERDICTS = ("confirmed", "contradicted", "equivalent", "undecided")
#: Marks of verdicts, and of how mitigations end.
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
        group: heading that it shares with its neighbours.
        note: in small letters below the heading.
        has_published: its cells have a published number beside the measured one.
    """

    heading: str
    numeric: bool = True
    group: str = ""
    note: str = ""
    has_published: bool = False


@dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        text: a measured number, or words.
        error: its standard error.
        notes: in small letters below it.
        published: the paper's number.
        verdict: a key of `MARKS`, or empty.
        absent: whether `text` says why there is no number.
        link: address or anchor that `text` leads to.
        tip: shown under the pointer.
        value: the number by which a page sorts rows.
    """

    text: str = ""
    error: str = ""
    notes: tuple[str, ...] = ()
    published: str = ""
    verdict: str = ""
    absent: bool = False
    link: str = ""
    tip: str = ""
    value: float | None = None

    @property
    def small(self) -> list[str]:
        """Returns the lines below the text: standard error and notes."""
        return [line for line in (self.error, *self.notes) if line]

    @property
    def marked(self) -> str:
        """Returns the text with the mark of its verdict."""
        return f"{self.text} {MARKS[self.verdict]}" if self.verdict in MARKS else self.text

    @property
    def plain(self) -> str:
        """Returns everything in one line: published / text mark ±error; notes."""
        measured = "; ".join(filter(None, (f"{self.marked} {self.error}".strip(), *self.notes)))
        return " / ".join(filter(None, (self.published, measured)))


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        name: its heading.
        cells: one for each column.
        small: in small letters below the name.
        group: heading that it shares with its neighbours.
        main: whether it is set off from the others.
        anchor: where links to the row lead.
    """

    name: str
    cells: tuple[TableCell, ...]
    small: tuple[str, ...] = ()
    group: str = ""
    main: bool = False
    anchor: str = ""


@dataclass(frozen=True)
class ShownTable:
    """Rows by columns; `head` is the heading of the rows' names."""

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    head: str = "row"
    title: str = ""

    @property
    def column_groups(self) -> list[tuple[str, int]]:
        """Returns the headings above columns with the columns of a page below each; empty without any."""
        if not any(column.group for column in self.columns):
            return []
        runs = ((name, list(own)) for name, own in itertools.groupby(self.columns, key=lambda column: column.group))
        return [(name, len(own) + sum(column.has_published for column in own)) for name, own in runs]

    @property
    def has_row_groups(self) -> bool:
        """Returns whether rows have different groups."""
        return len({row.group for row in self.rows}) > 1

    def part(self, start: int, end: int) -> ShownTable:
        """Returns the table with its columns from `start` to `end`, under its title if it begins with the first."""
        rows = tuple(replace(row, cells=row.cells[start:end]) for row in self.rows)
        return replace(self, columns=self.columns[start:end], rows=rows, title="" if start else self.title)


def format_number(value: float, decimals: int) -> str:
    """Returns a number with a true minus sign; -0.0 is 0.0."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def signed(value: float, decimals: int) -> str:
    """Returns a number with its sign."""
    text = format_number(value, decimals)
    return text if text.startswith("−") else f"+{text}"


def effect_text(difference: float, interval: Iterable[float] | None, decimals: int) -> str:
    """Returns a difference with its 95 % interval, such as '−7.0 [−9.1, −4.9]'."""
    bounds = "" if interval is None else f" [{', '.join(signed(one, decimals) for one in interval)}]"
    return signed(difference, decimals) + bounds


def p_text(p: float | None) -> str:
    """Returns 'p < .001' or 'p = .042'; 'no test' without one."""
    if p is None:
        return "no test"
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".", 1)


def number_cell(mean: float | None, error: float | None, decimals: int) -> TableCell:
    """Returns a mean with its standard error; a dash without one."""
    if mean is None:
        return TableCell("—", absent=True)
    text = "" if error is None else f"±{format_number(error, decimals)}"
    return TableCell(format_number(mean, decimals), text, value=mean)


def simple_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> ShownTable:
    """Returns a table of texts; the first heading and the first text of a row are those of the rows' names."""
    made = (TableRow(name, tuple(map(TableCell, cells))) for name, *cells in rows)
    return ShownTable(tuple(map(TableColumn, headings[1:])), tuple(made), headings[0], title)


def markdown_text(text: str) -> str:
    """Returns text or HTML as text for Markdown: no pipes, no line breaks, no HTML."""
    text = text.striptags() if isinstance(text, Markup) else text
    for character, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(character, safe)
    return text


def markdown_lines(table: ShownTable) -> list[str]:
    """Returns the lines of a table as Markdown, and an empty one below it."""
    head = [table.head, *(f"{one.heading} ({one.note})" if one.note else one.heading for one in table.columns)]
    plain = (row.name.striptags() if isinstance(row.name, Markup) else row.name for row in table.rows)
    names = (" · ".join(filter(None, (name, row.group))) for name, row in zip(plain, table.rows, strict=True))
    rows = ([name, *(cell.plain for cell in row.cells)] for name, row in zip(names, table.rows, strict=True))
    lines = ["| " + " | ".join(map(markdown_text, line)) + " |" for line in (head, *rows)]
    title = [f"#### {markdown_text(table.title)}", ""] if table.title else []
    return [*title, lines[0], "|" + " --- |" * len(head), *lines[1:], ""]


def print_tables(width: int, *tables: ShownTable) -> None:
    """Prints tables, each in parts of as many columns as fit a terminal of a width."""
    from rich.console import Console
    from rich.measure import Measurement

    unbounded = Console(width=1000)
    for table in tables:
        start = 0
        while start < len(table.columns):
            for end in range(len(table.columns), start, -1):
                part = _rich_table(table.part(start, end))
                narrowest = Measurement.get(unbounded, unbounded.options, part).minimum + len(part.columns) + 1
                if narrowest <= width:
                    break
            # A single column may be wider than the terminal; fitting it would take digits from it.
            Console(markup=False, highlight=False, width=max(width, narrowest)).print(part, crop=False)
            start = end


def _rich_table(table: ShownTable) -> Any:
    from rich import box
    from rich.table import Table

    several_lines = any(cell.small or cell.published for row in table.rows for cell in row.cells)
    made = Table(title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.padding = (0, 2, int(several_lines), 0)
    made.add_column("" if table.head == "row" else table.head, max_width=NAME_WIDTH)
    several, before = len({column.group for column in table.columns}) > 1, ""
    for place, column in enumerate(table.columns):
        group, before = "" if column.group == before else column.group, column.group
        # cells that are one line each are never broken
        longest = 0 if several_lines else max(len(row.cells[place].text) for row in table.rows)
        made.add_column(
            f"{group}\n{column.heading}" if several else column.heading,
            justify="right" if column.numeric else "left",
            min_width=longest,
            max_width=None if several_lines else max(longest, HEADING_WIDTH),
        )
    for row in table.rows:
        name = f"{row.name} · {row.group}" if row.group and table.has_row_groups else row.name
        cells = (_rich_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True))
        made.add_row(name, *cells, style="bold" if row.main else None)
    return made


def _rich_cell(cell: TableCell, column: TableColumn) -> Any:
    """Returns the published number, the measured one with its mark, and the notes, below each other."""
    from rich.text import Text

    if not (cell.text or cell.notes):
        return Text(cell.published)
    shown = "dim italic" if cell.absent else COLOURS.get(cell.verdict, "cyan") if column.has_published else ""
    lines = [Text(cell.published, "dim")] if column.has_published else []
    lines += [Text(cell.marked, f"not dim {shown}".strip())]
    return Text("\n").join([*lines, *(Text(line, "dim") for line in cell.small)])
