"""One stage: its command in a process group of its own, between two steps of DVC; its log and its failure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flows.working_tree import WORK, end_processes, group_members, mark
from rlhf_core.errors import RewardsmithError
from tasks.dvc.stage_results import RAN, StageResults
from tasks.running import machine
from tasks.running.fork_server import PROJECT, ForkServer

#: The stages' exit code for an error of the user's; EX_TEMPFAIL for a transient one.
USER_ERROR, TEMPORARY = 2, 75
#: Endings by a signal (a device lost, memory short for a moment, a machine going down) or with a fork server (255).
SIGNALS = {-9, -15, -7, 137, 143, 135, 255}
#: Words of transient errors: a network, a device lost, a lock held.
PASSING = re.compile(
    r"ConnectionError|ConnectionReset|ConnectionRefused|Temporary failure|timed out|TimeoutError"
    r"|CUDA error: (?:device|unspecified)|NCCL|is busy, it is being blocked|Unable to acquire lock|database is locked",
    re.IGNORECASE,
)
#: A command without a character that means something to a shell.
PLAIN = re.compile(r"[\w./:=,@%+ -]+")
#: Words of a full disk: the system's, SQLite's and a quota's.
FULL = re.compile(r"No space left on device|database or disk is full|Disk quota exceeded")
#: Lines of the log kept in memory for the failure's message.
TAIL = 60


class StageFailed(RewardsmithError):
    """A failed stage; `retry` says whether trying again can help."""

    def __init__(self, message: str, *, exit_code: int, retry: bool) -> None:
        super().__init__(message)
        self.exit_code, self.retry = exit_code, retry


@dataclass(frozen=True)
class StageDone:
    """End of a stage, with its wall seconds.

    Attributes:
        outcome: ran, unchanged or restored. A restored result is from DVC's cache or was made by another machine.
    """

    outcome: str
    seconds: float


class RunningStages:
    """The process groups of the running stages, so that they can be ended together."""

    def __init__(self) -> None:
        self.groups: set[int] = set()
        self.cancelled = False

    def add(self, group: int) -> None:
        self.groups.add(group)
        if self.cancelled:
            end_processes(group_members({group}))

    def end_all(self) -> None:
        self.cancelled = True
        end_processes(group_members({*self.groups}))


def explain_failure(address: str, status: int, tail: str) -> StageFailed:
    """Returns the failure behind a stage's process that ended with `status`, given the end of its log."""
    lines = tail.strip().splitlines()
    messages = [line for line in lines if line.startswith("error:")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    last = (messages or errors or lines or ["no output"])[-1].removeprefix("error: ")
    if full := [line for line in lines if FULL.search(line)]:
        text = machine.full_disk(full[-1].strip())
        return StageFailed(f"stage {address} failed: {text}", exit_code=status, retry=False)
    retry = status != USER_ERROR and (status in SIGNALS or status == TEMPORARY or bool(PASSING.search(tail)))
    hint = " (ended by the system: out of memory?)" if status in (-9, 137) else ""
    return StageFailed(f"stage {address} failed with exit code {status}{hint}: {last}", exit_code=status, retry=retry)


def stage_log(name: str) -> str:
    """Returns the log of a stage that runs on this machine, relative to the root."""
    return f"{WORK}/logs/{name}.log"


@contextmanager
def noted_failure(
    root: Path, name: str, *, address: str, out: str, running: RunningStages, log: str | None = None
) -> Iterator[None]:
    """Leaves `.work/failures/<stage>.json`, which tracking and the plan read, where the block fails; else removes it.

    Args:
        name, address: the stage as a file name, and as DVC names it.
        out: its output directory.
        running: a run that ends has no failures.
        log: where its log is, that of this machine unless given.
    """
    path = root / WORK / "failures" / f"{name}.json"
    try:
        yield
    except StageFailed as failure:
        if not running.cancelled:
            content = {"stage": address, "out": out, "exit_code": failure.exit_code, "retry": failure.retry}
            content |= {"message": str(failure), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            with suppress(OSError):  # a full disk
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(content | {"log": log or stage_log(name)}, indent=1) + "\n")
        raise
    path.unlink(missing_ok=True)


def stage_environment(root: Path, granted: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a stage's process, with the variables of its cores and devices."""
    libraries = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    own = {"PATH": path, "PYTHONPATH": libraries, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "true"}
    return inherited | dict(granted) | own | mark(root)


@dataclass(frozen=True)
class Command:
    """A command that runs as a stage does.

    Attributes:
        words: as a shell reads them.
        address: for people, such as the stage as DVC names it.
        name: the address as a file name, for its log.
        environment: variables of its cores and devices.
    """

    words: str
    address: str
    name: str
    environment: Mapping[str, str]


def run_stage(
    root: Path,
    command: Command,
    results: StageResults,
    *,
    running: RunningStages,
    log: Callable[[str], None],
    server: ForkServer | None = None,
) -> StageDone:
    """Brings one stage up to date: takes its result from DVC's cache, else runs its command and commits what it made.

    Args:
        running, log, server: as for `run_command`.

    Raises:
        StageFailed: the stage failed, or DVC refuses it.
    """
    started = time.monotonic()
    try:
        with results.result(command.address) as outcome:
            if outcome == RAN:
                run_command(root, command, running=running, log=log, server=server)
    except StageFailed:
        raise
    except RewardsmithError as error:
        text = f"stage {command.address} failed: {error}"
        raise StageFailed(text, exit_code=255, retry=bool(PASSING.search(text))) from error
    except OSError as error:
        if (problem := machine.disk_problem(error, root)) is None:
            raise
        raise StageFailed(f"stage {command.address} was ended: {problem}", exit_code=1, retry=False) from None
    return StageDone(outcome, round(time.monotonic() - started, 2))


def run_command(
    root: Path,
    command: Command,
    *,
    running: RunningStages,
    log: Callable[[str], None],
    server: ForkServer | None = None,
) -> None:
    """Runs a command in a process group of its own and waits for it.

    Args:
        running: where the process group is noted while it runs.
        log: receives each line of the log.
        server: forks the process where it can.

    Raises:
        StageFailed: it failed.
    """
    log_path = root / stage_log(command.name)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    environment = stage_environment(root, command.environment)
    forked = server.start(command.words, environment) if server is not None else None
    process = forked or subprocess.Popen(
        command.words.split() if PLAIN.fullmatch(command.words) else ["/bin/sh", "-c", command.words],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    running.add(process.pid)
    tail: deque[str] = deque(maxlen=TAIL)
    try:
        with log_path.open("w", encoding="utf-8") as log_file:
            for line in process.stdout or ():
                log_file.write(line)
                log_file.flush()
                if line.strip():
                    tail.append(line)
                    log(line.rstrip())
        status = process.wait()
    finally:
        running.groups.discard(process.pid)
        if process.poll() is None:
            end_processes(group_members({process.pid}))
            process.wait()
    if status != 0:
        if running.cancelled:
            raise StageFailed(f"stage {command.address} was ended with its run", exit_code=status, retry=False)
        raise explain_failure(command.address, status, "".join(tail))
