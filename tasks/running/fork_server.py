"""Fork server of a run: a process that has the stages' libraries imported, and forks each stage's command from itself.

It is `multiprocessing`'s, with what the stages import as its preload. It forks `python -m tasks.<stage> ...` of the
code that this process runs, on the CPU, in one process with one core; other commands are started in the ordinary way.
The results agree. A stage's process ends with the server, and the server with the process that began it (on Linux).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import re
import runpy
import sys
import threading
import time
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tasks.running import machine
from tasks.running.launch import DEEPSPEED_VARIABLE, PROCESSES_VARIABLE, end_with_launcher

#: The folder of the packages whose modules are run here, whatever the working directory holds.
PROJECT = Path(machine.__file__).parents[2]
#: Number of stages from which on imports are worth a process that keeps them.
FEWEST = 3
#: 0 starts every stage in a Python of its own.
SWITCH = "REWARDSMITH_FORK"
#: Names the stages to import, in the server's environment.
STAGES = "REWARDSMITH_PRELOADED"
#: A thread of pyarrow's allocator would not survive a fork.
ALLOCATOR = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}

#: A stage's command, in characters that mean nothing to a shell.
COMMAND = re.compile(r"python (?P<safe>-P )?-m tasks\.(?P<words>\w+(?: [\w./:=,@%+-]+)*)")
#: Variables that libraries read when they are imported.
READ_AT_IMPORT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")


class ForkedProcess:
    """A forked process, with what is used of a `Popen`."""

    def __init__(self, process: BaseProcess, output: Connection) -> None:
        self._process, self.pid = process, process.pid or 0
        self.stdout = os.fdopen(os.dup(output.fileno()), errors="replace")

    def wait(self) -> int:
        """Returns the exit status, as `Popen.wait` does; 255 where the server ended before the process."""
        self._process.join()
        self.stdout.close()
        return int(self._process.exitcode or 0)

    def poll(self) -> int | None:
        """Returns the exit status of an ended process."""
        return self._process.exitcode


class ForkServer:
    """The fork server of this process; it begins when it is first told of enough stages.

    Args:
        root: the repository.
        environment: of a stage with one core and no GPU; a stage with another one is not forked.
    """

    _lock = threading.Lock()

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.root, self.environment = root, dict(environment)
        self._code: tuple[int, int] | None = None

    def begin(self, kinds: Collection[str]) -> None:
        """Starts the server, which imports meanwhile, unless it runs, too few stages need it or it must not be used.

        Args:
            kinds: the module of each stage that is going to run, as far as known.
        """
        if self._code is not None or len(kinds) < FEWEST or not _is_usable():
            return
        self._code = _code_stamp()
        self.environment[STAGES] = " ".join(sorted(set(kinds)))
        with self._as_parent():
            forkserver.set_forkserver_preload([__name__])
            forkserver.ensure_running()

    def start(self, command: str, environment: Mapping[str, str]) -> ForkedProcess | None:
        """Starts a stage's command; None where it has to start in the ordinary way.

        Args:
            command: as dvc.yaml has it.
            environment: the whole environment of its process.
        """
        found = COMMAND.fullmatch(command)
        if self._code is None or found is None or self._code != _code_stamp():
            return None
        of_this_code = found["safe"] or self.root.resolve() == PROJECT.resolve()
        if not of_this_code or any(self.environment.get(name) != environment.get(name) for name in READ_AT_IMPORT):
            return None
        context = multiprocessing.get_context("forkserver")
        reader, writer = context.Pipe(duplex=False)
        with reader, writer:
            folders = [] if found["safe"] else [str(self.root)]
            arguments = (found["words"].split(), str(self.root), folders, dict(environment), writer)
            process = context.Process(target=_run, args=arguments)
            try:
                with self._as_parent():
                    process.start()
            except (EOFError, OSError):  # the server ended while it imported
                return None
            while process.exitcode is None and os.getpgid(process.pid or 0) != process.pid:
                time.sleep(0.001)  # until its group can be ended
            return ForkedProcess(process, reader)

    @contextmanager
    def _as_parent(self) -> Iterator[None]:
        """Lets `multiprocessing` see the server's environment, and no main module, which it would import again."""
        with self._lock:
            given, main = {**self.environment, **ALLOCATOR}, sys.modules["__main__"]
            before = {name: os.environ.get(name) for name in given}
            sys.modules["__main__"] = types.ModuleType("__main__")
            os.environ.update(given)
            try:
                yield
            finally:
                sys.modules["__main__"] = main
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value


def _is_usable() -> bool:
    """Returns whether a forked process does here what a new one does."""
    several = {PROCESSES_VARIABLE, DEEPSPEED_VARIABLE, "RANK", "WORLD_SIZE"} & set(os.environ)
    return sys.platform == "linux" and os.environ.get(SWITCH) != "0" and not several and not machine.gpus()


def _code_stamp() -> tuple[int, int]:
    """Returns the time of the last change of the code that the server imports, and its number of files."""
    files = (path for package in ("tasks", "rlhf_core") for path in (PROJECT / package).rglob("*.py"))
    times = [path.stat().st_mtime_ns for path in files]
    return max(times), len(times)


#: Where the server itself finds modules.
_path: list[str] = []


def _run(
    words: Sequence[str], root: str, folders: Sequence[str], environment: Mapping[str, str], output: Connection
) -> None:
    """Runs a stage's command (`words`) in the forked process, as `python -m` does.

    Args:
        folders: where it finds modules before all others.
        output: receives its log.
    """
    os.setsid()
    end_with_launcher()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(root)
    sys.path[:] = [*folders, *_path]  # in place of the flow's
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # unlike `random`, numpy keeps the state of the process that was forked
    importlib.invalidate_caches()
    stage, *arguments = words
    sys.modules.pop(f"tasks.{stage}", None)
    sys.argv = ["-m", *arguments]
    try:
        runpy.run_module(f"tasks.{stage}", run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _preload(stages: Collection[str]) -> None:
    """Imports, in the server, what stages need."""
    end_with_launcher()
    _path[:] = [folder for folder in sys.path if folder]
    for name in stages:
        with suppress(ImportError):  # the stage says so itself
            importlib.import_module(f"tasks.{name}")
    gc.freeze()  # collections of the forked processes pass all of it over, and leave its memory shared


if STAGES in os.environ:
    _preload(os.environ.pop(STAGES).split())
