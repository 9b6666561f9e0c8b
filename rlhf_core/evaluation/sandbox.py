"""Running generated programs in a separate, limited process without network.

Each sandbox is one process tree in Linux namespaces of its own (mounts, network, processes, IPC), on a
read-only root that holds nothing but Python and the system libraries. Each program is a new unprivileged process with
an empty folder of its own, limits on time, memory and files, and a filter on system calls. Where a machine does not
allow this, `SandboxError` says why; nothing ever runs unisolated.

Tests run in another process, which calls the program's functions and takes data back. What a program does to its own
interpreter therefore reaches no test, no expected value and no count. docs/security.md says what remains.

Programs get the standard library only (and numpy where asked for), one process and one thread.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rlhf_core.errors import RewardsmithError
from rlhf_core.evaluation.sandbox_exchange import DETAIL_LIMIT, Channel, Unreadable
from rlhf_core.evaluation.sandbox_groups import ControlGroup, make_group

Status = Literal["passed", "failed", "error", "exited", "timeout", "crashed"]
_HERE = Path(__file__).resolve().parent
_START_SECONDS = 20.0
_WORK_MB = 16
#: Of a control group: for the launcher, the keeper and the kernel, and processes (launcher, keeper, program, tests).
_GROUP_MB, _GROUP_PROCESSES = 256, 6
_UNREADY = 98  # exit code of a process that could not be confined


class SandboxError(RewardsmithError):
    """Generated code cannot be isolated on this machine, so it is not run."""


@dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program.

    Attributes:
        seconds: wall clock; the CPU limit follows from it.
        memory_mb: address space in MiB, the interpreter's own (about 20) included.
        file_kb: largest file it may write, in KiB.
        numpy: whether programs and tests may import numpy, as this environment has it; it needs about 500 MiB.
    """

    seconds: float = 10.0
    memory_mb: int = 256
    file_kb: int = 1024
    numpy: bool = False

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
        setup: run before the solution and before the tests (imports a benchmark gives).
        entry_point: the function that the tests call. With it, other names of the setup are the setup's for the tests;
            without it, the solution may define them anew.
    """

    solution: str
    tests: tuple[str, ...]
    setup: str = ""
    entry_point: str = ""


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
    """One isolated runner process that serves programs one after the other; a context manager.

    Attributes:
        limits: of each program.
        group_limits: what a control group bounds beside them: memory, pids, both or nothing.
    """

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self.limits = limits or ProgramLimits()
        self.group_limits: set[str] = set()
        self._group: ControlGroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._root: str | None = None
        self._control: socket.socket | None = None

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
        report, ended = self._play(program)
        if ended is None or (report is None and ended["tests"] == _UNREADY):
            self.close()
            return ProgramResult("crashed", "the sandbox process ended")
        return _verdict(report, ended, len(program.tests))

    def _play(self, program: Program) -> tuple[dict[str, Any] | None, dict[str, int | None] | None]:
        """Returns the report of the tests (None at the time limit or without one), and the exit codes of both
        processes, None for one that was stopped; None without a sandbox."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            limits = {**asdict(self.limits), "work_mb": _WORK_MB}
            if not self._command({"limits": limits}, theirs.fileno()):
                return None, None
            theirs.close()
            ours.settimeout(self.limits.seconds)
            report = None
            with contextlib.suppress(Unreadable, OSError):
                Channel(ours).send({**asdict(program), "tests": list(program.tests)})
                report = Channel(ours).receive()
        lost = report is not None and report["status"] == "lost"
        renew = lost or report is None or bool(report["marked"])
        taken = self._command({"lost": lost, "renew": renew})
        if taken and not renew:
            return report, {"program": None, "tests": None}
        return report, self._answer() if taken else None

    def _command(self, command: dict[str, Any], *descriptors: int) -> bool:
        """Returns whether the keeper took a command."""
        assert self._control is not None
        try:
            socket.send_fds(self._control, [json.dumps(command).encode()], list(descriptors))
        except OSError:
            return False
        return True

    def _answer(self) -> dict[str, Any] | None:
        """Returns the keeper's next message; None if it has ended or does not answer in time."""
        assert self._control is not None
        try:
            data = self._control.recv(4096)
        except OSError:
            return None
        return dict(json.loads(data)) if data else None

    def close(self) -> None:
        """Ends the sandbox and everything in it."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None
        if self._group is not None:
            self._group.remove()
            self._group, self.group_limits = None, set()

    def _start(self) -> None:
        if sys.platform != "linux":
            raise SandboxError(f"generated code runs only on Linux (namespaces), not on {sys.platform}")
        self._root = tempfile.mkdtemp(prefix="rewardsmith-sandbox-")
        self._group = make_group(2 * self.limits.memory_mb + _WORK_MB + _GROUP_MB, _GROUP_PROCESSES)
        python = os.path.realpath(sys.executable)
        config = {
            "root": self._root,
            "groups": self._group.files,
            "prefix": os.path.realpath(sys.base_prefix),
            "library": str(_HERE.parents[1]),
            "packages": _numpy_folders() if self.limits.numpy else [],
        }
        self._control, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_START_SECONDS)
        with keepers:
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", str(_HERE / "sandbox_launcher.py"), json.dumps(config)],
                stdin=keepers.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"LANG": "C.UTF-8"},
                start_new_session=True,
            )
        hello = self._answer()
        if hello != {"ready": True}:
            reason = str(hello["refused"]) if hello and "refused" in hello else self._last_words()
            self.close()
            raise SandboxError(
                f"generated code cannot be isolated on this machine ({reason}), so it is not run. Linux with "
                "namespaces and seccomp is needed: allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "user.max_user_namespaces > 0), or in a container add the capability SYS_ADMIN"
            )
        self.group_limits = self._group.holding

    def _last_words(self) -> str:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _, stderr = self._process.communicate()
        return stderr.decode("utf-8", "replace").strip()[-300:] or "it does not start"


def _verdict(report: dict[str, Any] | None, ended: dict[str, int | None], n_tests: int) -> ProgramResult:
    """Returns a result; only a report of the tests in which all have passed can pass."""
    program, tests = ended["program"], ended["tests"]
    if report is None and tests is None:
        return ProgramResult("timeout", "time limit")
    if report is not None and report["status"] in ("passed", "failed", "error"):
        passed = int(report["n_passed"])
        if report["status"] == "passed" and passed != n_tests:
            return ProgramResult("crashed", f"{passed} of {n_tests} tests were counted")
        return ProgramResult(report["status"], str(report["detail"])[:DETAIL_LIMIT], passed)
    code = tests if report is None else program
    if code is None:
        return ProgramResult("error", str(report and report["detail"])[:DETAIL_LIMIT])
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return ProgramResult("timeout", "CPU limit")
    if code < 0:
        return ProgramResult("crashed", f"signal {-code}")
    return ProgramResult("exited", "left before the end of its tests")


def _numpy_folders() -> list[str]:
    """Returns numpy's folder and that of the libraries beside it."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        raise SandboxError("numpy is not installed, which the tests of this benchmark import")
    folder = Path(spec.origin).resolve().parent
    return [str(path) for path in (folder, folder.with_name("numpy.libs")) if path.is_dir()]


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
