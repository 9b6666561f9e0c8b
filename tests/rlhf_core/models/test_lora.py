"""LoRA: the adapter switched off is the base model; saving and merging keep the adapted one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import EOS, PAD, POLICIES, batch_of, random_rows
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhf_core.errors import RecipeError
from rlhf_core.models.loading import load_language_model, trainable_parameters
from rlhf_core.models.lora import Adapter, LoraSettings
from rlhf_core.models.policy import Policy, policy_of
from rlhf_core.models.sampling import Sampling, generate
from rlhf_core.models.vllm.weights import effective

pytest.importorskip("peft")
BATCH = batch_of(random_rows(1, [3, 5, 2], ended=False), random_rows(2, [4, 1, 6]))


def tied_model(tied: bool) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=20, num_key_value_heads=2, tie_word_embeddings=tied, **sizes)).eval()


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
    reference, copy = adapter.reference(policy), POLICIES[kind](1)
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


@pytest.mark.parametrize("targets", [("lm_head",), ("q_proj", "embed_tokens")])
def test_adapters_of_weights_that_two_layers_share_are_refused(targets: tuple[str, ...]) -> None:
    with pytest.raises(
        RecipeError, match=r"shares its weights with .*leave (lm_head|embed_tokens) out of lora.targets"
    ):
        Adapter(tied_model(tied=True), LoraSettings(rank=4, alpha=8, targets=targets))
    Adapter(tied_model(tied=False), LoraSettings(rank=4, alpha=8, targets=targets))


@pytest.mark.parametrize(("tied", "targets"), [(True, "all-linear"), (False, ("lm_head",)), (False, ("embed_tokens",))])
def test_an_engine_takes_the_weights_that_an_adapted_model_computes_with(
    tied: bool, targets: str | tuple[str, ...]
) -> None:
    model, ids = tied_model(tied), torch.tensor([[3, 1, 4, 1, 5]])
    adapter = Adapter(model, LoraSettings(rank=4, alpha=8, targets=targets))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter += 0.1
        expected, fresh = model(ids).logits, tied_model(tied)
        fresh.load_state_dict(effective(model), strict=False)
        torch.testing.assert_close(fresh(ids).logits, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(adapter.merged()(ids).logits, expected, atol=1e-5, rtol=1e-4)


def test_settings_that_fit_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match="rank is 0; it must be from 1 to 65536"):
        LoraSettings(rank=0)
    with pytest.raises(RecipeError, match="do not fit"):
        Adapter(POLICIES["decoder"]().model, LoraSettings(targets=("nothing",)))
