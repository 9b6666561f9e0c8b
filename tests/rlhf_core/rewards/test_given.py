"""Token rewards that were computed before training."""

from __future__ import annotations

import pytest
import torch
from tiny_models import EOS, batch_of

from rlhf_core.credit import CREDITS
from rlhf_core.errors import DataError
from rlhf_core.reasoning.token_rewards import GivenTokenRewards
from rlhf_core.rewards.composition import Component, Reward


def test_every_token_gets_its_own_reward_and_padding_none() -> None:
    batch = batch_of([[5], [5]], [[7, 8, EOS], [9, EOS]])
    scorer = GivenTokenRewards({"0": [0.5, 0.0, 0.25], "1": [-0.1, 0.0]})
    total = Reward((Component("given", scorer, CREDITS["as_is"]),))(batch).total
    assert torch.allclose(total, torch.tensor([[0.5, 0.0, 0.25], [-0.1, 0.0, 0.0]]))


@pytest.mark.parametrize(("given", "count"), [({}, 0), ({"0": [0.5]}, 1)])
def test_a_sample_without_rewards_for_all_its_tokens_is_named(given: dict[str, list[float]], count: int) -> None:
    with pytest.raises(DataError, match=f"sample '0' has 2 tokens and {count} rewards"):
        GivenTokenRewards(given).score(batch_of([[5]], [[7, EOS]]))
