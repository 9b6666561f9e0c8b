"""Direct preference optimisation. Source: Rafailov et al. 2023, Eq. 7; the comparison of Segment, Table 3."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.policy import Policy
from rlhf_core.supervised.sft import sequence_statistics


def dpo_loss(
    chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Returns -log sigmoid(beta * ((c - c_ref) - (r - r_ref))) per pair.

    Args:
        chosen, rejected, reference_chosen, reference_rejected: [pairs] summed response log-probabilities.
        beta: temperature.

    Returns:
        (loss [pairs], implicit reward margin [pairs]).
    """
    margin = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    return -F.logsigmoid(margin), margin.detach()


def sequence_logprobs(policy: Policy, sequences: Sequence[EncodedSequence]) -> Tensor:
    """Returns [batch] float32: summed log-probability of each response."""
    return sequence_statistics(policy, sequences)[0].logprobs.sum(dim=1)


@torch.no_grad()
def reference_logprobs(policy: Policy, sequences: Sequence[EncodedSequence], batch: int = 64) -> Tensor:
    """Returns the same for a whole data set, computed once in batches of similar length."""
    order = distributed.own(sorted(range(len(sequences)), key=lambda i: len(sequences[i])))
    result = torch.zeros(len(sequences))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        result[rows] = sequence_logprobs(policy, [sequences[i] for i in rows]).float().cpu()
    return distributed.merged(result)
