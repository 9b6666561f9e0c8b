"""The processes of the sandbox, started from one that has seen no program and no test; standard library only.

Process 1 (`Keeper`) takes commands from the host. For each program it forks a process with an empty folder of its own.
Another process runs the tests, which the host sends to it; it is renewed when it is not known to be well. Both are an
unprivileged user's, with limits on memory, time and files and a filter on system calls. The program's process gets the
program's text from the tests' process and never sees a test: it is called, and answers with data. The keeper keeps the
rights to mount and to change user; it runs no program and reads no answer of one.
"""

from __future__ import annotations

# loaded once here, so that a forked program imports them for free
import ast
import bisect  # noqa: F401
import builtins
import collections  # noqa: F401
import contextlib
import ctypes
import errno
import fcntl
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import importlib
import itertools  # noqa: F401
import json
import math
import operator  # noqa: F401
import os
import platform
import random  # noqa: F401
import re  # noqa: F401
import resource
import select
import signal
import socket
import string  # noqa: F401
import symtable
import sys
import types
import typing  # noqa: F401
from collections.abc import Callable, Set
from typing import Any, NoReturn

from rlhf_core.evaluation.sandbox_exchange import Channel, ProgramSide, TestsSide, Unreadable, describe
from rlhf_core.evaluation.sandbox_syscalls import forbid_other_calls, instructions

NOBODY = 65534
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MNT_DETACH = 2, 4, 8, 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
_CAPABILITY_VERSION = 0x20080522
#: CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN.
_KEPT_CAPABILITIES = 1 << 5 | 1 << 6 | 1 << 7 | 1 << 21
_SECONDS_TO_END = 1.0
_LONGEST = 86400.0
READY = {"ready": True}
#: Builtins that lead to more than the objects of the statements that call them, by text or by name.
_WAYS_OUT = frozenset(
    {"breakpoint", "compile", "delattr", "eval", "exec", "getattr", "globals", "locals", "open", "setattr", "vars"}
)
#: Exit code of a process that could not be confined.
UNREADY = 98

libc = ctypes.CDLL(None, use_errno=True)


def call(result: int, step: str) -> None:
    """Raises the error of a C call that failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), step)


def keep_capabilities(kept: int) -> None:
    """Gives up all capabilities but some."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    call(libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)), "capabilities")


def drop_privileges() -> None:
    """Becomes nobody without a capability, to be killed with the keeper."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    keep_capabilities(0)
    call(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "no access to the memory")
    call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "die with the parent")


def limit(memory_mb: int, file_kb: int, cpu_seconds: int) -> None:
    """Sets the resource limits of a process: memory, CPU, file size, no further processes or threads, few files."""
    memory = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_kb << 10, file_kb << 10))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (16 << 20, 16 << 20))
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def mount_folder(size_mb: int) -> None:
    """Mounts an empty /work for one program."""
    options = f"size={size_mb}m,nr_inodes=512,mode=1777".encode()
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    call(libc.mount(b"tmpfs", b"/work", b"tmpfs", flags, options), "mount /work")


def remove_folder() -> None:
    """Takes /work away with all that is in it."""
    call(libc.umount2(b"/work", MNT_DETACH), "remove /work")


def confine(limits: dict[str, Any]) -> None:
    """Takes everything from this process that neither a program nor a test needs."""
    drop_privileges()
    limit(int(limits["memory_mb"]), int(limits["file_kb"]), math.ceil(float(limits["seconds"])) + 1)
    forbid_other_calls(libc)


def only_descriptors(*descriptors: int) -> list[socket.socket]:
    """Returns some connections as descriptors 3, 4, ...; standard input and output lead nowhere, others are closed."""
    os.setsid()
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 200) for descriptor in descriptors]
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, 200)
    for place, copy in enumerate(copies, start=3):
        os.dup2(copy, place)
    os.closerange(200, 256)
    return [socket.socket(fileno=place) for place in range(3, 3 + len(copies))]


def program_main(connection: int, limits: dict[str, Any]) -> NoReturn:
    """Runs a program and answers its tests' calls until they end."""
    finish = os._exit  # held before the program can replace it
    os.chdir("/work")
    channel = Channel(*only_descriptors(connection))
    confine(limits)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module

    def load(source: str, name: str) -> None:
        types.FunctionType(compile(source, name, "exec", dont_inherit=True), module.__dict__)()

    channel.send(READY)
    with contextlib.suppress(Unreadable, OSError):
        ProgramSide(channel, module.__dict__, load).serve_until_the_end()
    finish(0)
    raise AssertionError("unreachable")


