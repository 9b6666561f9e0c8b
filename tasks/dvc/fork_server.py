"""Fork server of a run: imports DVC and the stages' libraries once, and forks the processes of each stage from itself.

    python -m tasks.dvc.fork_server DESCRIPTOR policy sft ...

1. It imports what `tasks.dvc.one_stage` and the named stages import, runs none of it, and says on the socket that it
   is ready, or why it is not.
2. For each stage it gets a socket and the descriptor of the log. It forks a process in a session of its own, which does
   what `python -m tasks.dvc.one_stage` does. That process forks another before DVC begins, which runs the stage's
   command when DVC comes to it (`tasks.dvc.forked_command`).
3. It says how the stage's process ended. It ends when the other end of the socket is closed; running stages go on.

It refuses a stage when a file that it imported has changed, or when a library has started a thread, which a forked
process would lack.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import select
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tasks
from tasks.dvc import one_stage
from tasks.dvc.forked_command import ForkedCommand, fork_command
from tasks.dvc.one_stage import MARK
from tasks.running.process_end import leave

#: The packages whose files are looked at again before each fork, and their folder.
PACKAGES, PROJECT = ("tasks", "rlhf_core"), Path(tasks.__file__).parents[1]
#: Bytes that are kept for the mark of a stage's processes.
MARK_BYTES = 8192
#: What the server itself needs in its environment: a thread of pyarrow's allocator would not survive a fork.
ENVIRONMENT = {"JE_ARROW_MALLOC_CONF": "background_thread:false", MARK: " " * MARK_BYTES}
#: What DVC imports while it runs a stage.
OF_DVC = (
    "dulwich.ignore",
    "dulwich.index",
    "dulwich.worktree",
    "dvc.cachemgr",
    "dvc.data_cloud",
    "dvc.dirs",
    "dvc.lock",
    "dvc.repo",
    "dvc.repo.artifacts",
    "dvc.repo.datasets",
    "dvc.repo.metrics",
    "dvc.repo.params",
    "dvc.repo.plots",
    "dvc.repo.stage",
    "dvc.rwlock",
    "dvc.scm",
    "dvc.utils.strictyaml",
    "dvc_data.hashfile._progress",
    "dvc_data.hashfile.db.local",
    "dvc_data.hashfile.status",
    "dvc_render",
    "fsspec.implementations.memory",
    "configobj",
    "ruamel.yaml",
    "scmrepo.git",
    "tabulate",  # by torch, too, at the end of every process
    "tasks.graph.declared",
)

#: A stat of a file, as it is compared.
Stamp = tuple[int, int, int]


def stamp(path: Path | str) -> Stamp | None:
    """Returns what changes when a file is written; None for a missing file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def sources() -> Iterator[str]:
    """Yields the files of this project that this process has imported, and the folders of installed packages."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and getattr(module, "__file__", None):
            yield str(module.__file__)
    yield from {sysconfig.get_path(name) for name in ("purelib", "platlib")}


def preload(stages: Sequence[str]) -> dict[str, Stamp | None]:
    """Imports what stages need, the stages' own modules excepted, which run as `__main__`.

    Returns:
        stamps of the files that were imported, as of a moment before.
    """
    before = {str(path): stamp(path) for package in PACKAGES for path in (PROJECT / package).rglob("*.py")}
    before |= {path: stamp(path) for path in sources()}
    for name in OF_DVC:
        importlib.import_module(name)
    for name in stages:
        importlib.import_module(f"tasks.{name}")
    for name in stages:
        del sys.modules[f"tasks.{name}"]
        delattr(tasks, name)
    gc.freeze()  # collections of the forked processes pass all of it over, and leave its memory shared
    return {path: before.get(path) for path in sources()}


class Mark:
    """The place of the mark in this process's first environment, which the system shows of a forked process, too."""

    def __init__(self) -> None:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        self.room, self.address = len(os.environ.get(MARK, "")), getenv(MARK.encode())

    def fits(self, text: str) -> bool:
        return len(text.encode()) <= self.room

    def write(self, text: str) -> None:
        """Replaces the mark, filled up with spaces."""
        ctypes.memmove(self.address, text.encode().ljust(self.room), self.room)


