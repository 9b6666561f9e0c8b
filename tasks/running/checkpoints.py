"""Checkpoints of a running stage: a killed run continues from its last checkpoint.

They live outside every output, in `.work/checkpoints/<stage>-<digest of the output's path>/<key>/`, one file each,
`step-<number>-<digest of its content>.pt`. The key is the digest of everything that the result depends on, bit by bit,
so that a run never continues from another run's state. They are removed when the stage's result is complete.

`.work/checkpoints` may be a link to a folder that several machines share: a stage then goes on on another machine, and
a machine that was believed lost and still saves disturbs nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.stepper import deepspeed_config
from rlhf_core.training_state import State, restoring
from tasks.running import variables
from tasks.running.artifacts import RECORDED_PACKAGES, Inputs, Stopped, digest, source_digest, stage_output
from tasks.running.locks import in_turn
from tasks.running.machine import device
from tasks.running.progress import FILE, REUSED, WORK, LiveHistory, run_folder

#: Seconds between checkpoints; 0 saves after every step.
SECONDS_VARIABLE = "REWARDSMITH_CHECKPOINT_SECONDS"
DEFAULT_SECONDS = 60.0
#: Saving takes at most one part in so many of a run's time.
SAVING_SHARE = 20
#: Step it when what a saved state holds changes.
FORMAT = 4
#: Begins the name of a checkpoint that is being written, before host and process.
PARTIAL = ".partial-"
#: Characters of a content's digest in the name of its file.
DIGEST = 16


class DamagedCheckpoint(Exception):
    """A checkpoint whose content is not what was saved."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: the step after which it was saved, and the state."""

    step: int
    state: State


def _mapped(value: Any, leaf: Callable[[Any, str], Any], place: str = "") -> Any:
    """Returns nested mappings, lists and tuples with a function of each value in them, and of its place."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, leaf, f"{place}/{key}" if place else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_mapped(item, leaf, f"{place}/{number}") for number, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return leaf(value, place)


def storable(state: Any) -> Any:
    """Returns a state as `torch.load` reads it without running code: of tensors, texts, numbers, booleans and None.

    Raises:
        TypeError: a value of another kind, with its place.
    """

    def leaf(value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            value = value.detach()
            part = value.untyped_storage().nbytes() > value.nbytes  # of a larger tensor, which is not stored
            return value.clone() if part else value
        if value is None or type(value) in (str, bool, int, float):
            return value
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"a checkpoint cannot hold '{place}' of type {type(value).__name__}")

    return _mapped(state, leaf)


def random_states() -> State:
    """Returns states of the process's random generators: Python's, numpy's, torch's on the CPU and on GPUs in use."""
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    name, words, *rest = np.random.get_state()  # noqa: NPY002 (libraries may draw from it)
    return {
        "python": random.getstate(),
        "numpy": (name, np.asarray(words).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if in_use else [],
    }


def restore_random_states(states: State) -> None:
    """Puts `random_states` back."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