def tests_main(keeper: int, limits: dict[str, Any]) -> NoReturn:
    """Runs the tests of one program after the other, as the host sends them, and reports their results to it."""
    (commands,) = only_descriptors(keeper)
    confine({**limits, "seconds": _LONGEST})
    while True:
        data, descriptors, _, _ = socket.recv_fds(commands, 16, 2)
        if not data:
            os._exit(0)
        with socket.socket(fileno=descriptors[0]) as program, socket.socket(fileno=descriptors[1]) as host:
            job = Channel(host).receive()
            if Channel(program).receive() != READY:
                raise OSError(errno.EPROTO, "the program's process")
            Channel(host).send(run_tests(job, TestsSide(Channel(program))))


def run_tests(job: dict[str, Any], program: TestsSide) -> dict[str, Any]:
    """Returns {status, detail, n_passed, marked} of a program; the tests are compiled before its text is sent.

    `marked`: the process may not be what it was before, so that the next program's tests need a new one.
    """
    status, detail, n_passed, marked = "error", "", 0, True
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = module.__dict__
    try:
        sources = [str(test) for test in job["tests"]]
        tests = [compile(source, "<test>", "exec", dont_inherit=True) for source in sources]
        wanted = referenced_names("\n".join(sources))
        code = {"setup": job["setup"], "solution": job["solution"]}
        offered, _ = program.asked({"do": "load", **code, "names": wanted})
        types.FunctionType(compile(str(job["setup"]), "<setup>", "exec", dont_inherit=True), namespace)()
        names = {str(name): value for name, value in offered if name in wanted}
        marked = not leave_no_mark([str(job["setup"]), *sources], names.keys())
        give_names(namespace, names, sources, str(job["entry_point"]))
        status = "failed"
        for test in tests:
            types.FunctionType(test, namespace)()
            if program.lost is not None:
                raise program.lost
            n_passed += 1
        status = "passed"
    except Unreadable as error:
        status, detail = "lost", str(error)
    except BaseException as error:  # a program's errors are raised here, SystemExit and MemoryError included
        status = "failed" if status == "failed" and isinstance(error, AssertionError) else "error"
        detail, marked = describe(error), marked or isinstance(error, MemoryError)
    return {"status": "lost" if program.lost else status, "detail": detail, "n_passed": n_passed, "marked": marked}


def leave_no_mark(sources: list[str], names: Set[str]) -> bool:
    """Returns whether some statements can only change objects of their own: they import nothing (a module has settings,
    such as decimal's precision), and name nothing that leads to the interpreter's own."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    if any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes) or names & sys.stdlib_module_names:
        return False
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return not any(word.startswith(("__", "gi_", "cr_", "ag_", "tb_", "f_")) or word in _WAYS_OUT for word in words)


def referenced_names(source: str) -> list[str]:
    """Returns the global names that some statements read."""
    found: set[str] = set()
    tables = [symtable.symtable(source, "<test>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        found |= {s.get_name() for s in symbols if s.is_global() or table.get_type() == "module"}
    return sorted(found)


def called_names(sources: list[str]) -> set[str]:
    """Returns the names that some statements call, as `f` in `f(1)`."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {node.func.id for node in nodes if isinstance(node.func, ast.Name)}


def give_names(namespace: dict[str, Any], names: dict[str, Any], sources: list[str], entry_point: str) -> None:
    """Gives the tests those of the program's names that they ask for.

    A builtin stays the builtin unless the tests ask the program for nothing else, and a module of the standard library
    that the tests do not call is the tests' own. With an entry point, what the setup defines stays the setup's.
    """
    builtin = {name for name in names if hasattr(builtins, name)}
    modules = names.keys() & sys.stdlib_module_names - {entry_point}
    modules -= called_names(sources) if modules else set()
    given = names.keys() - builtin - modules
    if entry_point:
        given = (given - namespace.keys()) | (names.keys() & {entry_point})
    elif not given:
        given = builtin
    namespace.update({name: names[name] for name in given})
    for name in modules:
        namespace.setdefault(name, importlib.import_module(name))


