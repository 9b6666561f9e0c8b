"""A run's fork server (`tasks.dvc.fork_server`): stages start in a fraction of a second, with their libraries imported.

A stage starts in a Python of its own where the server cannot be sure to do the same: with GPUs, several processes or
cores, another environment, changed code, or when the server has ended. The results agree.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from flows.slots import Grant
from flows.working_tree import WORK
from tasks.dvc.fork_server import ENVIRONMENT
from tasks.dvc.one_stage import MARK, OUTCOME_VARIABLE
from tasks.graph.dvc_files import is_checkout
from tasks.running import machine
from tasks.running.launch import DEEPSPEED_VARIABLE, PROCESSES_VARIABLE

#: The folder of the packages whose modules are run here, whatever the working directory holds.
PROJECT = Path(machine.__file__).parents[2]
#: Number of stages from which on imports are worth a process that keeps them.
FEWEST = 3
#: Seconds that its imports may take.
SECONDS = 300.0
#: The answer of a server that ended before it was ready.
DIED = b'{"refused": "it ended while it imported (log in .work/logs/fork-server.log)"}'
#: 0 starts every stage in a Python of its own.
SWITCH = "REWARDSMITH_FORK"
#: Environment variables that differ from stage to stage and are read when a stage runs.
OF_STAGE = {MARK, OUTCOME_VARIABLE}
#: Environment variables of a stage's cores and devices, which libraries read when they are imported.
OF_GRANT = set(Grant(1, (), 0.0).environment())


def stage_environment(packages: Path, granted: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a stage's process, without its mark.

    Args:
        packages: the folder of the package that has the module.
        granted: variables of its cores and devices.
    """
    libraries = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    own = {"PATH": path, "PYTHONPATH": libraries, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "true"}
    return inherited | dict(granted) | own


class ForkedStage:
    """A stage's process that the server forked, with what is used of a `Popen`.

    Attributes:
        lost: whether the server ended before the stage, so that its exit status is unknown.
    """

    def __init__(self, pid: int, answers: IO[bytes], output: IO[str]) -> None:
        self.pid, self.stdout, self.lost = pid, output, False
        self._answers = answers
        self._status: int | None = None

    def wait(self) -> int:
        """Returns the exit status, as `Popen.wait` does; that of a killed process where it is lost."""
        if self._status is None:
            answer = _answer(self._answers)
            self.lost = "status" not in answer
            self._status = int(answer.get("status", -9))
            self._answers.close()
        return self._status

    def poll(self) -> int | None:
        """Returns the exit status of an ended process."""
        if self._status is None and not select.select([self._answers], [], [], 0)[0]:
            return None
        return self.wait()


