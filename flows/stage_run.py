"""One stage: `tasks.dvc.one_stage` in a process group of its own, its log kept, its failure understood."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.fork_server import PROJECT, ForkServer, stage_environment
from flows.working_tree import WORK, end_group, group_memory_gb, mark
from rlhf_core.errors import RewardsmithError
from tasks.dvc.one_stage import OUTCOME_VARIABLE, RAN
from tasks.running import machine

#: The stages' exit code for an error of the user's; EX_TEMPFAIL for a transient one.
USER_ERROR, TEMPORARY = 2, 75
#: Endings by a signal: a device lost, memory short for a moment, a machine going down.
SIGNALS = {-9, -15, -7, 137, 143, 135}
#: Words of transient errors: a network, a device lost, a lock held.
PASSING = re.compile(
    r"ConnectionError|ConnectionReset|ConnectionRefused|Temporary failure|timed out|TimeoutError"
    r"|CUDA error: (?:device|unspecified)|NCCL|is busy, it is being blocked|Unable to acquire lock|database is locked",
    re.IGNORECASE,
)
#: Words of a full disk: the system's, SQLite's and a quota's.
FULL = re.compile(r"No space left on device|database or disk is full|Disk quota exceeded")
#: Seconds between looks at a stage's memory.
MEMORY_SECONDS = 2.0
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

    address: str
    outcome: str
    seconds: float


class RunningStages:
    """The process groups of the running stages, so that they can be ended together."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._lock = threading.Lock()
        self.cancelled = False

    def add(self, pid: int) -> None:
        with self._lock:
            self._pids.add(pid)
        if self.cancelled:
            end_group(pid)

    def remove(self, pid: int) -> None:
        with self._lock:
            self._pids.discard(pid)

    def end_all(self) -> None:
        self.cancelled = True
        with self._lock:
            pids = list(self._pids)
        ends = [threading.Thread(target=end_group, args=(pid,)) for pid in pids]
        for end in ends:
            end.start()
        for end in ends:
            end.join()


class MemoryWatch:
    """Ends a stage that holds more memory than it declared, before it takes what others were promised.

    Args:
        pid: the stage's process group.
        limit_gb: what it declared; 0 means it is only looked at.
    """

    def __init__(self, pid: int, limit_gb: float) -> None:
        self.pid, self.limit_gb = pid, limit_gb
        self.peak_gb, self.outgrown = 0.0, False
        self.killed_before = machine.out_of_memory_kills()
        self._end = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._end.wait(MEMORY_SECONDS):
            self.peak_gb = max(self.peak_gb, group_memory_gb(self.pid))
            if self.limit_gb and self.peak_gb > self.limit_gb:
                self.outgrown = True
                end_group(self.pid)
                return

    def close(self) -> None:
        self._end.set()

    def explained(self, address: str, failure: StageFailed) -> StageFailed:
        """Returns the failure as one of memory, where it was one."""
        remedy = (
            "Declare more memory_gb under `resources` in params/scales/<scale>/stages.yaml, or make its batch smaller"
        )
        if self.outgrown:
            text = f"it held {self.peak_gb:.1f} GiB of memory and declares {self.limit_gb:g}"
        elif failure.exit_code in (-9, 137) and machine.out_of_memory_kills() > self.killed_before:
            text = f"the system ran out of memory and ended it at about {self.peak_gb:.1f} GiB"
        else:
            return failure
        return StageFailed(f"stage {address} outgrew its memory: {text}. {remedy}", exit_code=137, retry=False)


