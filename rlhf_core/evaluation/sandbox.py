"""Running generated programs in a separate, limited process without network.

Each sandbox is one process tree in Linux namespaces of its own (mounts, network, processes, IPC), on a
read-only root that holds nothing but Python, the system libraries and a small scratch folder, as an
unprivileged user. Each program is a child with limits on time, memory, files and processes. Where a machine
does not allow this, `SandboxError` says why; nothing ever runs unisolated.

Programs get the standard library only, one process and one thread. As in every harness that runs tests in
the program's own process, a program written against this very runner could forge its result; it cannot reach
anything outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rlhf_core.errors import RewardsmithError

Status = Literal["passed", "failed", "error", "exited", "timeout", "crashed"]
_STATUSES: tuple[Status, ...] = ("passed", "failed", "error", "exited", "timeout", "crashed")
_HERE = Path(__file__).resolve().parent
_START_SECONDS = 20.0
_GRACE_SECONDS = 5.0


class SandboxError(RewardsmithError):
    """Generated code cannot be isolated on this machine, so it is not run."""


@dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program.

    Attributes:
        seconds: wall clock; the CPU limit follows from it.
        memory_mb: address space in MiB, the interpreter's own (about 20) included.
        file_kb: largest file it may write, in KiB.
    """

    seconds: float = 10.0
    memory_mb: int = 256
    file_kb: int = 1024

    def __post_init__(self) -> None:
        if not (0 < self.seconds <= 600 and self.memory_mb >= 32 and self.file_kb >= 0):
            raise SandboxError(f"limits out of range: {self}; seconds in (0, 600], memory_mb from 32")


@dataclass(frozen=True)
class Program:
    """A generated program and what must hold after it.

    Attributes:
        solution: module source.
        tests: statements run one after the other in the same namespace; all must end without an exception.
            MBPP's `test_setup` uses the solution's own classes: put it first among the tests.
        setup: run before the solution (imports a benchmark gives).
    """

    solution: str
    tests: tuple[str, ...]
    setup: str = ""


@dataclass(frozen=True)
class ProgramResult:
    """Outcome of a program's run.

    Attributes:
        status: passed (every test ran to its end) | failed (an assertion) | error (an exception) | exited
            (left before the end of its tests) | timeout | crashed (a signal, or the sandbox died).
        detail: a short text from the program's error; untrusted.
        n_passed: tests passed before it ended (0 unless it ended by itself).
    """

    status: Status
    detail: str = ""
    n_passed: int = 0

    @property
    def passed(self) -> bool:
        """Returns whether all tests passed."""
        return self.status == "passed"


class Sandbox:
    """One isolated runner process that serves programs one after the other; a context manager."""

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self.limits = limits or ProgramLimits()
        self._process: subprocess.Popen[bytes] | None = None
        self._root: str | None = None
        self._buffer = b""

    def __enter__(self) -> Sandbox:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, program: Program) -> ProgramResult:
        """Runs one program; a sandbox that died is replaced and the program counted as crashed."""
        if not program.tests:
            raise SandboxError("a program without tests cannot pass; give at least one test")
        if self._process is None:
            self._start()
        job = {
            "solution": program.solution,
            "setup": program.setup,
            "tests": list(program.tests),
            "timeout": self.limits.seconds,
            "memory_mb": self.limits.memory_mb,
            "file_kb": self.limits.file_kb,
        }
        answer = self._exchange(job, self.limits.seconds + _GRACE_SECONDS)
        status = answer.get("status") if answer else None
        if answer is None or status not in _STATUSES:
            self.close()
            return ProgramResult("crashed", "the sandbox process ended")
        return ProgramResult(status, str(answer.get("detail", "")), int(answer.get("n_passed", 0)))

    def close(self) -> None:
        """Ends the sandbox and everything in it."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def _start(self) -> None:
        if sys.platform != "linux":
            raise SandboxError(f"generated code runs only on Linux (namespaces), not on {sys.platform}")
        self._root = tempfile.mkdtemp(prefix="rewardsmith-sandbox-")
        self._buffer = b""
        python = os.path.realpath(sys.executable)
        config = {
            "root": self._root,
            "prefix": os.path.realpath(sys.base_prefix),
            "python": python,
            "runner": str(_HERE / "sandbox_runner.py"),
            "work_mb": 16,
        }
        self._process = subprocess.Popen(
            [python, "-I", "-S", str(_HERE / "sandbox_launcher.py"), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
        )
        hello = self._read_line(time.monotonic() + _START_SECONDS)
        if hello != {"ready": True}:
            reason = str(hello["refused"]) if hello and "refused" in hello else self._last_words()
            self.close()
            raise SandboxError(
                f"generated code cannot be isolated on this machine ({reason}), so it is not run. Linux with "
                "namespaces is needed: allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "user.max_user_namespaces > 0), or in a container add the capability SYS_ADMIN"
            )

    def _last_words(self) -> str:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _, stderr = self._process.communicate()
        return stderr.decode("utf-8", "replace").strip()[-300:] or "it does not start"

    def _exchange(self, job: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read_line(time.monotonic() + seconds)

    def _read_line(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next line as an object; None at the deadline, at the end, or if it is not one."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            value = json.loads(line)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def run_programs(
    programs: Sequence[Program], limits: ProgramLimits | None = None, *, workers: int = 1
) -> list[ProgramResult]:
    """Runs programs, each in its own limited child, and returns their results in order.

    Args:
        programs: what to run.
        limits: per program.
        workers: sandboxes side by side.

    Raises:
        SandboxError: this machine cannot isolate them; none has run.
    """
    if not programs:
        return []
    results: list[ProgramResult | None] = [None] * len(programs)

    def serve(indices: Iterable[int]) -> None:
        with Sandbox(limits) as sandbox:
            for i in indices:
                results[i] = sandbox.run(programs[i])

    workers = max(1, min(workers, len(programs)))
    if workers == 1:
        serve(range(len(programs)))
    else:
        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(serve, range(w, len(programs), workers)) for w in range(workers)]:
                future.result()
    return [result for result in results if result is not None]