class ForkServer:
    """The server of a run; it begins when it is first told of enough stages.

    Args:
        root: the repository.
        log: the flow's.
    """

    def __init__(self, root: Path, log: Any) -> None:
        self.root, self.log = root, log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._ready = self._over = False
        self._lock = threading.Lock()

    def begin(self, kinds: Collection[str]) -> None:
        """Starts the server, which imports meanwhile, unless it runs, too few stages need it or it must not be used.

        Args:
            kinds: the module of each stale stage.
        """
        if self._process is not None or len(kinds) < FEWEST or not self._is_usable():
            return
        self._environment = stage_environment(PROJECT, Grant(1, (), 0.0).environment())
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_tasks = is_checkout(self.root)
        stages = sorted(set(kinds)) if not own_tasks or self.root.resolve() == PROJECT.resolve() else []
        safe = [] if own_tasks and stages else ["-P"]  # as in the stages' commands
        log = self.root / WORK / "logs" / "fork-server.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [sys.executable, *safe, "-m", "tasks.dvc.fork_server", str(theirs.fileno()), *stages],
                cwd=self.root,
                env=self._environment | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def _is_usable(self) -> bool:
        """Returns whether a forked process does here what a new one does."""
        several = {PROCESSES_VARIABLE, DEEPSPEED_VARIABLE, "RANK", "WORLD_SIZE"} & set(os.environ)
        return sys.platform == "linux" and os.environ.get(SWITCH) != "0" and not several and not machine.gpus()

    def start(self, address: str, environment: Mapping[str, str]) -> ForkedStage | None:
        """Starts the process of a stage; None where it has to start in the ordinary way.

        Args:
            address: the stage as DVC names it.
            environment: the whole environment of its process.
        """
        if self._process is None:
            return None
        with self._lock:
            different = _different(environment, self._environment)
            if self._over or different & OF_GRANT:
                return None
            if different:
                self._give_up(f"{', '.join(sorted(different))} changed since the run began")
                return None
            try:
                return self._asked(address, environment)
            except (OSError, ValueError) as error:
                self._give_up(f"{error or type(error).__name__} (log in {WORK}/logs/fork-server.log)")
                return None

    def _asked(self, address: str, environment: Mapping[str, str]) -> ForkedStage | None:
        """Asks for a stage; the first time it waits for the server's imports."""
        assert self._control is not None
        if not self._ready:
            self._control.settimeout(SECONDS)
            refused = json.loads(self._control.recv(1 << 16) or DIED)["refused"]
            self._control.settimeout(None)
            self._ready = True
            if refused:
                self._give_up(refused)
                return None
        asker, theirs = socket.socketpair()
        receiving, sending = os.pipe()
        output = os.fdopen(receiving, errors="replace")
        asked = {"address": address, "cwd": str(self.root), "mark": environment[MARK], "environment": {**environment}}
        with asker:
            try:
                socket.send_fds(self._control, [b"s"], [theirs.fileno(), sending])
            finally:
                os.close(sending)
                theirs.close()
            asker.sendall(json.dumps(asked).encode() + b"\n")
            answers = asker.makefile("rb")
        answer = _answer(answers)
        if "pid" in answer:
            return ForkedStage(int(answer["pid"]), answers, output)
        answers.close()
        output.close()
        self._give_up(answer.get("refused", "the process that starts them ended"))
        return None

    def _give_up(self, why: str) -> None:
        """Ends the use of the server: the stages that follow start in the ordinary way."""
        if not self._over:
            self.log.warning("stages start in Pythons of their own from here on, some seconds later each: %s", why)
        self._over = True

    def fits(self) -> bool:
        """Returns whether the server began in the environment that stages would get now."""
        now = stage_environment(PROJECT, Grant(1, (), 0.0).environment())
        return self._process is None or not _different(now, self._environment)

    def close(self) -> None:
        """Ends the server."""
        self._over = True
        if self._process is None or self._control is None:
            return
        self._process.terminate()
        self._process.wait()
        with self._lock:
            self._control.close()


#: The server that a command began before its flow.
_BEGUN: ContextVar[ForkServer | None] = ContextVar("_BEGUN", default=None)


@contextmanager
def preloading_fork_server(root: Path, kinds: Collection[str]) -> Iterator[None]:
    """Begins a server for the run that follows in the block, which imports while Prefect starts.

    Args:
        root: the repository.
        kinds: the module of each stage that is going to run, as far as known; too few begin none.
    """
    with closing(ForkServer(root, logging.getLogger(__name__))) as server:
        server.begin(kinds)
        token = _BEGUN.set(server)
        try:
            yield
        finally:
            _BEGUN.reset(token)


def server_of_run(root: Path, log: Any) -> ForkServer:
    """Returns the server that the command began for this run, or a new one, which has yet to begin."""
    server = _BEGUN.get()
    if server is None or server.root.resolve() != root.resolve() or not server.fits():
        return ForkServer(root, log)
    server.log = log
    return server


def _different(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Returns the variables that differ, those apart that differ from stage to stage."""
    return {name for name in {*one, *other} - OF_STAGE if one.get(name) != other.get(name)}


def _answer(answers: IO[bytes]) -> dict[str, Any]:
    """Returns the server's next answer; empty where it has ended."""
    try:
        line = answers.readline()
    except ConnectionResetError:
        return {}
    return dict(json.loads(line)) if line.endswith(b"\n") else {}
