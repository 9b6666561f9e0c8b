"""Sampled responses: the frame that engines share, and the loop that is their reference.

The random numbers of all rows and steps are drawn first, so that a row's response depends neither on other rows nor on
when those end, and of several ranks each samples its own rows of the same batch. The generator is left as if no more
steps had been drawn than the longest response has tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.errors import NumericsError
from rlhf_core.models.choosing import choose
from rlhf_core.models.policy import Policy
from rlhf_core.models.sampling import Sampling
from rlhf_core.rollout import check_side

#: Samples rows: (prompt ids and mask [rows, prompt_len], uniform numbers [rows, max_new_tokens] of [0, 1)) ->
#: (ids, mask, log-probabilities, entropies), each [rows, max_new_tokens] and as `Generated` has them.
RowSampler = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
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
def sample_by(
    sampler: RowSampler,
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
) -> Generated:
    """Samples one response per row, this rank's rows by `sampler`; see `sampling.generate`."""
    check_side(prompt_mask, "left")
    batch, device, state = prompt_ids.shape[0], prompt_ids.device, generator.get_state()
    drawn = [torch.rand(batch, generator=generator) for _ in range(sampling.max_new_tokens)]
    own = distributed.own(torch.arange(batch, device=device))
    uniforms = torch.stack(drawn, dim=1).to(device)[own]
    if len(own):
        ids, mask, logprobs, entropies = sampler(prompt_ids[own], prompt_mask[own], uniforms)
    else:
        ids, mask, logprobs, entropies = uniforms.long(), uniforms.bool(), uniforms, uniforms
    if not torch.isfinite(logprobs).all():
        raise NumericsError("the policy's log-probabilities are not finite while sampling; lower the learning rate")
    generator.set_state(state)
    for _ in range(distributed.largest(int(mask.sum(dim=1).max()) if len(own) else 0)):
        torch.rand(batch, generator=generator)
    ids, mask, logprobs, entropies = (distributed.spread(part, batch) for part in (ids, mask, logprobs, entropies))
    longest = max(1, int(mask.sum(dim=1).max())) if batch else 1
    ended = (ids == policy.eos_id).logical_and(mask).any(dim=1)
    return Generated(ids[:, :longest], mask[:, :longest], ended, logprobs[:, :longest], entropies[:, :longest])


def sample_in_steps(
    policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
) -> Generated:
    """Samples one response per row, a token of every row at a time; see `sampling.generate`."""
    return sample_by(partial(_loop, policy, sampling), policy, prompt_ids, prompt_mask, sampling, generator)


def _loop(
    policy: Policy, sampling: Sampling, prompt_ids: Tensor, prompt_mask: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `RowSampler`: computes prompts once, drops rows that ended, and stops when all have."""
    was_training = policy.model.training
    policy.model.eval()
    ids = torch.full(uniforms.shape, policy.pad_id, dtype=torch.long, device=uniforms.device)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    logprobs, entropies = torch.zeros_like(uniforms), torch.zeros_like(uniforms)
    rows = torch.arange(len(ids), device=ids.device)
    alive = torch.ones_like(rows, dtype=torch.bool)
    every = TOKENS_PER_LOOK.get(ids.device.type, 1)
    with policy.applied():
        decoding = policy.decoding(prompt_ids, prompt_mask)
        for step in range(sampling.max_new_tokens):
            logits = decoding.logits()
            chosen = choose(logits, uniforms[rows, step], sampling)
            log_p = logits.log_softmax(dim=-1)
            ids[rows, step] = torch.where(alive, chosen, policy.pad_id)
            logprobs[rows, step] = torch.where(alive, log_p.gather(1, chosen[:, None]).squeeze(1), 0.0)
            entropies[rows, step] = torch.where(alive, torch.special.entr(log_p.exp()).sum(dim=-1), 0.0)
            mask[rows, step] = alive
            alive = alive & (chosen != policy.eos_id)
            left = len(rows) if (step + 1) % every else int(alive.sum())  # the only wait for the device
            if step + 1 == sampling.max_new_tokens or not left:
                break
            decoding.append(chosen, alive)
            if left <= 0.75 * len(rows):
                kept = torch.nonzero(alive).squeeze(1)
                decoding.keep(kept)
                rows, alive = rows[kept], alive[kept]
    policy.model.train(was_training)
    return ids, mask, logprobs, entropies
