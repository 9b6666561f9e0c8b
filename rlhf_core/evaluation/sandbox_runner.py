"""The processes inside the sandbox; standard library only.

Process 1 starts two processes for each program and stops them at the time limit. One runs the tests, which it gets from
the host and answers to; the other loads the program's text and is called. The program's process never sees a test, and
no process outlives its program. Both are an unprivileged user's, with limits on memory, time and files and a filter on
system calls. Process 1 reads neither programs nor tests nor answers.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from rlhf_core.evaluation.sandbox_syscalls import forbid_other_calls
from rlhf_core.evaluation.sandbox_values import decode, encode

NOBODY = 65534
#: Exit code of a process that could not be confined.
UNREADY = 98
DETAIL_LIMIT = 300
_LONGEST_MESSAGE = 64 << 20
#: Descriptors of two files in memory that a program may use as its standard input and output, and their largest size.
GIVEN, WRITTEN, LARGEST = 10, 11, 64 << 20
#: Loaded once in process 1, so that a forked program imports them for free.
_LOADED = ("bisect", "functools", "heapq", "itertools", "operator", "random", "re", "string", "typing")
Message = dict[str, Any]
# held here, since a program may replace the modules' own
_to_json, _from_json, _exit = json.JSONEncoder().encode, json.JSONDecoder().decode, os._exit


class Lost(BaseException):
    """The other side ended or sent what is not an answer; no test that catches exceptions catches it."""


class Channel:
    """JSON objects over a socket, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def send(self, message: Message) -> None:
        """Sends an object."""
        self._stream.write(_to_json(message).encode() + b"\n")
        self._stream.flush()

    def receive(self) -> Message:
        """Returns the next object.

        Raises:
            Lost: the other side has ended, or this is not an object.
        """
        try:
            line = self._stream.readline(_LONGEST_MESSAGE)
            message = _from_json(line.decode("ascii")) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError) as error:
            raise Lost("an answer cannot be read") from error
        if not isinstance(message, dict):
            raise Lost("the other side has ended")
        return message


# --- the program's process -----------------------------------------------------------------------------------------


def program_main(tests: Channel) -> None:
    """Loads a program and answers its tests' calls until they end."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    while True:
        tests.send(_answer(tests.receive(), module.__dict__))


def _answer(request: Message, namespace: dict[str, Any]) -> Message:
    try:
        if "call" in request:
            arguments, options = decode(request["arguments"]), decode(request["options"])
            return {"value": encode(namespace[request["call"]](*arguments, **options))}
        for part in ("setup", "solution"):
            exec(compile(request[part], f"<{part}>", "exec", dont_inherit=True), namespace)
        return {"value": callable(namespace.get(request["name"]))}
    except Lost:
        raise
    except BaseException as error:  # generated code may raise anything, SystemExit and MemoryError included
        return {"error": [kind.__name__ for kind in type(error).__mro__], "detail": _describe(error)}


def _describe(error: BaseException) -> str:
    """Returns the type and message of an error, cut; a message that cannot be made is left out."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # a hostile __str__
        message = ""
    text = f"{name}: {message}" if message else name
    return text[:DETAIL_LIMIT].encode("utf-8", "replace").decode()


# --- the process of the tests --------------------------------------------------------------------------------------


def tests_main(program: Channel, host: Channel) -> None:
    """Runs the tests of a program and reports to the host."""
    host.send(run_tests(host.receive(), program))


def run_tests(job: Message, program: Channel) -> Message:
    """Returns {status, detail} of a program; the tests are compiled before its text is sent."""
    status, detail = "error", ""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = module.__dict__
    try:
        tests = [compile(source, "<test>", "exec", dont_inherit=True) for source in job["tests"]]
        name = job["entry_point"]
        found = _ask(program, {"setup": job["setup"], "solution": job["solution"], "name": name})
        exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), namespace)
        if found:
            namespace[name] = _function(program, name)
        status = "failed"
        for test in tests:
            exec(test, namespace)
        status = "passed"
    except Lost as error:
        status, detail = "ended", str(error)
    except BaseException as error:  # a program's errors are raised here, SystemExit and MemoryError included
        status = "failed" if status == "failed" and isinstance(error, AssertionError) else "error"
        detail = _describe(error)
    return {"status": status, "detail": detail}


def _function(program: Channel, name: str) -> Callable[..., Any]:
    """Returns a function of the program, as its tests call it: data in, data out."""

    def call(*arguments: Any, **options: Any) -> Any:
        return _ask(program, {"call": name, "arguments": encode([*arguments]), "options": encode(options)})

    return call


