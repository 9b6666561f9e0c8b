"""Content of a run in MLflow: parameters, metrics by step, tables of texts, a pointer to the result, and its model."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.graph.items import data_name
from tasks.running.artifacts import read_jsonl
from tasks.tracking.model_folder import log_model, pointer
from tasks.tracking.models import KINDS
from tasks.tracking.outcomes import RowOutcome, numbers

#: Most rows of a run's table.
MOST_ROWS = 200
METRICS_PER_CALL, PARAMS_PER_CALL = 1000, 100
#: Files with a row per step, and what their metrics' names begin with.
STEP_FILES = {"result/history.jsonl": "", "result/checkpoints.jsonl": "checkpoint/", "record/phases.jsonl": "system/"}


def milliseconds(record: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the start and end of a stage from its record (now, where it has none)."""
    started = record.get("started")
    if isinstance(started, str):
        begin = datetime.fromisoformat(started.replace("Z", "+00:00")).astimezone(UTC).timestamp()
    else:
        begin = float(started or time.time())
    return int(begin * 1000), int((begin + float(record.get("seconds", 0))) * 1000)


def row_metrics(rows: Sequence[Mapping[str, Any]], prefix: str, begin: int) -> list[Any]:
    """Returns metrics of rows with a step; their time is the run's begin and the step, so that logging them again
    changes nothing."""
    from mlflow.entities import Metric

    metrics = []
    for number, row in enumerate(rows):
        step = int(row.get("step", number))
        values = numbers({key: value for key, value in row.items() if key != "step"})
        metrics += [Metric(f"{prefix}{key}", value, begin + step, step) for key, value in values.items()]
    return metrics


def data_inputs(record: Mapping[str, Any]) -> list[Any]:
    """Returns the data sets that a stage read, as MLflow's dataset inputs; their source is DVC's."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = {path: value for path, value in record.get("inputs", {}).items() if "/shared/data/" in path}
    return [
        DatasetInput(
            # MLflow takes 36 characters of a digest
            Dataset(data_name(Path(path)), value[:36], "dvc", json.dumps({"path": path, "digest": value})),
            [InputTag("mlflow.data.context", "training")],
        )
        for path, value in found.items()
    ]


def log_metrics(client: Any, run_id: str, metrics: Sequence[Any]) -> None:
    """Logs any number of metrics."""
    for start in range(0, len(metrics), METRICS_PER_CALL):
        client.log_batch(run_id, metrics=metrics[start : start + METRICS_PER_CALL])


def logged_params(params: Mapping[str, str]) -> dict[str, str]:
    """Returns parameters as MLflow keeps them: long values are cut."""
    return {name: value[:6000] for name, value in sorted(params.items())}


def log_params(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    """Logs any number of parameters."""
    from mlflow.entities import Param

    every = [Param(*item) for item in logged_params(params).items()]
    for start in range(0, len(every), PARAMS_PER_CALL):
        client.log_batch(run_id, params=every[start : start + PARAMS_PER_CALL])


def log_result(client: Any, run: Any, outcome: RowOutcome, root: Path) -> None:
    """Logs metrics and artifacts of one result."""
    from mlflow.entities import Metric

    run_id, end = run.info.run_id, milliseconds(outcome.record)[1]
    if outcome.failure:
        client.log_dict(run_id, dict(outcome.failure), "failure.json")
        return
    datasets = data_inputs(outcome.record)
    if datasets:
        client.log_inputs(run_id, datasets=datasets)
    metrics = []
    for name, prefix in STEP_FILES.items():
        rows = read_jsonl(outcome.stage.out / name) if (outcome.stage.out / name).exists() else []
        metrics += row_metrics(rows, prefix, run.info.start_time)
    # the evaluation is the last point of a curve of the same name, so that a run's latest value is its result
    last = max((metric.step for metric in metrics), default=-1) + 1
    metrics += [Metric(name, value, end + last, last) for name, value in outcome.metrics.items()]
    log_metrics(client, run_id, metrics)
    for name in ("generations", "alarms"):
        path = outcome.stage.out / "result" / f"{name}.jsonl"
        if rows := read_jsonl(path)[:MOST_ROWS] if path.exists() else []:
            import pandas

            client.log_table(run_id, pandas.DataFrame(rows), f"{name}.json")
    client.log_dict(run_id, pointer(outcome, root), "pointer.json")
    if outcome.stage.kind in KINDS:
        log_model(client, run_id, outcome, root)
