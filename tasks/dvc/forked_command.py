"""The command of a stage, `python -m tasks.<stage> ...`, run by a process that was forked before DVC began.

DVC would start a shell for it, and the shell a Python that imports for seconds. The forked process has everything
imported; it waits for the command beside DVC, in the same session and process group. A command in any other form
goes to the shell.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tasks.dvc.internals import commands_taken_by
from tasks.running import process_start

#: Commands without a character that means something to a shell.
PLAIN = re.compile(r"[\w./:=,@%+ -]+")


def plain_words(command: str, stages: Sequence[str]) -> list[str]:
    """Returns stage and arguments of a command that starts a stage's module as this process was started; empty for
    another command.

    Args:
        stages: the stages that are imported.
    """
    begin = ["python", *(["-P"] if sys.flags.safe_path else []), "-m"]
    words = command.split()
    if not PLAIN.fullmatch(command) or words[: len(begin)] != begin:
        return []
    module, *arguments = words[len(begin) :] or [""]
    package, _, stage = module.rpartition(".")
    return [stage, *arguments] if package == "tasks" and stage in stages else []


def is_this_python(environment: Mapping[str, str]) -> bool:
    """Returns whether a shell would find this interpreter under the name `python`."""
    found = shutil.which("python", path=environment.get("PATH"))
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and Path(found).resolve() == own.resolve()


class ForkedCommand:
    """Both ends of a waiting process: in DVC's process what hands the command over, in the forked one what runs it."""

    def __init__(self, end: socket.socket, pid: int, root: str, stages: Sequence[str]) -> None:
        self.end, self.pid, self.root, self.stages = end, pid, root, stages

    @property
    def is_forked(self) -> bool:
        """Returns whether this is the process that waits."""
        return self.pid == 0

    @contextmanager
    def taking_commands(self) -> Iterator[None]:
        """Runs DVC's commands in the waiting process, within the block; one that got none ends with the block."""
        try:
            with commands_taken_by(self._take):
                yield
        finally:
            self.end.close()
            if self.pid:
                os.waitpid(self.pid, 0)

    def _take(self, command: str, folder: str, environment: Mapping[str, str]) -> int | None:
        words = plain_words(command, self.stages)
        if not words or not self.pid or Path(folder) != Path(self.root) or not is_this_python(environment):
            return None
        given = {"stage": words[0], "arguments": words[1:], "environment": dict(environment)}
        interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does while a command runs
        try:
            self.end.sendall(json.dumps(given).encode() + b"\n")
            _, status = os.waitpid(self.pid, 0)
        except BrokenPipeError:  # it was killed while it waited
            _, status = os.waitpid(self.pid, 0)
        finally:
            self.pid = 0
            signal.signal(signal.SIGINT, interrupts)
        return os.waitstatus_to_exitcode(status)

    def run(self) -> int:
        """Waits for the command and runs it as `python -m` does; ends the process where DVC needed none."""
        with self.end, self.end.makefile("rb") as file:
            line = file.readline()
        if not line.endswith(b"\n"):
            return 0
        given = json.loads(line)
        process_start.begins_now()
        os.environ.clear()
        os.environ.update(given["environment"])
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # unlike `random`, numpy keeps the state of the process that was forked
        importlib.invalidate_caches()
        sys.argv = ["-m", *given["arguments"]]
        runpy.run_module(f"tasks.{given['stage']}", run_name="__main__", alter_sys=True)
        return 0


def fork_command(root: str, stages: Sequence[str]) -> ForkedCommand:
    """Forks a process that waits for a stage's command; returns its ends in both processes.

    Args:
        root: the working directory of the commands.
        stages: the stages that are imported.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    (ours if pid == 0 else theirs).close()
    return ForkedCommand(theirs if pid == 0 else ours, pid, root, stages)
