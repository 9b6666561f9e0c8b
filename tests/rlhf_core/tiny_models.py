"""Tiny random models, a toy tokenizer and rollouts from token lists, for the tests of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, T5Config, T5ForConditionalGeneration

from rlhf_core.models.policy import EncoderDecoderPolicy, Policy, pad_rows
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rollout import Responses, RolloutBatch

PAD, BOS, EOS, VOCABULARY = 0, 1, 2, 50


def configuration(hidden: int = 16, vocabulary: int = VOCABULARY) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )


def tiny_policy(seed: int = 0, hidden: int = 16, vocabulary: int = VOCABULARY) -> Policy:
    torch.manual_seed(seed)
    return Policy(LlamaForCausalLM(configuration(hidden, vocabulary)).eval(), pad_id=PAD, eos_id=EOS)


def tiny_encoder_decoder(seed: int = 0) -> EncoderDecoderPolicy:
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        initializer_factor=2.0,
    )
    torch.manual_seed(seed)
    return EncoderDecoderPolicy(T5ForConditionalGeneration(config).eval(), pad_id=PAD, eos_id=EOS)


#: The two kinds of policy; every exactness test runs on both.
POLICIES = {"decoder": tiny_policy, "encoder_decoder": tiny_encoder_decoder}


def tiny_critic(kind: str, seed: int = 0) -> ScalarModel:
    """A critic on the backbone of a fresh tiny policy of that kind."""
    policy: Policy = POLICIES[kind](seed)
    return ScalarModel.from_language_model(policy.model, heads=("value",), seed=seed, bias=True)


def next_logits(policy: Policy, prompt: Sequence[int], row: Sequence[int]) -> torch.Tensor:
    """[len(row) + 1, vocabulary]: the model's own logits of one unpadded sequence, for each next token."""
    with torch.no_grad():
        if policy.model.config.is_encoder_decoder:
            inputs = torch.tensor([[PAD, *row]])
            return policy.model(input_ids=torch.tensor([list(prompt)]), decoder_input_ids=inputs).logits[0]
        return policy.model(torch.tensor([[*prompt, *row]])).logits[0, len(prompt) - 1 :]


def tiny_scalar_model(
    seed: int = 0, heads: Sequence[str] = ("reward",), vocabulary: int = VOCABULARY, **options: Any
) -> ScalarModel:
    torch.manual_seed(seed)
    model = ScalarModel(LlamaModel(configuration(vocabulary=vocabulary)).eval(), heads, seed=seed, **options)
    for projection in model.projections.values():
        # Trained ones: a query of 0, as it starts, would weigh all segments alike.
        torch.nn.init.normal_(projection.weight, std=1.0)  # type: ignore[arg-type]
    return model


class ToyTokenizer:
    """Token i reads ' i'; EOS is special."""

    def __len__(self) -> int:
        return VOCABULARY

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(f" {i}" for i in ids if not (skip_special_tokens and i in (PAD, BOS, EOS)))

    def batch_decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


def responses_of(
    rows: Sequence[Sequence[int]], entropies: Sequence[Sequence[float]] | None = None, width: int | None = None
) -> Responses:
    """Responses from token lists; a row that ends with EOS has ended. `width` adds padding columns."""
    ids, mask = pad_rows(rows, PAD, "right")
    extra = max(0, (width or 0) - ids.shape[1])
    ids, mask = torch.nn.functional.pad(ids, (0, extra), value=PAD), torch.nn.functional.pad(mask, (0, extra))
    entropy = None
    if entropies is not None:
        entropy = torch.zeros(ids.shape)
        for i, row in enumerate(entropies):
            entropy[i, : len(row)] = torch.tensor(list(row))
    return Responses(
        ids=ids,
        mask=mask,
        ended=torch.tensor([bool(row) and row[-1] == EOS for row in rows]),
        pieces=[[f" {i}" for i in row] for row in rows],
        entropies=entropy,
    )


def batch_of(
    prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], entropies: Sequence[Sequence[float]] | None = None
) -> RolloutBatch:
    prompt_ids, prompt_mask = pad_rows(prompts, PAD, "left")
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        responses=responses_of(rows, entropies),
        prompts=[str(p) for p in prompts],
        texts=[ToyTokenizer().decode(row, True) for row in rows],
        records=[{"id": str(i)} for i in range(len(rows))],
        groups=torch.arange(len(rows)),
    )


def random_rows(seed: int, lengths: Sequence[int], ended: bool = True) -> list[list[int]]:
    """Random token lists of the given lengths without special tokens, ending with EOS if `ended`."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return [[*row[:-1], EOS] if ended and row else row for row in rows]
