"""Follow-ups of a run (tables, MLflow, the report): separate processes that end with the run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.scheduler import RunFailed
from flows.stage_run import RunningStages
from flows.working_tree import end_group, noted_group
from tasks.running.fork_server import PROJECT

#: A module of the project and its arguments.
Call = tuple[str, Sequence[str]]


def follow_ups(root: Path, *calls: Call) -> list[str]:
    """Runs modules side by side in a repository; returns what went wrong. Call it inside a flow."""
    running = RunningStages()
    futures = [follow_up.submit(module, arguments, root, running) for module, arguments in calls]
    try:
        for future in futures:
            future.wait()
    finally:  # interrupted or cancelled: they lead groups of their own
        running.end_all()
    ended = [future.state for future in futures if not future.state.is_completed()]
    return [str(state.result(raise_on_failure=False)) for state in ended]


@task(name="follow-up", task_run_name="{module}", persist_result=False, cache_policy=NO_CACHE)
def follow_up(module: str, arguments: Sequence[str], root: Path, running: RunningStages) -> str:
    """Runs one module, noted as a stage is, so that one whose run was killed is found and ended.

    Returns:
        the last line that it printed.

    Raises:
        RunFailed: it failed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running.add(process.pid)
    try:
        with noted_group(root, module, process.pid):
            output, errors = process.communicate()
    finally:
        running.remove(process.pid)
        if process.poll() is None:
            end_group(process.pid)
            process.wait()
    log = get_run_logger()
    for line in (output + errors).splitlines():
        log.info("%s", line)
    if process.returncode:
        lines = (errors or output).strip().splitlines() or ["no output"]
        raise RunFailed(f"{module} failed with exit code {process.returncode}: {lines[-1]}")
    return (output.strip().splitlines() or [""])[-1]
