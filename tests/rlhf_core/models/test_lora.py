"""LoRA: the adapter switched off is the base model; saving and merging keep the adapted one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import EOS, PAD, POLICIES, batch_of, random_rows

from rlhf_core.errors import RecipeError
from rlhf_core.models.generation import generate
from rlhf_core.models.loading import load_language_model, trainable_parameters
from rlhf_core.models.lora import Adapter, AdapterOff
from rlhf_core.models.lora_settings import LoraSettings
from rlhf_core.models.policy import Policy, policy_of
from rlhf_core.models.sampling import Sampling

pytest.importorskip("peft")
BATCH = batch_of(random_rows(1, [3, 5, 2], ended=False), random_rows(2, [4, 1, 6]))


def logprobs(policy: Policy) -> torch.Tensor:
    responses = BATCH.responses
    return policy.statistics(BATCH.prompt_ids, BATCH.prompt_mask, responses.ids, responses.mask).logprobs


def adapted(kind: str) -> tuple[Policy, Adapter]:
    """A policy whose adapters have been trained for a step."""
    policy = POLICIES[kind](1)
    adapter = Adapter(policy.model, LoraSettings(rank=4, alpha=8))
    adam = torch.optim.Adam(trainable_parameters(policy.model), lr=0.05)
    for _ in range(2):
        adam.zero_grad()
        logprobs(policy).sum().backward()
        adam.step()
    return policy, adapter


def test_the_reference_is_the_base_model_with_the_adapters_off(kind: str) -> None:
    policy, adapter = adapted(kind)
    reference, copy = AdapterOff(policy, adapter), POLICIES[kind](1)
    with torch.no_grad():
        assert torch.equal(logprobs(reference), logprobs(copy))
        assert (logprobs(policy) - logprobs(copy)).abs().max() > 1e-3
    options = (BATCH.prompt_ids, BATCH.prompt_mask, Sampling(5))
    ours = generate(reference, *options, torch.Generator().manual_seed(0))
    assert torch.equal(ours.ids, generate(copy, *options, torch.Generator().manual_seed(0)).ids)
    assert {name.split(".")[-3] for name, p in policy.model.named_parameters() if p.requires_grad} == {
        "lora_A",
        "lora_B",
    }


def test_a_merged_model_loads_as_any_other_and_gives_the_same(kind: str, tmp_path: Path) -> None:
    policy, adapter = adapted(kind)
    with torch.no_grad():
        before = logprobs(policy)
        adapter.save(tmp_path / "adapter")
        adapter.merged().save_pretrained(tmp_path / "merged", safe_serialization=True)
        loaded = policy_of(load_language_model(tmp_path / "merged").eval(), pad_id=PAD, eos_id=EOS)
        torch.testing.assert_close(logprobs(loaded), before, atol=1e-5, rtol=1e-4)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]


def test_settings_that_fit_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match="rank is 0; it must be from 1 to 65536"):
        LoraSettings(rank=0)
    with pytest.raises(RecipeError, match="do not fit"):
        Adapter(POLICIES["decoder"]().model, LoraSettings(targets=("nothing",)))
