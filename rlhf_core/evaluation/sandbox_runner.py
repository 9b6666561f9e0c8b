"""Process 1 of the sandbox: forks one limited child per program; standard library only.

One JSON object per line on standard input: {solution, setup, tests, timeout, memory_mb, file_kb}; one JSON
object per line on standard output: {status, detail, n_passed}. The first line it writes is {"ready": true},
after it has checked from the inside that the isolation holds, or {"refused": reason}.
"""

from __future__ import annotations

# loaded once here, so that a forked program imports them for free
import bisect  # noqa: F401
import collections  # noqa: F401
import contextlib
import ctypes
import functools  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import json
import math
import operator  # noqa: F401
import os
import random  # noqa: F401
import re  # noqa: F401
import resource
import secrets
import select
import shutil
import signal
import socket
import string  # noqa: F401
import sys
import time
import types
import typing  # noqa: F401
from typing import Any, NoReturn

DETAIL_LIMIT = 300
PR_SET_DUMPABLE = 4


def limit_child(memory_mb: int, file_kb: int, cpu_seconds: int) -> None:
    """Sets the resource limits of one program: memory, CPU, file size, no further processes or threads, few files."""
    memory = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_kb << 10, file_kb << 10))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (16 << 20, 16 << 20))
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def broken_isolation() -> str | None:
    """Returns the part that is not isolated as seen from the inside, None if everything is isolated."""
    if os.getpid() != 1:
        return "not in a process namespace of its own"
    if 0 in os.getresuid():
        return "still root"
    if [name for _, name in socket.if_nameindex() if name != "lo"]:
        return "a network interface is visible"
    for path in ("/outside", "/usr/outside", sys.prefix + "/outside"):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        except OSError:
            continue
        return f"{path} can be written"
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            os.fork()
        except OSError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    reap_everything()
    return None if status == 0 else "the limit on processes does not hold"


def reap_everything() -> None:
    """Kills every other process of the sandbox (this is process 1) and collects it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def clean_work() -> None:
    """Empties the working folder, so that no program sees another's files."""
    for entry in os.scandir("/work"):
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                os.chmod(entry.path, 0o700)
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def run_source(source: str, name: str, namespace: dict[str, Any]) -> None:
    """Runs module-level code in a namespace."""
    types.FunctionType(compile(source, name, "exec"), namespace)()


def child_main(job: dict[str, Any], report: int, token: str) -> NoReturn:
    """Runs one program and its tests; the token on the report pipe says that the end was really reached."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if report != 3:
        os.dup2(report, 3)
    os.closerange(4, 256)
    limit_child(int(job["memory_mb"]), int(job["file_kb"]), math.ceil(float(job["timeout"])) + 1)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status, detail, n_passed = "passed", "", 0
    finish = os.write, os._exit  # held before the program can replace them
    try:
        for part in ("setup", "solution"):
            run_source(str(job[part]), f"<{part}>", module.__dict__)
        status = "failed"
        for test in job["tests"]:
            run_source(str(test), "<test>", module.__dict__)
            n_passed += 1
        status = "passed"
    except BaseException as error:  # generated code may raise anything, SystemExit and MemoryError included
        status = "failed" if status == "failed" and isinstance(error, AssertionError) else "error"
        detail = describe(error)
    # replace errors: a lone surrogate cannot be encoded
    line = f"{token}\n{status}\n{n_passed}\n{detail}".encode("utf-8", "replace")
    finish[0](3, line)
    finish[1](0)
    raise AssertionError("unreachable")


def describe(error: BaseException) -> str:
    """Returns the type and message of an error, cut; a message that cannot be made is left out."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # a hostile __str__
        message = ""
    return f"{name}: {message}"[:DETAIL_LIMIT] if message else name[:DETAIL_LIMIT]


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Runs one job in a child of its own: forks, waits within the time limit, clears up, and reads the report."""
    token = secrets.token_hex(16)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        child_main(job, write_end, token)
    os.close(write_end)
    watch = os.pidfd_open(child)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    deadline = time.monotonic() + float(job["timeout"])
    finished = False
    while not finished and (left := deadline - time.monotonic()) > 0:
        finished = bool(poll.poll(left * 1000.0))
    status = 0
    if finished:
        _, status = os.waitpid(child, 0)
    reap_everything()
    os.set_blocking(read_end, False)
    report = b""
    with contextlib.suppress(BlockingIOError):
        report = os.read(read_end, 4096)
    os.close(read_end)
    os.close(watch)
    clean_work()
    return verdict(report.decode("utf-8", "replace"), token, finished, status)


def verdict(report: str, token: str, finished: bool, status: int) -> dict[str, Any]:
    """Turns a child's report into a result; only a report with the token and a clean exit can pass."""
    if not finished:
        return {"status": "timeout", "detail": "time limit", "n_passed": 0}
    lines = report.split("\n", 3)
    if len(lines) == 4 and lines[0] == token and status == 0 and lines[1] in ("passed", "failed", "error"):
        return {"status": lines[1], "detail": lines[3][:DETAIL_LIMIT], "n_passed": int(lines[2])}
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return {"status": "timeout", "detail": "CPU limit", "n_passed": 0}
        return {"status": "crashed", "detail": f"signal {os.WTERMSIG(status)}", "n_passed": 0}
    return {"status": "exited", "detail": "left before the end of its tests", "n_passed": 0}


def main() -> None:
    """Checks the isolation, then serves jobs until standard input ends."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no program may read this process's memory
    reason = broken_isolation()
    sys.stdout.write(json.dumps({"refused": reason} if reason else {"ready": True}) + "\n")
    sys.stdout.flush()
    if reason:
        return
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_job(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