def broken_isolation() -> str | None:
    """Returns the part that is not isolated as seen from the inside, None if everything is isolated."""
    if os.getpid() != 1:
        return "not in a process namespace of its own"
    if [name for _, name in socket.if_nameindex() if name != "lo"]:
        return "a network interface is visible"
    mount_folder(1)
    child = os.fork()
    if child == 0:
        os._exit(_probe())
    _, status = os.waitpid(child, 0)
    remove_folder()
    broken = os.waitstatus_to_exitcode(status)
    return None if broken == 0 else _BROKEN.get(broken, f"the check ended with {broken}")


_BROKEN = {
    1: "still root",
    2: "the root folder can be written",
    3: "the limit on processes does not hold",
    4: "the filter of system calls does not hold",
    5: "a process cannot be confined",
}


def _probe() -> int:
    """Returns 0 in a process that is confined as a program's, else a key of `_BROKEN`."""
    try:
        os.chdir("/work")
        confine({"memory_mb": 4096, "file_kb": 1, "seconds": 1})
    except OSError:
        return 5
    if 0 in os.getresuid():
        return 1
    for path in ("/outside", "/usr/outside", sys.prefix + "/outside"):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            return 2
    with contextlib.suppress(OSError):
        if os.fork() == 0:
            os._exit(0)
        return 3
    for attempt in (socket.socket, lambda: call(libc.unshare(CLONE_NEWNS), "")):
        with contextlib.suppress(OSError):
            attempt()
            return 4
    return 0


class Keeper:
    """Process 1: starts and ends the two processes of each program."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._program = self._tests = 0
        self._to_tests: socket.socket | None = None

    def serve(self) -> None:
        """Takes commands until the host ends."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._control, 4096, 1)
            if not data:
                return
            command = json.loads(data)
            if "limits" in command:
                self._start(descriptors[0], command["limits"])
            else:
                ended = self._end(lost=bool(command["lost"]), renew=bool(command["renew"]))
                if command["renew"]:
                    self._control.send(json.dumps(ended).encode())

    def _start(self, host: int, limits: dict[str, Any]) -> None:
        if self._to_tests is None:
            self._to_tests, tests_commands = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._tests = self._forked(lambda: tests_main(tests_commands.detach(), limits))
            tests_commands.close()
        program_end, tests_end = (each.detach() for each in socket.socketpair())
        mount_folder(int(limits["work_mb"]))
        self._program = self._forked(lambda: program_main(program_end, limits))
        with contextlib.suppress(BrokenPipeError):  # the host will see that the tests' process has ended
            socket.send_fds(self._to_tests, [b"run"], [tests_end, host])
        for descriptor in (program_end, tests_end, host):
            os.close(descriptor)

    def _forked(self, main: Callable[[], NoReturn]) -> int:
        child = os.fork()
        if child == 0:
            try:
                main()
            except BaseException:  # nothing of this process may go on as the keeper
                os._exit(UNREADY)
        return child

    def _end(self, *, lost: bool, renew: bool) -> dict[str, int | None]:
        """Ends the program's process, after giving it a moment to end by itself, and the tests' to renew it.

        An exit code is that of a process that had ended.
        """
        if lost:
            watch = os.pidfd_open(self._program)
            select.select([watch], [], [], _SECONDS_TO_END)
            os.close(watch)
        tests = None
        if renew and self._to_tests is not None:  # first, since it would see the program's process end
            tests = _ended(self._tests)
            self._to_tests.close()
            self._to_tests = None
        program = _ended(self._program)
        remove_folder()
        return {"program": program, "tests": tests}


def _ended(process: int) -> int | None:
    """Returns the exit code of a process that had ended (negative: a signal); kills another and returns None."""
    found, status = os.waitpid(process, os.WNOHANG)
    if found:
        return os.waitstatus_to_exitcode(status)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def main(packages: bool) -> None:
    """Checks the isolation, then serves until the host ends."""
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no program may read this process's memory
    control = socket.socket(fileno=0)
    keep_capabilities(_KEPT_CAPABILITIES)
    reason = broken_isolation()
    control.send(json.dumps({"refused": reason} if reason else {"ready": True}).encode())
    if reason:
        return
    if packages:
        sys.path.append("/packages")
        importlib.import_module("numpy")  # once here, so that a forked program imports it for free
    instructions(platform.machine(), 0)  # made once for all programs
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    Keeper(control).serve()
