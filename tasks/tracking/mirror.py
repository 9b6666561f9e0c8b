"""Stage outputs mirrored into MLflow: a view that can be rebuilt at any time.

    python -m tasks.tracking.mirror --paper segment --scale testbed

Experiment = paper, parent run = table, child run = row x seed. A row that several tables print appears under
each. A run is known by its key (scale, table, row, seed) and the digest of the result it shows: mirroring the
same result again changes nothing, another result makes a new version and deletes the old run (MLflow keeps
deleted runs until `mlflow gc`). What needs all rows of a table (length-controlled win rates) comes from the tables
stage onto the runs that it was made from. Weights stay in DVC; a run holds a pointer to them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.params.settings import ROOT_SCALE
from tasks.running.artifacts import read_jsonl
from tasks.running.exclusive import in_turn
from tasks.tracking.databases import mark_of, upgrade
from tasks.tracking.models import Registry, model_name, pages
from tasks.tracking.outcomes import RowOutcome, numbers, outcomes, table_metrics, tables_of_rows
from tasks.tracking.searches import note_experiment

#: Parent of rows that no table prints.
FIGURES = "Figures"
#: Parent of the reward models.
MODELS = "Reward models"
#: Rows of the generations table kept per run.
GENERATIONS = 200
#: What MLflow's pages open an experiment as: model training, with its runs.
EXPERIMENT_KIND = ("mlflow.experimentKind", "custom_model_development")
METRICS_PER_CALL, PARAMS_PER_CALL = 1000, 100
#: Files with a row per step, and what their metrics' names begin with.
STEP_FILES = {"result/history.jsonl": "", "result/checkpoints.jsonl": "checkpoint/", "record/phases.jsonl": "system/"}


@dataclass
class Counts:
    """Counts of runs that a sync handled."""

    new: int = 0
    replaced: int = 0
    unchanged: int = 0
    failed: int = 0

    def line(self) -> str:
        return f"{self.new} new, {self.replaced} replaced, {self.unchanged} unchanged ({self.failed} failed stages)"


def only_writer(root: Path) -> AbstractContextManager[None]:
    """Lets one process mirror at a time, whichever tree it mirrors; another waits. A sync removes incomplete runs, and
    to a second sync the runs that the first is just writing would be incomplete."""
    return in_turn(store_folder(root) / "tracking.lock", "another sync writes into MLflow")


def store_folder(root: Path) -> Path:
    """Returns `.work` of the tree whose MLflow a tree writes into: of the platform's tree, else of the main
    worktree."""
    platform = os.environ.get("REWARDSMITH_PLATFORM")  # .work/platform
    if platform:
        return Path(platform).parent
    call = ["git", "-C", str(root), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    done = subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    common = Path(done.stdout.strip())
    return (common.parent if done.returncode == 0 and common.name == ".git" else root) / ".work"


def tracking_uri(root: Path) -> str:
    """Returns MLFLOW_TRACKING_URI, else `mlflow.db` in the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def prepare_database(uri: str, root: Path) -> None:
    """Creates or upgrades the tables of a database before anybody writes: concurrent first writers crash.

    Done once per database and MLflow version (noted in `.work/tracking-database`).

    Raises:
        RewardsmithError: the database cannot be reached or upgraded.
    """
    kind, _, place = uri.partition(":///")
    if "://" not in uri or uri.split("://")[0] in ("http", "https", "file", "databricks"):
        return
    note, current = root / ".work" / "tracking-database", mark_of("mlflow", uri)
    there = kind != "sqlite" or Path(place).exists()
    if there and note.exists() and note.read_text(encoding="utf-8") == current:
        return
    problem = upgrade({"mlflow": uri})
    if problem:
        raise RewardsmithError(f"the tracking database {uri.split('@')[-1]} cannot be prepared: {problem}")
    note.parent.mkdir(exist_ok=True)
    note.write_text(current, encoding="utf-8")


def open_registry(root: Path) -> Registry:
    """Returns the model registry of the tree's tracking server or database."""
    from mlflow import MlflowClient

    uri = tracking_uri(root)
    prepare_database(uri, root)
    return Registry(MlflowClient(tracking_uri=uri))


def _experiment(client: Any, paper: str, root: Path, uri: str) -> str:
    found = client.get_experiment_by_name(paper)
    if found is not None:
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        client.set_experiment_tag(found.experiment_id, *EXPERIMENT_KIND)
        return str(found.experiment_id)
    place = (root.resolve() / "mlruns" / paper).as_uri() if uri.startswith("sqlite") else None
    return str(client.create_experiment(paper, artifact_location=place, tags=dict([EXPERIMENT_KIND])))


