"""Gradient checkpointing: the same gradients from fewer kept activations; and TF32 inside transformers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import EOS, PAD, POLICIES, batch_of, configuration, random_rows, tiny_critic, tiny_scalar_model
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from rlhf_core.models.device import CPU, Device, grant
from rlhf_core.models.forward import recompute_layers
from rlhf_core.models.loading import set_device_defaults
from rlhf_core.models.lora import Adapter, LoraSettings
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.stepper import stepper_of

BATCH = batch_of(random_rows(1, [3, 5, 2], ended=False), random_rows(2, [4, 1, 6]))
GIVEN = BATCH.prompt_ids, BATCH.prompt_mask, BATCH.responses.ids, BATCH.responses.mask


def of_policy(kind: str, lora: bool = False) -> tuple[nn.Module, Callable[[], Tensor]]:
    policy = POLICIES[kind](1)
    if lora:
        pytest.importorskip("peft")
        Adapter(policy.model, LoraSettings(rank=4, alpha=8))
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
    return policy.model, lambda: policy.statistics(*GIVEN).logprobs.sum()


def of_reward_model() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = tiny_scalar_model(heads=("reward", "length"), projections={"query": 4, "key": 4})
    ends = torch.tensor([[0, 3], [0, -1], [2, 5]])

    def loss() -> Tensor:
        states = model.at_ends(*GIVEN, ends)
        return states.values.sum() + (states.project("query") * states.project("key")).sum() + states.base.sum()

    return model, loss


def of_critic() -> tuple[nn.Module, Callable[[], Tensor]]:
    critic = tiny_critic("decoder")
    return critic, lambda: critic(*GIVEN, head="value", shift=1).sum()


CASES: dict[str, Callable[[], tuple[nn.Module, Callable[[], Tensor]]]] = {
    "policy": lambda: of_policy("decoder"),
    "policy with adapters": lambda: of_policy("decoder", lora=True),
    "encoder-decoder": lambda: of_policy("encoder_decoder"),
    "reward model": of_reward_model,
    "critic": of_critic,
}


def kept_bytes(loss: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The loss, and the bytes of distinct tensors that its graph keeps, parameters left out."""
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        if not isinstance(value, nn.Parameter):
            kept[value.data_ptr()] = value.numel() * value.element_size()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        return loss(), sum(kept.values())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_equal_and_less_is_kept(name: str) -> None:
    found = []
    for recomputed in (False, True):
        model, loss = CASES[name]()
        if recomputed:
            assert recompute_layers(model) >= 2
            assert recompute_layers(model) >= 2, "a second time changes nothing"
        value, size = kept_bytes(loss)
        value.backward()
        found.append((value.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, size))
    (plain, expected, much), (again, gradients, less) = found
    assert torch.equal(plain, again)
    assert gradients.keys() == expected.keys()
    assert gradients
    for each in expected:
        torch.testing.assert_close(gradients[each], expected[each], atol=1e-6, rtol=1e-6)
    assert less < 0.8 * much


@pytest.fixture
def tf32_gpu() -> Any:
    before = torch.backends.cuda.matmul.allow_tf32
    grant(Device("a GPU", 24.0, bf16=True, count=1, tf32=True))
    yield
    grant(CPU)
    torch.backends.cuda.matmul.allow_tf32 = before


def test_tf32_is_on_inside_float32_transformers_and_in_their_backward_pass_alone(tf32_gpu: None) -> None:
    torch.manual_seed(0)
    language_model = LlamaForCausalLM(configuration()).eval()
    set_device_defaults(language_model)
    scalar = ScalarModel.from_language_model(language_model, projections={"query": 4})
    policy = Policy(language_model, pad_id=PAD, eos_id=EOS)
    seen: dict[str, set[bool]] = {}

    def watch(name: str) -> Callable[..., None]:
        return lambda *_: seen.setdefault(name, set()).add(torch.backends.cuda.matmul.allow_tf32)

    body = scalar.backbone
    body.layers[0].mlp.register_forward_hook(watch("layer"))
    body.layers[1].mlp.down_proj.weight.register_hook(watch("backward"))
    body.rotary_emb.register_forward_hook(watch("rotary"), prepend=True)
    scalar.heads["reward"].register_forward_hook(watch("head"))
    scalar.projections["query"].register_forward_hook(watch("projection"))
    language_model.lm_head.register_forward_hook(watch("logits"))
    stepper = stepper_of(scalar, "adam", rate=1e-3, betas=(0.9, 0.95), max_grad_norm=1.0)
    states = scalar.at_ends(*GIVEN, torch.tensor([[0], [0], [2]]))
    stepper.backward(stepper.forward(lambda: states.values.sum() + states.project("query").sum()))
    policy.statistics(*GIVEN)
    assert seen == {
        "layer": {True}, "backward": {True}, "rotary": {False}, "head": {False}, "projection": {False},
        "logits": {False},
    }  # fmt: skip
    assert not torch.backends.cuda.matmul.allow_tf32
