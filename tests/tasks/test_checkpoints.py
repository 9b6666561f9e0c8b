"""Checkpoints: what goes in comes out, damage is noticed, a kill leaves the last whole one, time changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlhf_core.errors import DataError
from rlhf_core.supervised.config import TrainingConfig
from tasks.running import checkpoints as module
from tasks.running.checkpoints import (
    CheckpointStore,
    RunCheckpoints,
    random_states,
    restore_random_states,
    resumable_output,
    run_key,
    storable,
)
from tasks.running.supervised import train_resumably

KEY = "a" * 64


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, "sft-1", KEY)


def steps(store: CheckpointStore) -> list[int]:
    return [int(path.name.split("-")[1]) for path in store.saved()]


def state(step: int) -> dict[str, Any]:
    return {"weights": torch.full((3,), float(step)), "history": [{"step": step}]}


def loaded_step(store: CheckpointStore) -> int | None:
    checkpoint = store.load_latest()
    if checkpoint is None:
        return None
    assert torch.equal(checkpoint.state["weights"], torch.full((3,), float(checkpoint.step)))
    assert checkpoint.state["history"] == [{"step": checkpoint.step}]
    return checkpoint.step


def test_a_state_returns_as_it_was(store: CheckpointStore) -> None:
    shared = torch.randn(4, 3)
    given = {
        "text": "é\u2028",
        "numbers": [1, -0.1, 1e-320, float("inf"), True, None, 2**127],
        "tuple": (0.9, (1, "a"), []),
        "by_number": {0: {"step": torch.tensor(3.0)}, 7: {}},
        "half": torch.randn(5).bfloat16(),
        "empty": torch.zeros(0, 2),
        "view": torch.randn(600, 600)[1:3].t(),
        "tied": [shared, shared],
        "numpy": np.float64(0.1),
    }
    file = store.save(1, given)
    assert file.stat().st_size < 100_000, "a view is stored without the rest of its tensor"
    checkpoint = store.load_latest()
    assert checkpoint is not None
    found = checkpoint.state
    assert found.keys() == given.keys()
    for name in ("text", "numbers", "tuple", "numpy"):
        assert found[name] == given[name]
    assert type(found["tuple"]) is tuple
    assert list(found["by_number"]) == [0, 7]
    assert torch.equal(found["by_number"][0]["step"], torch.tensor(3.0))
    for name in ("half", "empty", "view"):
        assert torch.equal(found[name], given[name])
        assert found[name].dtype == given[name].dtype
    first, second = found["tied"]
    assert torch.equal(first, shared)
    assert torch.equal(second, shared)
    assert first.data_ptr() != second.data_ptr(), "changing one leaves the other"


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(TypeError, match=r"'loop/1/a' of type set"):
        storable({"loop": [0, {"a": {1, 2}}]})


def test_random_generators_go_on(store: CheckpointStore) -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    store.save(1, random_states())
    expected = [draw() for _ in range(3)]
    checkpoint = store.load_latest()
    assert checkpoint is not None
    restore_random_states(checkpoint.state)
    assert [draw() for _ in range(3)] == expected


def test_the_newest_checkpoint_is_loaded_and_few_are_kept(store: CheckpointStore) -> None:
    assert store.load_latest() is None
    for step in (5, 10, 15):
        store.save(step, state(step))
    assert steps(store) == [10, 15]
    assert {path.name for path in store.folder.iterdir()} == {path.name for path in store.saved()}
    assert loaded_step(store) == 15
    store.save(15, state(15))
    assert loaded_step(store) == 15
    store.remove()
    assert not store.run_folder.exists()


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", ["flip", "cut", "other", "text", "pickle"])
def test_a_damaged_checkpoint_is_passed_over(
    store: CheckpointStore, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.save(5, state(5))
    path = store.save(10, state(10))
    if damage == "flip":
        flip_a_byte(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:20])
    else:  # its digest is right
        content = {"other": b"[]", "text": b"", "pickle": pickle.dumps(Path("x"))}[damage]
        path.unlink()
        path = path.with_name(f"step-0000000010-{hashlib.sha256(content).hexdigest()[:16]}.pt")
        path.write_bytes(content)
    assert loaded_step(store) == 5
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{path.name} is damaged" in warning
    store.save(6, state(6))
    assert steps(store) == [5, 6]
    assert loaded_step(store) == 6


def test_checkpoints_of_another_key_are_not_read(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(5, state(5))
    other = CheckpointStore(tmp_path, "sft-1", "b" * 64)
    assert other.load_latest() is None
    other.save(1, state(1))
    assert loaded_step(store) == 5
    copied = CheckpointStore(tmp_path, "sft-1", KEY[:16] + "c" * 48)
    assert copied.load_latest() is None, "a file under this name whose content names another key"


@pytest.mark.parametrize("moment", ["_to_disk", "replace"])
def test_a_kill_while_saving_leaves_the_checkpoint_before(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The child ends without any clean-up, as by SIGKILL, between writing and renaming."""
    store.save(5, state(5))
    child = os.fork()
    if child == 0:
        kill = lambda *_: os._exit(9)  # noqa: E731
        monkeypatch.setattr(Path if moment == "replace" else module, moment, kill)
        try:
            store.save(10, state(10))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert list(store.folder.glob(".partial-*"))
    assert loaded_step(store) == 5
    store.save(6, state(6))
    assert not list(store.folder.glob(".partial-*"))
    assert loaded_step(store) == 6


