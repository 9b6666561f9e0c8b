"""Sampled responses: the frame that engines share, and the loop that is their reference.

The random numbers of all rows and steps are drawn first, so that a row's response depends neither on other rows nor on
when those end, and of several ranks each samples its own rows of the same batch. The generator is left as if no more
steps had been drawn than the longest response has tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.errors import NumericsError
from rlhf_core.models.choosing import choose, measure
from rlhf_core.models.decoding import Capture, Step, cuda_graph
from rlhf_core.models.forecast import OVERHEAD, Sharding
from rlhf_core.models.policy import Policy
from rlhf_core.models.sampling import DEFAULT_ENGINE, Sampling, used_engines
from rlhf_core.rollout import check_side, distinct_prompts

#: Samples rows: (prompt ids and mask [rows, prompt_len], uniform numbers [rows, max_new_tokens] of [0, 1)) ->
#: (ids, mask, log-probabilities, entropies), each [rows, max_new_tokens] and as `Generated` has them.
RowSampler = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
#: Tokens from one look at which rows have ended to the next, by kind of device; on a GPU every look waits for it.
TOKENS_PER_LOOK = {"cpu": 1, "cuda": 16}
#: Share of the rows, at most, that is left when the others are dropped; on a GPU the step is captured anew then.
KEPT_SHARE = {"cpu": 0.75, "cuda": 0.5}
#: Captures the step of a batch; elsewhere every step is computed.
CAPTURES: dict[str, Capture] = {"cuda": cuda_graph}

_LOG = logging.getLogger(__name__)


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
    """See `RowSampler`: as many rows at a time as there is memory for."""
    was_training = policy.model.training
    policy.model.eval()
    try:
        with policy.applied():
            parts = _parts(policy, len(prompt_ids), prompt_ids.shape[1], sampling.max_new_tokens)
            split = zip(*(values.chunk(parts) for values in (prompt_ids, prompt_mask, uniforms)), strict=True)
            found = [_sample_rows(policy, sampling, *part) for part in split]
    finally:
        policy.model.train(was_training)
    ids, mask, logprobs, entropies = (torch.cat(part) for part in zip(*found, strict=True))
    return ids, mask, logprobs, entropies


def _parts(policy: Policy, rows: int, prompt_len: int, max_new_tokens: int) -> int:
    """Returns the parts in which rows are sampled, so that each has room in a GPU's free memory."""
    if policy.device.type != "cuda":
        return 1
    config, held = policy.model.config, Sharding(1, bf16=policy.model.dtype.itemsize == 2)
    reserved = torch.cuda.memory_reserved(policy.device) - torch.cuda.memory_allocated(policy.device)
    free = torch.cuda.mem_get_info(policy.device)[0] + reserved
    cache = held.cache(config, prompt_len + max_new_tokens)
    passing = held.kept(prompt_len, config.hidden_size, 1) + 40 * config.vocab_size  # one layer's states, and logits
    # twice: what has been read, and the memory that it is copied to
    return min(rows, math.ceil(OVERHEAD * rows * (2 * cache + passing) / max(free, 1)))


def _distinct(prompt_ids: Tensor, prompt_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids and mask [prompts, prompt_len] of different prompts, and each row's place among them [rows] int64."""
    keys, prompt_of = distinct_prompts(prompt_ids, prompt_mask)
    if len(keys) == len(prompt_ids):
        return prompt_ids, prompt_mask, torch.arange(len(keys), device=keys.device)
    return keys.clamp(min=0), keys >= 0, prompt_of


class _Rows:
    """Rows that are sampled together; every step changes their tensors in place.

    Args:
        policy, sampling: how tokens are chosen, and which one ends a row.
        uniforms: [rows, max_new_tokens].

    Attributes:
        ids, logprobs, entropies: [rows, max_new_tokens]; behind a row's EOS they mean nothing.
        step: [1] int64, tokens so far.
        live: [live] int64, the rows that are still sampled.
        tokens: [live, 1] int64, the last token of each.
        unended: [live] bool.
    """

    def __init__(self, policy: Policy, sampling: Sampling, uniforms: Tensor) -> None:
        self.policy, self.sampling, self.uniforms = policy, sampling, uniforms
        self.ids = torch.full(uniforms.shape, policy.pad_id, dtype=torch.long, device=uniforms.device)
        self.logprobs, self.entropies = torch.zeros_like(uniforms), torch.zeros_like(uniforms)
        self.step, self.live = self.ids.new_zeros(1), torch.arange(len(uniforms), device=uniforms.device)
        self.tokens, self.unended = self.ids[:, :1].clone(), torch.ones_like(self.live, dtype=torch.bool)

    def take(self, logits: Tensor) -> None:
        """Chooses the next token of every live row by its logits [live, vocabulary]."""
        here = self.live, self.step
        chosen = choose(logits, self.uniforms[here], self.sampling)
        self.ids[here] = chosen
        self.logprobs[here], self.entropies[here] = measure(logits, chosen)
        self.tokens.copy_(chosen[:, None])
        self.unended &= chosen != self.policy.eos_id
        self.step += 1

    def keep(self, kept: Tensor) -> None:
        """Continues with these of the live rows, [kept] int64."""
        self.live, self.tokens, self.unended = self.live[kept], self.tokens[kept], self.unended[kept]

    def sampled(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns what a `RowSampler` returns."""
        ends = self.ids == self.policy.eos_id
        mask = ends.cumsum(dim=1) == ends  # no EOS before
        logprobs, entropies = (values.masked_fill(~mask, 0.0) for values in (self.logprobs, self.entropies))
        return self.ids.masked_fill(~mask, self.policy.pad_id), mask, logprobs, entropies


def _sample_rows(
    policy: Policy, sampling: Sampling, prompt_ids: Tensor, prompt_mask: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `RowSampler`: reads each distinct prompt once, drops rows that ended, and stops when all have."""
    device, room = uniforms.device.type, sampling.max_new_tokens
    look, share = TOKENS_PER_LOOK.get(device, 1), KEPT_SHARE.get(device, 0.75)
    rows, capture = _Rows(policy, sampling, uniforms), CAPTURES.get(device)
    ids, mask, prompt_of = _distinct(prompt_ids, prompt_mask)
    decoding = policy.decoding(ids, mask)
    rows.take(decoding.first()[prompt_of])
    if room == 1:
        return rows.sampled()
    decoding = decoding.continued(prompt_of, room - 1, captured=capture is not None)
    if decoding.obstacle and capture is not None:
        _note_uncaptured(decoding.obstacle)
        capture = None
    step = Step(lambda: rows.take(decoding.logits(rows.tokens)), capture, partial(_give_up, device))
    for taken in range(1, room):
        if taken % look == 0:
            left = int(rows.unended.sum())  # the only wait for the device
            if not left:
                break
            if left <= share * len(rows.live):
                step.forget()
                kept = torch.nonzero(rows.unended).squeeze(1)
                decoding.keep(kept)
                rows.keep(kept)
        step()
    return rows.sampled()


def _give_up(device: str, reason: str) -> None:
    """Captures nothing on a kind of device from here on: a capture that failed can keep memory."""
    CAPTURES.pop(device, None)
    _note_uncaptured(reason)


def _note_uncaptured(reason: str) -> None:
    """Says once, in the log and in the record of the stage, why a GPU samples without graphs."""
    words = f"{DEFAULT_ENGINE} without CUDA graphs: {reason}"
    if words not in used_engines:
        used_engines.add(words)
        _LOG.warning("engine %s", words)
