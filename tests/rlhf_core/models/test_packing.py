"""Packed passes: what is computed is what each sequence alone gives, whatever stands beside it."""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, PAD, VOCABULARY
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.device import FLASH, padded
from rlhf_core.models.loading import decoder_of
from rlhf_core.models.packing import Layout, obstacle, packs, pad
from rlhf_core.models.policy import Policy, pad_sequences, sequence_statistics
from rlhf_core.models.response_states import response_states
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.preference_training import pair_loss
from rlhf_core.segmentation.segments import SegmentedSequence

SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1},
    "gpt2": {"n_embd": 16, "n_positions": 64},
    "qwen2": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 2},
    "mistral": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "sliding_window": 6},
    "gemma3_text": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8},
    "gemma2": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8},
}
PACKED = [name for name in SIZES if name != "gemma2"]  # its attention has a soft cap


def configuration(model_type: str) -> Any:
    sizes = {"n_layer": 2, "n_head": 2} if model_type == "gpt2" else {"num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": EOS}
    spread = {"initializer_range": 0.3, "vocab_size": VOCABULARY}
    return AutoConfig.for_model(model_type, **sizes, **SIZES[model_type], **special, **spread)


def language_model(model_type: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(configuration(model_type), dtype=torch.float32).eval()
    return model


def batch(rng: random.Random, groups: list[list[int]]) -> list[EncodedSequence]:
    """Prompts of 1 to 7 tokens, the first of each group's answers of these lengths; rows are mixed."""

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(count)]

    prompts = [tokens(rng.randint(1, 7)) for _ in groups]
    rows = [EncodedSequence(prompt, tokens(n)) for prompt, of in zip(prompts, groups, strict=True) for n in of]
    rng.shuffle(rows)
    return rows


def weighted(states: Tensor, mask: Tensor) -> Tensor:
    """A sum over states in which each counts differently, 0 on padding."""
    real = torch.cat([torch.ones(len(mask), 1, dtype=torch.bool), mask], dim=1)
    weights = torch.linspace(-1, 1, states.shape[-1]) * (1 + torch.arange(states.shape[1])[:, None] % 3)
    return (states * weights)[real].sum()


def gradients(model: torch.nn.Module) -> list[Tensor]:
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def close(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("model_type", list(SIZES))
@settings(max_examples=8, deadline=None)
@given(
    groups=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=4), seed=st.integers(0)
)
def test_states_and_gradients_are_those_of_each_sequence_alone(
    model_type: str, groups: list[list[int]], seed: int
) -> None:
    model = language_model(model_type)
    backbone, rows = decoder_of(model), batch(random.Random(seed), groups)
    inputs = pad_sequences(rows, PAD, torch.device("cpu"))
    states = response_states(backbone, *inputs)
    weighted(states, inputs[3]).backward()
    together = gradients(model)
    for i, row in enumerate(rows):
        ids = torch.tensor([[*row.prompt, *row.response]])
        own = backbone(input_ids=ids, use_cache=False).last_hidden_state[:, len(row.prompt) - 1 :]
        weighted(own, torch.ones(1, own.shape[1] - 1, dtype=torch.bool)).backward()
        close(states[i, : own.shape[1]].detach(), own[0].detach())
    alone = gradients(model)
    for packed, naive in zip(together, alone, strict=True):
        torch.testing.assert_close(packed, naive, atol=1e-4 * float(1 + naive.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("model_type", list(SIZES))
def test_padding_is_never_read_even_where_it_is_not_a_number(model_type: str) -> None:
    rows = batch(random.Random(1), [[3, 0, 5], [2], [1, 4]])
    model, poisoned = language_model(model_type), language_model(model_type)
    for each in (model, poisoned):
        each.lm_head.weight = torch.nn.Parameter(model.get_output_embeddings().weight.detach().clone())
    with torch.no_grad():
        poisoned.get_input_embeddings().weight[PAD] = torch.nan
    results = []
    for each in (model, poisoned):
        found, mask = sequence_statistics(Policy(each, pad_id=PAD, eos_id=EOS), rows, with_entropy=True)
        results.append([found.logprobs.detach(), found.entropies.detach()])
        assert not found.logprobs[~mask].any()
        found.logprobs.sum().backward()
        embeddings = each.get_input_embeddings().weight
        results[-1] += [
            p.grad[PAD + 1 :] if p is embeddings else p.grad for p in each.parameters() if p.grad is not None
        ]
    close(*results)


def test_each_prompt_and_each_real_token_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch(random.Random(2), [[5, 3, 1, 0], [2, 2], [4]])
    backbone, seen = decoder_of(language_model("llama")), list[int]()
    backbone.layers[0].mlp.register_forward_hook(lambda module, given, out: seen.append(out.shape[:-1].numel()))
    response_states(backbone, *pad_sequences(rows, PAD, torch.device("cpu")))
    prompts = {tuple(row.prompt) for row in rows}
    assert seen == [sum(map(len, prompts)) + sum(len(row.response) for row in rows)]


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_dropout_and_recomputed_layers_leave_a_packed_step_as_it_is(model_type: str) -> None:
    from rlhf_core.models.forward import recompute_layers

    results = []
    for recomputed in (False, True):
        model = ScalarModel.from_language_model(language_model(model_type))
        if recomputed:
            assert recompute_layers(model.backbone)
        sides = [[SegmentedSequence(row, [len(row.response) - 1]) for row in batch(random.Random(3), [[4], [2], [6]])]
                 for _ in range(2)]  # fmt: skip
        torch.manual_seed(0)
        loss, _, sums = pair_loss(model.train(), sides[0], sides[1][::-1], PAD)
        loss.backward()
        results.append((loss.detach(), sums["margin"], gradients(model)))
    close(*results)


def varlen(q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, most_q: int, most_k: int, *,
           dropout_p: float, softmax_scale: float | None, causal: bool, deterministic: bool) -> Tensor:  # fmt: skip
    """Flash attention of ragged rows by its documentation: the causal mask is aligned to the bottom right."""
    assert causal
    assert not deterministic
    assert dropout_p == 0.0
    assert most_q == int(ends_q.diff().max())
    assert most_k == int(ends_k.diff().max())
    rows = []
    for i in range(len(ends_q) - 1):
        asked, known = q[ends_q[i] : ends_q[i + 1]], k[ends_k[i] : ends_k[i + 1]]
        repeat = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", asked, known.repeat_interleave(repeat, 1)) * softmax_scale
        sees = torch.ones(scores.shape[1:]).tril(scores.shape[2] - scores.shape[1]).bool()
        of = v[ends_k[i] : ends_k[i + 1]].repeat_interleave(repeat, 1)
        rows.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~sees, -torch.inf).softmax(-1), of))
    return torch.cat(rows)


