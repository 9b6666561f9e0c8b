"""Experience: prompts, sampled responses, reference statistics and rewards of one policy iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core.models.generation import Generated, Sampling, generate
from rlhf_core.models.policy import DecoderPolicy, pad_rows
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rollout import Responses, RolloutBatch

RewardFunction = Callable[[RolloutBatch], RewardOutput]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt ready for the model.

    Attributes:
        ids: its token ids, template included.
        text: its text, for judges and rewards.
        record: the data row behind it.
    """

    ids: Sequence[int]
    text: str
    record: dict[str, Any]


def response_texts(tokenizer: PreTrainedTokenizerBase, generated: Generated) -> list[str]:
    """Text of each response, special tokens left out."""
    rows = [ids[mask].tolist() for ids, mask in zip(generated.ids, generated.mask, strict=True)]
    return [str(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def token_pieces(tokenizer: PreTrainedTokenizerBase, generated: Generated) -> list[list[str]]:
    """Text of each real token of each response."""
    vocabulary = [str(tokenizer.decode([i])) for i in range(len(tokenizer))] if generated.ids.numel() > 4096 else None
    return [
        [vocabulary[i] if vocabulary else str(tokenizer.decode([i])) for i in ids[mask].tolist()]
        for ids, mask in zip(generated.ids, generated.mask, strict=True)
    ]


@torch.no_grad()
def collect(
    policy: DecoderPolicy,
    reference: DecoderPolicy,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[EncodedPrompt],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    microbatch: int = 64,
) -> RolloutBatch:
    """Samples a response per prompt and scores it under the reference.

    The sampling-time log-probabilities are the policy's at temperature 1, so that no forward pass is repeated;
    the reference's entropies come from the same pass as its log-probabilities.
    """
    prompt_ids, prompt_mask = pad_rows([p.ids for p in prompts], policy.pad_id, "left")
    prompt_ids, prompt_mask = prompt_ids.to(policy.device), prompt_mask.to(policy.device)
    generated = generate(policy, prompt_ids, prompt_mask, sampling, generator)
    logprobs = torch.zeros(generated.ids.shape, device=generated.ids.device)
    entropies = torch.zeros_like(logprobs)
    for rows in microbatches(prompt_mask, generated.mask, microbatch):
        prompt_len, response_len = trimmed(prompt_mask[rows], generated.mask[rows])
        statistics = reference.statistics(
            prompt_ids[rows, -prompt_len:],
            prompt_mask[rows, -prompt_len:],
            generated.ids[rows, :response_len],
            generated.mask[rows, :response_len],
        )
        logprobs[rows, :response_len] = statistics.logprobs
        entropies[rows, :response_len] = statistics.entropies
    responses = Responses(
        ids=generated.ids,
        mask=generated.mask,
        ended=generated.ended,
        pieces=token_pieces(tokenizer, generated),
        entropies=entropies,
    )
    identities: dict[str, int] = {}
    groups = [identities.setdefault(str(p.record.get("id", i)), len(identities)) for i, p in enumerate(prompts)]
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        responses=responses,
        prompts=[p.text for p in prompts],
        texts=response_texts(tokenizer, generated),
        records=[p.record for p in prompts],
        groups=torch.tensor(groups, device=prompt_ids.device),
        logprobs=generated.logprobs,
        reference_logprobs=logprobs,
    )


def trimmed(prompt_mask: Tensor, response_mask: Tensor) -> tuple[int, int]:
    """Longest prompt and response of some rows: the widths that they need."""
    return max(1, int(prompt_mask.sum(dim=1).max())), max(1, int(response_mask.sum(dim=1).max()))


def microbatches(prompt_mask: Tensor, response_mask: Tensor, size: int) -> list[Tensor]:
    """Row indices in groups of similar total length, so that little padding is computed."""
    order = torch.argsort(prompt_mask.sum(dim=1) + response_mask.sum(dim=1), stable=True)
    return list(order.split(size))


def slice_rows(batch: RolloutBatch, rows: Tensor) -> RolloutBatch:
    """Some rows of a batch, trimmed to the width that they need."""
    prompt_len, response_len = trimmed(batch.prompt_mask[rows], batch.responses.mask[rows])
    wanted = rows.tolist()
    old = batch.responses

    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows, :response_len]

    responses = Responses(
        ids=old.ids[rows, :response_len],
        mask=old.mask[rows, :response_len],
        ended=old.ended[rows],
        pieces=None if old.pieces is None else [old.pieces[i] for i in wanted],
        entropies=cut(old.entropies),
    )
    return replace(
        batch,
        prompt_ids=batch.prompt_ids[rows, -prompt_len:],
        prompt_mask=batch.prompt_mask[rows, -prompt_len:],
        responses=responses,
        prompts=[batch.prompts[i] for i in wanted],
        texts=[batch.texts[i] for i in wanted],
        records=[batch.records[i] for i in wanted],
        groups=batch.groups[rows],
        logprobs=cut(batch.logprobs),
        reference_logprobs=cut(batch.reference_logprobs),
    )
