"""Kills the platform's processes at random and looks whether anything is lost.

    python -m tests.chaos --kills 50 --seed 0

A small repository with stand-in stages runs on a real platform. Flow, worker, stage, Prefect server (with it its
database, SQLite), MLflow server or all of them are killed (SIGKILL) at random moments; after each kill come
`rewardsmith up` and the same run. When the run has come to its end, every file of its results is compared with those
of an uninterrupted `dvc repro`, and counted: processes without a parent, runs that look alive, slots still held, parts
of outputs, duplicates and open runs in MLflow.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from flows.deployments import deployments
from flows.flow_runs import run_processes
from flows.slots import LEASE_SECONDS
from flows.working_tree import started_processes
from tasks.running.platform_state import FOLDER, STATE, client_environment, read_private
from tests import small_repository
from tests.small_repository import PROJECT, clean_environment, command

TARGETS = ("flow", "worker", "stage", "prefect", "mlflow", "all")
ROUND_KILLS = 3
WAIT_SECONDS = 900


@dataclass
class Report:
    """Kills, and the problems found afterwards."""

    kills: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        killed = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        return f"{sum(self.kills.values())} kills ({killed}) in {self.rounds} runs: {len(self.problems)} problem(s)"


def servers(root: Path, what: str) -> None:
    """`rewardsmith up` or `down` in a repository."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flows.servers", what],
        cwd=root,
        env=clean_environment(PYTHONPATH=str(PROJECT)),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Platform:
    """A repository with its platform, as a client sees it."""

    def __init__(self, root: Path) -> None:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

        self.root = root
        self.environment = client_environment(root)
        values = {
            PREFECT_API_URL: self.environment["PREFECT_API_URL"],
            PREFECT_API_AUTH_STRING: self.environment["PREFECT_API_AUTH_STRING"],
        }
        with temporary_settings(values):
            self.client = get_client(sync_client=True)

    def start(self, flow: str, **parameters: Any) -> str:
        """Starts a run of a deployment; returns its id."""
        name = next(one.name for one in deployments(self.root) if one.flow == flow)
        found = self.client.read_deployment_by_name(f"{flow}/{name}")
        environment = parameters.pop("environment", {})
        run = self.client.create_flow_run_from_deployment(
            found.id, parameters=parameters, job_variables={"env": environment}
        )
        return str(run.id)

    def state(self, run: str) -> Any:
        return self.client.read_flow_run(UUID(run)).state

    def wait(self, run: str, seconds: float = WAIT_SECONDS) -> Any:
        """The state that a run ends in."""
        until = time.monotonic() + seconds
        while not (state := self.state(run)).is_final():
            assert time.monotonic() < until, f"run {run} is {state.name} after {seconds} s"
            time.sleep(0.5)
        return state

    def pids(self) -> dict[str, int]:
        """Returns the process ids of servers and worker."""
        return dict(read_private(self.root / FOLDER / STATE)["processes"])

    def held_slots(self) -> int:
        return sum(limit.active_slots for limit in self.client.read_global_concurrency_limits(limit=200))

    def stages(self) -> list[psutil.Process]:
        """Returns the processes of the running stages."""
        return stages(self.root)


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Waits until a condition holds; fails when it does not within the time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.1)


def kill(platform: Platform, target: str, run: str) -> bool:
    """Kills a target for good; returns whether it was there."""
    killed: list[psutil.Process] = []
    if target in ("flow", "all"):
        killed += [process for process, of in run_processes(platform.root / FOLDER).items() if of == run]
    if target in ("stage", "all"):
        killed += platform.stages()
    for name, pid in platform.pids().items():
        if target in (name, "all") and psutil.pid_exists(pid):
            killed.append(psutil.Process(pid))
            killed += killed[-1].children(recursive=True) if target in ("prefect", "mlflow") else []
    for process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return bool(killed)


def stages(root: Path) -> list[psutil.Process]:
    """Returns the processes of the stages that run in a repository."""
    found = []
    for process, _ in started_processes(root):
        with suppress(psutil.Error):
            found += [process] if any(word.startswith("results/") for word in process.cmdline()) else []
    return found


