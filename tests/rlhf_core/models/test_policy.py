"""Statistics of a policy: those of each sequence alone, whatever the padding and the batch."""

from __future__ import annotations

import pytest
import torch
from tiny_models import PAD, POLICIES, batch_of, random_rows
from torch.nn.functional import pad

PROMPTS = random_rows(1, [3, 6, 1, 4], ended=False)
ROWS = random_rows(2, [6, 1, 4, 2])


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