@dataclass
class _Stage:
    """A stage's forked process, and the socket on which its end is told."""

    pid: int
    asker: socket.socket


class Server:
    """Forks stages for the process at the other end of a socket."""

    def __init__(self, control: socket.socket, stages: Sequence[str], stamps: Mapping[str, Stamp | None]) -> None:
        self.control, self.stages, self.stamps = control, stages, stamps
        self.mark = Mark()
        self.running: dict[int, _Stage] = {}

    def refusal(self, mark: str = "") -> str:
        """Returns why no stage is forked now; empty where nothing forbids it."""
        changed = [path for path, known in self.stamps.items() if known is None or stamp(path) != known]
        if changed:
            return f"{changed[0]} changed since the run began"
        threads = os.listdir("/proc/self/task")
        if len(threads) > 1:
            return f"an imported library started {len(threads) - 1} thread(s)"
        return "" if self.mark.fits(mark) else "its name is too long"

    def serve(self) -> Callable[[], int] | None:
        """Forks until the other end is closed; returns None then, and in a forked process what it has to do."""
        _say(self.control, refused=self.refusal())
        while True:
            control = self.control.fileno()
            ready, _, _ = select.select([control, *self.running], [], [])
            for descriptor in ready:
                if descriptor != control:
                    self._tell_end(descriptor)
            if control in ready:
                message, descriptors, _, _ = socket.recv_fds(self.control, 1, 2)
                if not message:
                    return None
                work = self._fork(socket.socket(fileno=descriptors[0]), descriptors[1])
                if work is not None:
                    return work

    def _fork(self, asker: socket.socket, log: int) -> Callable[[], int] | None:
        """Forks a stage; returns what to do in the forked process."""
        with asker.makefile("rb") as file:
            line = file.readline()
        asked: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"mark": ""}
        refused = self.refusal(asked["mark"]) if line else "nobody asks any more"
        if refused:
            _say(asker, refused=refused)
        else:
            pid = os.fork()
            if pid == 0:
                self._leave(asker)
                self.mark.write(asked["mark"])
                return _become(asked, log, self.stages)
            self.running[os.pidfd_open(pid)] = _Stage(pid, asker)
            while os.getpgid(pid) != pid and not _ended(pid):  # until its group can be ended
                time.sleep(0.0005)
            _say(asker, pid=pid)
        os.close(log)
        if refused:
            asker.close()
        return None

    def _leave(self, asker: socket.socket) -> None:
        """Closes, in a forked process, what belongs to the server."""
        for descriptor, stage in self.running.items():
            os.close(descriptor)
            stage.asker.close()
        self.running.clear()
        self.control.close()
        asker.close()

    def _tell_end(self, descriptor: int) -> None:
        stage = self.running.pop(descriptor)
        _, status = os.waitpid(stage.pid, 0)
        os.close(descriptor)
        _say(stage.asker, status=os.waitstatus_to_exitcode(status))
        stage.asker.close()


def _ended(pid: int) -> bool:
    """Returns whether a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _say(asker: socket.socket, **answer: object) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # of a killed flow, whose end the server sees next
        asker.sendall(json.dumps(answer).encode() + b"\n")


def _become(asked: Mapping[str, Any], log: int, stages: Sequence[str]) -> Callable[[], int]:
    """Makes a forked process the leader of a stage's; returns what it does, or what the process of its command does."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(asked["environment"])
    command = fork_command(asked["cwd"], stages) if stages else None
    if command is not None and command.is_forked:
        return command.run
    return lambda: _by_dvc(asked["address"], command)


def _by_dvc(address: str, command: ForkedCommand | None) -> int:
    sys.argv = [str(one_stage.__file__), address]
    with nullcontext() if command is None else command.taking_commands():
        return one_stage.main([address])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.dvc.fork_server", description="Forks the stages of a run.")
    parser.add_argument("descriptor", type=int, help="of the socket on which it is asked")
    parser.add_argument("stages", nargs="*", help="stages whose libraries it imports")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with socket.socket(fileno=options.descriptor) as control:
        server = Server(control, options.stages, preload(options.stages))
        print(f"imported in {time.monotonic() - began:.1f} s", flush=True)
        work = server.serve()
    return 0 if work is None else work()


if __name__ == "__main__":
    leave(main())
