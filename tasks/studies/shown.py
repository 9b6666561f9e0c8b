"""Metrics that a study's page shows: of its rows, and of stages above them, such as a selection of aspects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_core.errors import DataError
from tasks.params.studies import StudySpec
from tasks.studies.records import value_of

Records = Mapping[int, Mapping[str, Any]]


def shown_values(
    spec: StudySpec, records: Records, metric: str
) -> dict[tuple[str, str], tuple[dict[int, float], list[str]]]:
    """Returns the values of a metric by row and cell: those of the worlds by index, and why other worlds have none.

    A metric of a stage above the rows is named `<stage>/<name>/<metric>`, as in `selection/qa/chosen/factuality`; the
    stage takes the place of the row. A row that never has a metric, as a policy has none of Best-of-N, is left out.
    """
    stage = _stage(records, metric)
    found = {}
    for cell, levels in spec.cells.items():
        above = {name for record in records.values() for name in record["cells"][cell]["above"]}
        for row in spec.rows_of(levels) if stage is None else {stage} & above:
            values: dict[int, float] = {}
            lost: list[str] = []
            for index, record in records.items():
                try:
                    values[index] = (
                        value_of(record, cell, row, metric) if stage is None else _above(record, cell, stage, metric)
                    )
                except DataError as error:
                    lost.append(str(error))
            if values or stage is not None or not _foreign(records, cell, row, metric):
                found[row, cell] = values, lost
    return found


def _stage(records: Records, metric: str) -> str | None:
    """Returns the stage above the rows that a metric is of, None for a metric of the rows."""
    stages = {name for record in records.values() for cell in record["cells"].values() for name in cell["above"]}
    return max((name for name in stages if metric.startswith(f"{name}/")), key=len, default=None)


def _above(record: Mapping[str, Any], cell: str, stage: str, metric: str) -> float:
    value = record["cells"][cell]["above"].get(stage, {}).get("metrics", {}).get(metric.removeprefix(f"{stage}/"))
    if not isinstance(value, int | float):
        raise DataError(f"world {record['world']}: stage '{stage}' of cell '{cell}' has no {metric}")
    return float(value)


def _foreign(records: Records, cell: str, row: str, metric: str) -> bool:
    """Returns whether a row has other metrics in every world, and never this one."""
    runs = [record["cells"][cell]["rows"][row] for record in records.values()]
    return all(run.get("metrics") and metric not in run["metrics"] for run in runs)


def trains(records: Iterable[Mapping[str, Any]], row: str) -> bool:
    """Returns whether a row trains a policy, by what its records say."""
    runs = [cell["rows"][row] for record in records for cell in record["cells"].values() if row in cell["rows"]]
    return any(run.get("origin", {}).get("stage", "policy") == "policy" for run in runs) or not runs
