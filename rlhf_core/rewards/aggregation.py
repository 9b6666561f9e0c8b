"""Aggregation: how the values that a reward model reads at segment ends become one reward of the response.

One module for training and read-out. Each aggregation gives every segment a reward and a weight; the response's
reward is the weighted sum. With v_i the head's value at the end of segment i and v_0 that at the prompt's end:

    name                      reward of segment i      weight                     paper
    mean                      v_i                      1/n                        Segment, Eq. 4; Sentence: VA
    sum                       v_i                      1                          Sentence, token baseline
    differential_mean         v_i - v_(i-1)            1/n                        Sentence: DA, = (v_n - v_0)/n
    value_attention           v_i                      softmax_i(q_n . k_i)       Sentence: VW
    differential_attention    v_i - v_(i-1)            softmax_i(q_n . k_i)       Sentence, Eq. 3 and 4
    preference_transformer    v_i                      mean_t softmax_i(q_t . k_i)  Sentence, appendix A.6
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch
from rlhf_core.typed import Checked, above, at_least, one_of, typed

if TYPE_CHECKING:
    from torch import Tensor

    from rlhf_core.models.reward_model import SegmentStates

QUERY, KEY = "query", "key"


#: Starting values v_0 of the differences of segments: the head at the prompt's last token, or 0.
BASES = ("prompt", "zero")


@dataclass(frozen=True)
class Aggregated:
    """Rewards of segments and of responses, float32.

    Attributes:
        total: [batch] reward of the response.
        rewards: [batch, max_segments] reward of each segment, 0 beyond each row's count.
        weights: [batch, max_segments], 0 beyond each row's count.
        weighted: whether a segment's worth is its contribution to the total, rather than its reward alone.
    """

    total: Tensor
    rewards: Tensor
    weights: Tensor
    weighted: bool = True

    @property
    def contributions(self) -> Tensor:
        """Returns [batch, max_segments] weight times reward; their sum is the total."""
        return self.weights * self.rewards

    @property
    def worth(self) -> Tensor:
        """Returns [batch, max_segments] contributions, or rewards where not `weighted`; normalisers fit it."""
        return self.contributions if self.weighted else self.rewards


@dataclass(frozen=True)
class Aggregation(Checked):
    """An aggregation with its options.

    Args:
        kind: its name.
        dim: of queries and keys.
        rope_base: of the rotary embedding of sentence indices; the paper prints 1000.
        base: v_0, 'prompt' for the head at the prompt's last token or 'zero'.
    """

    kind: str
    dim: Annotated[int, at_least(2)] = 256
    rope_base: Annotated[float, above(1)] = 1000.0
    base: Annotated[str, one_of(BASES)] = "prompt"

    def _check_together(self) -> None:
        AGGREGATIONS[self.kind]
        if self.dim % 2:
            raise RecipeError(f"aggregation '{self.kind}': dim is {self.dim}; it must be even")

    @property
    def projections(self) -> dict[str, int]:
        """Heads that the reward model needs besides the scalar one: name -> outputs."""
        return {QUERY: self.dim, KEY: self.dim} if self.entry.attends else {}

    @property
    def entry(self) -> AggregationKind:
        return AGGREGATIONS[self.kind]

    def __call__(self, states: SegmentStates) -> Aggregated:
        """Aggregates the segments of a batch; a response without any has the reward 0."""
        return self.entry.aggregate(states, self)


def differences(states: SegmentStates, base: str) -> Tensor:
    """Returns [batch, max_segments] float32: v_i - v_(i-1), 0 beyond each row's count; `base` is one of `BASES`.

    Source: Sentence, Eq. 3.
    """
    first = states.base if base == "prompt" else torch.zeros_like(states.base)
    before = torch.cat([first[:, None], states.values[:, :-1]], dim=1)
    return torch.where(states.mask, states.values - before, 0.0)


def rotary(vectors: Tensor, positions: Tensor, base: float) -> Tensor:
    """Returns the rotary embedding of interleaved pairs: (x_2t, x_2t+1) turned by position * base^(-2t/d), t from 0.

    Vectors are [..., d] float32 and positions [...]. Source: Sentence, appendix A.2.
    """
    half = vectors.shape[-1] // 2
    powers = torch.arange(half, device=vectors.device, dtype=torch.float32) / half
    angles = positions[..., None].float() * base**-powers
    even, odd = vectors[..., 0::2], vectors[..., 1::2]
    turned = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns the softmax over the last dimension's real entries, 0 elsewhere; all 0 where there are none."""
    filled = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.where(mask, filled.softmax(dim=-1), 0.0)


