"""First screen of the report: verdict counts over all papers, alarms, and a picture of what every policy gained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.report.drawing import theme_colour
from tasks.report.printed_rows import ELSEWHERE
from tasks.report.records import Run
from tasks.report.rows_of_all_papers import SORT_METRIC, RowOverWorlds
from tasks.running.alarms import alarm_text, alarms_of

VERDICTS = ("confirmed", "contradicted", "equivalent", "undecided")
#: Statuses of cells without a run; `elsewhere`: another row of the same printed line has the number.
WITHOUT_RUN = ("not run", ELSEWHERE)
#: Lines of the picture at most.
MAX_ROWS = 24


@dataclass(frozen=True)
class AlarmedRun:
    """A run with hacking alarms.

    Attributes:
        says: kinds and steps of its alarms.
    """

    run: Run
    says: str


def totals(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the counts of verdicts of all papers."""
    every = list(counts)
    return {name: sum(each[name] for each in every) for name in VERDICTS}


def alarmed_runs(root: Path, runs: Iterable[Run]) -> list[AlarmedRun]:
    """Returns the runs with hacking alarms."""
    found = [AlarmedRun(run, alarm_text(alarms_of(root / run.path / "result"))) for run in runs]
    return [each for each in found if each.says]


def rows_with_results(lines: Sequence[Any], *, run: bool) -> list[Any]:
    """Returns the printed lines with a measured cell, or those without."""
    return [line for line in lines if any(cell["status"] not in WITHOUT_RUN for _, cell in line.cells.values()) == run]


@dataclass(frozen=True)
class WinRateBar:
    """A line of the first screen's picture: a row's win rate over the SFT model, in percent.

    Attributes:
        error: standard error over worlds; 0 of one world.
        colour: of the row's paper.
    """

    row: RowOverWorlds
    mean: float
    error: float
    colour: str

    @property
    def low(self) -> float:
        return max(0.0, self.mean - self.error)

    @property
    def high(self) -> float:
        return min(100.0, self.mean + self.error)

    @property
    def tip(self) -> str:
        """Returns the tooltip: title, win rate with its error, worlds."""
        error = f" ± {self.error:.1f}" if self.error else ""
        worlds = len(self.row.runs)
        return f"{self.row.title}\n{self.mean:.1f}{error} %, {worlds} world{'s' * (worlds != 1)}"


def best_rates(rows_by_sft_model: Mapping[str, Sequence[RowOverWorlds]]) -> list[WinRateBar]:
    """Returns the `MAX_ROWS` rows with the highest win rates over the SFT model, coloured by paper, the best first."""
    rows = sorted((row for rows in rows_by_sft_model.values() for row in rows), key=lambda row: -_rate(row)[0])[
        :MAX_ROWS
    ]
    groups = list(dict.fromkeys(row.group for row in rows))
    return [WinRateBar(row, *_rate(row), theme_colour(groups.index(row.group))) for row in rows]


def _rate(row: RowOverWorlds) -> tuple[float, float]:
    cell = row.cells[SORT_METRIC]
    assert cell is not None
    return cell[0], cell[1] or 0.0
