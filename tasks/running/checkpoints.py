"""Checkpoints of a running stage: a killed run continues from its last checkpoint.

They live outside every output, in `.work/checkpoints/<stage>-<digest of the output's path>/<key>/step-<number>/`,
each with a manifest of digests. The key is the digest of everything that the result depends on, bit by bit, so that
a run never continues from another run's state. They are removed when the stage's result is complete.

`.work/checkpoints` may be a link to a folder that several machines share: a stage then goes on on another machine, and
a machine that was believed lost and still saves disturbs nobody.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError

from rlhf_core import distributed
from rlhf_core.stepper import deepspeed_config
from rlhf_core.training_state import State, restoring
from tasks.running import variables
from tasks.running.artifacts import RECORDED_PACKAGES, Inputs, Stopped, digest, stage_output
from tasks.running.machine import device
from tasks.running.progress import FILE, WORK, LiveHistory, run_folder
from tasks.running.state_files import (
    STATE_FILE,
    TENSORS_FILE,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)

#: Seconds between checkpoints; 0 saves after every step.
SECONDS_VARIABLE = "REWARDSMITH_CHECKPOINT_SECONDS"
DEFAULT_SECONDS = 60.0
#: Saving takes at most one part in so many of a run's time.
SAVING_SHARE = 20
#: Step it when what a saved state holds changes.
FORMAT = 3
MANIFEST = "manifest.json"
#: Begins the name of a checkpoint that is being written, before host and process.
PARTIAL = ".partial-"


class DamagedCheckpoint(Exception):
    """A checkpoint whose files are not those that were saved."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: the step after which it was saved, and the state."""

    step: int
    state: State


