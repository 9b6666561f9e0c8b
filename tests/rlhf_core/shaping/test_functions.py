"""Shaping functions: hand-computed values, a naive reference, bounds, order and the theory of PAR."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist, mean, stdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlhf_core.shaping import functions

QUICK = settings(max_examples=50, deadline=None)
#: Rewards a hundredth apart, so that float32 tells their images apart.
REWARDS = st.integers(-500, 500).map(lambda n: n / 100)
GROUPS = st.lists(REWARDS, min_size=2, max_size=6, unique=True)
REFERENCES = st.lists(REWARDS, min_size=2, max_size=4)


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def poly(c: float) -> float:
    if abs(c) >= 5:
        return float(c > 0)
    return 2.0266917e-4 * c**5 - 1.01309121e-2 * c**3 + 0.2287885118 * c + 0.5


NAIVE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[float], float]]] = {
    "par": (functions.sigmoid_centered, sigma),
    "k3": (lambda v, r: functions.sigmoid_centered(v, r, 3.0), lambda c: sigma(3 * c)),
    "tanh": (functions.tanh_centered, math.tanh),
    "sgfc": (functions.sgfc, lambda c: sigma(3 * (c - 3))),
    "centered": (functions.centered, lambda c: c),
    "poly": (functions.polynomial, poly),
    "poly clamped": (lambda v, r: functions.polynomial(v, r, clamp=True), lambda c: min(1.0, max(0.0, poly(c)))),
}


@pytest.mark.parametrize("name", NAIVE)
@QUICK
@given(values=st.lists(REWARDS, min_size=1, max_size=4), references=REFERENCES)
def test_centered_shapings_agree_with_the_naive_mean(name: str, values: list[float], references: list[float]) -> None:
    fast, one = NAIVE[name]
    shaped = fast(column(*values), torch.tensor([references] * len(values)))
    expected = [[mean(one(v - r) for r in references)] for v in values]
    torch.testing.assert_close(shaped, torch.tensor(expected), atol=2e-5, rtol=2e-5)


def test_values_by_hand() -> None:
    one, references = column(2.0), torch.tensor([[1.0, 3.0]])  # centered: 1 and -1
    assert float(functions.sigmoid_centered(one, references)) == pytest.approx(0.5)
    assert float(functions.sigmoid_centered(one, references[:, :1])) == pytest.approx(0.7310586)
    assert float(functions.tanh_centered(one, references[:, :1])) == pytest.approx(0.7615942)
    assert float(functions.centered(one, references)) == pytest.approx(0.0)
    assert float(functions.sgfc(column(4.0), references[:, :1])) == pytest.approx(0.5)
    assert float(functions.tanh(column(0.5))) == pytest.approx(0.4621172)
    assert float(functions.sigmoid(column(1.0), 2.0)) == pytest.approx(0.8807971)
    assert functions.ceil(column(4.0, 6.0), 5.0).squeeze(1).tolist() == [4.0, 5.0]
    assert functions.clip(column(-3.0, 0.5, 9.0), 1.0, 2.0).squeeze(1).tolist() == [-1.0, 0.5, 3.0]
    assert functions.meanstd(column(5.0), 1.0, 2.0).item() == 2.0
    assert functions.meanstd(column(5.0), 1.0, 0.0).item() == 4.0
    assert functions.minmax(column(2.0), 1.0, 5.0).item() == 0.25
    assert functions.minmax(column(2.0), 1.0, 1.0).item() == 0.5
    penalised = functions.length_penalty(column(1.0, 1.0, 1.0), torch.tensor([299, 300, 350]))
    assert penalised.squeeze(1).tolist() == pytest.approx([1.0, 1.0, 0.5])


def test_the_polynomial_leaves_its_range_just_inside_its_ends() -> None:
    zero = torch.zeros(4, 1)
    shaped = functions.polynomial(column(-5.0, -4.9999, 4.9999, 5.0), zero).squeeze(1).tolist()
    assert shaped == pytest.approx([0.0, -0.0109, 1.0109, 1.0], abs=1e-4)
    clamped = functions.polynomial(column(-5.0, -4.9999, 4.9999, 5.0), zero, clamp=True).squeeze(1).tolist()
    assert clamped == [0.0, 0.0, 1.0, 1.0]


@QUICK
@given(references=REFERENCES, value=REWARDS)
def test_lsc_compares_with_the_percentile_of_a_normal(references: list[float], value: float) -> None:
    deviation = stdev(references) + 1e-5
    q = NormalDist(mean(references), deviation).inv_cdf(0.85)
    shaped = float(functions.lsc(column(value), torch.tensor([references])))
    assert shaped == pytest.approx(math.log(sigma(value - q)), abs=1e-4)


def test_lsc_is_defined_for_equal_references() -> None:
    assert float(functions.lsc(column(1.0), torch.ones(1, 3))) == pytest.approx(math.log(0.5), abs=1e-4)


BOUNDED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float, float]] = {
    "par": (functions.sigmoid_centered, 0.0, 1.0),
    "tanh": (functions.tanh_centered, -1.0, 1.0),
    "sgfc": (functions.sgfc, 0.0, 1.0),
    "poly clamped": (lambda v, r: functions.polynomial(v, r, clamp=True), 0.0, 1.0),
    "poly": (functions.polynomial, -0.011, 1.011),
    "lsc": (functions.lsc, -math.inf, 0.0),
}


@pytest.mark.parametrize("name", BOUNDED)
@QUICK
@given(values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=4), references=REFERENCES)
def test_bounded_whatever_the_proxy(name: str, values: list[float], references: list[float]) -> None:
    function, low, high = BOUNDED[name]
    shaped = function(column(*values), torch.tensor([references] * len(values)))
    assert torch.isfinite(shaped).all()
    assert ((shaped >= low) & (shaped <= high)).all()


@QUICK
@given(rewards=st.lists(st.tuples(REWARDS, REWARDS), min_size=2, max_size=40))
def test_the_return_of_a_terminal_par_reward_varies_by_a_quarter_at_most(rewards: list[tuple[float, float]]) -> None:
    values, references = torch.tensor(rewards, dtype=torch.float32).split(1, dim=1)
    returns = functions.sigmoid_centered(values * 100, references).double()
    assert float(returns.var(correction=0)) <= 0.25


@QUICK
@given(
    rewards=st.lists(st.lists(st.sampled_from([-50.0, 0.0, 50.0]), min_size=12, max_size=12), min_size=2, max_size=20),
    gamma=st.floats(0.0, 0.95),
)
def test_the_discounted_return_of_par_rewards_is_bounded(rewards: list[list[float]], gamma: float) -> None:
    """Theorem 13.1 with Popoviciu's constant: Var[G] <= 1/(4(1 - gamma)^2)."""
    shaped = functions.sigmoid_centered(torch.tensor(rewards), torch.zeros(len(rewards), 1)).double()
    discount = gamma ** torch.arange(12, dtype=torch.float64)
    assert float((shaped * discount).sum(dim=1).var(correction=0)) <= 1 / (4 * (1 - gamma) ** 2) + 1e-9


