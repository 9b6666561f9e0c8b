"""Best-of-N: nested subsets of one pool, the first of equals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import NumericsError, RecipeError
from tasks.best_of_n import best_of_first


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4))
def test_the_best_of_the_first_n_is_what_a_search_finds(values: list[int]) -> None:
    rewards = torch.tensor([values], dtype=torch.float32)
    for size, (place,) in best_of_first(rewards, (1, 2, 4)).items():
        assert place == max(range(size), key=lambda i: (values[i], -i))


@pytest.mark.parametrize("sizes", [(), (0, 2), (2, 2), (2, 8)])
def test_sizes_that_the_pool_does_not_have_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(RecipeError, match="at most the pool of 4"):
        best_of_first(torch.zeros(1, 4), sizes)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NumericsError, match="not finite"):
        best_of_first(torch.tensor([[0.0, float("nan")]]), (2,))
