"""One frame of all numbers of a study's records, from which verdicts, caveats and tables are computed.

| column | content |
|---|---|
| study, world, cell | the study's name, the world's seed, the cell |
| row | of the study; a stage above the rows is named `<stage>/<name>` |
| step | of an evaluation while training; NaN at the end |
| metric | as the stage names it; `training/<name>` of training; `core_seconds`; `<metric>@<nats>` at a KL target |
| value | NaN for one that is not a finite number |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from rlhf_core.evaluation.statistics import Floats
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.equal_kl import at_kl
from tasks.studies.records import Records, is_number
from tasks.studies.tuned import TunedRow

COLUMNS = ["study", "world", "cell", "row", "step", "metric", "value"]
#: The columns of a table of budgets behind the row's name: means over worlds and cells, core-hours in all.
BUDGETS = ("trials", "updates", "rollouts", "tokens", "tuning, core-hours", "worlds, core-hours", "KL")


def frame_of(spec: StudySpec, records: Records) -> pd.DataFrame:
    """Returns the frame of a study's records."""
    lines: list[tuple[Any, ...]] = []

    def add(place: tuple[Any, ...], step: float | None, values: Mapping[str, Any], prefix: str = "") -> None:
        numbers = {name: value if is_number(value) else None for name, value in values.items() if name != "step"}
        lines.extend((*place, step, f"{prefix}{name}", value) for name, value in numbers.items())

    for world, record in records.items():
        threads = record["machine"]["threads"]
        for cell, stages in record["cells"].items():
            for row, run in (stages["rows"] | stages.get("above", {})).items():
                place, curve = (record["study"], world, cell, row), run.get("curve", {})
                add(place, None, {"core_seconds": run["seconds"] * threads})
                add(place, None, run.get("metrics", {}))
                add(place, None, run.get("training", {}), "training/")
                for point in curve.get("points", ()):
                    add(place, point["step"], point)
                if row in stages["rows"] and curve and "stopped" not in run:
                    targets = {measure(spec.metric, target): target for target in spec.kl_targets}
                    add(place, None, {name: at_kl(curve, target, spec.metric) for name, target in targets.items()})
    made = pd.DataFrame(lines, columns=COLUMNS)
    return made.astype({"step": float, "value": float})


def measure(metric: str, kl: float) -> str:
    """Returns the name in the frame of a metric at a KL target."""
    return f"{metric}@{kl:g}"


@dataclass(frozen=True)
class Ends:
    """Numbers at the end of training: float64 [worlds] by metric, cell and row, NaN where there is none; and the
    worlds' seeds, in order."""

    worlds: tuple[int, ...]
    columns: Mapping[tuple[str, str, str], Floats]

    def table(self, metric: str, places: Iterable[tuple[str, str]]) -> Floats:
        """Returns the values of a metric in some cells and rows, [worlds, places]."""
        missing = np.full(len(self.worlds), math.nan)
        return np.stack([self.columns.get((metric, *place), missing) for place in places], axis=1)


def ends_of(frame: pd.DataFrame) -> Ends:
    """Returns the numbers of a frame at the end of training."""
    worlds = [int(world) for world in frame["world"].unique()]
    end = frame[frame["step"].isna()].set_index(["world", "metric", "cell", "row"])["value"]
    wide = end.unstack(["metric", "cell", "row"]).reindex(worlds) if worlds else pd.DataFrame()
    names = cast(list[tuple[str, str, str]], wide.columns.tolist())
    return Ends(tuple(worlds), dict(zip(names, wide.to_numpy().T, strict=True)))


def compared(spec: StudySpec, hypothesis: Hypothesis) -> tuple[str, str]:
    """Returns the row of a hypothesis and the row that it is compared with."""
    return hypothesis.row, hypothesis.than or spec.main


def weights_of(spec: StudySpec, hypothesis: Hypothesis) -> dict[tuple[str, str], float]:
    """Returns the weights of cells and rows, by which a world's numbers add up to that of a hypothesis."""
    return {
        (cell, row): sign * weight
        for cell, weight in spec.weighted_cells(hypothesis).items()
        for sign, row in zip((1, -1), compared(spec, hypothesis), strict=True)
    }


def shown_values(spec: StudySpec, ends: Ends, metric: str) -> dict[tuple[str, str], tuple[dict[int, float], int]]:
    """Returns the values of a metric by row and cell: those of the worlds by seed, and how many worlds have none.

    A metric of a stage above the rows is named `<stage>/<name>/<metric>`, as in `selection/qa/chosen/factuality`; the
    stage takes the place of the row. A row that never has a metric, as a policy has none of Best-of-N, is left out.
    """
    stages = {row for _, _, row in ends.columns if "/" in row and metric.startswith(f"{row}/")}
    stage = max(stages, key=len, default=None)
    own = metric if stage is None else metric.removeprefix(f"{stage}/")
    found = {}
    for cell in spec.cells:
        for row in spec.rows if stage is None else [stage]:
            if (values := ends.columns.get((own, cell, row))) is not None:
                known = {world: float(v) for world, v in zip(ends.worlds, values, strict=True) if not math.isnan(v)}
                found[row, cell] = known, len(values) - len(known)
    return found


def core_hours(frame: pd.DataFrame) -> float:
    """Returns core-hours of all stages."""
    return float(frame.loc[frame["metric"] == "core_seconds", "value"].sum()) / 3600


def row_budgets(spec: StudySpec, frame: pd.DataFrame, tuned: Mapping[str, TunedRow]) -> dict[str, list[str]]:
    """Returns the budget of each row of a study by name, as texts under `BUDGETS`; blank where it is not known."""
    end = frame[frame["step"].isna()].groupby(["row", "metric"])["value"]
    means, sums = end.mean().dropna().to_dict(), end.sum().to_dict()

    def mean(row: str, metric: str, form: str = ",.0f") -> str:
        return format(means[row, metric], form) if (row, metric) in means else ""

    return {
        row: [
            str(own.trials if own else 0),
            *(mean(row, f"training/{amount}") for amount in ("updates", "rollouts", "tokens")),
            f"{own.core_seconds / 3600 if own else 0:.2f}",
            f"{sums.get((row, 'core_seconds'), 0.0) / 3600:.2f}",
            mean(row, "kl", ".3g"),
        ]
        for row, own in ((row, tuned.get(row)) for row in spec.rows)
    }
