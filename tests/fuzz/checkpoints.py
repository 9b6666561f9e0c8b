"""Checkpoints of an interrupted training: damaged, of another training, or of another version."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.supervised.config import TrainingConfig
from tasks.running import checkpoints as module
from tasks.running.checkpoints import CheckpointStore, RunCheckpoints
from tasks.running.progress import FILE
from tasks.running.supervised import train_resumably
from tests.fuzz.damage import Area, as_commands, damage_file, damaged_bytes, remove

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


def _saved(folder: Path, content: dict[str, Any]) -> Path:
    """Writes a checkpoint of this training's key, as a version that stores other things would."""
    return CheckpointStore(folder.parent.parent, "sft-1", KEY).save(int(content["step"]), content["state"])


def _without_a_part(rng: random.Random, file: Path) -> str:
    """Leaves a part out of a state, or a tensor's last value, as a version that stores other things would."""
    content = torch.load(file, weights_only=True)
    run, generators = content["state"]["run"], content["state"]["random"][0]
    model = run["training"]["model"]
    at = rng.choice([content["state"], run, run["training"], model, run["training"]["batches"], generators])
    name = rng.choice(list(at))
    if at is model and rng.random() < 0.5:
        at[name] = at[name].flatten()[:-1]
    else:
        del at[name]
    file.unlink()
    _saved(file.parent, content)
    return f"{file.name} without {name}"


class _Sources(NamedTuple):
    """Folders of checkpoints that killed trainings left."""

    own: list[Path]
    foreign: list[Path]


def _damage(rng: random.Random, work: Path, sources: _Sources) -> str:
    """Damages the checkpoints of a killed training; returns what was done."""
    run = work / "sft-1"
    folder = run / KEY[:16]
    files = sorted(folder.iterdir())
    file = rng.choice(files)
    how = rng.random()
    if how < 0.4:
        return damage_file(rng, file, damaged_bytes)
    if how < 0.5 and len(files) > 1:
        aside = file.with_name("aside")
        files[0].rename(aside)
        files[-1].rename(files[0])
        aside.rename(files[-1])
        return f"exchanged {files[0]} and {files[-1]}"
    if how < 0.6:  # another training's, in the place of this one's; a wider model's as if it were of the same key
        found = rng.choice(sources.foreign)
        file.unlink()
        other = rng.choice(sorted(found.glob("sft-1/*/step-*")))
        if found.name == "of a wider model" and rng.random() < 0.7:
            _saved(folder, torch.load(other, weights_only=True))
        else:
            shutil.copy(other, folder / other.name)
        return f"{found.name}: {other.name}"
    if how < 0.75:
        return _without_a_part(rng, file)
    if how < 0.9:  # what does not belong there
        place = folder / rng.choice(
            ["step-", "step-x", "step-0000000009-a.pt", "step-9999999999", "partial-1", "x", ""]
        )
        place = rng.choice([place, run / FILE, file])
        remove(place)
        made = rng.choice(["file", "folder", "link"])
        if made == "file":
            place.write_bytes(damaged_bytes(rng, b"{}"))
        elif made == "folder":
            place.mkdir()
        else:
            place.symlink_to(rng.choice(["/nowhere", ".", place.name, files[0].name]))
        return f"a {made} at {place}"
    older = rng.choice(sources.own)  # a later killed process's and an earlier one's, side by side
    for other in older.glob(f"sft-1/{KEY[:16]}/step-*"):
        shutil.copy(other, folder / other.name)
    return f"{damage_file(rng, files[-1], damaged_bytes)} beside those of {older.name}"


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
