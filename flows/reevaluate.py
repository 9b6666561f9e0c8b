"""Scheduled re-evaluation of the models that MLflow's registry aliases point to.

A model is evaluated if the model, a benchmark or the judge changed, the judge gave no readable answer on a benchmark,
or a drift check (the canary) is due. At most one run is active; one that falls due meanwhile is cancelled. A late run
is not skipped: after an outage the first missed run evaluates, the others are cancelled; a later one finds nothing
changed.
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

from flows.deployments import REEVALUATION_SETTINGS, refuse_edited_tree
from flows.paper import link_page_and_report
from flows.run_notes import note_running_process
from flows.scheduler import RunFailed
from flows.shared_slots import POLL_SECONDS, machine_slots
from flows.slots import Grant, Slots
from flows.stage_run import RunningStages, run_stage_process
from rlhf_core.errors import RewardsmithError
from tasks.graph.dvc_files import file_name, is_checkout, resources
from tasks.params.evaluation import ReevaluatedModel
from tasks.reevaluation.alerts import note_sent, records_to_alert
from tasks.reevaluation.evaluate import load_settings
from tasks.reevaluation.history import RECORDS, records_folder, restore_records
from tasks.running import machine
from tasks.tracking.mirror import open_registry
from tasks.tracking.models import Registered, Registry


def needs_of(root: Path, model: Registered) -> dict[str, Any]:
    """Returns the resources for evaluating a model: its scale's resources of the stage `policy`."""
    return resources(root, Path(model.path).parts[1])["policy"]


@task(name="evaluate", task_run_name="{model.name}@{model.alias}", persist_result=False, cache_policy=NO_CACHE)
def evaluate(root: Path, settings: Path, model: Registered) -> dict[str, Any]:
    """Evaluates one model in a process of its own, within the machine's slots; returns what was measured, what changed
    since the last evaluation, and the alerts.

    Raises:
        RewardsmithError: this machine has too few GPUs for it, or the evaluation failed.
    """
    needs = needs_of(root, model)
    with closing(machine_slots(Slots(machine.cores(), machine.gpus(), machine.memory_gb()))) as slots:
        slots.refuse_impossible(_address(model), needs)
        while (grant := slots.take(needs)) is None:
            time.sleep(POLL_SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            return _run(root, settings, model, Path(folder) / "record.json", grant)


def _address(model: Registered) -> str:
    """Returns the name of an evaluation in logs and messages, where those of a stage have its address."""
    return f"reevaluation of {model.name}@{model.alias}"


def _run(root: Path, settings: Path, model: Registered, out: Path, grant: Grant) -> dict[str, Any]:
    """Runs `tasks.reevaluation.evaluate` as stages are run: with the code of `root` if that is a checkout, else with
    the installed package; its log is kept and its memory watched."""
    call = ["tasks.reevaluation.evaluate", "--settings", str(settings), "--root", str(root)]
    for name in ("name", "alias", "version", "digest", "commit"):
        call += [f"--{name}", getattr(model, name)]
    call += ["--result", model.path, "--out", str(out)]
    run_stage_process(
        root,
        address=_address(model),
        name=file_name(_address(model)),
        out=records_folder(root, model.name, model.alias).relative_to(root).as_posix(),
        environment=grant.environment(),
        running=RunningStages(),
        log=get_run_logger().info,
        memory_gb=grant.memory_gb,
        call=call,
        packages=root if is_checkout(root) else None,  # where the code is; None: the installed package
    )
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def send_pending_alerts(root: Path, registry: Registry, model: Registered) -> tuple[int, list[str]]:
    """Sends the alerts of every evaluation that are not sent yet, including those of a run that died before.

    Alerts that the webhook or MLflow did not take are sent again by the next run.

    Returns:
        the number of alerts, and the problems.
    """
    folder, count = records_folder(root, model.name, model.alias), 0
    for record in records_to_alert(folder):
        problems = alert(registry, model, record)
        count += len(record["alerts"])
        if problems:
            return count, problems
        note_sent(folder, record["number"])
    return count, []


def alert(registry: Registry, model: Registered, record: Mapping[str, Any]) -> list[str]:
    """Sends a record's alerts: as Prefect events, an artifact, a call of the webhook and, if the record is of the
    alias's present version, a tag in MLflow; returns the problems."""
    problems, alerts = [], record["alerts"]
    identity = {"version": record["version"], "alias": model.alias}
    for one in alerts:
        emit_event(
            event=f"rewardsmith.{one['kind'].replace(' ', '-')}",
            resource={"prefect.resource.id": f"rewardsmith.model.{model.name}", "prefect.resource.name": model.name},
            payload=dict(one) | identity,
        )
    if alerts:
        text = "\n".join(f"- **{one['kind']}**: {one['text']}" for one in alerts)
        create_markdown_artifact(key=f"alert-{_artifact_key(model.name)}", markdown=text, description="Alert")
    address = os.environ.get("REWARDSMITH_WEBHOOK")
    if alerts and address:
        content = {"model": model.name, **identity, "alerts": [*alerts]}
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


def _artifact_key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def track_records(root: Path) -> None:
    """Adds the records to DVC: reevaluations.dvc lists them and belongs into the next commit.

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
    judge_requests = sum(values["asked"] for values in record["benchmarks"].values())
    return {
        "model": model.name,
        "alias": model.alias,
        "version": model.version,
        "why": ", ".join(record["reasons"]),
        **{name: None if value is None else round(value, 4) for name, value in parts.items()},
        "change": changes or "nothing to compare with",
        "judge_drift": record["canary"]["verdict"],
        "judge_requests": judge_requests,
    }


@flow(
    name="reevaluate",
    description="Re-evaluates registered models if something changed.",
    persist_result=False,
)
def reevaluate(models: list[str] | None = None, root: str = ".") -> str:
    """Evaluates models again where something changed.

    Args:
        models: limits the run to these models, as name@alias; empty for the models of params/reevaluation.yaml.
        root: the repository.
    """
    log, tree = get_run_logger(), Path(root).resolve()
    # A schedule runs the commit that its deployment was made from: code or parameters edited since are refused, so that
    # every record belongs to a commit.
    refuse_edited_tree(tree)
    link_page_and_report(create_link_artifact)
    settings = load_settings(tree / REEVALUATION_SETTINGS)
    # name@alias without its @; a name alone has the alias ""
    chosen = [ReevaluatedModel(*name.partition("@")[::2]) for name in models or ()] or list(settings.models)
    registry = open_registry(tree)
    rows, problems, alerted = [], [], 0
    with note_running_process(tree):
        for name in restore_records(tree):
            log.info("restored %s from DVC", name)
        try:
            for watched in chosen:
                try:
                    model = registry.resolve(watched.name, watched.alias or "champion")
                    try:
                        rows.append(_row(model, evaluate(tree, tree / REEVALUATION_SETTINGS, model)))
                    finally:
                        count, alert_problems = send_pending_alerts(tree, registry, model)
                        alerted += count
                        problems += alert_problems
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
