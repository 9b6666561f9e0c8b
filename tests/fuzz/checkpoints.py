"""Checkpoints of an interrupted training: damaged, of another training, or of another version."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.supervised.config import TrainingConfig
from tasks.running import checkpoints as module
from tasks.running.artifacts import digest
from tasks.running.checkpoints import MANIFEST, CheckpointStore, RunCheckpoints
from tasks.running.progress import FILE
from tasks.running.state_files import STATE_FILE, TENSORS_FILE
from tasks.running.supervised import train_resumably
from tests.fuzz.damage import Area, as_commands, damage_file, damaged_bytes, damaged_json, remove

KEY, OTHER_KEY = "a" * 64, "b" * 64
STEPS = 6


class _Killed(Exception):
    """Stands for a process that ends."""


class _Ending(NamedTuple):
    """The end of a training."""

    weights: Mapping[str, Tensor]
    history: list[dict[str, float]]

    def same(self, other: _Ending) -> bool:
        return (
            self.history == other.history
            and self.weights.keys() == other.weights.keys()
            and all(torch.equal(value, other.weights[name]) for name, value in self.weights.items())
        )


def _train(
    work: Path, key: str = KEY, *, kill_after: int | None = None, width: int = 4, rate: float = 0.05, seconds: float = 0
) -> _Ending:
    """Trains a model with dropout, a buffer, a tied and a frozen weight; saves every so many seconds, without waiting
    for the disk."""
    torch.manual_seed(5)
    layers = (nn.Linear(4, width), nn.Dropout(0.3), nn.Linear(width, 4), nn.Linear(4, width), nn.BatchNorm1d(width))
    model = nn.Sequential(*layers)
    layers[0].requires_grad_(False)
    if width == 4:
        model[3].weight = model[2].weight
    inputs = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    config = TrainingConfig(epochs=2, batch=2, microbatch=2, learning_rate=rate)
    torch.manual_seed(99)

    def loss(rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        return (model(inputs[[*rows, 0]]) ** 2).sum(), float(len(rows)), {}

    class Store(CheckpointStore):
        def save(self, step: int, state: Any) -> Path:
            path = super().save(step, state)
            if step == kill_after:
                raise _Killed
            return path

    run = RunCheckpoints(Store(work, "sft-1", key), seconds)
    batches = LengthBucketedBatches([1 + i % 5 for i in range(9)], seed=0, rows_per_batch=2)
    with patch.object(module, "_to_disk", lambda path: None):
        history = train_resumably(
            model,
            loss,
            batches,
            STEPS,
            config,
            lambda rows: float(len(rows)),
            checkpoints=run,
            label="x",
            history_every=2,
        )
    return _Ending({name: value.detach().clone() for name, value in model.state_dict().items()}, history)


def _killed(work: Path, *arguments: Any, **options: Any) -> Path:
    try:
        _train(work, *arguments, **options)
    except _Killed:
        return work
    raise AssertionError("it was to be killed")


def _signed(folder: Path, step: int | None = None) -> None:
    """Writes a manifest to the files that are there, as a version that stores other things would."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: {"sha256": digest(folder / name), "bytes": 0} for name in (TENSORS_FILE, STATE_FILE)}
    manifest |= {"key": KEY} | ({} if step is None else {"step": step})
    (folder / MANIFEST).write_text(json.dumps(manifest))


def _without_a_part(rng: random.Random, folder: Path) -> str:
    """Leaves a part out of a state, or a tensor's last value, as a version that stores other things would."""
    if rng.random() < 0.5:
        tensors = load_file(folder / TENSORS_FILE)
        name = rng.choice(sorted(tensors))
        tensors[name] = tensors[name].flatten()[:-1].clone()
        save_file(tensors, folder / TENSORS_FILE)
    else:
        state = json.loads((folder / STATE_FILE).read_text())
        run, generators = state["run"], state["random"][0]
        at = rng.choice([state, run, run["training"], run["training"]["model"], run["training"]["batches"], generators])
        name = rng.choice(list(at))
        del at[name]
        (folder / STATE_FILE).write_text(json.dumps(state))
    _signed(folder)
    return f"{folder.name} without {name}"