def explain_failure(address: str, status: int, tail: str) -> StageFailed:
    """Returns the failure behind a stage's process that ended with `status`, given the end of its log."""
    messages = [line for line in tail.splitlines() if line.startswith("error:")]
    errors = [line for line in tail.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    last = (messages or errors or tail.strip().splitlines() or ["no output"])[-1].removeprefix("error: ")
    if FULL.search(tail):
        text = next(line for line in reversed(tail.splitlines()) if FULL.search(line))
        return StageFailed(f"stage {address} failed: {machine.full_disk(text.strip())}", exit_code=status, retry=False)
    retry = status != USER_ERROR and (status in SIGNALS or status == TEMPORARY or bool(PASSING.search(tail)))
    hint = " (ended by the system: out of memory?)" if status in (-9, 137) else ""
    return StageFailed(f"stage {address} failed with exit code {status}{hint}: {last}", exit_code=status, retry=retry)


def stage_log(name: str) -> str:
    """Returns the log of a stage that runs on this machine, relative to the root."""
    return f"{WORK}/logs/{name}.log"


def failure_note(root: Path, name: str) -> Path:
    """Returns where a failed stage is noted until it succeeds."""
    return root / WORK / "failures" / f"{name}.json"


def write_failure(
    root: Path, name: str, *, address: str, out: str, failure: StageFailed, log: str | None = None
) -> None:
    """Leaves `.work/failures/<stage>.json`, which tracking and the plan read.

    Args:
        root: the repository.
        name: the stage as a file name.
        address, out: the stage as DVC names it, and its output directory.
        failure: what happened.
        log: where its log is, that of this machine unless given.
    """
    path = failure_note(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "stage": address,
        "out": out,
        "exit_code": failure.exit_code,
        "retry": failure.retry,
        "message": str(failure),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "log": log or stage_log(name),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _start(root: Path, module: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a module with its arguments in a Python and a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", *module],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def run_stage_process(
    root: Path,
    *,
    address: str,
    name: str,
    out: str,
    environment: Mapping[str, str],
    running: RunningStages,
    log: Callable[[str], None],
    memory_gb: float = 0.0,
    call: Sequence[str] = (),
    packages: Path | None = None,
    server: ForkServer | None = None,
) -> StageDone:
    """Runs one stage by DVC, or another module, in a process and waits for it.

    Args:
        address: the stage as DVC names it.
        name: the stage as a file name, for its log.
        out: the stage's output directory.
        environment: added to this process's environment (threads, devices).
        running: where the process group is noted while it runs.
        log: receives each line of the log.
        memory_gb: what it declared; one that holds more is ended. 0 means no bound.
        call: the module and its arguments, where it is not `tasks.dvc.one_stage`.
        packages: the folder of the package that has the module; None for the one that this code is in.
        server: forks the stage's process where it can.

    Raises:
        StageFailed: the stage failed.
    """
    log_path = root / stage_log(name)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    outcome = log_path.with_suffix(".outcome")
    outcome.unlink(missing_ok=True)
    variables = stage_environment(packages or PROJECT, environment) | {OUTCOME_VARIABLE: str(outcome)}
    variables |= mark(root, name)
    started = time.monotonic()
    forked = None if call or server is None else server.start(address, variables)
    process = forked or _start(root, call or ("tasks.dvc.one_stage", address), variables)
    running.add(process.pid)
    memory = MemoryWatch(process.pid, memory_gb)
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
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        full = machine.full_disk(f"{error.filename or log_path} cannot be written")
        raise StageFailed(f"stage {address} was ended: {full}", exit_code=1, retry=False) from None
    finally:
        memory.close()
        running.remove(process.pid)
        if process.poll() is None:
            end_group(process.pid)
            process.wait()
    if forked is not None and forked.lost and outcome.exists():
        status = 0  # the outcome is written last
    elif forked is not None and forked.lost and not running.cancelled:
        log(f"warning: what started {address} ended before it, and nobody knows how the stage ended: it runs again")
        given: dict[str, Any] = {"address": address, "name": name, "out": out, "environment": environment}
        return run_stage_process(root, **given, running=running, log=log, memory_gb=memory_gb, packages=packages)
    text = "".join(tail)
    if status != 0:
        failure = memory.explained(address, explain_failure(address, status, text))
        if running.cancelled:
            raise StageFailed(f"stage {address} was ended with its run", exit_code=status, retry=False)
        try:
            write_failure(root, name, address=address, out=out, failure=failure)
        except OSError as error:
            log(f"the failure of {address} cannot be noted: {error}")
        raise failure
    failure_note(root, name).unlink(missing_ok=True)
    how = outcome.read_text(encoding="utf-8") if outcome.exists() else RAN
    outcome.unlink(missing_ok=True)
    return StageDone(address, how, round(time.monotonic() - started, 2))
