"""Supervised losses: likelihood of response tokens, direct preference optimisation, and recipes over their examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError
from rlhf_core.models.policy import Policy, sequence_statistics, weighted_nll
from rlhf_core.passes import RowTokens, pair_tokens
from rlhf_core.policy_optimisation.objectives import preference_loss
from rlhf_core.supervised.recipes import Preferences, Weighted


def sft_loss(policy: Policy, sequences: Sequence[EncodedSequence]) -> tuple[Tensor, float]:
    """Returns (sum of -log p over response tokens, number of response tokens)."""
    statistics, mask = sequence_statistics(policy, sequences)
    return -statistics.logprobs.sum(), float(mask.sum())


@torch.no_grad()
def mean_nll(policy: Policy, sequences: Sequence[EncodedSequence], batch: int = 64) -> float:
    """Nats per response token."""
    total, tokens = 0.0, 0.0
    for rows in RowTokens.of_sequences(sequences, packed=policy.packs).own_passes(batch):
        loss, count = sft_loss(policy, [sequences[i] for i in rows])
        total, tokens = total + float(loss), tokens + count
    sums = distributed.summed_numbers({"loss": total, "tokens": tokens})
    return sums["loss"] / max(sums["tokens"], 1.0)


def sequence_logprobs(policy: Policy, sequences: Sequence[EncodedSequence]) -> Tensor:
    """Returns [batch] float32: summed log-probability of each response."""
    return sequence_statistics(policy, sequences)[0].logprobs.sum(dim=1)


@torch.no_grad()
def reference_logprobs(policy: Policy, sequences: Sequence[EncodedSequence], batch: int = 64) -> Tensor:
    """Returns the same for a whole data set, computed once in batches of similar length."""
    result = torch.zeros(len(sequences))
    for rows in RowTokens.of_sequences(sequences, packed=policy.packs).own_passes(batch):
        result[rows] = sequence_logprobs(policy, [sequences[i] for i in rows]).float().cpu()
    return distributed.merged(result)


class Objective(Protocol):
    """A loss over rows of a fixed data set.

    Attributes:
        lengths: tokens that each row costs a forward pass; a pair's prompt counts once.
        every: steps between two rows of the history.
        compared: whether the loss compares the rows of a forward pass with each other.
    """

    lengths: list[int]
    every: int
    compared: bool

    def loss(self, rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        """Returns (sum of the loss, what it is divided by, further sums to report)."""

    def weight(self, rows: Sequence[int]) -> float:
        """Returns the divisor of a batch's loss sum."""


class WeightedLikelihood:
    """-sum of weight * log pi, divided by the number of weighted tokens.

    Args:
        policy: trained.
        examples: with at least one weighted token.

    Raises:
        DataError: nothing to learn from.
    """

    every, compared = 10, False

    def __init__(self, policy: Policy, examples: Weighted) -> None:
        self.policy, self.examples = policy, examples
        self.lengths = [len(sequence) for sequence in examples.sequences]
        self.counts = [sum(weight != 0 for weight in row) for row in examples.weights]
        if not any(self.counts):
            raise DataError(
                "the recipe finds nothing to learn from",
                remedy="Sample more solutions; rewrites count where they are accepted and change something",
            )

    def loss(self, rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        sequences = [self.examples.sequences[i] for i in rows]
        weights = [self.examples.weights[i] for i in rows]
        return weighted_nll(self.policy, sequences, weights), self.weight(rows), {}

    def weight(self, rows: Sequence[int]) -> float:
        return float(sum(self.counts[i] for i in rows))


class PreferenceObjective:
    """DPO's loss; the reference's log-probabilities are computed once.

    Args:
        policy: trained.
        reference: frozen.
        pairs: at least one.
    """

    every, compared = 5, False

    def __init__(self, policy: Policy, reference: Policy, pairs: Preferences) -> None:
        self.policy, self.pairs = policy, pairs
        before = reference_logprobs(reference, [*pairs.chosen, *pairs.rejected]).to(policy.device)
        self.before = {"chosen": before[: len(pairs.chosen)], "rejected": before[len(pairs.chosen) :]}
        self.lengths = pair_tokens(pairs.chosen, pairs.rejected, packed=policy.packs)

    def loss(self, rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        first, second = ([side[i] for i in rows] for side in (self.pairs.chosen, self.pairs.rejected))
        logprobs = sequence_logprobs(self.policy, [*first, *second])
        chosen, rejected = logprobs[: len(rows)], logprobs[len(rows) :]
        ratios = chosen - self.before["chosen"][list(rows)], rejected - self.before["rejected"][list(rows)]
        losses, margins = preference_loss(torch.stack(ratios, dim=1), self.pairs.beta)
        right = float((margins > 0).sum())
        return losses.sum(), float(len(rows)), {"accuracy": right, "margin": float(margins.sum())}

    def weight(self, rows: Sequence[int]) -> float:
        return float(len(rows))


def objective(examples: Weighted | Preferences, policy: Policy, reference: Policy) -> Objective:
    """Returns the loss of a recipe's examples."""
    if isinstance(examples, Preferences):
        return PreferenceObjective(policy, reference, examples)
    return WeightedLikelihood(policy, examples)
