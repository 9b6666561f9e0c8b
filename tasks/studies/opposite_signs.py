"""Effects that are a mean of opposite ones: over cells, or over the levels at which a slope is taken."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec

Records = Iterable[Mapping[str, Any]]


def opposite_cells(spec: StudySpec, hypothesis: Hypothesis, records: Records) -> list[str]:
    """Returns the mean difference in each cell, if a hypothesis averages cells that differ in sign by more than the
    margin."""
    if hypothesis.over is not None:
        return []
    means = _differences(spec, hypothesis, records)
    if not _opposite(spec, means):
        return []
    return ["cells differ in sign: " + ", ".join(f"{_signed(value)} in {cell}" for cell, value in means.items())]


def opposite_slopes(spec: StudySpec, hypothesis: Hypothesis, records: Records) -> list[str]:
    """Returns the slope, or contrast, at each level of the other dials, if a hypothesis averages slopes that differ in
    sign by more than the margin."""
    if hypothesis.over is None:
        return []
    weights, slopes = spec.weighted_cells(hypothesis), {}
    means = _differences(spec, hypothesis, records)
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for cell in means:
        others = tuple((dial, level) for dial, level in spec.cells[cell].items() if dial != hypothesis.over)
        groups.setdefault(others, []).append(cell)
    for others, cells in groups.items():
        # each level's weight is shared by its cells; without a level a group has no slope
        own = {cell: weights[cell] * _of_level(spec, hypothesis, cell, weights) for cell in cells}
        if math.isclose(math.fsum(own.values()), 0.0, abs_tol=1e-9) and any(own.values()):
            name = " and ".join(f"{dial} is {level}" for dial, level in others)
            slopes[name] = math.fsum(weight * means[cell] for cell, weight in own.items())
    if not _opposite(spec, slopes):
        return []
    what = f"{'contrasts' if hypothesis.weights else 'slopes'} over {hypothesis.over} differ in sign"
    return [f"{what}: " + ", ".join(f"{_signed(value)} where {name}" for name, value in slopes.items())]


def _of_level(spec: StudySpec, hypothesis: Hypothesis, cell: str, counted: Iterable[str]) -> int:
    """Returns how many counted cells have a cell's level of the hypothesis' dial."""
    dial = hypothesis.over or ""
    return sum(spec.cells[other][dial] == spec.cells[cell][dial] for other in counted)


def _differences(spec: StudySpec, hypothesis: Hypothesis, records: Records) -> dict[str, float]:
    """Returns the mean difference of a hypothesis' rows in each counted cell at the end of training; none where a run
    has no number, or where rows are read at a KL."""
    if hypothesis.kl is not None:
        return {}
    rows, known = (hypothesis.row, hypothesis.than or spec.main), list(records)
    means: dict[str, float] = {}
    for cell in spec.weighted_cells(hypothesis):
        runs = [record["cells"][cell]["rows"] for record in known]
        both = [[run[name].get("metrics", {}).get(spec.metric) for name in rows] for run in runs]
        if not both or any(not isinstance(value, int | float) for pair in both for value in pair):
            return {}
        means[cell] = fmean(one - two for one, two in both)
    return means


def _opposite(spec: StudySpec, values: Mapping[str, float]) -> bool:
    margin = spec.margin or 0.0
    return bool(values) and min(values.values()) < -margin and max(values.values()) > margin


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
