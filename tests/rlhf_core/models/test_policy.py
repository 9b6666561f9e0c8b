"""Statistics of a policy: those of each sequence alone, whatever the padding and the batch."""

from __future__ import annotations

import pytest
import torch
from tiny_models import PAD, POLICIES, batch_of, next_logits, random_rows
from torch.nn.functional import pad

from rlhf_core.models.policy import Policy

PROMPTS = random_rows(1, [3, 6, 1, 4], ended=False)
ROWS = random_rows(2, [6, 1, 4, 2])


def naive(policy: Policy, prompt: list[int], row: list[int]) -> tuple[list[float], list[float]]:
    """Log-probabilities and entropies of one unpadded sequence by the model's own forward pass."""
    log_p = next_logits(policy, prompt, row).double().log_softmax(-1)
    logs, entropies = [], []
    for i, token in enumerate(row):
        logs.append(float(log_p[i][token]))
        entropies.append(-sum(float(x.exp() * x) for x in log_p[i]))
    return logs, entropies


@pytest.mark.parametrize("kind", POLICIES)
def test_batched_statistics_are_those_of_each_sequence_alone(kind: str) -> None:
    batch = batch_of(PROMPTS, ROWS)
    with torch.no_grad():
        statistics = POLICIES[kind](1).statistics(
            batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask
        )
    for i, (prompt, row) in enumerate(zip(PROMPTS, ROWS, strict=True)):
        logs, entropies = naive(POLICIES[kind](1), prompt, row)
        assert statistics.logprobs[i, : len(row)].tolist() == pytest.approx(logs, abs=2e-5)
        assert statistics.entropies[i, : len(row)].tolist() == pytest.approx(entropies, abs=2e-5)
        assert statistics.logprobs[i, len(row) :].abs().sum() == 0
        assert statistics.entropies[i, len(row) :].abs().sum() == 0


@pytest.mark.parametrize(("left", "right", "junk"), [(3, 0, PAD), (0, 4, PAD), (5, 2, 17)])
def test_more_padding_of_any_content_changes_nothing(kind: str, left: int, right: int, junk: int) -> None:
    policy, batch = POLICIES[kind](1), batch_of(PROMPTS, ROWS)
    mask = batch.responses.mask
    with torch.no_grad():
        plain = policy.statistics(batch.prompt_ids, batch.prompt_mask, batch.responses.ids, mask)
        padded = policy.statistics(
            pad(batch.prompt_ids.masked_fill(~batch.prompt_mask, junk), (left, 0), value=junk),
            pad(batch.prompt_mask, (left, 0)),
            pad(batch.responses.ids.masked_fill(~mask, junk), (0, right), value=junk),
            pad(mask, (0, right)),
        )
    width = mask.shape[1]
    torch.testing.assert_close(padded.logprobs[:, :width], plain.logprobs, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(padded.entropies[:, :width], plain.entropies, atol=2e-5, rtol=1e-5)
    assert padded.logprobs[:, width:].abs().sum() == 0
