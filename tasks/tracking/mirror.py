"""Stage outputs mirrored into MLflow: a view that can be rebuilt at any time.

    python -m tasks.tracking.mirror --paper segment --scale testbed

Experiment = paper, run = result of a stage; the tables that print a row are tags of its run. A run is known by its key
(the place of the result) and the digest of the result it shows: mirroring the same result again changes nothing,
another result makes a new version and deletes the old run (MLflow keeps deleted runs until `mlflow gc`). A run that
`tasks.tracking.live` began while its stage trains is completed. Weights stay in DVC; a run holds a pointer to them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlhf_core.errors import RewardsmithError, prints_errors
from tasks.graph.rows import ROW_STAGES
from tasks.params.scales import DEFAULT_SCALE, is_rehearsal
from tasks.running.artifacts import write_json
from tasks.running.commit import git
from tasks.running.doubtful_numbers import alarm_text, alarms_of
from tasks.running.locks import in_turn
from tasks.running.platform_state import read_private
from tasks.running.variables import refuse_bad_address
from tasks.tracking.databases import open_client, without_passwords
from tasks.tracking.models import Registry, model_name
from tasks.tracking.outcomes import RowOutcome, TrackedStage, flatten, outcomes, tables_of_rows
from tasks.tracking.run_content import log_params, log_result, logged_params, milliseconds

#: Folder of notes where the runs of papers are.
NOTES = Path(".work") / "tracking"
#: Tag of a run whose stage is running or was interrupted; its value is the stage's tree.
LIVE = "live"
#: Most runs that MLflow gives at once.
MOST_RUNS = 50_000
#: Tag for which MLflow's pages open an experiment as model training, with its runs.
EXPERIMENT_KIND = ("mlflow.experimentKind", "custom_model_development")


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
    done = git(root, "rev-parse", "--path-format=absolute", "--git-common-dir")
    common = Path(done.stdout.strip())
    return (common.parent if done.returncode == 0 and common.name == ".git" else root) / ".work"


def tracking_uri(root: Path) -> str:
    """Returns MLFLOW_TRACKING_URI, else `mlflow.db` in the repository.

    Raises:
        RewardsmithError: the variable is not a valid address.
    """
    refuse_bad_address("MLFLOW_TRACKING_URI")
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def open_registry(root: Path) -> Registry:
    """Returns the model registry of the tree's tracking server or database."""
    return Registry(open_client(tracking_uri(root)))


def note_experiment(root: Path, paper: str, uri: str, experiment: str) -> None:
    """Notes the page of a paper's runs on MLflow's server, without user and password; none of a database."""
    page = f"{without_passwords(uri).rstrip('/')}/#/experiments/{quote(experiment, safe='')}/runs"
    (root / NOTES).mkdir(parents=True, exist_ok=True)
    write_json(root / NOTES / f"{paper}.json", {"page": page if uri.startswith("http") else None})


def link_to_runs(root: Path, paper: str) -> str | None:
    """Returns MLflow's page of a paper's runs; None without a server, or where they were never mirrored."""
    return read_private(root / NOTES / f"{paper}.json").get("page")


def _experiment(client: Any, paper: str, root: Path, uri: str) -> str:
    found = client.get_experiment_by_name(paper)
    if found is not None:
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)
    place = (root.resolve() / "mlruns" / paper).as_uri() if uri.startswith("sqlite") else None
    return str(client.create_experiment(paper, artifact_location=place, tags=dict([EXPERIMENT_KIND])))