@pytest.mark.parametrize("groups", [[[3, 0, 5], [2], [1, 4]], [[3], [2], [0]]])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2"])
def test_flash_attention_is_given_ragged_rows(
    model_type: str, groups: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    backbone = decoder_of(language_model(model_type))
    inputs = pad_sequences(batch(random.Random(4), groups), PAD, torch.device("cpu"))
    states = []
    for kernel in ("sdpa", FLASH):
        backbone.config._attn_implementation = kernel
        assert packs(backbone)
        states.append(response_states(backbone, *inputs))
    real = torch.cat([torch.ones(len(inputs[3]), 1, dtype=torch.bool), inputs[3]], dim=1)
    close(states[0][real], states[1][real])


@pytest.mark.parametrize("model_type", PACKED)
def test_architectures_that_hand_positions_and_options_on_are_packed(model_type: str) -> None:
    assert obstacle(configuration(model_type)) == ""


@pytest.mark.parametrize(
    "model_type", ["t5", "bloom", "gpt_neo", "gemma2", "falcon", "qwen3_next", "mamba", "llama4_text", "gemma3n_text"]
)
def test_other_architectures_are_not(model_type: str) -> None:
    assert obstacle(AutoConfig.for_model(model_type))


def test_a_trial_leaves_the_random_numbers_of_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seed: int) -> None:
        raise AssertionError(f"GPUs are seeded with {seed}")

    backbone, before = decoder_of(language_model("llama")), torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    monkeypatch.setattr("rlhf_core.models.packing._known", {})
    assert packs(backbone)
    assert torch.equal(torch.get_rng_state(), before)


def test_padded_batches_are_said_once_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    backbone, inputs = decoder_of(language_model("gemma2")), pad_sequences(
        batch(random.Random(5), [[2, 3]]), PAD, torch.device("cpu")
    )  # fmt: skip
    padded.clear()
    for _ in range(2):
        response_states(backbone, *inputs)
    assert capsys.readouterr().err.count("gemma2") == 1
    assert padded == {"gemma2"}
    eager = decoder_of(language_model("llama"))
    eager.set_attn_implementation("eager")
    assert not packs(eager)
    padded.clear()


def test_a_model_is_padded_where_that_is_asked_for_or_a_window_is_too_short() -> None:
    rows = batch(random.Random(6), [[6, 2], [5]])
    inputs = pad_sequences(rows, PAD, torch.device("cpu"))
    assert Layout(*inputs).longest == max(len(row) for row in rows) > 6, "longer than the window of the test's mistral"
    for model_type in ("mistral", "llama"):
        first, second = (decoder_of(language_model(model_type)) for _ in range(2))
        pad(second)
        assert not packs(second)
        found = [response_states(each, *inputs) for each in (first, second)]
        real = torch.cat([torch.ones(len(inputs[3]), 1, dtype=torch.bool), inputs[3]], dim=1)
        close(found[0][real], found[1][real])
    padded.clear()
