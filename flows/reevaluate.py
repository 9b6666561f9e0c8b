"""Scheduled re-evaluation: the models behind the registry's aliases, again where something changed.

Rules of the schedule: at most one run at a time (a new one is cancelled while one is active), and a run evaluates
however late it is. So of several that were missed the first evaluates and the others are cancelled; one that begins
after it finds nothing changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows.deployments import SCHEDULE, check_pinned
from flows.paper import page_link
from flows.run_notes import noted
from flows.scheduler import RunFailed
from flows.shared_slots import POLL_SECONDS, machine_slots
from flows.slots import Grant, Slots
from flows.stage_run import RunningStages, run_stage
from rlhf_core.errors import RewardsmithError
from tasks.graph.files import file_name, is_checkout, resources
from tasks.params.evaluation import Watched
from tasks.reevaluation.alerts import note_told, untold
from tasks.reevaluation.evaluate import load_settings
from tasks.reevaluation.history import RECORDS, bring_records, records_folder
from tasks.running import machine
from tasks.tracking.mirror import open_registry
from tasks.tracking.models import Registered, Registry


def needs_of(root: Path, model: Registered) -> dict[str, Any]:
    """Returns the resources for evaluating a model: its scale's resources of the stage `policy`."""
    return resources(root, Path(model.path).parts[1])["policy"]


@task(name="evaluate", task_run_name="{model.name}@{model.alias}", persist_result=False, cache_policy=NO_CACHE)
def evaluate(root: Path, settings: Path, model: Registered) -> dict[str, Any]:
    """Evaluates one model in a process of its own, within the machine's slots; returns its record.

    Raises:
        RewardsmithError: this machine has too few GPUs for it, or it ended badly.
    """
    needs = needs_of(root, model)
    with closing(machine_slots(Slots(machine.cores(), machine.gpus(), machine.memory_gb()))) as slots:
        slots.check(_address(model), needs)
        while (grant := slots.take(needs)) is None:
            time.sleep(POLL_SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            return _run(root, settings, model, Path(folder) / "record.json", grant)


def _address(model: Registered) -> str:
    return f"reevaluation of {model.name}@{model.alias}"


def _run(root: Path, settings: Path, model: Registered, out: Path, grant: Grant) -> dict[str, Any]:
    """Runs `tasks.reevaluation.evaluate` to its end as stages are run: of the tree's own code where the tree has it,
    marked, logged, and its memory watched."""
    call = ["tasks.reevaluation.evaluate", "--settings", str(settings), "--root", str(root)]
    for name in ("name", "alias", "version", "digest", "commit"):
        call += [f"--{name}", getattr(model, name)]
    call += ["--result", model.path, "--out", str(out)]
    run_stage(
        root,
        address=_address(model),
        name=file_name(_address(model)),
        out=records_folder(root, model.name, model.alias).relative_to(root).as_posix(),
        environment=grant.environment(),
        running=RunningStages(),
        say=get_run_logger().info,
        memory_gb=grant.memory_gb,
        call=call,
        packages=root if is_checkout(root) else None,
    )
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def tell(root: Path, registry: Registry, model: Registered) -> tuple[int, list[str]]:
    """Makes the alerts of every record visible that has not been told, also one of a run that died before it could.

    A record whose alerts did not reach everybody is told again at the next run.

    Returns:
        how many alerts there were, and what did not work.
    """
    folder, count = records_folder(root, model.name, model.alias), 0
    for record in untold(folder):
        problems = alert(registry, model, record)
        count += len(record["alerts"])
        if problems:
            return count, problems
        note_told(folder, record["number"])
    return count, []


def alert(registry: Registry, model: Registered, record: Mapping[str, Any]) -> list[str]:
    """Makes a record's alerts visible: a Prefect event, an artifact, a tag in MLflow where the record is of the alias's
    present version, and a webhook; returns what did not work."""
    problems, alerts = [], record["alerts"]
    about = {"version": record["version"], "alias": model.alias}
    for one in alerts:
        emit_event(
            event=f"rewardsmith.{one['kind'].replace(' ', '-')}",
            resource={"prefect.resource.id": f"rewardsmith.model.{model.name}", "prefect.resource.name": model.name},
            payload=dict(one) | about,
        )
    if alerts:
        text = "\n".join(f"- **{one['kind']}**: {one['text']}" for one in alerts)
        create_markdown_artifact(key=f"alert-{_key(model.name)}", markdown=text, description="Alert")
    address = os.environ.get("REWARDSMITH_WEBHOOK")
    if alerts and address:
        content = {"model": model.name, **about, "alerts": [*alerts]}
        try:
            httpx.post(address, json=content, timeout=20).raise_for_status()
        except httpx.HTTPError as error:
            problems.append(f"the webhook did not take the alert: {error}")
    if record["version"] == model.version:
        try:
            registry.tag(model, {"alert": "; ".join(one["text"] for one in alerts) or "none"})
        except RewardsmithError as error:
            problems.append(f"MLflow did not take the alert: {error}")
    return problems


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def track_records(root: Path) -> None:
    """Brings the records under DVC: reevaluations.dvc names them, and belongs into the next commit.

    Raises:
        RewardsmithError: DVC refuses.
    """
    call = [sys.executable, "-m", "dvc", "--wait-for-lock", "add", "-q", str(RECORDS)]
    done = subprocess.run(call, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RewardsmithError(f"the records cannot be added to DVC: {done.stderr.strip()}")


def _row(model: Registered, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's line in the table of the run."""
    if not record.get("reasons"):
        return {"model": model.name, "alias": model.alias, "version": model.version, "why": "nothing changed"}
    parts = {name: values["mean"] for name, values in record["benchmarks"].items()}
    changes = "; ".join(f"{name} {values['verdict']}" for name, values in record["changes"].items())
    asked = sum(values["asked"] for values in record["benchmarks"].values())
    return {
        "model": model.name,
        "alias": model.alias,
        "version": model.version,
        "why": ", ".join(record["reasons"]),
        **{name: None if value is None else round(value, 4) for name, value in parts.items()},
        "change": changes or "nothing to compare with",
        "judge": record["canary"]["verdict"],
        "asked": asked,
    }


@flow(name="reevaluate", description="Models of the registry again, where something changed.", persist_result=False)
def reevaluate(models: list[str] | None = None, root: str = ".") -> str:
    """Evaluates models again.

    Args:
        models: limits the run to these, as name@alias; empty for the models of params/reevaluation.yaml.
        root: the repository.
    """
    log, tree = get_run_logger(), Path(root).resolve()
    check_pinned(tree)
    page_link(create_link_artifact)
    settings = load_settings(tree / SCHEDULE)
    chosen = [Watched(*name.partition("@")[::2]) for name in models or ()] or list(settings.models)
    registry = open_registry(tree)
    rows, problems, alerted = [], [], 0
    with noted(tree):
        for name in bring_records(tree):
            log.info("brought %s from DVC", name)
        try:
            for watched in chosen:
                try:
                    model = registry.resolve(watched.name, watched.alias or "champion")
                    try:
                        rows.append(_row(model, evaluate(tree, tree / SCHEDULE, model)))
                    finally:
                        count, untaken = tell(tree, registry, model)
                        alerted += count
                        problems += untaken
                except RewardsmithError as error:
                    problems.append(str(error))
                    log.error("%s", error)
        finally:
            if (tree / RECORDS).exists():
                track_records(tree)
    if rows:
        create_table_artifact(key="reevaluation", table=rows, description=f"{alerted} alert(s)")
    if problems:
        raise RunFailed("; ".join(problems))
    return f"{len(rows)} model(s), {alerted} alert(s)"
