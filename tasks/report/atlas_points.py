"""Points of a study's picture: a row less another one over worlds, by the levels of a dial or by cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rlhf_core.evaluation.worlds import Effect, over_worlds
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.frame import compared, measure
from tasks.studies.verdicts import StudyState

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


MakePoint = Callable[..., Point | None]


def points_of(state: StudyState, hypothesis: Hypothesis) -> list[Point]:
    """Returns the difference of a hypothesis' rows at each level of its dial, or in each cell without one.

    Of several cells, at a level or in all, the mean comes last, with an empty `series`.
    """
    spec, (row, other) = state.spec, compared(state.spec, hypothesis)
    metric = measure(spec.metric, hypothesis.kl)

    def point(names: list[str], label: str, series: str = "", *, counted: bool = True) -> Point | None:
        places = ([(name, each) for name in names] for each in (row, other))
        one, two = (state.ends.table(metric, those).mean(axis=1) for those in places)
        values = dict(zip(state.ends.worlds, map(float, one - two), strict=True))
        if any(map(math.isnan, values.values())):  # of a cell that the hypothesis does not count
            return None
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
            found.append(point([name], label, NOT_COUNTED, counted=False))
    found += [point(counted, "mean of\ncells")] if len(counted) > 1 else []
    return [one for one in found if one is not None]


def _by_level(spec: StudySpec, dial: str, counted: list[str], point: MakePoint) -> list[Point]:
    """Returns points for the levels of a dial: of each cell where a level has several, and their mean."""
    cells, found = {name: spec.cells[name] for name in counted}, []
    levels = [level for level in spec.dials[dial] if any(cell[dial] == level for cell in cells.values())]
    by_level = {level: [name for name, cell in cells.items() if cell[dial] == level] for level in levels}
    for place, names in by_level.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(f"{key} {level}" for key, level in cells[name].items() if key != dial)
            found.append(point([name], place, others))
    found += [point(names, level) for level, names in by_level.items()]
    return [one for one in found if one is not None]
