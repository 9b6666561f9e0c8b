"""A row against itself: whether differences between equal rows are as large as their standard errors say (A/A).

The first worlds of a study of twins, as many as a study has, give the variance of a difference; each of the others is
standardised by it and by those before it (`rlhf_core.evaluation.worlds`). The study says how many worlds there are
before any has run, so that nobody chooses where to stop.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rlhf_core.errors import DataError
from rlhf_core.evaluation.worlds import Calibration, calibration_of_p_values, standardised_p
from tasks.params.evaluation import is_metric
from tasks.studies.records import why_no_number
from tasks.studies.verdicts import StudyState

#: Worlds whose differences give the variance by which the others are tested.
REFERENCE_WORLDS = 8
HEADINGS = (
    "metric", "differences", "deviation of a run", "mean squared standardised difference", "95 % of sound ones",
    "uniform p-values, p", "refused",
)  # fmt: skip


class TwinTest(NamedTuple):
    """A metric's differences between equal rows, tested.

    Attributes:
        deviation: standard deviation of a run within its world, from all worlds.
        calibration: test of the standardised differences of the worlds after the first, or why there is none.
    """

    metric: str
    deviation: float
    calibration: Calibration | str

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns its cells below `HEADINGS`."""
        own = self.calibration
        if isinstance(own, str):
            return (self.metric, "", "", "", "", "", f"no test: {own}")
        return (
            self.metric, str(len(own.p_values)), f"{self.deviation:.3g}", f"{own.mean_square:.2f}",
            f"{own.band[0]:.2f} to {own.band[1]:.2f}", f"{own.uniform_p:.2g}", "no" if own.sound else "yes",
        )  # fmt: skip


def twin_tests(state: StudyState) -> tuple[TwinTest, ...]:
    """Returns tests whether twins vary as they do in the first worlds, one for each metric of a complete study of
    twins; none of another study."""
    if not state.spec.twins or not state.findings:
        return ()
    metrics = (state.spec.metric, *(name for name in state.spec.shows if is_metric(name)))
    return tuple(_tested(state, metric) for metric in metrics)


def _tested(state: StudyState, metric: str) -> TwinTest:
    squares: list[float] = []
    p_values: list[float] = []
    pairs = [(cell, *state.spec.compared(one)) for one in state.spec.hypotheses.values()
             for cell in state.spec.weighted_cells(one)]  # fmt: skip
    try:
        for cell, *pair in dict.fromkeys(pairs):
            values = state.numbers.table(metric, [(cell, row) for row in pair])
            if np.isnan(values).any():
                world, place = np.argwhere(np.isnan(values))[0]
                record = state.records[state.numbers.worlds[world]]
                return TwinTest(metric, math.nan, why_no_number(record, cell, pair[place], metric))
            own = [float(first - second) for first, second in values]
            squares += [difference**2 for difference in own]
            known = math.fsum(own_square for own_square in squares[-len(own) :][:REFERENCE_WORLDS]) / REFERENCE_WORLDS
            p_values += standardised_p(own[REFERENCE_WORLDS:], known, REFERENCE_WORLDS)
        deviation = math.sqrt(math.fsum(squares) / len(squares) / 2)
        return TwinTest(metric, deviation, calibration_of_p_values(p_values))
    except DataError as error:
        return TwinTest(metric, math.nan, str(error))
