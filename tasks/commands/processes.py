"""Modules of the project run in a process of their own, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.running.machine import refuse_unusable_disk
from tasks.running.platform_state import join_platform
from tasks.running.variables import refuse_unusable_prefect


def show_progress(verbose: bool) -> None:
    """Lets flows show their progress, and Prefect's log only where it was asked for."""
    if not verbose:
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        os.environ["PREFECT_LOGGING_INTERNAL_LEVEL"] = "CRITICAL"  # of its threads, that the server has gone at the end
        os.environ["REWARDSMITH_PROGRESS"] = "true"


def run_flow(
    call: str,
    parameters: Mapping[str, Any],
    *,
    verbose: bool,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs a call of `flows/__main__.py` in a process of its own, in the working directory with this process's
    environment unless given; returns its exit status.

    The process leads a session of its own and gets an interrupt of the terminal from here alone: its temporary server,
    which would get it too, must outlive the stages.

    Raises:
        RewardsmithError: nothing can be written in the repository or in the folder of temporary files.
    """
    refuse_unusable_disk(folder or Path.cwd())
    if environment is None:
        join_platform(Path.cwd())
        refuse_unusable_prefect()
    show_progress(verbose)
    surroundings = finding_the_project(os.environ if environment is None else environment)
    command = [sys.executable, "-P", "-m", "flows", call, json.dumps(parameters)]
    process = subprocess.Popen(command, cwd=folder, env=surroundings, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    status = process.wait()
    return status if status >= 0 else 128 - status


def finding_the_project(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables with which a Python finds this project's packages from any folder."""
    project = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [project, environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path}


def run_quietly(*arguments: str) -> int:
    """Runs a module of the project in the repository; returns its exit status."""
    return subprocess.run([sys.executable, "-P", "-m", *arguments], env=finding_the_project(os.environ)).returncode