def attention_weights(states: SegmentStates, rope_base: float) -> Tensor:
    """Returns [batch, max_segments] softmax over segments of q_n . k_i, without 1/sqrt(d); q_n is the last segment's.

    Rotary embeddings are over segment indices 1..n. Source: Sentence, §3.1 and appendix A.2.
    """
    mask, queries, keys = states.mask, states.project(QUERY), states.project(KEY)
    index = _indices(mask)
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    rows = torch.arange(len(mask), device=mask.device)
    query = rotary(queries[rows, last], index[rows, last], rope_base)
    scores = (query[:, None] * rotary(keys, index, rope_base)).sum(dim=-1)
    return masked_softmax(scores, mask)


def mean_attention_weights(states: SegmentStates, rope_base: float) -> Tensor:
    """Returns [batch, max_segments] attention that each segment receives, averaged over all segments' queries.

    Source: Sentence, appendix A.6, whose sum runs over the softmax's own index as printed (always 1/T); read as in
    Kim et al. 2023, over the queries.
    """
    mask = states.mask
    queries, keys = (rotary(states.project(name), _indices(mask), rope_base) for name in (QUERY, KEY))
    attention = masked_softmax(queries @ keys.transpose(1, 2), mask[:, None, :].expand(-1, mask.shape[1], -1))
    attention = torch.where(mask[:, :, None], attention, 0.0)
    return attention.sum(dim=1) / mask.sum(dim=1).clamp(min=1)[:, None]


def _indices(mask: Tensor) -> Tensor:
    return torch.arange(1, mask.shape[1] + 1, device=mask.device).expand(mask.shape)


def _uniform(mask: Tensor) -> Tensor:
    return mask.float() / mask.sum(dim=1).clamp(min=1)[:, None]


def _weighted(rewards: Tensor, weights: Tensor) -> Aggregated:
    return Aggregated((weights * rewards).sum(dim=1), rewards, weights)


def mean(states: SegmentStates, options: Aggregation) -> Aggregated:
    """Returns the plain mean. Each segment is worth its own value, not its share of the mean (Segment, §2.3)."""
    total = states.values.sum(dim=1) / states.mask.sum(dim=1).clamp(min=1)
    return Aggregated(total, states.values, _uniform(states.mask), weighted=False)


@dataclass(frozen=True)
class AggregationKind:
    """An aggregation as a setting names it.

    Args:
        aggregate: (states of segments, options) -> rewards.
        attends: whether it needs query and key heads.
        of_values: whether the head's values at segment ends are all that it reads, each with the weight 1/n.
    """

    aggregate: Callable[[SegmentStates, Aggregation], Aggregated]
    attends: bool = False
    of_values: bool = False


AGGREGATIONS = Choices(
    "aggregation",
    {
        "mean": AggregationKind(mean, of_values=True),
        "sum": AggregationKind(lambda states, options: _weighted(states.values, states.mask.float())),
        "differential_mean": AggregationKind(
            lambda states, options: _weighted(differences(states, options.base), _uniform(states.mask))
        ),
        "value_attention": AggregationKind(
            lambda states, options: _weighted(states.values, attention_weights(states, options.rope_base)), attends=True
        ),
        "differential_attention": AggregationKind(
            lambda states, options: _weighted(
                differences(states, options.base), attention_weights(states, options.rope_base)
            ),
            attends=True,
        ),
        "preference_transformer": AggregationKind(
            lambda states, options: _weighted(states.values, mean_attention_weights(states, options.rope_base)),
            attends=True,
        ),
    },
    needs=("aggregate", "attends", "of_values"),
)


def build_aggregation(spec: str | Mapping[str, Any]) -> Aggregation:
    """Returns the aggregation of a name, or of `{kind: differential_attention, dim: 256}`.

    Raises:
        RecipeError: an unknown name or option, or an option that is wrong.
    """
    kind = AGGREGATIONS.kind_of(spec)
    return typed(Aggregation, {"kind": spec} if isinstance(spec, str) else spec, f"aggregation '{kind}'")