def group_relative(scores: Tensor) -> Tensor:
    """GRPO's advantages of one group, population deviation; 0 where all are equal."""
    centred = scores.double() - scores.double().mean()
    deviation = centred.square().mean().sqrt()
    return torch.where(deviation > 1e-9, centred / deviation, 0.0)


@QUICK
@given(rewards=GROUPS, a=st.floats(0.1, 10), b=st.floats(-5, 5))
def test_an_affine_map_leaves_group_relative_advantages_as_they_are(rewards: list[float], a: float, b: float) -> None:
    scores = torch.tensor(rewards, dtype=torch.float64)
    torch.testing.assert_close(group_relative(a * scores + b), group_relative(scores), atol=1e-5, rtol=0)


@QUICK
@given(
    rewards=st.lists(st.integers(-10, 10).map(lambda n: n / 2), min_size=2, max_size=6, unique=True),
    seen=st.lists(REWARDS, min_size=1, max_size=9),
    references=REFERENCES,
)
def test_affine_shapings_leave_group_relative_advantages_as_they_are(
    rewards: list[float], seen: list[float], references: list[float]
) -> None:
    scores, all_ = column(*rewards), torch.tensor([*seen, *rewards])
    shaped = {
        "meanstd": functions.meanstd(scores, float(all_.mean()), float(all_.std(correction=0))),
        "minmax": functions.minmax(scores, float(all_.min()), float(all_.max())),
        "centered": functions.centered(scores, torch.tensor([references] * len(rewards))),
    }
    for values in shaped.values():
        torch.testing.assert_close(group_relative(values), group_relative(scores), atol=1e-5, rtol=0)


def test_par_changes_group_relative_advantages() -> None:
    scores = column(0.0, 1.0, 6.0)
    shaped = functions.sigmoid_centered(scores, torch.zeros(3, 1))
    assert float((group_relative(shaped) - group_relative(scores)).abs().max()) > 0.1


MONOTONE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "par": functions.sigmoid_centered,
    "tanh": functions.tanh_centered,
    "centered": functions.centered,
    "lsc": functions.lsc,
    "sigmoid": lambda v, r: functions.sigmoid(v),
    "meanstd": lambda v, r: functions.meanstd(v, 0.3, 2.0),
    "minmax": lambda v, r: functions.minmax(v, -5.0, 5.0),
}


@pytest.mark.parametrize("name", MONOTONE)
@QUICK
@given(pair=st.tuples(REWARDS, REWARDS), references=st.lists(st.integers(-1, 1).map(float), min_size=2, max_size=4))
def test_strictly_monotone_shapings_leave_the_order_of_a_pair(
    name: str, pair: tuple[float, float], references: list[float]
) -> None:
    """So online DPO chooses the same response."""
    shaped = MONOTONE[name](column(*pair), torch.tensor([references] * 2)).squeeze(1)
    assert bool(shaped[0] > shaped[1]) == (pair[0] > pair[1])
