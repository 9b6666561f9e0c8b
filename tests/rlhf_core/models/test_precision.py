"""Weights in bf16: what is computed from them is float32, and training them loses nothing that float32 copies keep."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import POLICIES, batch_of, random_rows, tiny_critic
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM

from rlhf_core.errors import RecipeError
from rlhf_core.models.loading import load_language_model, set_attention, set_precision
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.stepper import PlainStepper, stepper_of, use_deepspeed
from tests.rlhf_core.policy_optimisation.test_compositions import run_of

HALF = torch.bfloat16
PROMPTS = random_rows(1, [3, 5, 2, 4], ended=False)
ROWS = random_rows(2, [4, 1, 6, 3])


@pytest.fixture
def deepspeed() -> Iterator[Any]:
    yield use_deepspeed
    use_deepspeed(None)


def pair(kind: str) -> tuple[Policy, Policy]:
    """The same policy in float32 and in bf16."""
    whole, half = POLICIES[kind](1), POLICIES[kind](1)
    for model in (whole.model, half.model):
        set_precision(model, HALF)  # both have the rounded weights
    set_precision(whole.model, torch.float32)
    return whole, half


def statistics(policy: Policy) -> Any:
    batch = batch_of(PROMPTS, ROWS)
    with torch.no_grad():
        return policy.statistics(batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask)


def test_a_head_reads_bf16_states_in_float32_and_is_saved_so(kind: str, tmp_path: Path) -> None:
    plain = tiny_critic(kind, 1)
    model = ScalarModel(plain.backbone, ("value",), bias=True)
    set_precision(model.backbone, HALF)
    batch = batch_of(PROMPTS, ROWS)
    inputs = (batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask)
    with torch.no_grad():
        values = model(*inputs, head="value")
        model.save(tmp_path, {})
        again = ScalarModel.load(tmp_path)[0]
        assert torch.equal(again(*inputs, head="value"), values)
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.to(HALF).float())
    assert {p.dtype for p in again.backbone.parameters()} == {HALF}
    assert {p.dtype for p in again.heads.parameters()} == {torch.float32}


def line(weight: float = 1.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False, dtype=HALF)
    nn.init.constant_(model.weight, weight)
    return model


def test_steps_smaller_than_the_spacing_of_bf16_are_not_lost() -> None:
    model = line()
    stepper = stepper_of(model, "adam", rate=1e-4, betas=(0.9, 0.95), max_grad_norm=1.0)
    for _ in range(100):
        stepper.zero_grad()
        stepper.backward(model(torch.ones(1, 1, dtype=HALF)).float().sum())
        stepper.step(lambda norm: None)
    assert isinstance(stepper, PlainStepper)
    assert stepper.masters["weight"].item() == pytest.approx(0.99, abs=1e-4)
    assert model.weight.item() == pytest.approx(0.99, abs=2**-8)


def test_gradients_of_microbatches_are_added_up_in_float32() -> None:
    model = line()
    stepper = stepper_of(model, "adam", rate=1e-4, betas=(0.9, 0.95), max_grad_norm=1e9)
    stepper.zero_grad()
    norms: list[float] = []
    for _ in range(1000):  # in bf16 a sum of ones stops at 256
        stepper.backward(model(torch.ones(1, 1, dtype=HALF)).float().sum())
    assert stepper.step(norms.append) == pytest.approx(1000)
    assert norms == pytest.approx([1000])


def test_float32_and_double_models_are_trained_as_they_are(deepspeed: Any) -> None:
    for dtype in (torch.float32, torch.float64):
        made = stepper_of(line().to(dtype), "adam", rate=1e-4, betas=(0.9, 0.95), max_grad_norm=1.0)
        assert isinstance(made, PlainStepper)
        assert not made.masters
    deepspeed({"zero_optimization": {"stage": 2}})
    with pytest.raises(RecipeError, match="enable bf16 in the DeepSpeed configuration"):
        stepper_of(line(), "adam", rate=1e-4, betas=(0.9, 0.95), max_grad_norm=1.0)


def run_from(name: str, policy: Policy, seed: int = 0) -> PolicyOptimiser:
    sizes = {"iterations": 2, "minibatch": 8, "microbatch": 4, "epochs": 2, "max_grad_norm": 1.0}
    return run_of(name, start=policy, seed=seed, **sizes)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_an_update_in_bf16_is_near_that_in_float32(name: str) -> None:
    """From the same rollouts: losses, gradients and the float32 copies after the step."""
    kind = "decoder"  # the tiny encoder-decoder's attention is so sharp that single tokens decide its gradient
    whole, half = (run_from(name, policy) for policy in pair(kind))
    batch = whole.source.next(whole.generator)
    metrics = [run.update(run.experience(batch)) for run in (whole, half)]
    for found in ("policy_loss", "grad_norm"):
        assert metrics[1][found] == pytest.approx(metrics[0][found], rel=0.1, abs=0.02), found
    stepper = half.learner.actor
    assert isinstance(stepper, PlainStepper)
    start = dict(pair(kind)[0].model.named_parameters())
    after = dict(whole.policy.model.named_parameters())
    moved = torch.cat([(after[key] - start[key]).flatten() for key in start])
    near = torch.cat([(stepper.masters[key] - start[key]).flatten() for key in start])
    assert torch.nn.functional.cosine_similarity(moved, near, dim=0) > 0.8
    for key, parameter in half.policy.model.named_parameters():
        assert torch.equal(parameter, stepper.masters[key].to(HALF))


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_a_resumed_run_in_bf16_is_bitwise_the_uninterrupted_one(kind: str, name: str) -> None:
    half = pair(kind)[1]
    straight = run_from(name, half)
    history = [straight.iterate()[0] for _ in range(2)]
    assert abs(history[0]["kl"]) < 0.2
    assert history[0]["logprob_gap_max"] < 0.3
    first = run_from(name, half)
    first.iterate()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed = run_from(name, half, seed=9)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.iterate()[0] == history[1]
    for a, b in zip(resumed.policy.model.parameters(), straight.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert isinstance(resumed.learner.actor, PlainStepper)
    assert isinstance(straight.learner.actor, PlainStepper)
    for key, master in straight.learner.actor.masters.items():
        assert torch.equal(resumed.learner.actor.masters[key], master)


def test_precision_and_attention_are_kept_by_whoever_loads_a_saved_model(kind: str, tmp_path: Path) -> None:
    model = POLICIES[kind](1).model
    set_precision(model, HALF)
    set_attention(model, "eager")
    for folder in ("a", "b"):
        model.save_pretrained(tmp_path / folder)
        model = load_language_model(tmp_path / folder)
        assert model.dtype == HALF
        assert model.config._attn_implementation == "eager"
    assert load_language_model(tmp_path / "b", dtype=torch.float32).dtype == torch.float32
    plain = POLICIES[kind](1).model
    plain.save_pretrained(tmp_path / "plain")
    assert "attn_implementation" not in (tmp_path / "plain" / "config.json").read_text()


def test_attention_that_a_model_or_machine_lacks_is_refused() -> None:
    model = POLICIES["decoder"](1).model
    with pytest.raises(RecipeError, match="must be one of eager, sdpa, flash_attention_2"):
        set_attention(model, "fast")
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match="needs a GPU and the package flash_attn"):
            set_attention(model, "flash_attention_2")
    gemma = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8,
        )
    )  # fmt: skip
    with pytest.raises(RecipeError, match="attention 'sdpa'"):
        set_attention(gemma, "sdpa")
