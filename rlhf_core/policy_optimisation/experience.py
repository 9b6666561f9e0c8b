"""Experience: sampled responses, reference statistics, rewards and advantages of one policy iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core import distributed
from rlhf_core.models.generation import Generated, joined
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.sampling import ENGINES, Sampling, generate
from rlhf_core.passes import microbatches
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rollout import Responses, RolloutBatch, trimmed
from rlhf_core.signals import Segments, Tokens

RewardFunction = Callable[[RolloutBatch], RewardOutput]
#: generate samples responses; score runs the reference, the reward and the critic; update trains.
PHASES = ("generate", "score", "update")
#: Parts that an update reads of a batch, of its responses, and of an experience beside these.
_OF_BATCH = ("prompt_ids", "prompt_mask", "groups", "logprobs", "reference_logprobs")
_OF_RESPONSES = ("ids", "mask", "ended")
_OWN = ("values", "advantages", "returns", "scores", "importance")


class PhaseClock:
    """Seconds and response tokens of each phase since it was last read; it neither changes results nor enters them.

    A phase may be entered several times; its seconds add up, its tokens are those of `count`. On a GPU the work
    under way is waited for where a phase begins and ends, a few times per iteration.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._tokens = dict.fromkeys(PHASES, 0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds what runs inside to a phase, a name in `PHASES`."""
        begin = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - begin

    def count(self, name: str, tokens: int) -> None:
        """Adds response tokens that a phase went through."""
        self._tokens[name] += tokens

    def read(self) -> dict[str, float]:
        """Returns `<phase>_seconds`, and `<phase>_tokens_per_second` of phases that took any; starts anew."""
        found: dict[str, float] = {}
        for name, seconds in self._seconds.items():
            found[f"{name}_seconds"] = seconds
            if seconds > 0 and self._tokens[name]:
                found[f"{name}_tokens_per_second"] = self._tokens[name] / seconds
        self._reset()
        return found

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()


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
    """Returns the text of each response, special tokens left out."""
    rows = [ids[mask].tolist() for ids, mask in zip(generated.ids, generated.mask, strict=True)]
    return [str(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def token_pieces(tokenizer: PreTrainedTokenizerBase, generated: Generated) -> list[list[str]]:
    """Returns the text of each real token of each response."""
    pieces = {i: str(tokenizer.decode([i])) for i in generated.ids[generated.mask].unique().tolist()}
    return [[pieces[i] for i in ids[mask].tolist()] for ids, mask in zip(generated.ids, generated.mask, strict=True)]


@torch.no_grad()
def collect(
    policy: Policy,
    reference: Policy,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[EncodedPrompt],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    microbatch: int = 64,
    group_size: int = 1,
    clock: PhaseClock | None = None,
    generation_batch: int | None = None,
    on_generated: Callable[[Generated], None] | None = None,
) -> RolloutBatch:
    """Samples `group_size` responses per prompt, side by side, and scores them under the reference.

    Responses are sampled `generation_batch` at a time, over all ranks, where the cache of all would be too large;
    `on_generated` sees each part before the next one is sampled, so that tools can work beside generation.
    The sampling-time log-probabilities are the policy's at temperature 1, so that no forward pass is repeated, unless
    the engine's come from other kernels; the reference's entropies come from the same pass as its log-probabilities.
    """
    clock = clock or PhaseClock()
    prompts = [prompt for prompt in prompts for _ in range(group_size)]
    prompt_ids, prompt_mask = pad_rows([p.ids for p in prompts], policy.pad_id, "left")
    prompt_ids, prompt_mask = prompt_ids.to(policy.device), prompt_mask.to(policy.device)
    size = generation_batch or len(prompts)
    parts = zip(prompt_ids.split(size), prompt_mask.split(size), strict=True)
    made = []
    with clock.phase("generate"):
        for ids, mask in parts:
            made.append(generate(policy, ids, mask, sampling, generator))
            if on_generated is not None:
                on_generated(made[-1])
        generated = joined(made, policy.pad_id)
    with clock.phase("score"):
        drawn = prompt_ids, prompt_mask, generated.ids, generated.mask
        logprobs, entropies = score(reference, *drawn, microbatch)
        rescored, sampled = ENGINES[sampling.engine].rescored, (generated.logprobs, generated.entropies)
        if rescored:
            sampled = (logprobs, entropies) if policy is reference else score(policy, *drawn, microbatch)
    pieces = token_pieces(tokenizer, generated)
    responses = Responses(generated.ids, generated.mask, generated.ended, pieces, entropies)
    identities: dict[str, int] = {}
    groups = [identities.setdefault(str(p.record.get("id", i)), len(identities)) for i, p in enumerate(prompts)]
    if group_size > 1:  # a prompt that comes twice in a batch is two groups
        groups = [i // group_size for i in range(len(prompts))]
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        responses=responses,
        prompts=[p.text for p in prompts],
        texts=response_texts(tokenizer, generated),
        records=[p.record for p in prompts],
        groups=torch.tensor(groups, device=prompt_ids.device),
        logprobs=sampled[0],
        reference_logprobs=logprobs,
        entropies=sampled[1],
        engine_logprobs=generated.logprobs if rescored else None,
    )


@torch.no_grad()
def score(
    policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor, microbatch: int
) -> tuple[Tensor, Tensor]:
    """Returns (log-probabilities, entropies) of responses [batch, response_len] under a policy, from one pass."""
    logprobs = torch.zeros(ids.shape, device=ids.device)
    entropies = torch.zeros_like(logprobs)
    for rows, inputs in microbatches((prompt_ids, prompt_mask, ids, mask), microbatch, packed=policy.packs):
        statistics, width = policy.statistics(*inputs), inputs[3].shape[1]
        logprobs[rows, :width], entropies[rows, :width] = statistics.logprobs, statistics.entropies
    return distributed.merged(logprobs), distributed.merged(entropies)


def slice_rows(batch: RolloutBatch, rows: Tensor) -> RolloutBatch:
    """Returns some rows of a batch, trimmed to the width that they need."""
    prompt_ids, prompt_mask, ids, mask = trimmed(rows, *batch.inputs)
    old = batch.responses

    def picked(values: Sequence[Any]) -> list[Any]:
        return [values[i] for i in rows.tolist()]

    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows, : ids.shape[1]]

    pieces = None if old.pieces is None else picked(old.pieces)
    return replace(
        batch,
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        responses=Responses(ids, mask, old.ended[rows], pieces, cut(old.entropies)),
        prompts=picked(batch.prompts),
        texts=picked(batch.texts),
        records=picked(batch.records),
        groups=batch.groups[rows],
        logprobs=cut(batch.logprobs),
        reference_logprobs=cut(batch.reference_logprobs),
        entropies=cut(batch.entropies),
        engine_logprobs=cut(batch.engine_logprobs),
    )


def proxy_scores(reward: RewardOutput) -> Tensor:
    """Returns [batch] float32: the raw proxy of each response, before normalising and shaping.

    With one component that is its raw signal (its sum over tokens, its mean over segments); with several, or none
    that kept one, the reward's total.
    """
    if len(reward.raw) != 1:
        return reward.sequence_totals()
    (signal,) = reward.raw.values()
    if isinstance(signal, Segments):
        return signal.masked_mean()
    return signal.values.sum(dim=1) if isinstance(signal, Tokens) else signal.values


@dataclass(frozen=True)
class Experience:
    """A scored rollout batch with everything an update needs; tensors are [batch, response_len] float32.

    Attributes:
        batch, reward: the rollouts and what they were paid.
        values: the critic's, zeros without one.
        advantages: whitened if the whitening is over the rollout batch.
        returns: the critic's target.
        scores: [batch] float32, the proxy of each response by which online DPO orders pairs.
        importance: weights of the tokens' losses, None for 1.
    """

    batch: RolloutBatch
    reward: RewardOutput
    values: Tensor
    advantages: Tensor
    returns: Tensor
    scores: Tensor
    importance: Tensor | None = None

    def packed(self) -> dict[str, Any]:
        """Returns the tensors that an update reads, for a buffer or a checkpoint, without texts and records."""
        parts = ((self.batch, _OF_BATCH), (self.batch.responses, _OF_RESPONSES), (self, _OWN))
        found = {name: getattr(part, name) for part, names in parts for name in names}
        return {name: value for name, value in found.items() if value is not None} | {"total": self.reward.total}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Tensor]) -> Experience:
        """Returns the inverse, as far as an update is concerned."""
        rows = len(packed["ids"])
        of_batch: dict[str, Any] = {name: packed[name] for name in _OF_BATCH}
        batch = RolloutBatch(
            responses=Responses(packed["ids"], packed["mask"], packed["ended"]),
            prompts=[""] * rows,
            texts=[""] * rows,
            records=[{} for _ in range(rows)],
            **of_batch,
        )
        reward = RewardOutput(packed["total"], {"total": packed["total"]}, {})
        return cls(batch=batch, reward=reward, **{name: packed[name] for name in _OWN if name in packed})


class ReplayBuffer:
    """A pool of rollout batches: each new one is swapped for a random stored one.

    Source: PAR, Algorithm 3. Deviation: the printed branch is inverted (it would draw from an empty pool); here the
    first `size` batches only fill the buffer.

    Args:
        size: batches that it holds; 0 hands every batch straight through.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pool: list[dict[str, Any]] = []

    def substitute(self, experience: Experience, generator: torch.Generator) -> Experience | None:
        """Returns the batch to train on in place of the new one, or None while the buffer fills."""
        if not self.size:
            return experience
        if len(self.pool) < self.size:
            self.pool.append(experience.packed())
            return None
        chosen = int(torch.randint(self.size, (), generator=generator))
        stored = self.pool[chosen]
        self.pool[chosen] = experience.packed()
        return Experience.unpacked(stored)

    def state_dict(self) -> dict[str, Any]:
        return {"pool": list(self.pool)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool = list(state["pool"])
