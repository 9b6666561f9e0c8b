"""Rows of the table of comparisons: ratios of what two sides do in a processor second, as Markdown and as a record."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.alternating import Run

#: The table of rows in a record, and its columns.
TABLE = "Comparisons"
COLUMNS = (
    "comparison", "target", "ratio", "range", "ratio by time", "per processor second", "peer", "surplus",
    "peer's surplus",
)  # fmt: skip
#: The largest surplus of this project's side.
SURPLUS = 0.07


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: is compared.
        ours, peer: medians, in `unit`.
        ratio: median over the repeats of ours against the peer's in processor seconds, which other work on the
            machine disturbs less, with the smallest and the largest.
        wall_ratio: median ratio in seconds.
        target: what the ratio should reach.
        surplus, peer_surplus: shares of tokens computed that are padding or repeats.
    """

    what: str
    unit: str
    ours: float
    peer: float
    ratio: float
    low: float
    high: float
    wall_ratio: float
    target: float
    surplus: float | None = None
    peer_surplus: float | None = None

    @property
    def cells(self) -> list[str]:
        """Returns the text of each of `COLUMNS`; missed targets are bold."""
        ratio, surplus, peer_surplus = f"{self.ratio:.2f}", _percent(self.surplus), _percent(self.peer_surplus)
        return [
            self.what, f"{self.target:g}", ratio if self.ratio >= self.target else f"**{ratio}**",
            f"{self.low:.2f} to {self.high:.2f}", f"{self.wall_ratio:.2f}", f"{self.ours:.4g} {self.unit}",
            f"{self.peer:.4g}", surplus if (self.surplus or 0) <= SURPLUS else f"**{surplus}**", peer_surplus,
        ]  # fmt: skip


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def speed_row(what: str, unit: str, ours: list[Run], peer: list[Run], target: float) -> Row:
    """Amount per processor second of both sides, repeat by repeat."""
    busy, wall = (
        [[run.amount / getattr(run, name) for run in runs] for runs in (ours, peer)]
        for name in ("processor_seconds", "seconds")
    )
    ratios, walls = ([a / b for a, b in zip(*rates, strict=True)] for rates in (busy, wall))
    return Row(
        what, unit, statistics.median(busy[0]), statistics.median(busy[1]), statistics.median(ratios), min(ratios),
        max(ratios), statistics.median(walls), target, ours[-1].surplus, peer[-1].surplus,
    )  # fmt: skip


def markdown(cells: Iterable[str]) -> str:
    """Returns a line of a table."""
    return f"| {' | '.join(cells)} |"


def record_rows(rows: list[Row], path: Path) -> None:
    """Writes rows into a CSV of table, row, column and value, in the place of the same rows' earlier values."""
    found = [["table", "row", "column", "value"]]
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            found = [old for old in csv.reader(file) if old[:2] not in [[TABLE, row.what] for row in rows]]
    for row in rows:
        found += [
            [TABLE, row.what, name, cell.strip("*")] for name, cell in zip(COLUMNS, row.cells, strict=True) if cell
        ]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(found)
