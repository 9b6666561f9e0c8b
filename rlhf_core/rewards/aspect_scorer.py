"""Aspects as scorers: values over characters of a response become a signal over its tokens.

A sequence aspect gives `Sequence`. A sentence or span aspect gives `Segments`: a slice ends on the last token that
starts before the slice does, slices may leave tokens out, and those are paid nothing. A token aspect gives `Tokens`:
each token has the value of the characters that it overlaps, the one furthest from 0 where there are several, and 0
where there are none (EOS included), so that a shaping of zero still reaches it. Source: ALARM, §3.3 and §4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core import distributed
from rlhf_core.aspects import Aspect, Scored, checked_scores
from rlhf_core.aspects.aspect import SIGNALS, prefetch
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.models.generation import Generated
from rlhf_core.rewards.composition import Reward
from rlhf_core.rollout import RolloutBatch, Spelling
from rlhf_core.segmentation.segments import boundary_tokens, from_spans
from rlhf_core.signals import Segments, Sequence, Signal, SignalType, Tokens


def slice_tokens(tokens: Several[tuple[int, int]], spans: Several[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns half-open token spans of slices [start, end) of characters, in order and disjoint; some may be empty."""
    starts = [start for start, _ in tokens]
    found: list[tuple[int, int]] = []
    behind = 0
    ends = boundary_tokens(starts, [end for _, end in spans]) if tokens else []
    for (first, _), end in zip(spans, ends, strict=False):
        start = next((i for i in range(behind, end + 1) if tokens[i][1] > first), end + 1)
        found.append((min(max(start, behind), end + 1), end + 1))
        behind = max(behind, end + 1)
    return found


def token_values(tokens: Several[tuple[int, int]], scored: Scored) -> list[float]:
    """Returns each token's value: the value furthest from 0 of the spans that it overlaps, 0 without a span."""
    values = [0.0] * len(tokens)
    place = 0
    for i, (start, end) in enumerate(tokens):
        while place < len(scored.spans) and scored.spans[place][1] <= start:
            place += 1
        for (first, last), value in zip(scored.spans[place:], scored.values[place:], strict=True):
            if first >= end:
                break
            if last > start and abs(value) > abs(values[i]):
                values[i] = value
    return values


@dataclass(frozen=True)
class AspectScorer:
    """Scores rollouts by an aspect, over the tokens of the policy's tokenizer."""

    aspect: Aspect
    tokenizer: PreTrainedTokenizerBase

    @property
    def gives(self) -> SignalType:
        return SIGNALS[self.aspect.density][0]

    def score(self, batch: RolloutBatch) -> Signal:
        """Returns the aspect's values over the batch's tokens; see `checked_scores`."""
        mask = batch.responses.mask
        spelled = [
            token_spans(self.tokenizer, ids[row].tolist())
            for ids, row in zip(batch.responses.ids.cpu(), mask.cpu(), strict=True)
        ]
        texts = [text for text, _ in spelled]
        scored = distributed.on_main(lambda: checked_scores(self.aspect, batch.records, texts))
        return self.signal(spelled, scored, mask.shape[1], mask.device)

    def signal(
        self, spelled: Several[Spelling], scored: Several[Scored], width: int, device: torch.device | None = None
    ) -> Signal:
        """Returns the signal of responses whose characters and scores are known, over `width` tokens."""
        if self.gives is Sequence:
            return Sequence(torch.tensor([one.values[0] for one in scored], device=device))
        if self.gives is Tokens:
            values = torch.zeros(len(scored), width)
            for row, ((_, tokens), one) in enumerate(zip(spelled, scored, strict=True)):
                values[row, : len(tokens)] = torch.tensor(token_values(tokens, one))
            return Tokens(values.to(device))
        slices = [slice_tokens(tokens, one.spans) for (_, tokens), one in zip(spelled, scored, strict=True)]
        segmentation = from_spans(slices, width)
        padded = torch.zeros(segmentation.ends.shape)
        for row, (found, one) in enumerate(zip(slices, scored, strict=True)):
            padded[row, : len(found)] = torch.tensor(one.values[: len(found)])
        return Segments(padded.to(device), segmentation.to(device))


def _aspects(reward: Reward) -> list[AspectScorer]:
    return [part.scorer for part in reward.components if isinstance(part.scorer, AspectScorer)]


class ToolClock:
    """Counter of the requests to the aspects' tools since its last reading. It does not enter results."""

    def __init__(self, reward: Reward) -> None:
        self._usages = [scorer.aspect.usage for scorer in _aspects(reward) if hasattr(scorer.aspect, "usage")]
        self._before = self._now()

    def read(self) -> dict[str, float]:
        """Returns `tool_seconds` that the reward waited, `tool_calls` and `tool_retries`; empty without tools."""
        before, self._before = self._before, self._now()
        return {name: value - before[name] for name, value in self._before.items()}

    def _now(self) -> dict[str, float]:
        if not self._usages:
            return {}
        return {
            "tool_seconds": sum(usage.waited_s for usage in self._usages),
            "tool_calls": sum(usage.calls for usage in self._usages),
            "tool_retries": sum(usage.tries_again for usage in self._usages),
        }


def prefetching(reward: Reward) -> Callable[[Generated], None] | None:
    """Returns a function that starts the tools of a reward's aspects on sampled responses; None without such tools."""
    asking = [scorer for scorer in _aspects(reward) if hasattr(scorer.aspect, "prefetch")]
    if not asking:
        return None

    def start(generated: Generated) -> None:
        if distributed.rank():
            return
        rows = [ids[mask].tolist() for ids, mask in zip(generated.ids.cpu(), generated.mask.cpu(), strict=True)]
        texts = [token_spans(asking[0].tokenizer, row)[0] for row in rows]
        prefetch([scorer.aspect for scorer in asking], texts)

    return start
