"""Sampled responses, and the loop that is the reference for engines.

The loop never recomputes the prompt, drops rows that ended, and stops when all have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.errors import NumericsError
from rlhf_core.models.choosing import choose
from rlhf_core.models.policy import Policy
from rlhf_core.models.sampling import Sampling
from rlhf_core.rollout import check_side

#: Samples a response to each prompt: (prompts without padding, uniform numbers [rows, max_new_tokens] of [0, 1)) ->
#: (responses with their EOS, log-probabilities and entropies [rows, max_new_tokens], anything behind a response's end).
ByRequest = Callable[[list[list[int]], Tensor], tuple[list[list[int]], Tensor, Tensor]]
#: Tokens from one look at which rows have ended to the next; on a GPU every look waits for it.
TOKENS_PER_LOOK = {"cpu": 1, "cuda": 8}


@dataclass(frozen=True)
class Generated:
    """Sampled responses, right-padded to the longest.

    Attributes:
        ids: [batch, response_len] int64.
        mask: [batch, response_len] bool, EOS included.
        ended: [batch] bool, False where the length limit cut the response.
        logprobs: [batch, response_len] float32 under the untruncated distribution at temperature 1, by the engine.
        entropies: [batch, response_len] float32, nats, of that distribution.
    """

    ids: Tensor
    mask: Tensor
    ended: Tensor
    logprobs: Tensor
    entropies: Tensor


def joined(parts: Sequence[Generated], pad_id: int) -> Generated:
    """Returns responses of several batches below each other, right-padded to the longest of all."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.ids.shape[1] for part in parts)
    padded: dict[str, Tensor] = {}
    for name, value in {"ids": pad_id, "mask": False, "logprobs": 0.0, "entropies": 0.0}.items():
        tensors = [getattr(part, name) for part in parts]
        padded[name] = torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1]), value=value) for t in tensors])
    return Generated(ended=torch.cat([part.ended for part in parts]), **padded)


@torch.no_grad()
def sample_in_steps(
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
) -> Generated:
    """Samples one response per row, a token of every row at a time; see `sampling.generate`.

    The random numbers of a step are drawn for all rows, so that a row's response depends neither on which other
    rows have ended nor on when they are dropped, and of several ranks each samples its own rows of the same batch.
    Those of steps that were taken because nobody had looked yet are given back.
    """
    model, batch = policy.model, prompt_ids.shape[0]
    was_training = model.training
    model.eval()
    own = distributed.own(torch.arange(batch, device=prompt_ids.device))
    ids = torch.full((len(own), sampling.max_new_tokens), policy.pad_id, dtype=torch.long, device=prompt_ids.device)
    logprobs = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)
    entropies = torch.zeros_like(logprobs)
    check_side(prompt_mask, "left")
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    rows = torch.arange(len(own), device=ids.device)
    alive = torch.ones(len(own), dtype=torch.bool, device=ids.device)
    every = TOKENS_PER_LOOK.get(ids.device.type, 1)
    drawn = looked = 0
    state = generator.get_state()
    with policy.applied():
        decoding = policy.decoding(prompt_ids[own], prompt_mask[own])
        for step in range(sampling.max_new_tokens if len(own) else 0):
            logits = decoding.logits()
            uniform = torch.rand(batch, generator=generator).to(ids.device)[own[rows]]
            drawn += 1
            chosen = choose(logits, uniform, sampling)
            log_p = logits.log_softmax(dim=-1)
            ids[rows, step] = torch.where(alive, chosen, policy.pad_id)
            logprobs[rows, step] = torch.where(alive, log_p.gather(1, chosen[:, None]).squeeze(1), 0.0)
            entropies[rows, step] = torch.where(alive, torch.special.entr(log_p.exp()).sum(dim=-1), 0.0)
            mask[rows, step] = alive
            alive = alive & (chosen != policy.eos_id)
            looks = drawn % every == 0
            left = int(alive.sum()) if looks else len(rows)  # the only wait for the device
            if step + 1 == sampling.max_new_tokens or not left:
                break
            if looks and every > 1:
                looked, state = drawn, generator.get_state()
            decoding.append(chosen, alive)
            if left <= 0.75 * len(rows):
                kept = torch.nonzero(alive).squeeze(1)
                decoding.keep(kept)
                rows, alive = rows[kept], alive[kept]
    if not torch.isfinite(logprobs).all():
        raise NumericsError("the policy's log-probabilities are not finite while sampling; lower the learning rate")
    model.train(was_training)
    needed = int(mask.sum(dim=1).max()) if len(own) else 0
    if drawn > needed:
        generator.set_state(state)
        drawn = looked
    for _ in range(distributed.largest(needed) - drawn):
        torch.rand(batch, generator=generator)
    return whole(policy, batch, ids, mask, logprobs, entropies)


@torch.no_grad()
def sample_by_request(
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
    answer: ByRequest,
) -> Generated:
    """Samples one response per row by an engine that takes requests without padding; see `sampling.generate`.

    A token is chosen by the uniform number that the loop has for its row and step, and the generator is left as the
    loop leaves it.
    """
    batch, device = prompt_ids.shape[0], prompt_ids.device
    check_side(prompt_mask, "left")
    state = generator.get_state()
    drawn = torch.stack([torch.rand(batch, generator=generator) for _ in range(sampling.max_new_tokens)], dim=1)
    own = distributed.own(torch.arange(batch, device=device))
    uniforms = drawn.to(device)[own]
    prompts = [ids[mask].tolist() for ids, mask in zip(prompt_ids[own], prompt_mask[own], strict=True)]
    responses, logprobs, entropies = (
        answer(prompts, uniforms) if prompts else ([], torch.zeros_like(uniforms), torch.zeros_like(uniforms))
    )
    ids = torch.full(uniforms.shape, policy.pad_id, dtype=torch.long)
    mask = torch.zeros(uniforms.shape, dtype=torch.bool)
    for row, tokens in enumerate(responses):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = True
    ids, mask = ids.to(device), mask.to(device)
    logprobs, entropies = (values.to(device).masked_fill(~mask, 0.0) for values in (logprobs, entropies))
    if not torch.isfinite(logprobs).all():
        raise NumericsError("the policy's log-probabilities are not finite while sampling; lower the learning rate")
    generator.set_state(state)
    for _ in range(distributed.largest(int(mask.sum(dim=1).max()) if responses else 0)):
        torch.rand(batch, generator=generator)
    return whole(policy, batch, ids, mask, logprobs, entropies)


def whole(policy: Policy, batch: int, *own: Tensor) -> Generated:
    """Returns the responses of all ranks, cut to the longest.

    Args:
        policy: that sampled.
        batch: rows of all ranks.
        own: [rows, max_new_tokens] of this rank: ids, mask, log-probabilities, entropies.
    """
    ids, mask, logprobs, entropies = (distributed.spread(values, batch) for values in own)
    longest = max(1, int(mask.sum(dim=1).max())) if batch else 1
    ended = (ids == policy.eos_id).logical_and(mask).any(dim=1)
    return Generated(ids[:, :longest], mask[:, :longest], ended, logprobs[:, :longest], entropies[:, :longest])
