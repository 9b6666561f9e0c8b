"""A row against itself: whether differences between equal rows are as large as their standard errors say (A/A).

The first worlds of a study of twins, as many as a study has, give the variance of a difference; each of the others is
standardised by it and by those before it (`rlhf_core.evaluation.twins`). The study says how many worlds there are
before any has run, so that nobody chooses where to stop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf_core.errors import DataError
from rlhf_core.evaluation.twins import Calibration, calibration_of_p_values, standardised_p
from tasks.params.metric_names import is_metric
from tasks.params.studies import TWIN, StudySpec
from tasks.studies.frame import compared
from tasks.studies.records import is_number, why_no_number
from tasks.studies.verdicts import StudyState

#: Worlds whose differences give the variance by which the others are tested.
REFERENCE_WORLDS = 8
HEADINGS = (
    "metric", "differences", "deviation of a run", "mean squared standardised difference", "95 % of sound ones",
    "uniform p-values, p", "refused",
)  # fmt: skip


@dataclass(frozen=True)
class TwinTest:
    """A metric's differences between equal rows, tested.

    Attributes:
        metric: of the rows.
        deviation: standard deviation of a run within its world, from all worlds; None without a test.
        calibration: test of the standardised differences of the worlds after the first; None without a test.
        reason: why there is no test.
    """

    metric: str
    deviation: float | None
    calibration: Calibration | None
    reason: str | None = None

    @property
    def calibrated(self) -> bool:
        """Returns whether differences are as large as their standard errors say; False without a test."""
        return self.calibration is not None and self.calibration.sound

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns its cells below `HEADINGS`."""
        own = self.calibration
        if own is None or self.deviation is None:
            return (self.metric, "", "", "", "", "", f"no test: {self.reason}")
        low, high = own.band
        numbers = (
            f"{self.deviation:.3g}",
            f"{own.mean_square:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{own.uniform_p:.2g}",
        )
        return (self.metric, str(len(own.p_values)), *numbers, "no" if own.sound else "yes")


def twin_tests(state: StudyState) -> tuple[TwinTest, ...]:
    """Tests whether twins vary as they do in the first worlds, in each metric of a complete study of twins.

    Returns:
        one test for each metric; none of another study, or before the last world.

    A metric of which a run has no finite number, or whose first worlds do not differ, has no test.
    """
    if not state.spec.twins or not state.findings:
        return ()
    metrics = (state.spec.metric, *(name for name in state.spec.shows if is_metric(name)))
    return tuple(_tested(state, metric) for metric in metrics)


def _tested(state: StudyState, metric: str) -> TwinTest:
    squares: list[float] = []
    p_values: list[float] = []
    try:
        for cell, *pair in _pairs(state.spec):
            for record in state.records.values():
                for row in pair:
                    if not is_number(record["cells"][cell]["rows"][row].get("metrics", {}).get(metric)):
                        return TwinTest(metric, None, None, why_no_number(record, cell, row, metric))
            first, second = state.ends.table(metric, [(cell, row) for row in pair]).T
            own = [float(difference) for difference in first - second]
            squares += [difference**2 for difference in own]
            known = math.fsum(squares[-len(own) :][:REFERENCE_WORLDS]) / REFERENCE_WORLDS
            p_values += standardised_p(own[REFERENCE_WORLDS:], known, REFERENCE_WORLDS)
        deviation = math.sqrt(math.fsum(squares) / len(squares) / 2)
        return TwinTest(metric, deviation, calibration_of_p_values(p_values))
    except DataError as error:
        return TwinTest(metric, None, None, str(error))


def _pairs(spec: StudySpec) -> list[tuple[str, str, str]]:
    """Returns the cell and the two rows of every comparison of a row with its twin."""
    found: dict[tuple[str, str, str], None] = {}
    for hypothesis in spec.hypotheses.values():
        row, other = compared(spec, hypothesis)
        if bool(spec.rows[row].get(TWIN)) != bool(spec.rows[other].get(TWIN)):
            found |= dict.fromkeys((cell, row, other) for cell in spec.weighted_cells(hypothesis))
    return [*found]