class CheckpointStore:
    """The checkpoints of one run, of which the newest `keep` are kept.

    A checkpoint is written under another name, brought to the disk and renamed, so it is there as a whole or not at
    all, whenever the process is killed.

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
        return sorted(path for path in self.folder.glob("step-*.pt") if path.is_file())

    def save(self, step: int, state: State) -> Path:
        """Saves a state and removes what is older than the newest `keep`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(f"{PARTIAL}{platform.node()}-*"):
            pid = int(leftover.name.rpartition("-")[2])
            if pid == os.getpid() or not psutil.pid_exists(pid):
                leftover.unlink(missing_ok=True)
        partial = self.folder / f"{PARTIAL}{platform.node()}-{os.getpid()}"
        with partial.open("wb") as file:  # a full disk is then an error of the system, with its name
            torch.save({"key": self.key, "step": step, "state": storable(state)}, file)
        _to_disk(partial)
        final = self.folder / f"step-{step:010d}-{digest(partial)[:DIGEST]}.pt"
        partial.replace(final)
        _to_disk(self.folder)
        for old in self.saved()[: -self.keep]:
            old.unlink(missing_ok=True)
        return final

    def load_latest(self) -> Checkpoint | None:
        """Returns the newest sound checkpoint, None without one; a damaged one is reported, removed and passed over."""
        for file in reversed(self.saved()):
            try:
                return self._load(file)
            except DamagedCheckpoint as damage:
                print(f"warning: checkpoint {file} is damaged ({damage}); it is skipped", file=sys.stderr)
                file.unlink(missing_ok=True)
        return None

    def _load(self, file: Path) -> Checkpoint:
        if file.stem.rpartition("-")[2] != digest(file)[:DIGEST]:
            raise DamagedCheckpoint("its content is not what was saved")
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
            if found["key"] != self.key:
                raise DamagedCheckpoint("it belongs to other inputs or parameters")
            # of each tensor a copy of its own, also where one was in several places
            state = _mapped(found["state"], lambda value, _: value.clone() if isinstance(value, Tensor) else value)
            return Checkpoint(int(found["step"]), state)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, LookupError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"it cannot be read: {type(error).__name__}") from None

    def remove(self) -> None:
        """Removes all checkpoints of the run, including checkpoints of earlier inputs and parameters."""
        if not distributed.rank():
            shutil.rmtree(self.run_folder, ignore_errors=True)


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


@contextmanager
def resumable_output(
    out: Path | str, *, stage: str, version: int, inputs: Sequence[Path | str | None], seed: int
) -> Iterator[tuple[Path, RunCheckpoints]]:
    """Yields `stage_output` and the run's checkpoints, which are removed when the result is there.

    Args:
        out, stage, version, inputs: as for `stage_output`.
        seed: of the run, and of torch's global generators, which dropout draws from.

    Raises:
        RecipeError: REWARDSMITH_CHECKPOINT_SECONDS is not a number of at least 0.
    """
    torch.manual_seed(seed)
    read = Inputs.of(inputs)
    store = CheckpointStore(WORK, run_folder(stage, out), run_key(stage, version, read.digests, seed))
    checkpoints = RunCheckpoints(store, variables.seconds(SECONDS_VARIABLE, DEFAULT_SECONDS, ", 0 for every step"))
    try:
        with stage_output(
            out, stage=stage, version=version, inputs=read, seconds_before=lambda: checkpoints.seconds_before
        ) as result:
            yield result, checkpoints
    except Stopped:
        store.remove()
        raise
    store.remove()


@contextmanager
def reuse_training(
    stage: str, version: int, inputs: Sequence[Path | str], rows: Sequence[object], seed: int
) -> Iterator[RunCheckpoints | None]:
    """Yields the checkpoints that a stage reads an equal finished training from, such as that of a cell which differs
    only in labels, or leaves its own in; None in a tree without REUSED, which a study's world has. Of stages with equal
    inputs, one at a time is in the block.

    The key is of what the training alone reads and of the code, so that a result is bit by bit the same as without.

    Args:
        stage, version: of the stage.
        inputs: files, folders and entries of pages that its training reads, beside the rows.
        rows: that it trains on, of token ids; what a file says beside these, such as true rewards, is not read.
        seed: of the training.
    """
    if not REUSED.is_dir() or distributed.world_size() > 1:
        yield None
        return
    trained = hashlib.sha256(repr(rows).encode()).hexdigest()
    key = run_key(stage, version, {**Inputs.of(inputs).digests, "rows": trained, "sources": source_digest()}, seed)
    store = CheckpointStore(REUSED, f"{stage}-{key[:12]}", key, keep=1)
    with in_turn(REUSED / f"{stage}-{key[:12]}.lock", "another stage trains the same model"):
        yield RunCheckpoints(store, 0.0)