def _swapped(rng: random.Random, one: Path, other: Path) -> str:
    """Exchanges a file of two checkpoints, or the checkpoints."""
    aside = one.with_name("aside")
    names = rng.choice([("",), ("",), (MANIFEST,), (STATE_FILE,), (TENSORS_FILE,), (STATE_FILE, TENSORS_FILE)])
    for name in names:
        (one / name).rename(aside)
        (other / name).rename(one / name)
        aside.rename(other / name)
    return f"exchanged {names} of {one} and {other}"


class _Sources(NamedTuple):
    """Folders of checkpoints that killed trainings left."""

    own: list[Path]
    foreign: list[Path]


def _damage(rng: random.Random, work: Path, sources: _Sources) -> str:
    """Damages the checkpoints of a killed training; returns what was done."""
    run = work / "sft-1"
    folder = run / KEY[:16]
    steps = sorted(folder.iterdir())
    step = rng.choice(steps)
    how = rng.random()
    if how < 0.4:
        file = step / rng.choice([MANIFEST, STATE_FILE, TENSORS_FILE])
        return damage_file(rng, file, damaged_bytes if file.name == TENSORS_FILE else damaged_json)
    if how < 0.5 and len(steps) > 1:
        return _swapped(rng, steps[0], steps[-1])
    if how < 0.6:  # another training's, in the place of this one's; a wider model's as if it were of the same key
        found = rng.choice(sources.foreign)
        shutil.rmtree(step)
        other = rng.choice(sorted(found.glob("sft-1/*/step-*")))
        step = Path(shutil.copytree(other, step.with_name(other.name), dirs_exist_ok=True))
        if found.name == "of a wider model" and rng.random() < 0.7:
            _signed(step, int(step.name.partition("-")[2]))
        return f"{found.name} as {step}"
    if how < 0.75:
        return _without_a_part(rng, step)
    if how < 0.9:  # what does not belong there
        place = folder / rng.choice(["step-", "step-x", "step-0000000009", "step-9999999999", ".partial-1", "x", ""])
        place = rng.choice([place, run / FILE, step])
        remove(place)
        made = rng.choice(["file", "folder", "link"])
        if made == "file":
            place.write_bytes(damaged_bytes(rng, b"{}"))
        elif made == "folder":
            place.mkdir()
        else:
            place.symlink_to(rng.choice(["/nowhere", ".", place.name, steps[0].name]))
        return f"a {made} at {place}"
    older = rng.choice(sources.own)  # a later killed process's and an earlier one's, side by side
    for other in older.glob(f"sft-1/{KEY[:16]}/step-*"):
        shutil.copytree(other, folder / other.name, dirs_exist_ok=True)
    return f"{damage_file(rng, steps[-1] / MANIFEST, damaged_json)} beside those of {older.name}"


@contextmanager
def checkpoints(folder: Path) -> Iterator[Area]:
    """Yields a case: a training goes on from damaged checkpoints to the very end of the one never killed, or refuses
    them."""
    expected = _train(folder / "never")
    own = [_killed(folder / f"killed-{step}", kill_after=step) for step in range(1, STEPS)]
    foreign = [
        _killed(folder / "of another rate", OTHER_KEY, kill_after=3, rate=0.01),
        _killed(folder / "of a wider model", OTHER_KEY, kill_after=3, width=6),
    ]

    def case(rng: random.Random) -> None:
        work, done = folder / "case", ""
        shutil.copytree(rng.choice(own), work)
        try:
            done = _damage(rng, work, _Sources(own, foreign))
            seconds = rng.choice([0, 3600, 3600, 3600])
            with as_commands():
                assert _train(work, seconds=seconds).same(expected), "another ending"
            assert seconds or not list(work.glob("*/*/.partial-*")), "a part of a checkpoint is left"
        except BaseException as error:
            error.add_note(done)
            raise
        finally:
            shutil.rmtree(work)

    yield case
