"""Training a reward model on preference pairs: Bradley-Terry loss over aggregated segment rewards.

e(x, y) aggregates the head's values at segment ends, by their plain mean unless told otherwise. Source: Segment, Eq. 3
and 4; Sentence, §3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.models.policy import pad_rows, pad_sequences
from rlhf_core.models.response_states import response_states
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.passes import RowTokens
from rlhf_core.rewards.aggregation import Aggregated, Aggregation
from rlhf_core.rewards.preference_losses import BRADLEY_TERRY, PreferenceLoss
from rlhf_core.segmentation.segments import SegmentedSequence

PLAIN_MEAN = Aggregation("mean")


def aggregate(
    model: ScalarModel,
    batch: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    head: str = "reward",
) -> tuple[Aggregated, Tensor]:
    """Returns (rewards of the responses and their segments, ends [batch, max_segments] with -1 beyond each count)."""
    states, ends = _states(model, batch, pad_id)
    return aggregation(model.read_ends(states, ends, head)), ends


def _states(model: ScalarModel, batch: Sequence[SegmentedSequence], pad_id: int) -> tuple[Tensor, Tensor]:
    """Returns the states of `response_states`, and the segments' ends."""
    device = next(model.parameters()).device
    ends = pad_rows([s.ends for s in batch], -1, "right")[0].to(device)
    return response_states(model.backbone, *pad_sequences([s.sequence for s in batch], pad_id, device)), ends


def head_evaluations(
    model: ScalarModel,
    chosen: Sequence[SegmentedSequence],
    rejected: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    heads: Sequence[str] = ("reward",),
) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the sequence evaluations by each head, of the chosen and of the rejected, from one forward pass."""
    states, ends = _states(model, [*chosen, *rejected], pad_id)
    found = {head: aggregation(model.read_ends(states, ends, head)).total for head in heads}
    return {head: (e[: len(chosen)], e[len(chosen) :]) for head, e in found.items()}


def pair_loss(
    model: ScalarModel,
    chosen: Sequence[SegmentedSequence],
    rejected: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    loss: PreferenceLoss = BRADLEY_TERRY,
) -> tuple[Tensor, float, dict[str, float]]:
    """Returns (sum of the loss over pairs, number of pairs, sums of measures); one forward pass for both sides and all
    heads.

    Accuracy and margin are of the loss's first head.
    """
    evaluated = head_evaluations(model, chosen, rejected, pad_id, aggregation, loss.heads)
    good, bad = evaluated[loss.heads[0]]
    lengths = [torch.tensor([float(len(s.sequence.response)) for s in side], device=good.device)
               for side in (chosen, rejected)]  # fmt: skip
    total, measures = loss(evaluated, (lengths[0], lengths[1]), dict(model.heads.items()))
    measures = {"accuracy": float((good > bad).sum()), "margin": float((good - bad).detach().sum()), **measures}
    return total, float(len(chosen)), measures


@torch.no_grad()
def score_parts(
    model: ScalarModel,
    sequences: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    batch: int = 64,
    head: str = "reward",
) -> tuple[Tensor, list[dict[str, list[float]]]]:
    """Returns (rewards e [n] float32 of responses; `worth`, `rewards` and `weights` of each one's segments)."""
    result = torch.zeros(len(sequences))
    parts: list[dict[str, list[float]]] = [{} for _ in sequences]
    for rows in RowTokens.of_sequences([each.sequence for each in sequences], packed=model.packs).own_passes(batch):
        found, ends = aggregate(model, [sequences[i] for i in rows], pad_id, aggregation, head)
        result[rows] = found.total.float().cpu()
        for name, values in (("worth", found.worth), ("rewards", found.rewards), ("weights", found.weights)):
            for i, row_values, row_ends in zip(rows, values.tolist(), ends.tolist(), strict=True):
                parts[i][name] = [v for v, end in zip(row_values, row_ends, strict=True) if end >= 0]
    everyone = distributed.gathered(parts)
    parts = [next((rows[i] for rows in everyone if rows[i]), {}) for i in range(len(sequences))]
    return distributed.merged(result), parts


def score_all(
    model: ScalarModel,
    sequences: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    batch: int = 64,
    head: str = "reward",
) -> tuple[Tensor, list[list[float]]]:
    """Returns (rewards e [n] float32 of responses; the worth of each one's segments)."""
    result, parts = score_parts(model, sequences, pad_id, aggregation, batch, head)
    return result, [part["worth"] for part in parts]
