"""Scheduled re-evaluation of the models that MLflow's registry aliases point to.

A model is evaluated if the model, a benchmark or the judge changed, the judge gave no readable answer on a benchmark,
or a drift check (the canary) is due; a drift check judges the canary alone.

At most one run is active. A run that falls due meanwhile is cancelled (`CANCEL_NEW` in `flows/deployments.py`). After
an outage the worker takes all missed runs at once: the first one evaluates, the others are cancelled.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event

from flows.deployments import REEVALUATION_SETTINGS, refuse_edited_tree
from flows.scheduler import RunFailed
from flows.slots import Grant, granted
from flows.stage_run import Command, RunningStages, noted_failure, run_command
from rlhf_core.errors import RewardsmithError
from rlhf_core.services import CallFailed, client, post
from tasks.graph.dvc_files import file_name, is_checkout, resources
from tasks.params.evaluation import ReevaluatedModel, read_reevaluation
from tasks.reevaluation.history import RECORDS, note_sent, records_folder, records_to_alert, restore_records
from tasks.tracking.mirror import open_registry
from tasks.tracking.models import Registered


def needs_of(root: Path, model: Registered) -> dict[str, Any]:
    """Returns the resources for evaluating a model: its scale's resources of the stage `policy`."""
    return resources(root, Path(model.path).parts[1])["policy"]


@task(name="evaluate", task_run_name="{model.name}@{model.alias}", persist_result=False, cache_policy=NO_CACHE)
def evaluate(root: Path, settings_path: Path, model: Registered) -> dict[str, Any]:
    """Evaluates one model in a process of its own, within the machine's slots; returns its record, with what was
    measured, what changed since the last evaluation, and the alerts.

    Raises:
        RewardsmithError: this machine has too few GPUs for it, or the evaluation failed.
    """
    with granted(_address(model), needs_of(root, model)) as own, tempfile.TemporaryDirectory() as folder:
        return _run(root, settings_path, model, Path(folder) / "record.json", own)


def _address(model: Registered) -> str:
    """Returns the name of an evaluation in logs and messages, in place of a stage's address."""
    return f"reevaluation of {model.name}@{model.alias}"


def _run(root: Path, settings_path: Path, model: Registered, record_path: Path, grant: Grant) -> dict[str, Any]:
    """Runs `tasks.reevaluation.evaluate` as stages are run: with the code of `root` if that is a checkout, else with
    the installed package; its log is kept."""
    python = ["python"] if is_checkout(root) else ["python", "-P"]
    call = [*python, "-m", "tasks.reevaluation.evaluate", "--settings", str(settings_path), "--root", str(root)]
    for name in ("name", "alias", "version", "digest", "commit"):
        call += [f"--{name}", getattr(model, name)]
    call += ["--result", model.path, "--out", str(record_path)]
    command = Command(
        shlex.join(call),
        address=_address(model),
        name=file_name(_address(model)),
        environment=grant.environment(),
    )
    out, running = records_folder(root, model.name, model.alias).relative_to(root).as_posix(), RunningStages()
    with noted_failure(root, command.name, address=command.address, out=out, running=running):
        run_command(root, command, running=running, log=get_run_logger().info)
    record: dict[str, Any] = json.loads(record_path.read_text(encoding="utf-8"))
    return record


def send_pending_alerts(root: Path, model: Registered) -> tuple[int, list[str]]:
    """Sends the alerts of every evaluation that are not sent yet, including the alerts of a run that died before.

    It ends at the first record whose alerts the webhook did not take; the next run sends them again.

    Returns:
        the number of alerts that it tried to send, and the problems.
    """
    folder, tried = records_folder(root, model.name, model.alias), 0
    for record in records_to_alert(folder):
        problems = send_alerts(model, record)
        tried += len(record["alerts"])
        if problems:
            return tried, problems
        note_sent(folder, record["number"])
    return tried, []


def send_alerts(model: Registered, record: Mapping[str, Any]) -> list[str]:
    """Sends a record's alerts, as Prefect events and a call of the webhook; returns the problems."""
    alerts, identity = record["alerts"], {"version": record["version"], "alias": model.alias}
    for one in alerts:
        emit_event(
            event=f"rewardsmith.{one['kind'].replace(' ', '-')}",
            resource={"prefect.resource.id": f"rewardsmith.model.{model.name}", "prefect.resource.name": model.name},
            payload=dict(one) | identity,
        )
    if alerts and (webhook := os.environ.get("REWARDSMITH_WEBHOOK")):
        content = {"model": model.name, **identity, "alerts": [*alerts]}
        try:
            answer = post(client(1), webhook, 20, json=content)
        except (CallFailed, httpx.HTTPError) as error:
            return [f"the webhook did not take the alert: {error}"]
        if not answer.is_success:  # without the address, which may hold a secret
            return [f"the webhook did not take the alert: it answered with status {answer.status_code}"]
    return []


def track_records(root: Path) -> None:
    """Adds the records to DVC: reevaluations.dvc lists them and belongs into the next commit.

    Raises:
        RewardsmithError: DVC refuses.
    """
    call = [sys.executable, "-m", "dvc", "--wait-for-lock", "add", "-q", str(RECORDS)]
    done = subprocess.run(call, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RewardsmithError(f"the records cannot be added to DVC: {done.stderr.strip()}")


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
    # A schedule runs the commit that its deployment was made from. Code or parameters edited since are refused, so that
    # the code of every record is that of a commit.
    refuse_edited_tree(tree)
    settings_path = tree / REEVALUATION_SETTINGS
    settings = read_reevaluation(settings_path)
    # [::2] leaves out the @ of name@alias; a name alone has the alias ""
    chosen = [ReevaluatedModel(*name.partition("@")[::2]) for name in models or ()] or list(settings.models)
    registry = open_registry(tree)
    evaluated, problems, alerts = 0, list[str](), 0
    for name in restore_records(tree):
        log.info("restored %s from DVC", name)
    try:
        for one in chosen:
            try:
                model = registry.resolve(one.name, one.alias or "champion")
                try:
                    why = ", ".join(evaluate(tree, settings_path, model)["reasons"])
                    log.info("%s@%s version %s: %s", model.name, model.alias, model.version, why or "nothing changed")
                    evaluated += 1
                finally:
                    tried, alert_problems = send_pending_alerts(tree, model)
                    alerts += tried
                    problems += alert_problems
            except RewardsmithError as error:
                problems.append(str(error))
                log.error("%s", error)
    finally:
        if (tree / RECORDS).exists():
            track_records(tree)
    if problems:
        raise RunFailed("; ".join(problems))
    return f"{evaluated} model(s), {alerts} alert(s)"
