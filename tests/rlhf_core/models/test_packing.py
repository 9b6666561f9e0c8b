"""Batches without padding: states, losses and gradients are those of padded batches, and of each sequence alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import EOS, PAD, VOCABULARY, random_rows
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.device import FLASH
from rlhf_core.models.loading import decoder_of
from rlhf_core.models.policy import Policy
from rlhf_core.models.response_states import can_pack, pack_rows, packed_states, padded_states
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.preference_training import can_share_prompts, pair_loss, score_all
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.supervised.objectives import sft_loss

SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1},
    "gpt2": {"n_embd": 16, "n_positions": 64},
    "qwen2": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 2},
    "mistral": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "sliding_window": 4},
}


def configuration(model_type: str) -> Any:
    sizes = {"n_layer": 2, "n_head": 2} if model_type == "gpt2" else {"num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": EOS}
    spread = {"initializer_range": 0.3, "vocab_size": VOCABULARY}
    return AutoConfig.for_model(model_type, **sizes, **SIZES[model_type], **special, **spread)


def language_model(model_type: str, attention: str = "sdpa") -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(configuration(model_type), dtype=torch.float32).eval()
    model.set_attn_implementation(attention)
    return model


def encoded(seed: int) -> list[EncodedSequence]:
    """Sequences of uneven lengths, one with a response of one token."""
    prompts = random_rows(seed, [3, 9, 1, 4, 2], ended=False)
    return [EncodedSequence(*both) for both in zip(prompts, random_rows(seed + 1, [6, 1, 3, 8, 2]), strict=True)]


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def close(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", list(SIZES))
@pytest.mark.parametrize("seed", [0, 1])
def test_states_are_those_of_padded_batches_wherever_the_padding_is(model_type: str, attention: str, seed: int) -> None:
    backbone, rng = decoder_of(language_model(model_type, attention)), random.Random(seed)
    prompts, longest = [3, 5, 1, 7], 6
    rows = [[rng.randrange(3, VOCABULARY) for _ in range(prompt + longest)] for prompt in prompts]
    rows[0], rows[2] = rows[0][:6], rows[2][:2]
    width, compared = 16, []
    for side in ("left", "right", "anywhere"):
        ids, mask = torch.full((4, width), PAD), torch.zeros(4, width, dtype=torch.bool)
        for row, tokens in enumerate(rows):
            free, length = width - len(tokens), len(tokens)
            places = {"left": range(free, width), "right": range(length)}.get(side)
            taken = list(places if places is not None else sorted(rng.sample(range(width), length)))
            ids[row, taken], mask[row, taken] = torch.tensor(tokens), True
        with torch.no_grad():
            given = backbone, ids, mask, torch.tensor(prompts), longest
            packed, padded = packed_states(*given), padded_states(*given)
        for row, tokens in enumerate(rows):
            real = len(tokens) - prompts[row] + 1
            close(packed[row, :real], padded[row, :real])
        compared.append(packed)
    close(compared[0], compared[1])
    close(compared[0], compared[2])


@pytest.mark.parametrize("model_type", list(SIZES))
def test_an_sft_step_without_padding_is_the_padded_one(model_type: str) -> None:
    model = language_model(model_type)
    policy, results = Policy(model, pad_id=PAD, eos_id=EOS), []
    for packed in (False, True):
        if packed:
            pack_rows(decoder_of(model))
        loss, tokens = sft_loss(policy, encoded(3))
        (loss / tokens).backward()
        results.append((loss.detach() / tokens, gradients(model)))
    close(*results)
    alone = [sft_loss(policy, [one])[0].detach() for one in encoded(3)]
    close(torch.stack(alone).sum() / tokens, results[0][0])


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen2"])
def test_a_reward_models_step_without_padding_is_the_padded_one(model_type: str) -> None:
    scalar = ScalarModel.from_language_model(language_model(model_type))
    sides = []
    for seed in (5, 7):  # different prompts on both sides, too
        sides.append([SegmentedSequence(one, sorted({0, len(one.response) - 1})) for one in encoded(seed)])
    results = []
    for packed in (False, True):
        if packed:
            pack_rows(scalar.backbone)
            assert not can_share_prompts(scalar, 20)
        loss, _, sums = pair_loss(scalar, *sides, PAD)
        loss.backward()
        values, segments = score_all(scalar, sides[0], PAD)
        results.append((loss.detach(), sums["margin"], values, segments[0], gradients(scalar)))
    close(*results)


@pytest.mark.parametrize("attention", ["sdpa", FLASH])
@pytest.mark.parametrize("model_type", list(SIZES))
def test_architectures_that_hand_positions_on_are_packed(model_type: str, attention: str) -> None:
    assert can_pack(configuration(model_type), attention)


@pytest.mark.parametrize(
    ("model_type", "attention"),
    [
        ("t5", "sdpa"),  # an encoder-decoder
        ("bloom", "sdpa"),  # its forward pass takes no positions
        ("opt", "sdpa"),  # its mask is made without them
        ("gpt_neo", FLASH),  # its attention cannot be replaced, so nothing is known
    ],
)
def test_other_architectures_are_not(model_type: str, attention: str) -> None:
    assert not can_pack(AutoConfig.for_model(model_type), attention)
