"""Training a reward model on preference pairs: Bradley-Terry loss over aggregated segment rewards.

e(x, y) is the plain mean of the head's values at segment ends. Source: Segment, Eq. 3 and 4.
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
from rlhf_core.rewards.readout import read_ends


@dataclass(frozen=True)
class SegmentedSequence:
    """A sequence and the response token indices at which its segments end."""

    sequence: EncodedSequence
    ends: list[int]


def token_values(model: ScalarModel, sequences: Sequence[EncodedSequence], pad_id: int) -> Tensor:
    """[batch, response_len] float32: the reward head at every response token."""
    device = next(model.parameters()).device
    prompt_ids, prompt_mask = pad_rows([s.prompt for s in sequences], pad_id, "left")
    response_ids, response_mask = pad_rows([s.response for s in sequences], pad_id, "right")
    values: Tensor = model(
        prompt_ids.to(device), prompt_mask.to(device), response_ids.to(device), response_mask.to(device)
    )
    return values


def evaluations(model: ScalarModel, batch: Sequence[SegmentedSequence], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sequence evaluations and what they are made of.

    Returns:
        (e [batch], segment rewards [batch, max_segments], ends [batch, max_segments] with -1 beyond each row's count).
    """
    values = token_values(model, [s.sequence for s in batch], pad_id)
    ends, mask = pad_rows([s.ends for s in batch], -1, "right")
    ends, mask = ends.to(values.device), mask.to(values.device)
    segment_values = read_ends(values, ends)
    return segment_values.sum(dim=1) / mask.sum(dim=1).clamp(min=1), segment_values, ends


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """[pairs] float32: -log sigmoid(chosen - rejected). Source: Segment, Eq. 1 and 3."""
    return -F.logsigmoid(chosen.float() - rejected.float())


def pair_loss(
    model: ScalarModel, chosen: Sequence[SegmentedSequence], rejected: Sequence[SegmentedSequence], pad_id: int
) -> tuple[Tensor, float, dict[str, float]]:
    """(sum of the loss over pairs, number of pairs, sums of accuracy and margin); one forward pass for both sides."""
    e, _, _ = evaluations(model, [*chosen, *rejected], pad_id)
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
def score_all(
    model: ScalarModel, sequences: Sequence[SegmentedSequence], pad_id: int, batch: int = 64
) -> tuple[Tensor, list[list[float]]]:
    """(e [n] float32, segment rewards per sequence) in batches of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].sequence))
    result = torch.zeros(len(sequences))
    segments: list[list[float]] = [[] for _ in sequences]
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        e, values, ends = evaluations(model, [sequences[i] for i in rows], pad_id)
        result[rows] = e.float().cpu()
        for i, row_values, row_ends in zip(rows, values.tolist(), ends.tolist(), strict=True):
            segments[i] = [v for v, end in zip(row_values, row_ends, strict=True) if end >= 0]
    return result, segments