class CheckpointStore:
    """The checkpoints of one run, of which the newest `keep` are kept.

    A checkpoint is written into a temporary directory, brought to the disk and renamed, so it is there as a whole or
    not at all, whenever the process is killed.

    Args:
        work: the folder of all checkpoints.
        name: of the run's folder in it.
        key: digest of what the run depends on; checkpoints of other keys are not read.
        keep: checkpoints kept.
    """

    def __init__(self, work: Path | str, name: str, key: str, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one checkpoint is kept")
        self.run_folder = Path(work) / name
        self.folder = self.run_folder / key[:16]
        self.key, self.keep = key, keep

    def saved(self) -> list[Path]:
        """Returns the checkpoints on disk, oldest first; sound or not."""
        return sorted(self.folder.glob("step-*"))

    def save(self, step: int, state: State) -> Path:
        """Saves a state and removes what is older than the newest `keep`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(f"{PARTIAL}*"):
            if not _being_written(leftover.name):
                _remove(leftover)
        partial = self.folder / f"{PARTIAL}{platform.node()}-{os.getpid()}"
        partial.mkdir()
        files = write_state(partial, state)
        manifest = {
            "key": self.key,
            "step": step,
            "files": {path.name: {"sha256": digest(path), "bytes": path.stat().st_size} for path in files},
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for path in (*files, partial / MANIFEST, partial):
            _to_disk(path)
        final = self.folder / _folder_name(step)
        if os.path.lexists(final):
            _remove(final)
        try:
            partial.rename(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            _remove(partial)  # another machine that runs this stage has just saved the same
        _to_disk(self.folder)
        for old in self.saved()[: -self.keep]:
            _remove(old)
        return final

    def load_latest(self) -> Checkpoint | None:
        """Returns the newest sound checkpoint, None without one; a damaged one is reported, removed and passed over."""
        for folder in reversed(self.saved()):
            try:
                return self._load(folder)
            except DamagedCheckpoint as damage:
                print(f"warning: checkpoint {folder} is damaged ({damage}); it is skipped", file=sys.stderr)
                _remove(folder)
        return None

    def _load(self, folder: Path) -> Checkpoint:
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            key, step = manifest["key"], manifest["step"]
            digests = {name: manifest["files"][name]["sha256"] for name in (TENSORS_FILE, STATE_FILE)}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {type(error).__name__}") from None
        if key != self.key:
            raise DamagedCheckpoint("it belongs to other inputs or parameters")
        if type(step) is not int or folder.name != _folder_name(step):
            raise DamagedCheckpoint(f"{MANIFEST} says that it is of step {step}")
        for name, expected in digests.items():
            if not (folder / name).is_file():
                raise DamagedCheckpoint(f"{name} is missing")
            if digest(folder / name) != expected:
                raise DamagedCheckpoint(f"{name} has {(folder / name).stat().st_size} bytes and another digest")
        try:
            return Checkpoint(step, read_state(folder))
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{STATE_FILE} or {TENSORS_FILE}: {type(error).__name__}") from None

    def remove(self) -> None:
        """Removes all checkpoints of the run, including checkpoints of earlier inputs and parameters."""
        shutil.rmtree(self.run_folder, ignore_errors=True)


def _folder_name(step: int) -> str:
    return f"step-{step:010d}"


def _being_written(name: str) -> bool:
    """Returns whether another process may write a partial checkpoint; of another machine's nobody knows here.

    One of this process's own name is left from a save that failed, or from a killed process with the same number.
    """
    host, _, pid = name.removeprefix(PARTIAL).rpartition("-")
    if not host or not pid.isdecimal():
        return False
    return host != platform.node() or (int(pid) != os.getpid() and psutil.pid_exists(int(pid)))


def _remove(path: Path) -> None:
    """Removes a checkpoint, or whatever is in its place, unless another machine has just done so."""
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def run_key(stage: str, version: int, digests: Mapping[str, str], seed: int) -> str:
    """Returns the digest of what a run's result depends on, bit by bit.

    Inputs count by content, not by path. The processor's kind counts and the machine's name does not: a run may go on
    on another node of the same kind.
    """
    facts = {
        "format": FORMAT,
        "stage": stage,
        "version": version,
        "inputs": list(digests.values()),
        "seed": seed,
        "threads": torch.get_num_threads(),
        "processes": distributed.world_size(),
        "deepspeed": deepspeed_config(),
        "device": torch.cuda.get_device_name() if device().type == "cuda" else "cpu",
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability(), *variables.arithmetic()],
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in RECORDED_PACKAGES},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class RunCheckpoints:
    """Checkpoints of a run: saves its state on schedule and resumes from the last one.

    Wall time decides when to save and nothing else: saving changes no result.

    Args:
        store: where to.
        seconds: from one checkpoint to the next.

    Attributes:
        seconds_before: what interrupted runs spent up to the state that this one went on from.
    """

    def __init__(self, store: CheckpointStore, seconds: float) -> None:
        self.store, self.seconds = store, seconds
        self._live = LiveHistory(store.run_folder / FILE)
        self.seconds_before = 0.0
        self._started = self._saved = time.monotonic()
        self._cost = 0.0

    def resume(self, label: str) -> State | None:
        """Returns the state to go on from, None for a fresh start. Call it last before training.

        The process's random generators are put back as they were.
        """
        if distributed.rank():
            distributed.barrier()  # rank 0 has removed what is damaged
        checkpoint = self.store.load_latest()
        if not distributed.rank():
            distributed.barrier()
        if checkpoint is None:
            return None
        with restoring():
            restore_random_states(checkpoint.state["random"][distributed.rank()])
            self.seconds_before = float(checkpoint.state["seconds"])
            state: State = checkpoint.state["run"]
        if not distributed.rank():
            print(f"{label}: continues after step {checkpoint.step}", file=sys.stderr)
        return state

    def note(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Lets MLflow show the history so far while the stage trains."""
        if not distributed.rank():
            self._live.write(history)

    def offer(self, step: int, state: Callable[[], State]) -> None:
        """Saves the state after `step` when it is time; of several ranks the first one says when, and saves."""
        begin = time.monotonic()
        wait = max(self.seconds, SAVING_SHARE * self._cost if self.seconds else 0.0)
        if distributed.on_main(lambda: begin - self._saved < wait):
            return
        seconds = self.seconds_before + begin - self._started
        saved = {"run": state(), "random": distributed.gathered(random_states()), "seconds": seconds}
        if not distributed.rank():
            self.store.save(step, saved)
        distributed.barrier()
        self._saved = time.monotonic()
        self._cost = self._saved - begin


def checkpoint_seconds() -> float:
    """Returns seconds between checkpoints, from the environment.

    Raises:
        RecipeError: not a number of at least 0.
    """
    return variables.seconds(SECONDS_VARIABLE, DEFAULT_SECONDS, ", 0 for every step")


@contextmanager
def resumable_output(
    out: Path | str, *, stage: str, version: int, inputs: Sequence[Path | str | None], seed: int
) -> Iterator[tuple[Path, RunCheckpoints]]:
    """Yields `stage_output` and the run's checkpoints, which are removed when the result is there.

    Args:
        out, stage, version, inputs: as for `stage_output`.
        seed: of the run, and of torch's global generators, which dropout draws from.
    """
    torch.manual_seed(seed)
    read = Inputs.of(inputs)
    store = CheckpointStore(WORK, run_folder(stage, out), run_key(stage, version, read.digests, seed))
    checkpoints = RunCheckpoints(store, checkpoint_seconds())
    found: Stopped | None = None
    try:
        with stage_output(
            out, stage=stage, version=version, inputs=read, seconds_before=lambda: checkpoints.seconds_before
        ) as result:
            yield result, checkpoints
    except Stopped as error:
        found = error
    if not distributed.rank():
        store.remove()
    if found is not None:
        raise found
