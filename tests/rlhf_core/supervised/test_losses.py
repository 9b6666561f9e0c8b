"""SFT and DPO losses by hand, against naive sums, and in the direction they push."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import random_rows, tiny_policy

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.supervised.objectives import (
    reference_logprobs,
    sequence_logprobs,
    sequence_statistics,
    sft_loss,
)

PROMPTS = random_rows(1, [3, 5, 1, 4], ended=False)
ROWS = random_rows(2, [6, 1, 3, 7])
SEQUENCES = [EncodedSequence(prompt, row) for prompt, row in zip(PROMPTS, ROWS, strict=True)]


def naive_nll(seed: int, sequence: EncodedSequence) -> list[float]:
    """-log p of each response token, from the model's own logits over one unpadded sequence."""
    with torch.no_grad():
        logits = tiny_policy(seed).model(torch.tensor([[*sequence.prompt, *sequence.response]])).logits[0]
    log_p, start = logits.log_softmax(-1), len(sequence.prompt) - 1
    return [-float(log_p[start + i, token]) for i, token in enumerate(sequence.response)]


def test_sft_sums_over_response_tokens_only() -> None:
    loss, tokens = sft_loss(tiny_policy(1), SEQUENCES)
    naive = [x for sequence in SEQUENCES for x in naive_nll(1, sequence)]
    assert tokens == len(naive) == 17
    assert float(loss.detach()) == pytest.approx(sum(naive), rel=1e-5)


def test_entropies_come_on_request() -> None:
    with torch.no_grad():
        plain, mask = sequence_statistics(tiny_policy(1), SEQUENCES)
        full, _ = sequence_statistics(tiny_policy(1), SEQUENCES, with_entropy=True)
    assert plain.entropies.abs().sum() == 0
    assert bool((full.entropies[mask] > 0).all())
    assert float(full.entropies.max()) <= math.log(50) + 1e-5


def test_sequence_logprobs_are_sums_and_keep_their_order_in_batches() -> None:
    naive = [-sum(naive_nll(1, sequence)) for sequence in SEQUENCES]
    with torch.no_grad():
        assert sequence_logprobs(tiny_policy(1), SEQUENCES).tolist() == pytest.approx(naive, rel=1e-5)
    for batch in (1, 3):
        assert reference_logprobs(tiny_policy(1), SEQUENCES, batch).tolist() == pytest.approx(naive, rel=1e-5)
