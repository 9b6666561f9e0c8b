"""The lines of a table as the paper prints them, where several rows of this project make one printed row."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Status of a cell whose column belongs to another row behind the same printed one.
ELSEWHERE = "elsewhere"
MeasuredRow = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        label: as printed; with the part's name where the line is one part alone.
        rows: the rows behind it, of which the first gives backbone and evaluator.
        cells: per column key the row that measures it, and its cell.
    """

    label: str
    rows: list[MeasuredRow]
    cells: dict[str, tuple[MeasuredRow, dict[str, Any]]]

    @property
    def names(self) -> list[str]:
        """Returns the printed rows that this project has, in order."""
        return [row["name"] for row in self.rows if row["name"]]

    @property
    def is_main(self) -> bool:
        """Returns whether all of it is what its table compares with."""
        return all(row["is_main"] for row in self.rows)


def shown_columns(table: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the columns of a table of `tables.json` that the paper prints, with the primary one, and the others."""
    first = [column for column in table["columns"] if column["published"] or column["primary"]]
    return first, [column for column in table["columns"] if column not in first]


def printed_lines(table: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Returns the lines of a table for some of its columns: parts of a printed row side by side where each has its own
    columns.

    Columns that several parts measure (`Seen` of question answering and of mathematics) keep a line for each part.

    Args:
        table: of `tables.json`.
        columns: those that are shown.
    """
    keys = [column["key"] for column in columns]
    lines: list[Line] = []
    for printed, group in itertools.groupby(enumerate(table["rows"]), key=_printed_row):
        rows = [row for _, row in group]
        owners = {key: [row for row in rows if row["cells"][key]["status"] != ELSEWHERE] for key in keys}
        if len(rows) > 1 and all(len(owning) == 1 for owning in owners.values()):
            cells = {key: (owning[0], owning[0]["cells"][key]) for key, owning in owners.items()}
            lines.append(Line(str(printed[0]), rows, cells))
            continue
        lines += [Line(row["condition"], [row], {key: (row, row["cells"][key]) for key in keys}) for row in rows]
    return lines


def _printed_row(numbered: tuple[int, MeasuredRow]) -> tuple[Any, ...]:
    """Returns the key that the parts of one printed row share; a row without parts has a key of its own."""
    number, row = numbered
    part = row["extra"].get("part")
    if part is None:
        return row["condition"], number
    common = {name: value for name, value in row["extra"].items() if name != "part"}
    return row["condition"].removesuffix(f" · {part}"), *common.items()