def _ask(program: Channel, request: Message) -> Any:
    """Returns the value of a program's answer.

    Raises:
        Lost: there is no program any more, or no answer.
        Exception: the program's own, as the nearest builtin type.
    """
    try:
        program.send(request)
    except OSError as error:
        raise Lost("the other side has ended") from error
    answer = program.receive()
    try:
        value = None if "error" in answer else decode(answer["value"])
    except Exception as error:
        raise Lost("an answer cannot be read") from error
    if "error" in answer:
        raise _raised(answer)
    return value


def _raised(answer: Message) -> BaseException:
    """Returns an error of the program as the nearest builtin type."""
    detail = str(answer.get("detail", ""))[:DETAIL_LIMIT]
    for name in map(str, answer["error"]):
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException) and not issubclass(kind, StopIteration):
            try:  # StopIteration would end a loop over the cases of a test
                return kind(detail.removeprefix(f"{name}: ").removeprefix(name))
            except TypeError:  # such as UnicodeDecodeError, which takes five arguments
                continue
    return RuntimeError(detail)


# --- process 1 -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs the programs that the host sends until it ends; `{}` says that one has ended."""
    limits = json.loads(sys.argv.pop())
    if limits["numpy"]:
        sys.path.append("/packages")
    for name in (*_LOADED, *(["numpy"] if limits["numpy"] else [])):
        importlib.import_module(name)
    host = socket.socket(fileno=os.dup(0))
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    while host.recv(1, socket.MSG_PEEK):
        run(host, limits)
        host.sendall(b"{}\n")


def run(host: socket.socket, limits: Message) -> None:
    """Runs the next program of the host, whose tests report to it, and ends both processes at the time limit."""
    to_tests, to_program = socket.socketpair()
    with to_tests, to_program:
        processes = [_forked(program_main, limits, to_tests), _forked(tests_main, limits, to_program, host)]
    watch = os.pidfd_open(processes[1])
    select.select([watch], [], [], float(limits["seconds"]))
    os.close(watch)
    codes = []
    for process in processes:
        os.kill(process, signal.SIGKILL)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    if UNREADY in codes:  # the host replaces a sandbox that has ended
        sys.exit("a process could not be confined")


def _forked(main: Callable[..., None], limits: Message, *connections: socket.socket) -> int:
    """Returns the id of a new confined process, which has some connections and no other open file."""
    child = os.fork()
    if child:
        return child
    try:
        null = os.open("/dev/null", os.O_RDWR)
        files = [os.memfd_create(name) for name in ("given", "written")]
        sources = [null, null, null, *(connection.fileno() for connection in connections), *files]
        places = [0, 1, 2, *range(3, 3 + len(connections)), GIVEN, WRITTEN]
        copies = [fcntl.fcntl(source, fcntl.F_DUPFD, WRITTEN + 1) for source in sources]
        os.closerange(0, WRITTEN + 1)
        for place, copy in zip(places, copies, strict=True):
            os.dup2(copy, place)
        os.closerange(WRITTEN + 1, 256)
        channels = [Channel(socket.socket(fileno=place)) for place in places[3:-2]]
        confine(limits)
    except BaseException:  # nothing of this process may go on as process 1
        _exit(UNREADY)
    try:
        main(*channels)
    finally:
        _exit(0)
    raise AssertionError("unreachable")


def confine(limits: Message) -> None:
    """Takes everything from this process that neither a program nor a test needs."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    for kind, value, _ in resource_limits(limits["seconds"], limits["memory_mb"]).values():
        resource.setrlimit(kind, (value, value))
    forbid_other_calls(ctypes.CDLL(None, use_errno=True))


def resource_limits(seconds: float, memory_mb: int) -> dict[str, tuple[int, int, int]]:
    """Returns {option of `ulimit`: kind, value, unit of the option} of the limits of a process."""
    return {
        "-v": (resource.RLIMIT_AS, memory_mb << 20, 1024),
        "-d": (resource.RLIMIT_DATA, memory_mb << 20, 1024),
        "-s": (resource.RLIMIT_STACK, 16 << 20, 1024),
        "-t": (resource.RLIMIT_CPU, math.ceil(seconds) + 1, 1),
        "-f": (resource.RLIMIT_FSIZE, LARGEST, 1024),
        "-c": (resource.RLIMIT_CORE, 0, 1024),
        "-n": (resource.RLIMIT_NOFILE, 32, 1),
        "-u": (resource.RLIMIT_NPROC, 1, 1),
    }