def _existing(client: Any, experiment: str, scale: str) -> dict[str, Any]:
    """Returns the live runs by key; of several with one key, the newest complete one stays and the others are
    deleted."""
    runs: dict[str, Any] = {}
    for run in pages(partial(client.search_runs, [experiment]), f"tags.scale = '{scale}'"):
        key = run.data.tags.get("key")
        if key is None:
            continue
        if run.data.tags.get("complete") != "true" or key in runs:
            client.delete_run(run.info.run_id)
        else:
            runs[key] = run
    return runs


def _milliseconds(record: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the start and end of a stage from its record (now, where it has none)."""
    started = record.get("started")
    if isinstance(started, str):
        begin = datetime.fromisoformat(started.replace("Z", "+00:00")).astimezone(UTC).timestamp()
    else:
        begin = float(started or time.time())
    return int(begin * 1000), int((begin + float(record.get("seconds", 0))) * 1000)


def _chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def allowed(name: str) -> str:
    """Returns a metric's name as MLflow takes it: `qa-alarm@factuality-rate/...` becomes `qa-alarm by
    factuality-rate/...`."""
    return name.replace("@", " by ")


def step_metrics(out: Path, begin: int) -> list[Any]:
    """Returns metrics of every file in STEP_FILES, per step."""
    from mlflow.entities import Metric

    metrics = []
    for name, prefix in STEP_FILES.items():
        path = out / name
        for number, row in enumerate(read_jsonl(path) if path.exists() else []):
            step = int(row.get("step", number))
            values = numbers({key: value for key, value in row.items() if key != "step"})
            metrics += [Metric(f"{prefix}{key}", value, begin + step, step) for key, value in values.items()]
    return metrics


def token_rows(rollouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for every token of sampled rollouts: step, prompt id, response in its step, token, reward and its
    parts."""
    rows = []
    place: dict[int, int] = {}
    for rollout in rollouts:
        number = place[rollout["step"]] = place.get(rollout["step"], 0) + 1
        shared = {"step": rollout["step"], "id": rollout["id"], "response": number}
        for i in range(len(rollout["tokens"])):
            parts = {f"reward/{name}": values[i] for name, values in rollout["breakdown"].items()}
            own = {name: rollout[f"{name}s"][i] for name in ("token", "reward", "advantage")}
            rows.append({**shared, "position": i, **own, **parts, "true_reward": rollout["true_reward"]})
    return rows


def data_inputs(record: Mapping[str, Any]) -> list[Any]:
    """Returns the data sets that a stage read, as MLflow's dataset inputs; their source is DVC's."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    found = {path: value for path, value in record.get("inputs", {}).items() if "/shared/data/" in path}
    return [
        DatasetInput(
            # MLflow takes 36 characters of a digest
            Dataset(Path(path).parent.name, value[:36], "dvc", json.dumps({"path": path, "digest": value})),
            [InputTag("mlflow.data.context", "training")],
        )
        for path, value in found.items()
    ]


def _log_run(client: Any, run_id: str, outcome: RowOutcome, root: Path) -> None:
    """Logs parameters, metrics and artifacts of one row x seed."""
    from mlflow.entities import Metric, Param

    begin, end = _milliseconds(outcome.record)
    params = [Param(name, value[:6000]) for name, value in sorted(outcome.params.items())]
    for chunk in _chunks(params, PARAMS_PER_CALL):
        client.log_batch(run_id, params=chunk)
    if outcome.failure:
        client.log_dict(run_id, dict(outcome.failure), "failure.json")
        return
    datasets = data_inputs(outcome.record)
    if datasets:
        client.log_inputs(run_id, datasets=datasets)
    metrics = step_metrics(outcome.out, begin)
    # the evaluation is the last point of a curve of the same name, so that a run's latest value is its result
    last = max((metric.step for metric in metrics), default=-1) + 1
    metrics += [Metric(name, value, end + last, last) for name, value in outcome.metrics.items()]
    for chunk in _chunks(metrics, METRICS_PER_CALL):
        client.log_batch(run_id, metrics=chunk)
    tables = {"generations": lambda rows: rows[:GENERATIONS], "rollouts": token_rows, "alarms": list}
    for name, made in tables.items():
        path = outcome.out / "result" / f"{name}.jsonl"
        rows = made(read_jsonl(path)) if path.exists() else []
        if rows:
            import pandas

            client.log_table(run_id, pandas.DataFrame(rows), f"{name}.json")
    client.log_dict(
        run_id,
        {
            "result": (outcome.out / "result").relative_to(root).as_posix(),
            "digest": outcome.digest,
            "stage": outcome.stage,
            "commit": outcome.record.get("commit"),
            "fetch": f"dvc pull {outcome.stage}",
        },
        "pointer.json",
    )


def _tags(outcome: RowOutcome, root: Path, paper: str, scale: str, table: str, version: int) -> dict[str, str]:
    record = outcome.record
    tags = {
        "key": f"{scale}/{table}/{outcome.row}/{outcome.seed}",
        "paper": paper,
        "table": table,
        "row": outcome.row,
        "seed": str(outcome.seed),
        "scale": scale,
        "digest": outcome.digest,
        "version": str(version),
        "status": "failed" if outcome.failure else "finished",
        "stage": outcome.stage,
        "path": outcome.out.relative_to(root).as_posix(),
        "commit": str(record.get("commit", "")),
        "dirty": str(record.get("dirty", "")).lower(),
    }
    if "hacking_onset" in outcome.metrics:
        tags["hacking_onset"] = str(int(outcome.metrics["hacking_onset"]))
    if outcome.failure:
        tags["failure"] = str(outcome.failure.get("message", ""))[:4000]
    lineage = {f"lineage.{path.replace('/', '.')}": value for path, value in record.get("inputs", {}).items()}
    return tags | {name[:250]: str(value) for name, value in lineage.items()}


class Mirror:
    """One pass over a paper's outcomes at a scale."""

    def __init__(self, root: Path, paper: str, scale: str) -> None:
        from mlflow import MlflowClient

        self.root, self.paper, self.scale = root, paper, scale
        self.uri = tracking_uri(root)
        prepare_database(self.uri, root)
        self.client = MlflowClient(tracking_uri=self.uri)
        self.experiment = _experiment(self.client, paper, root, self.uri)
        note_experiment(root, paper, self.uri, self.experiment)
        self.existing = _existing(self.client, self.experiment, scale)
        self.registry = Registry(self.client, paper)
        self.counts = Counts()

    def parent(self, table: str) -> str:
        """Returns the table's run, made when it does not exist; ended from the start, since nothing runs while it is
        open."""
        key = f"{self.scale}/{table}"
        if key not in self.existing:
            tags = {"key": key, "paper": self.paper, "table": table, "scale": self.scale, "complete": "true"}
            name = f"{table} ({self.scale})"
            run = self.client.create_run(self.experiment, tags=tags | {"kind": "table"}, run_name=name)
            self.existing[key] = run
        identity = str(self.existing[key].info.run_id)
        if self.existing[key].info.status == "RUNNING":
            self.client.set_terminated(identity)
            self.existing[key] = self.client.get_run(identity)
        return identity

    def child(self, outcome: RowOutcome, table: str) -> None:
        """Makes the run of a row x seed under a table, or replaces it when its result is another."""
        parent = self.parent(table)
        old = self.existing.get(f"{self.scale}/{table}/{outcome.row}/{outcome.seed}")
        if old is not None and old.data.tags.get("digest") == outcome.digest:
            self.register(outcome, old, old.data.tags)
            self.counts.unchanged += 1
            return
        version = int(old.data.tags.get("version", 1)) + 1 if old is not None else 1
        tags = _tags(outcome, self.root, self.paper, self.scale, table, version)
        begin, end = _milliseconds(outcome.record)
        name = f"{outcome.row} seed {outcome.seed}"
        tags |= {"mlflow.parentRunId": parent, "kind": "model" if table == MODELS else "row"}
        if table == MODELS:
            tags["model"] = tags.pop("row")
        run = self.client.create_run(self.experiment, start_time=begin, tags=tags, run_name=name)
        self.existing[tags["key"]] = run
        _log_run(self.client, run.info.run_id, outcome, self.root)
        status = "FAILED" if outcome.failure else "FINISHED"
        self.client.set_terminated(run.info.run_id, status, end_time=end)
        self.client.set_tag(run.info.run_id, "complete", "true")
        self.register(outcome, run, tags)
        if old is None:
            self.counts.new += 1
            return
        self.client.set_tag(old.info.run_id, "superseded_by", run.info.run_id)
        self.client.delete_run(old.info.run_id)
        self.counts.replaced += 1

    def register(self, outcome: RowOutcome, run: Any, tags: Mapping[str, str]) -> None:
        """Registers the result as a version of its registered model, where it is a reward model or a policy."""
        name = model_name(self.paper, self.scale, outcome.stage, outcome.row)
        if name is not None and not outcome.failure:
            self.registry.register(name, run, tags)

    def joint(self, outcome: RowOutcome, table: str, values: Mapping[str, float]) -> None:
        """Logs the metrics of the tables stage for a row and seed beside the run's other metrics."""
        from mlflow.entities import Metric

        run = self.existing[f"{self.scale}/{table}/{outcome.row}/{outcome.seed}"]
        named = {allowed(name): value for name, value in values.items()}
        changed = {name: value for name, value in named.items() if run.data.metrics.get(name) != value}
        if changed:
            now = int(time.time() * 1000)
            self.client.log_batch(run.info.run_id, metrics=[Metric(n, v, now, 0) for n, v in changed.items()])

    def aggregate(self, table: str, members: Sequence[RowOutcome], more: Mapping[str, float]) -> None:
        """Means and standard errors over seeds on the table's run, as `<row>/<metric>`."""
        from mlflow.entities import Metric

        run = self.existing[f"{self.scale}/{table}"]
        mark = "".join(sorted(f"{o.row}{o.seed}{o.digest}" for o in members)) + json.dumps(more, sort_keys=True)
        state = hashlib.sha256(mark.encode()).hexdigest()
        if run.data.tags.get("members") == state:
            return
        version = int(run.data.tags.get("version", 0)) + 1
        values: dict[str, list[float]] = {}
        for outcome in members:
            for name, value in outcome.metrics.items():
                values.setdefault(f"{outcome.row}/{name}", []).append(value)
        means = {name: mean(found) for name, found in values.items()}
        means |= {f"{n}_se": stdev(v) / math.sqrt(len(v)) for n, v in values.items() if len(v) > 1}
        now = int(time.time() * 1000)
        metrics = [Metric(allowed(name), value, now, version) for name, value in {**means, **more}.items()]
        for chunk in _chunks(metrics, METRICS_PER_CALL):
            self.client.log_batch(run.info.run_id, metrics=chunk)
        seeds = " ".join(str(seed) for seed in sorted({o.seed for o in members}))
        failed = any(outcome.failure for outcome in members)
        self.client.set_terminated(run.info.run_id, "FAILED" if failed else "FINISHED")
        for name, text in (("version", str(version)), ("seeds", seeds), ("members", state)):
            self.client.set_tag(run.info.run_id, name, text)


def sync(root: Path, paper: str, scale: str = ROOT_SCALE, rows: Sequence[str] = ()) -> Counts:
    """Mirrors a paper's stage outputs at a scale into MLflow.

    Args:
        root, paper, scale: whose.
        rows: only these, as of a worktree that holds no others; a table's means over its rows stay as they are.

    Raises:
        RewardsmithError: unknown paper, or a tracking server that cannot be used.
    """
    from mlflow.exceptions import MlflowException

    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    root = root.resolve()
    tables = tables_of_rows(paper)
    found = [outcome for outcome in outcomes(root, paper, scale) if not rows or outcome.row in rows]
    try:
        with only_writer(root):
            mirror = Mirror(root, paper, scale)
            members: dict[str, list[RowOutcome]] = {}
            for outcome in found:
                mirror.counts.failed += outcome.failure is not None
                for table in tables.get(outcome.row, [FIGURES]):
                    mirror.child(outcome, table)
                    members.setdefault(table, []).append(outcome)
            for outcome in [] if rows else outcomes(root, paper, scale, ("reward_model",)):
                mirror.child(outcome, MODELS)
            for table, of_table in members.items() if not rows else ():
                known = table_metrics(root, paper, scale, table)
                for outcome in of_table:
                    mirror.joint(outcome, table, known.of(outcome, root))
                mirror.aggregate(table, of_table, known.means)
    except MlflowException as error:
        raise RewardsmithError(f"MLflow at {tracking_uri(root).split('@')[-1]}: {error}") from error
    return mirror.counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.tracking.mirror", description=__doc__.split("\n")[0])
    parser.add_argument("--paper", required=True, help="segment, sentence, alarm, rlmec or par")
    parser.add_argument("--scale", default=ROOT_SCALE, help="testbed (default), small or paper")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    parser.add_argument("--rows", nargs="*", metavar="ROW", default=[], help="only these rows")
    options = parser.parse_args(arguments)
    try:
        counts = sync(options.root, options.paper, options.scale, options.rows)
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"MLflow ({tracking_uri(options.root).split('@')[-1]}): {counts.line()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
