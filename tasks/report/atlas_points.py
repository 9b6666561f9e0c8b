"""Points of a study's picture: a row less another one over worlds, by the levels of a dial or by cells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from rlhf_core.errors import DataError
from rlhf_core.evaluation.worlds import Effect
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.caveats import compared
from tasks.studies.equal_kl import hypothesis_value
from tasks.studies.verdicts import StudyState, over_worlds

#: Series of single cells of a hypothesis without a dial.
ONE_CELL, NOT_COUNTED = "one cell", "not counted by the hypothesis"


@dataclass(frozen=True)
class Point:
    """A row less another one over worlds, in a part of the cells.

    Attributes:
        label: the level of a dial, or the levels of a cell in lines.
        series: levels of the other dials, or of a single cell; empty for the mean over cells.
        effect: over worlds.
        values: of the worlds in their order.
        counted: the hypothesis counts it; cells that it leaves out are shown beside those that it counts.
    """

    label: str
    series: str
    effect: Effect
    values: tuple[float, ...]
    counted: bool = True


MakePoint = Callable[..., Point]


def points_of(state: StudyState, hypothesis: Hypothesis) -> list[Point]:
    """Returns the difference of a hypothesis' rows at each level of its dial, or in each cell without one.

    Of several cells, at a level or in all, the mean comes last, with an empty `series`.

    Raises:
        DataError: a row that stopped or has no finite number.
    """
    spec, (row, other) = state.spec, compared(state.spec, hypothesis)

    def point(names: list[str], label: str, series: str = "", *, counted: bool = True) -> Point:
        values = {
            index: fmean(
                hypothesis_value(spec, hypothesis, record, name, row)
                - hypothesis_value(spec, hypothesis, record, name, other)
                for name in names
            )
            for index, record in sorted(state.records.items())
        }
        return Point(label, series, over_worlds(values), tuple(values.values()), counted)

    counted = list(spec.weighted_cells(hypothesis))
    if hypothesis.over is None:
        return _by_cell(spec, counted, (row, other), point)
    return _by_level(spec, hypothesis.over, counted, point)


def _by_cell(spec: StudySpec, counted: list[str], rows: tuple[str, str], point: MakePoint) -> list[Point]:
    """Returns a point for each cell, those included that are not counted and have a number, and the counted mean."""
    found = []
    for name, levels in spec.cells.items():
        label = "\n".join(levels.values())
        if name in counted:
            found.append(point([name], label, ONE_CELL if len(counted) > 1 else ""))
        elif {*rows} <= {*spec.rows_of(levels)}:
            with suppress(DataError):  # the hypothesis does not need it
                found.append(point([name], label, NOT_COUNTED, counted=False))
    return [*found, point(counted, "mean of\ncells")] if len(counted) > 1 else found


def _by_level(spec: StudySpec, dial: str, counted: list[str], point: MakePoint) -> list[Point]:
    """Returns points for the levels of a dial: of each cell where a level has several, and their mean."""
    cells, found = {name: spec.cells[name] for name in counted}, []
    levels = [level for level in spec.dials[dial] if any(cell[dial] == level for cell in cells.values())]
    by_level = {level: [name for name, cell in cells.items() if cell[dial] == level] for level in levels}
    for place, names in by_level.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(f"{key} {level}" for key, level in cells[name].items() if key != dial)
            found.append(point([name], place, others))
    return found + [point(names, level) for level, names in by_level.items()]