def _existing(client: Any, experiment: str, scale: str, tree: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the complete runs and those in progress in this tree, by key.

    Of several with one key the newest stays. Others and incomplete ones are deleted; runs of other trees stay.
    """
    complete: dict[str, Any] = {}
    live: dict[str, Any] = {}
    for run in client.search_runs([experiment], f"tags.scale = '{scale}'", max_results=MOST_RUNS):
        tags = run.data.tags
        if "key" not in tags or tags.get(LIVE, tree) != tree:
            continue
        known = live if LIVE in tags else complete
        if tags["key"] in known or (LIVE not in tags and tags.get("complete") != "true"):
            client.delete_run(run.info.run_id)
        else:
            known[tags["key"]] = run
    return complete, live


def _result_tags(outcome: RowOutcome) -> dict[str, str]:
    """Returns tags that say which result a run shows, and how it was made."""
    record = outcome.record
    tags = {
        "digest": outcome.digest,
        "status": "failed" if outcome.failure else "finished",
        "commit": str(record.get("commit", "")),
        "dirty": str(record.get("dirty", "")).lower(),
    }
    if "hacking_onset" in outcome.metrics:
        tags["hacking_onset"] = str(int(outcome.metrics["hacking_onset"]))
        tags["alarms"] = alarm_text(alarms_of(outcome.stage.out / "result"))
    if outcome.failure:
        tags["failure"] = str(outcome.failure.get("message", ""))[:4000]
    lineage = {f"lineage.{path.replace('/', '.')}": value for path, value in record.get("inputs", {}).items()}
    return tags | {name[:250]: str(value) for name, value in lineage.items()}


class Mirror:
    """One pass over a paper's outcomes at a scale."""

    def __init__(self, root: Path, paper: str, scale: str) -> None:
        self.root, self.paper, self.scale = root, paper, scale
        self.uri = tracking_uri(root)
        self.client = open_client(self.uri)
        self.experiment = _experiment(self.client, paper, root, self.uri)
        note_experiment(root, paper, self.uri, self.experiment)
        self.tree, self.tables = root.resolve().as_posix(), tables_of_rows(paper)
        self.complete, self.live = _existing(self.client, self.experiment, scale, self.tree)
        self.counts = Counts()

    def start(self, stage: TrackedStage) -> Any:
        """Returns the run of a stage that begins to work: a new one, or that of the stage's interrupted work."""
        run = self.live.get(stage.key)
        if run is not None and run.data.params == logged_params(stage.params):
            self.client.update_run(run.info.run_id, "RUNNING")
            return run
        if run is not None:  # of other settings
            self.client.delete_run(run.info.run_id)
        tags = self._tags(stage) | {LIVE: self.tree, "status": "running"}
        run = self.client.create_run(self.experiment, tags=tags, run_name=self._name(stage))
        log_params(self.client, run.info.run_id, stage.params)
        self.live[stage.key] = run
        return run

    def interrupt(self, stage: TrackedStage) -> None:
        """Ends a stage's run until the stage goes on."""
        self.client.set_terminated(self.live[stage.key].info.run_id, "KILLED")

    def record(self, outcome: RowOutcome) -> None:
        """Makes or completes the run of a result, or replaces it when the result is another."""
        stage = outcome.stage
        old, run = self.complete.get(stage.key), self.live.get(stage.key)
        if old is not None and old.data.tags.get("digest") == outcome.digest:
            self._register(outcome, old, old.data.tags)  # what was removed from the registry comes back
            self.counts.unchanged += 1
            return
        version = int(old.data.tags.get("version", 1)) + 1 if old is not None else 1
        tags = self._tags(stage) | _result_tags(outcome) | {"version": str(version)}
        begin, end = milliseconds(outcome.record)
        if run is None:
            run = self.client.create_run(self.experiment, start_time=begin, tags=tags, run_name=self._name(stage))
            log_params(self.client, run.info.run_id, stage.params)
        else:
            del self.live[stage.key]
            for name, value in tags.items():
                self.client.set_tag(run.info.run_id, name, value)
            end = max(end, run.info.start_time)
            self.client.delete_tag(run.info.run_id, LIVE)  # killed from here on, the run is made again from the result
        resolved = flatten(outcome.record.get("resolved", {}), "resolved")
        log_params(self.client, run.info.run_id, resolved)
        log_result(self.client, run, outcome, self.root)
        self.client.set_terminated(run.info.run_id, "FAILED" if outcome.failure else "FINISHED", end_time=end)
        self._register(outcome, run, tags)
        self.client.set_tag(run.info.run_id, "complete", "true")
        self.complete[stage.key] = self.client.get_run(run.info.run_id)
        if old is None:
            self.counts.new += 1
            return
        self.client.set_tag(old.info.run_id, "superseded_by", run.info.run_id)
        self.client.delete_run(old.info.run_id)
        self.counts.replaced += 1

    def _register(self, outcome: RowOutcome, run: Any, tags: Mapping[str, str]) -> None:
        """Registers the model of a result that has one."""
        stage = outcome.stage
        model = model_name(self.paper, self.scale, stage.kind, stage.name)
        if model is not None and not outcome.failure:
            Registry(self.client).register(model, run, tags)

    def drop(self, stage: TrackedStage) -> None:
        """Removes the run of a stage whose work gave the result that was there before."""
        if run := self.live.pop(stage.key, None):
            self.client.delete_run(run.info.run_id)

    def _name(self, stage: TrackedStage) -> str:
        return f"{'rehearsal: ' if is_rehearsal(self.scale) else ''}{stage.name} seed {stage.seed}"

    def _tags(self, stage: TrackedStage) -> dict[str, str]:
        """Returns tags that a run has from its start; each table that prints the row is one."""
        kind = "model" if stage.kind == "reward_model" else "row"
        tags = {
            "key": stage.key,
            "paper": self.paper,
            "kind": kind,
            kind: stage.name,
            "seed": str(stage.seed),
            "scale": self.scale,
            "stage": stage.address,
            "path": stage.out.relative_to(self.root).as_posix(),
        }
        tags |= dict.fromkeys(self.tables.get(stage.name, ()) if kind == "row" else (), "true")
        return tags | ({"rehearsal": "true"} if is_rehearsal(self.scale) else {})


def sync(root: Path, paper: str, scale: str = DEFAULT_SCALE, rows: Sequence[str] = ()) -> Counts:
    """Mirrors a paper's stage outputs at a scale into MLflow.

    Args:
        root, paper, scale: whose.
        rows: only these, as of a worktree that holds no others.

    Raises:
        RewardsmithError: unknown paper, or a tracking server that cannot be used.
    """
    from mlflow.exceptions import MlflowException

    root = root.resolve()
    found = [
        outcome
        for outcome in outcomes(root, paper, scale)
        if not rows or (outcome.stage.name in rows and outcome.stage.kind in ROW_STAGES)
    ]
    try:
        with only_writer(root):
            mirror = Mirror(root, paper, scale)
            for outcome in found:
                mirror.counts.failed += outcome.failure is not None
                mirror.record(outcome)
    except MlflowException as error:
        raise RewardsmithError(without_passwords(f"MLflow at {tracking_uri(root)}: {error}")) from None
    return mirror.counts


@prints_errors
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.tracking.mirror", description=__doc__.split("\n")[0])
    parser.add_argument("--paper", required=True, help="segment, sentence, alarm, rlmec or par")
    parser.add_argument("--scale", default=DEFAULT_SCALE, help="testbed (default), small or paper")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    parser.add_argument("--rows", nargs="*", metavar="ROW", default=[], help="only these rows")
    options = parser.parse_args(arguments)
    counts = sync(options.root, options.paper, options.scale, options.rows)
    print(without_passwords(f"MLflow ({tracking_uri(options.root)}): {counts.line()}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