def one_round(platform: Platform, kills: int, rng: random.Random, report: Report) -> None:
    """A run from nothing to its end, with kills on the way."""
    left = kills
    run = platform.start("segment", report=False, environment={"STAND_IN_SECONDS": "0.5"})
    until = time.monotonic() + WAIT_SECONDS
    while True:
        assert time.monotonic() < until, f"the run did not end: {platform.state(run)}"
        if left:
            wait_for(lambda run=run: platform.state(run).is_running() or platform.state(run).is_final(), WAIT_SECONDS)
            time.sleep(rng.uniform(0.0, 6.0))
            target = rng.choice(TARGETS)
            if target == "stage":
                wait_for(lambda run=run: platform.stages() or platform.state(run).is_final(), WAIT_SECONDS)
            if kill(platform, target, run):
                report.kills[target] += 1
                left -= 1
            servers(platform.root, "up")
        state = platform.state(run)
        if state.is_completed() and not left:
            report.rounds += 1
            return
        if state.is_final():
            run = platform.start("segment", report=False, environment={"STAND_IN_SECONDS": "0.5"})
        time.sleep(0.5)


def results_of(root: Path) -> dict[str, bytes]:
    """Returns the bytes of each file that a stage made, by its name."""
    paths = (path for path in root.glob("results/**/result/**/*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def look(platform: Platform, reference: Path, report: Report) -> None:
    """Compares a finished repository with an uninterrupted one."""
    root = platform.root
    wanted, found = results_of(reference), results_of(root)
    report.problems += [f"{name} differs" for name in sorted(wanted) if found.get(name) != wanted[name]]
    report.problems += [f"{name} is too much" for name in sorted(set(found) - set(wanted))]
    report.problems += [f"a part of an output is left: {p}" for p in root.glob("results/**/.partial-*")]
    until = time.monotonic() + 30  # a run's process lives some seconds longer than the run
    while (left := [process for process, _ in started_processes(root)]) and time.monotonic() < until:
        time.sleep(1)
    report.problems += [f"an orphan is left: {process}" for process in left]
    if "up to date" not in (status := command("dvc", "status", root=root).stdout):
        report.problems.append(f"DVC would run something again: {status}")
    until = time.monotonic() + LEASE_SECONDS + 30  # slots that could not be given back end with their lease
    while (held := platform.held_slots()) and time.monotonic() < until:
        time.sleep(1)
    if held:
        report.problems.append(f"{held} slot(s) are held")
    report.problems += [f"run {name} looks alive" for name in runs_alive(platform)]
    report.problems += faults_in_mlflow(root)


def runs_alive(platform: Platform) -> list[str]:
    """Names of the runs that Prefect shows as running."""
    from prefect.client.schemas import StateType
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType

    kinds = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.CANCELLING])
    found = platform.client.read_flow_runs(flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=kinds)))
    return [str(run.name) for run in found]


def faults_in_mlflow(root: Path) -> list[str]:
    """Keys that several live runs of MLflow have, and runs that it shows as running."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("segment")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    keys = Counter(run.data.tags.get("key") for run in found)
    running = [run.info.run_name for run in found if run.info.status == "RUNNING"]
    return [f"{count} runs are {key}" for key, count in keys.items() if count > 1] + [
        f"run {name} of MLflow looks alive" for name in running
    ]


def forget(root: Path) -> None:
    """Removes every result and DVC's memory of them, so that the next run begins from nothing."""
    for name in ("results", "reevaluations", ".dvc/cache", ".dvc/tmp"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("dvc.lock", "reevaluations.dvc"):
        (root / name).unlink(missing_ok=True)


def chaos(folder: Path, kills: int, seed: int) -> Report:
    """Kills in rounds of ROUND_KILLS, each round a run from nothing to its end."""
    reference = small_repository.create(folder / "reference", demo=("bandit",), seeds=(0,))
    command("dvc", "repro", "-q", root=reference)
    root = small_repository.create(folder / "victim", demo=("bandit",), seeds=(0,))
    servers(root, "up")
    report, rng = Report(), random.Random(seed)
    try:
        while sum(report.kills.values()) < kills:
            forget(root)
            one_round(Platform(root), min(ROUND_KILLS, kills - sum(report.kills.values())), rng, report)
            before = len(report.problems)
            look(Platform(root), reference, report)
            for line in (*report.problems[before:], report.line()):
                print(line, flush=True)
    finally:
        servers(root, "down")
    return report


def main(chaos: Callable[[Path, int, int], Report], description: str) -> int:
    """Runs a command line's kills; returns its exit code."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return int(bool(chaos(Path(folder), options.kills, options.seed).problems))


if __name__ == "__main__":
    sys.exit(main(chaos, __doc__))
