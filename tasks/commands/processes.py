"""Modules of the project run in a process of their own, from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.graph.names import SUITE
from tasks.running.machine import refuse_unusable_disk
from tasks.running.platform_state import join_platform
from tasks.running.variables import refuse_unusable_prefect


def show_progress(verbose: bool) -> None:
    """Lets flows show their progress, and Prefect's log only where it was asked for."""
    if not verbose:
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        os.environ["PREFECT_LOGGING_INTERNAL_LEVEL"] = "CRITICAL"  # of its threads, that the server has gone at the end
        os.environ["REWARDSMITH_PROGRESS"] = "true"


def run_module(
    module: str,
    words: Sequence[str],
    *,
    verbose: bool,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs a flow's module in a process of its own; returns its exit status.

    The process leads a session of its own and gets an interrupt of the terminal from here alone: its temporary server,
    which would get it too, must outlive the stages.

    Args:
        folder: the repository, None for the working directory.
        environment: of the process, None for this process's own.

    Raises:
        RewardsmithError: nothing can be written in the repository or in the folder of temporary files.
    """
    refuse_unusable_disk(folder or Path.cwd())
    if environment is None:
        join_platform(Path.cwd())
        refuse_unusable_prefect()
    show_progress(verbose)
    surroundings = finding_the_project(os.environ if environment is None else environment)
    call = [sys.executable, "-P", "-m", module, *words]
    process = subprocess.Popen(call, cwd=folder, env=surroundings, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    status = process.wait()
    return status if status >= 0 else 128 - status


def finding_the_project(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables with which a Python finds this project's packages from any folder."""
    project = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [project, environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path}


def option_words(**options: Any) -> list[str]:
    """Returns the words of a command line that set options; None, False and empty lists set nothing."""
    words: list[str] = []
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            values = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def run_flow(
    paper: str, scale: str, rows: Sequence[str], seeds: Sequence[int], *, verbose: bool, **options: Any
) -> int:
    """Runs a paper's flow, or the suite's, in a process of its own; returns its exit status."""
    module, *words = flow_of(paper)
    words += option_words(scale=scale, rows=list(rows), seeds=list(seeds), **options)
    return run_module(module, words, verbose=verbose)


def flow_of(paper: str) -> list[str]:
    """Returns the module of the flow of a paper, a study or the suite, and the words that name it there."""
    return ["flows.suite"] if paper == SUITE else ["flows.paper", paper]


def run_quietly(*arguments: str) -> int:
    """Runs a module of the project in the repository; returns its exit status."""
    return subprocess.run([sys.executable, "-P", "-m", *arguments], env=finding_the_project(os.environ)).returncode
