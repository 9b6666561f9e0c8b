"""Training a reward model on preference pairs: Bradley-Terry loss over aggregated segment rewards.

e(x, y) aggregates the head's values at segment ends, by their plain mean unless told otherwise. Source: Segment, Eq. 3
and 4; Sentence, §3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.policy import pad_rows
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.aggregation import Aggregated, Aggregation


@dataclass(frozen=True)
class SegmentedSequence:
    """A sequence and the response token indices at which its segments end."""

    sequence: EncodedSequence
    ends: list[int]


MEAN = Aggregation("mean")


def aggregate(
    model: ScalarModel, batch: Sequence[SegmentedSequence], pad_id: int, aggregation: Aggregation = MEAN
) -> tuple[Aggregated, Tensor]:
    """(what the segments are worth, ends [batch, max_segments] with -1 beyond each row's count)."""
    device = next(model.parameters()).device
    prompt_ids, prompt_mask = pad_rows([s.sequence.prompt for s in batch], pad_id, "left")
    response_ids, response_mask = pad_rows([s.sequence.response for s in batch], pad_id, "right")
    ends, _ = pad_rows([s.ends for s in batch], -1, "right")
    ends = ends.to(device)
    states = model.at_ends(
        prompt_ids.to(device), prompt_mask.to(device), response_ids.to(device), response_mask.to(device), ends
    )
    return aggregation(states), ends


def evaluations(
    model: ScalarModel, batch: Sequence[SegmentedSequence], pad_id: int, aggregation: Aggregation = MEAN
) -> tuple[Tensor, Tensor, Tensor]:
    """Sequence evaluations and what they are made of.

    Returns:
        (e [batch], what segments are worth [batch, max_segments], ends [batch, max_segments] with -1 beyond each row's
        count).
    """
    found, ends = aggregate(model, batch, pad_id, aggregation)
    return found.total, found.worth, ends


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """[pairs] float32: -log sigmoid(chosen - rejected). Source: Segment, Eq. 1 and 3."""
    return -F.logsigmoid(chosen.float() - rejected.float())


def pair_loss(
    model: ScalarModel,
    chosen: Sequence[SegmentedSequence],
    rejected: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = MEAN,
) -> tuple[Tensor, float, dict[str, float]]:
    """(sum of the loss over pairs, number of pairs, sums of accuracy and margin); one forward pass for both sides."""
    e, _, _ = evaluations(model, [*chosen, *rejected], pad_id, aggregation)
    good, bad = e[: len(chosen)], e[len(chosen) :]
    right = float((good > bad).sum())
    return (
        bradley_terry_loss(good, bad).sum(),
        float(len(chosen)),
        {
            "accuracy": right,
            "margin": float((good - bad).detach().sum()),
        },
    )


@torch.no_grad()
def score_parts(
    model: ScalarModel,
    sequences: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = MEAN,
    batch: int = 64,
) -> tuple[Tensor, list[dict[str, list[float]]]]:
    """(e [n] float32; per sequence `worth`, `rewards` and `weights` of its segments) in batches of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].sequence))
    result = torch.zeros(len(sequences))
    parts: list[dict[str, list[float]]] = [{} for _ in sequences]
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        found, ends = aggregate(model, [sequences[i] for i in rows], pad_id, aggregation)
        result[rows] = found.total.float().cpu()
        for name, values in (("worth", found.worth), ("rewards", found.rewards), ("weights", found.weights)):
            for i, row_values, row_ends in zip(rows, values.tolist(), ends.tolist(), strict=True):
                parts[i][name] = [v for v, end in zip(row_values, row_ends, strict=True) if end >= 0]
    return result, parts


def score_all(
    model: ScalarModel,
    sequences: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = MEAN,
    batch: int = 64,
) -> tuple[Tensor, list[list[float]]]:
    """(e [n] float32, what each segment is worth per sequence)."""
    result, parts = score_parts(model, sequences, pad_id, aggregation, batch)
    return result, [part["worth"] for part in parts]
