"""Follow-ups of a run (tables, MLflow, the report): separate processes that end with the run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.scheduler import RunFailed
from flows.stage_run import Command, RunningStages, StageFailed, run_command

#: A module of the project and its arguments.
Call = tuple[str, Sequence[str]]


def follow_ups(root: Path, *calls: Call) -> list[str]:
    """Runs modules side by side in a repository; returns what went wrong. Call it inside a flow."""
    running = RunningStages()
    futures = [follow_up.submit(*call, number, root, running) for number, call in enumerate(calls)]
    try:
        for future in futures:
            future.wait()
    finally:  # interrupted or cancelled: they lead groups of their own
        running.end_all()
    ended = [future.state for future in futures if not future.state.is_completed()]
    return [str(state.result(raise_on_failure=False)) for state in ended]


@task(name="follow-up", task_run_name="{module}", persist_result=False, cache_policy=NO_CACHE)
def follow_up(module: str, arguments: Sequence[str], number: int, root: Path, running: RunningStages) -> None:
    """Runs one module as a stage runs, with the code of this project.

    Args:
        number: of the call among those that run beside each other, for its log.

    Raises:
        RunFailed: it failed.
    """
    words = shlex.join(["python", "-P", "-m", module, *arguments])
    command = Command(words, address=module, name=f"{module}-{number}", out=None, environment={})
    try:
        run_command(root, command, running=running, log=get_run_logger().info)
    except StageFailed as error:
        raise RunFailed(str(error).removeprefix("stage ")) from error