def test_the_key_is_of_everything_that_the_result_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"params/a.yaml": "1" * 64, "data": "2" * 64}
    key = run_key("sft", 1, inputs, 0)
    assert key == run_key("sft", 1, {"elsewhere/a.yaml": "1" * 64, "data": "2" * 64}, 0)
    others = {
        run_key("policy", 1, inputs, 0),
        run_key("sft", 2, inputs, 0),
        run_key("sft", 1, inputs | {"data": "3" * 64}, 0),
        run_key("sft", 1, inputs, 1),
    }
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    others.add(run_key("sft", 1, inputs, 0))
    monkeypatch.setattr(module.metadata, "version", lambda name: "0.0")
    others.add(run_key("sft", 1, inputs, 0))
    assert len(others | {key}) == 7


def test_saving_keeps_to_its_interval_and_to_its_share(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    saves: list[int] = []

    def save(step: int, state: dict[str, Any]) -> None:
        saves.append(step)
        now[0] += 2.0

    monkeypatch.setattr(store, "save", save)
    run = RunCheckpoints(store, seconds=10)
    for step in range(1, 101):
        now[0] += 1
        run.offer(step, dict)
    # the first after 10 s; then 20 times the 2 s that saving takes
    assert saves == [10, 50, 90]


def test_success_removes_checkpoints_of_this_output_and_failure_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(module.SECONDS_VARIABLE, "0")
    (tmp_path / "spec").write_text("1")

    def run(out: str, *, fail: bool, spec: str = "1") -> Any:
        (tmp_path / "spec").write_text(spec)
        with resumable_output(out, stage="sft", version=1, inputs=["spec"], seed=0) as (result, checkpoints):
            saved = checkpoints.resume(out)
            checkpoints.offer(3, lambda: {"x": 1})
            if fail:
                raise ValueError(out)
            (result / "metrics.json").write_text("{}")
            return saved

    for out in ("a", "b"):
        with pytest.raises(ValueError, match=out):
            run(out, fail=True)
    assert len(list(module.WORK.glob("*/*/step-*.pt"))) == 2
    assert run("a", fail=False) == {"x": 1}
    assert len(list(module.WORK.glob("*/*/step-*.pt"))) == 1
    assert json.loads((tmp_path / "a/record/record.json").read_text())["seconds"] > 0
    # the output of another specification: nothing to go on from, and what is left of the first is cleared
    assert run("b", fail=False, spec="2") is None
    assert not list(module.WORK.glob("*/*/step-*.pt"))


def test_a_machine_believed_lost_may_save_at_the_same_time(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both save the same step; neither removes what the other writes, nor fails."""
    to_disk, nested = module._to_disk, []

    def other_saves(path: Path) -> None:
        if path.name.startswith(module.PARTIAL) and not nested:
            nested.append(path)
            with monkeypatch.context() as patched:
                patched.setattr(module.platform, "node", lambda: "other")
                store.save(5, state(5))
            assert path.is_file()
        to_disk(path)

    monkeypatch.setattr(module, "_to_disk", other_saves)
    store.save(5, state(5))
    assert nested
    assert loaded_step(store) == 5
    assert {path.name for path in store.folder.iterdir()} == {path.name for path in store.saved()}


class Stopped(Exception):
    """Stands for a kill after a checkpoint."""


def train_dropout(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, stop_after: int | None, seconds: float = 0
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """Eleven steps over two epochs of a model with a frozen layer, a tied weight and dropout."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].requires_grad_(False)
    model[3].weight = model[2].weight
    inputs = torch.randn(13, 4, generator=torch.Generator().manual_seed(1))
    config = TrainingConfig(updates=11, batch=2, microbatch=2, learning_rate=0.05)
    torch.manual_seed(99)

    def loss(rows: list[int]) -> tuple[torch.Tensor, float, dict[str, float]]:
        return (model(inputs[[*rows, 0]]) ** 2).sum(), float(len(rows)), {}

    run, save = RunCheckpoints(store, seconds), CheckpointStore.save

    def save_and_stop(self: CheckpointStore, step: int, state: dict[str, Any]) -> Path:
        path = save(self, step, state)
        if step == stop_after:
            raise Stopped
        return path

    monkeypatch.setattr(CheckpointStore, "save", save_and_stop)
    try:
        target = SimpleNamespace(loss=loss, weight=lambda rows: float(len(rows)), every=3, compared=False)
        target.lengths = [1 + i % 5 for i in range(13)]
        history = train_resumably(model, target, config, seed=0, checkpoints=run, label="x")
    finally:
        monkeypatch.setattr(CheckpointStore, "save", save)
    return [value.detach().clone() for value in model.state_dict().values()], history


def test_a_run_stopped_after_any_step_ends_as_one_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_to_disk", lambda path: None)
    never = CheckpointStore(tmp_path, "never", KEY)
    expected, history = train_dropout(never, monkeypatch, None, seconds=3600)
    assert never.load_latest() is None
    assert [row["step"] for row in history] == [3, 6, 9, 11]
    saving, same = train_dropout(CheckpointStore(tmp_path, "saving", KEY), monkeypatch, None)
    assert same == history
    assert all(torch.equal(a, b) for a, b in zip(saving, expected, strict=True)), "saving changes nothing"
    for stop in range(1, 12):
        store = CheckpointStore(tmp_path, f"stopped-{stop}", KEY)
        with pytest.raises(Stopped):
            train_dropout(store, monkeypatch, stop)
        found, rows = train_dropout(store, monkeypatch, None)
        assert rows == history
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), f"stopped after {stop}"


@pytest.mark.parametrize("part", ["random", "run", "seconds"])
def test_a_state_of_another_version_is_refused(store: CheckpointStore, part: str) -> None:
    saved = {"run": {"x": 1}, "random": [random_states()], "seconds": 1.0}
    store.save(5, {name: value for name, value in saved.items() if name != part})
    with pytest.raises(DataError, match=rf"not one of this training \(KeyError: '{part}'\)"):
        RunCheckpoints(store, 0).resume("x")
