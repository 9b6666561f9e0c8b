"""Numbers of a study's records, from which verdicts, caveats and tables are computed: by metric, cell and row, one for
each world.

A metric has the name that its stage gives it; `training/<name>` is of a row's training, `<metric>@<nats>` at a KL
target, `core_seconds` what a stage took. A stage above the rows takes the place of a row, as `<stage>/<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_core.evaluation.statistics import Floats
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.best_trials import TunedRow
from tasks.studies.equal_kl import at_kl
from tasks.studies.records import Record, Records, is_number

#: The columns of a table of budgets behind the row's name: means over worlds and cells, core-hours in all.
BUDGETS = ("trials", "updates", "rollouts", "tokens", "tuning, core-hours", "worlds, core-hours", "KL")


@dataclass(frozen=True)
class WorldNumbers:
    """Numbers of all worlds.

    Attributes:
        worlds: their seeds, in order.
        columns: numbers by metric, cell and row, float64 [worlds]; NaN where a world has none.
    """

    worlds: tuple[int, ...]
    columns: Mapping[tuple[str, str, str], Floats]

    def table(self, metric: str, places: Iterable[tuple[str, str]]) -> Floats:
        """Returns the values of a metric in some cells and rows, [worlds, places]."""
        missing = np.full(len(self.worlds), math.nan)
        return np.stack([self.columns.get((metric, *place), missing) for place in places], axis=1)

    def everywhere(self, metric: str, row: str | None = None) -> Floats:
        """Returns the numbers of a metric in all cells and worlds, of one row or of all."""
        found = [own for (name, _, each), own in self.columns.items() if name == metric and row in (None, each)]
        values = np.concatenate(found or [np.empty(0)])
        return values[~np.isnan(values)]

    @property
    def core_hours(self) -> float:
        """Returns core-hours of all stages."""
        return math.fsum(self.everywhere("core_seconds")) / 3600


def numbers_of(spec: StudySpec, records: Records) -> WorldNumbers:
    """Returns the numbers of a study's records."""
    columns: dict[tuple[str, str, str], Floats] = {}
    for place, record in enumerate(records.values()):
        for key, value in _values(spec, record):
            column = columns.setdefault(key, np.full(len(records), math.nan))
            column[place] = value if is_number(value) else math.nan
    return WorldNumbers(tuple(records), columns)


def _values(spec: StudySpec, record: Record) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Yields the values of a record with their metric, cell and row."""
    threads = record["machine"]["threads"]
    for cell, stages in record["cells"].items():
        for row, run in (stages["rows"] | stages.get("above", {})).items():
            found = {"core_seconds": run["seconds"] * threads, **run.get("metrics", {})}
            found |= {f"training/{name}": value for name, value in run.get("training", {}).items()}
            curve = run.get("curve", {})
            if row in stages["rows"] and curve and "stopped" not in run:
                found |= {measure(spec.metric, kl): at_kl(curve, kl, spec.metric) for kl in spec.kl_targets}
            for metric, value in found.items():
                yield (metric, cell, row), value


def measure(metric: str, kl: float) -> str:
    """Returns the name of a metric at a KL target."""
    return f"{metric}@{kl:g}"


def weights_of(spec: StudySpec, hypothesis: Hypothesis) -> dict[tuple[str, str], float]:
    """Returns the weights of cells and rows, by which a world's numbers add up to that of a hypothesis."""
    return {
        (cell, row): sign * weight
        for cell, weight in spec.weighted_cells(hypothesis).items()
        for sign, row in zip((1, -1), spec.compared(hypothesis), strict=True)
    }


def shown_values(
    spec: StudySpec, numbers: WorldNumbers, metric: str
) -> dict[tuple[str, str], tuple[dict[int, float], int]]:
    """Returns the values of a metric by row and cell: those of the worlds by seed, and how many worlds have none.

    A metric of a stage above the rows is named `<stage>/<name>/<metric>`, as in `selection/qa/chosen/factuality`; the
    stage takes the place of the row. A row that never has a metric, as a policy has none of Best-of-N, is left out.
    """
    stages = {row for _, _, row in numbers.columns if "/" in row and metric.startswith(f"{row}/")}
    stage = max(stages, key=len, default=None)
    own = metric if stage is None else metric.removeprefix(f"{stage}/")
    found = {}
    for cell in spec.cells:
        for row in spec.rows if stage is None else [stage]:
            if (values := numbers.columns.get((own, cell, row))) is not None:
                known = {world: float(v) for world, v in zip(numbers.worlds, values, strict=True) if not math.isnan(v)}
                found[row, cell] = known, len(values) - len(known)
    return found


def row_budgets(spec: StudySpec, numbers: WorldNumbers, tuned: Mapping[str, TunedRow]) -> dict[str, list[str]]:
    """Returns the budget of each row of a study by name, as texts under `BUDGETS`; blank where it is not known."""

    def mean(row: str, metric: str, form: str = ",.0f") -> str:
        values = numbers.everywhere(metric, row)
        return format(values.mean(), form) if values.size else ""

    return {
        row: [
            str(own.trials if own else 0),
            *(mean(row, f"training/{amount}") for amount in ("updates", "rollouts", "tokens")),
            f"{own.core_seconds / 3600 if own else 0:.2f}",
            f"{numbers.everywhere('core_seconds', row).sum() / 3600:.2f}",
            mean(row, "kl", ".3g"),
        ]
        for row, own in ((row, tuned.get(row)) for row in spec.rows)
    }
