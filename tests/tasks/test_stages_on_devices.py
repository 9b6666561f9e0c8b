"""Stages on a described device: what they resolve to is applied, recorded and shown; the device itself is the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_core.errors import RecipeError
from rlhf_core.models.device import CPU, Device, grant
from rlhf_core.stepper import use_deepspeed
from rlhf_core.supervised.config import TrainingConfig
from tasks.running import device_settings, launch, stage
from tasks.running.device_settings import apply_supervised_device_settings
from tests.tasks.golden_runs import SETTINGS, GoldenRuns, SharedRuns
from tests.tasks.test_precision_rows import dtypes

SIZES = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2,
}  # fmt: skip
CARD = Device("a GPU", 24.0, bf16=True, count=1, tf32=True)
#: So little memory that no activation fits.
FULL = Device("a full GPU", 0.0, bf16=True, count=1, tf32=True)


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def take(device: Device) -> None:
        monkeypatch.setattr(launch, "described_device", lambda: device)

    yield take
    grant(CPU)


def resolved(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "record" / "record.json").read_text())["resolved"]
    return found


def changed(golden: SharedRuns, root: Path, **settings: dict[str, Any]) -> GoldenRuns:
    """Golden runs with their results so far, and other settings."""
    made = GoldenRuns(root).write({name: {**SETTINGS[name], **own} for name, own in settings.items()})
    names = ("dialogue", "dialogue-tokenizer", "sft", "entropies", "model-segment", "fit-segment", "segment")
    return made.copy(golden, *names)


def test_a_stage_on_the_cpu_records_that_nothing_is_changed(golden: SharedRuns) -> None:
    expected = {"precision": "float32", "attention": "sdpa", "tf32": False, "gradient_checkpointing": False}
    for name in ("sft", "model-segment", "segment", "dpo"):
        assert resolved(golden.out(name)) == {**expected, "processes": 1}
    assert "resolved" not in golden.record("dialogue-tokenizer")


def test_a_stage_on_a_gpu_with_bf16_leaves_bf16_weights_for_the_stages_after_it(
    golden: SharedRuns, tmp_path: Path, described: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    described(CARD)
    made = changed(golden, tmp_path)
    for name in ("sft", "model-segment"):
        shutil.rmtree(made.out(name))
        made.run(name)
        assert dtypes(made.result(name) / "model") == {"bfloat16"}
        assert resolved(made.out(name))["precision"] == "bf16"
        assert "attn_implementation" not in json.loads((made.result(name) / "model" / "config.json").read_text())
    assert "1 x a GPU, 24 GiB: bf16, sdpa attention, 1 process(es)" in capsys.readouterr().err


def test_layers_are_recomputed_where_they_do_not_fit_and_float32_is_kept_where_it_is_stated(
    golden: SharedRuns, tmp_path: Path, described: Any
) -> None:
    described(FULL)
    made = changed(golden, tmp_path, backbone={"precision": "float32"})
    shutil.rmtree(made.out("sft"))
    made.run("sft")
    found = resolved(made.out("sft"))
    assert (found["precision"], found["tf32"], found["gradient_checkpointing"]) == ("float32", True, True)
    assert made.read("sft", "history.jsonl") == golden.read("sft", "history.jsonl"), "the same numbers, on the CPU"


@pytest.mark.parametrize(
    ("name", "settings", "place"),
    [("sft", "backbone", "training"), ("model-segment", "training", ""), ("segment", "policy/ppo", "optimiser")],
)
def test_a_stage_with_recomputed_layers_ends_near_the_plain_one(
    golden: SharedRuns, tmp_path: Path, name: str, settings: str, place: str
) -> None:
    asked = {"gradient_checkpointing": True}
    own = {place: {**SETTINGS[settings][place], **asked}} if place else asked
    made = changed(golden, tmp_path, **{settings: own})
    shutil.rmtree(made.out(name))
    made.run(name)
    assert resolved(made.out(name))["gradient_checkpointing"]
    first, plain = (one.read(name, "history.jsonl")[0] for one in (made, golden))
    for metric in {"loss", "grad_norm", "policy_loss", "critic_grad_norm"} & plain.keys():
        assert first[metric] == pytest.approx(plain[metric], rel=1e-2, abs=1e-4), metric


@pytest.mark.parametrize(
    ("devices", "seen", "stated", "expected"),
    [("", 8, None, 0), ("-1", 8, None, 0), ("0", 8, None, 0), ("0,1,2", 3, None, 3), ("0,1", 0, None, 0),
     ("0,1,2", 3, "2", 2)],
)  # fmt: skip
def test_a_stage_has_a_process_for_each_of_its_gpus(
    monkeypatch: pytest.MonkeyPatch, devices: str, seen: int, stated: str | None, expected: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    monkeypatch.setattr("torch.cuda.device_count", lambda: seen)
    monkeypatch.delenv(launch.PROCESSES_VARIABLE, raising=False)
    if stated is not None:
        monkeypatch.setenv(launch.PROCESSES_VARIABLE, stated)
    monkeypatch.delenv(launch.DEEPSPEED_VARIABLE, raising=False)
    assert launch.launched_processes() == expected


@pytest.mark.parametrize(
    ("devices", "stated", "sharded", "expected"),
    [("0", None, True, 1), ("", "1", True, 1), ("", "2", True, 2), ("", "2", False, 2), ("", None, True, 0),
     ("0", "1", False, 0)],
)  # fmt: skip
def test_deepspeed_has_a_process_group_also_in_one_process(
    monkeypatch: pytest.MonkeyPatch, devices: str, stated: str | None, sharded: bool, expected: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    config = "zero3.json" if sharded else None
    monkeypatch.delenv(launch.ACCELERATE_VARIABLE, raising=False)
    for name, value in ((launch.PROCESSES_VARIABLE, stated), (launch.DEEPSPEED_VARIABLE, config)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert launch.launched_processes() == expected
    monkeypatch.setenv("RANK", "0")
    assert launch.launched_processes() == 0


def test_the_testbed_sees_no_gpu_before_its_processes_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    stage.hide_gpus(Path("results/small/segment/policy/x/0"))
    assert launch._named_gpus() == 2
    stage.hide_gpus(Path("results/testbed/segment/policy/x/0"))
    assert launch._named_gpus() == 0


def test_float32_weights_are_trained_in_bf16_where_deepspeed_says_so(described: Any) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    config = TrainingConfig(epochs=1, batch=2, microbatch=2, learning_rate=1e-3)
    grant(CARD)
    try:
        for enabled, precision in ((False, "float32"), (True, "bf16")):
            use_deepspeed({"bf16": {"enabled": enabled}, "zero_optimization": {"stage": 3}})
            found = apply_supervised_device_settings(model, config, 8)
            assert (found.precision, found.tf32) == (precision, not enabled)
    finally:
        use_deepspeed(None)


def test_an_architecture_without_marked_layers_is_refused_where_recomputation_is_stated_and_named_where_not(
    described: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    monkeypatch.setattr(device_settings, "recompute_layers", lambda body: 0)
    config = TrainingConfig(epochs=1, batch=2, microbatch=2, learning_rate=1e-3)
    grant(FULL)
    assert not apply_supervised_device_settings(model, config, 8).gradient_checkpointing
    assert "note: llama has no layers" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="gradient_checkpointing is true, but llama has no layers"):
        apply_supervised_device_settings(model, replace(config, gradient_checkpointing=True), 8)
