"""Shapings against formulas written out; references, running statistics, bad input, and what is of no use."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import batch_of, random_rows

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.policy_optimisation.config import useless_combination
from rlhf_core.rollout import RolloutBatch
from rlhf_core.segmentation.segmenters import NGram
from rlhf_core.shaping.choices import SHAPINGS, build_shaping, needs_references, shaping_class
from rlhf_core.shaping.steps import MeanStd, MinMax, Referenced, Running, RunningStatistics, SftUnits
from rlhf_core.signals import Segments, Sequence, Tokens

#: Options that a shaping cannot do without.
NEEDED: dict[str, dict[str, Any]] = {"ceil": {"ceiling": 0.5}}
RUNNING = ("clip", "meanstd", "minmax", "ceil")
QUICK = settings(max_examples=30, deadline=None)


def spec(kind: str, **options: Any) -> dict[str, Any]:
    few = {"references": 3} if shaping_class(kind).centred else {}
    return {"kind": kind, **few, **NEEDED.get(kind, {}), **options}


def batch(rows: int = 3, seed: int = 0) -> RolloutBatch:
    """Responses of 5, 3, 4, ... tokens, with three references each."""
    lengths = [5, 3, 4, 6, 2][:rows]
    made = batch_of([[5, 6]] * rows, random_rows(seed, lengths))
    generator = torch.Generator().manual_seed(seed)
    records = [{**record, "correct": i % 2 == 0} for i, record in enumerate(made.records)]
    known = {str(i): torch.randn(3, generator=generator) for i in range(rows)}
    return replace(made, records=records, references=known)


def signals(of: RolloutBatch, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    segmentation = NGram(2).segment(of.responses)
    segments = torch.randn(segmentation.ends.shape, generator=generator)
    tokens = torch.randn(of.responses.ids.shape, generator=generator)
    return [
        Sequence(torch.randn(len(of), generator=generator)),
        Segments(torch.where(segmentation.mask, segments, 0.0), segmentation),
        Tokens(torch.where(of.responses.mask, tokens, 0.0)),
    ]


@dataclass(frozen=True)
class Seen:
    """Facts that a formula may use for one value.

    Attributes:
        references: rewards of the prompt's reference responses.
        rewards: all real values of the batch.
        tokens, right: of the response.
    """

    references: list[float]
    rewards: list[float]
    tokens: int
    right: bool


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def poly(c: float) -> float:
    if abs(c) >= 5:
        return float(c > 0)
    return 2.0266917e-4 * c**5 - 1.01309121e-2 * c**3 + 0.2287885118 * c + 0.5


def centred(formula: Callable[[float], float]) -> Callable[[float, Seen], float]:
    return lambda v, seen: fmean(formula(v - r) for r in seen.references)


def by_moments(formula: Callable[[float, float, float], float]) -> Callable[[float, Seen], float]:
    return lambda v, seen: formula(v, fmean(seen.rewards), float(np.std(seen.rewards)))


def percentile(references: list[float]) -> float:
    return NormalDist(fmean(references), stdev(references) + 1e-5).inv_cdf(0.85)


#: Shaping, its options, and the formula of one value.
NAIVE: list[tuple[str, dict[str, Any], Callable[[float, Seen], float]]] = [
    ("par", {}, centred(sigma)),
    ("par", {"references": 1}, lambda v, seen: sigma(v - seen.references[0])),
    ("sigmoid_k2", {}, centred(lambda c: sigma(2 * c))),
    ("sigmoid_k3", {}, centred(lambda c: sigma(3 * c))),
    ("sigmoid", {"k": 2.0}, lambda v, seen: sigma(2 * v)),
    ("tanh", {}, lambda v, seen: math.tanh(v)),
    ("tanh_centered", {}, centred(math.tanh)),
    ("sgfc", {}, centred(lambda c: sigma(3 * (c - 3)))),
    ("centered", {}, centred(lambda c: c)),
    ("poly", {}, centred(poly)),
    ("poly", {"clamp": True}, centred(lambda c: min(1.0, max(0.0, poly(c))))),
    ("lsc", {}, lambda v, seen: math.log(sigma(v - percentile(seen.references)))),
    ("ceil", {"ceiling": 9.0}, lambda v, seen: min(v, 9.0)),
    ("clip", {}, by_moments(lambda v, mean, std: min(max(v, mean - std), mean + std))),
    ("meanstd", {}, by_moments(lambda v, mean, std: (v - mean) / std)),
    ("minmax", {}, lambda v, seen: (v - min(seen.rewards)) / (max(seen.rewards) - min(seen.rewards))),
    ("length_penalty", {"beyond": 3, "per_token": 0.5}, lambda v, seen: v - 0.5 * max(0, seen.tokens - 3)),
    (
        "outcome_probability", {},
        lambda v, seen: min(max(sigma(v) - 0.5, 0.0), 0.5) if seen.right else max(min(sigma(v) - 0.5, 0.0), -0.1),
    ),
    ("short_response", {"tokens": 3}, lambda v, seen: -10.0 if seen.tokens <= 3 else v),
]  # fmt: skip


def test_every_shaping_has_a_formula() -> None:
    assert {kind for kind, *_ in NAIVE} == set(SHAPINGS)


@pytest.mark.parametrize(
    ("kind", "options", "formula"), NAIVE, ids=lambda value: value if isinstance(value, str) else ""
)
@QUICK
@given(seed=st.integers(0, 1000), scale=st.sampled_from([0.1, 1.0, 3.0]))
def test_a_shaping_is_its_formula_on_real_values_and_0_on_padding(
    kind: str, options: dict[str, Any], formula: Callable[[float, Seen], float], seed: int, scale: float
) -> None:
    of = batch(5, seed)
    for signal in signals(of, seed):
        shaping = build_shaping(spec(kind, **options))
        if type(signal) not in shaping.takes:
            continue
        signal = replace(signal, values=scale * signal.values)
        shaped = shaping(signal, of, update=True)
        assert type(shaped) is type(signal)
        assert shaped.values.dtype == torch.float32
        assert shaped.values.shape == signal.values.shape
        columns = signal.values[:, None] if isinstance(signal, Sequence) else signal.values
        found = shaped.values[:, None] if isinstance(signal, Sequence) else shaped.values
        mask = torch.ones_like(columns, dtype=torch.bool)
        if not isinstance(signal, Sequence):
            mask = signal.segmentation.mask if isinstance(signal, Segments) else of.responses.mask
        assert (found[~mask] == 0).all()
        for i, length in enumerate(of.responses.lengths.tolist()):
            seen = Seen(of.references[str(i)].tolist(), columns[mask].tolist(), length, i % 2 == 0)
            for value, made in zip(columns[i][mask[i]].tolist(), found[i][mask[i]].tolist(), strict=True):
                assert made == pytest.approx(formula(value, seen), abs=2e-4, rel=1e-4)


def test_the_polynomial_leaves_its_range_just_inside_its_ends() -> None:
    of = replace(batch(5), references={str(i): torch.zeros(1) for i in range(5)})
    ends = Sequence(torch.tensor([-5.0, -4.9999, 0.0, 4.9999, 5.0]))
    for clamp, expected in ((False, [0.0, -0.0109, 0.5, 1.0109, 1.0]), (True, [0.0, 0.0, 0.5, 1.0, 1.0])):
        shaped = build_shaping({"kind": "poly", "references": 1, "clamp": clamp})(ends, of, update=True)
        assert shaped.values.tolist() == pytest.approx(expected, abs=1e-4)


def test_steps_are_applied_in_order() -> None:
    of = batch()
    chain = build_shaping([spec("length_penalty", beyond=4, per_token=2.0), spec("sigmoid")])
    shaped = chain(Sequence(torch.tensor([2.0, 1.0, 0.0])), of, update=True).values  # 5, 3 and 4 tokens
    torch.testing.assert_close(shaped, torch.sigmoid(torch.tensor([0.0, 1.0, 0.0])))


# Running statistics.

BATCHES = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=7), max_size=6)


@QUICK
@given(batches=BATCHES)
def test_running_statistics_are_those_of_all_values_at_once_and_survive_json(batches: list[list[float]]) -> None:
    statistics, other = RunningStatistics(), RunningStatistics()
    for drawn in batches:
        statistics.update(torch.tensor(drawn))
    other.load_state_dict(json.loads(json.dumps(statistics.state_dict(), allow_nan=False)))
    assert other == statistics
    values = np.array([value for drawn in batches for value in drawn], dtype=np.float64)
    assert statistics.count == len(values)
    assert statistics.deviation == pytest.approx(values.std() if len(values) > 1 else 0.0, abs=1e-6)
    if len(values):
        assert statistics.mean == pytest.approx(values.mean(), abs=1e-9)
        assert (statistics.minimum, statistics.maximum) == (values.min(), values.max())


@QUICK
@given(size=st.floats(1e-3, 1e6), seed=st.integers(0, 99))
def test_running_shapings_do_not_amplify_rounding(size: float, seed: int) -> None:
    noise = 1 + 1e-7 * torch.rand(8, generator=torch.Generator().manual_seed(seed)).double()
    values = (size * noise)[None]
    statistics = RunningStatistics()
    statistics.update(values)
    assert MeanStd().by(values, statistics).abs().max() <= 1e-6 * size
    assert (MinMax().by(values, statistics) == 0.5).all()


def test_statistics_take_in_a_batch_once_and_before_it_is_shaped() -> None:
    of = batch()
    shaping = build_shaping(spec("minmax"))
    assert shaping(Sequence(torch.tensor([1.0, 2.0, 3.0])), of, update=True).values.tolist() == [0.0, 0.5, 1.0]
    assert shaping(Sequence(torch.tensor([5.0, 1.0, 3.0])), of, update=True).values.tolist() == [1.0, 0.0, 0.5]
    assert shaping.state_dict()["0-minmax"]["count"] == 6


@pytest.mark.parametrize("kind", RUNNING)
def test_a_resumed_run_shapes_as_the_uninterrupted_one(kind: str) -> None:
    of = batch()
    chain = [spec("length_penalty", beyond=2), spec(kind)]
    first, second = build_shaping(chain), build_shaping(chain)
    first(Sequence(torch.tensor([0.1, 1.3, 2.7])), of, update=True)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    later = Sequence(torch.tensor([0.4, -1.0, 5.0]))
    assert torch.equal(first(later, of, update=True).values, second(later, of, update=True).values)
    with pytest.raises(RecipeError, match="saved state is of the shapings"):
        build_shaping(spec("par")).load_state_dict(first.state_dict())


# Bad input.


@pytest.mark.parametrize("rewards", [[2.0], [0.4] * 3, [0.7, 2.0, 0.1]])
@pytest.mark.parametrize("kind", SHAPINGS)
def test_one_reward_equal_rewards_and_a_first_evaluation_are_defined(kind: str, rewards: list[float]) -> None:
    of, signal = batch(len(rewards)), Sequence(torch.tensor(rewards))
    trained = build_shaping(spec(kind))(signal, of, update=True).values
    assert torch.isfinite(trained).all()
    assert torch.isfinite(build_shaping(spec(kind))(signal, of, update=False).values).all()
    alike = {"meanstd": 0.0, "minmax": 0.5, "clip": rewards[0], "ceil": min(rewards[0], 0.5)}
    if len(set(rewards)) == 1 and kind in alike:
        assert trained.tolist() == pytest.approx([alike[kind]] * len(rewards))


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_proxy_reward_that_is_not_finite_stops_the_run(value: float) -> None:
    with pytest.raises(NumericsError, match="proxy reward of response 1 of the batch is not finite"):
        build_shaping(spec("par"))(Sequence(torch.tensor([0.0, value, 1.0])), batch(), update=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reference_reward_that_is_not_finite_stops_the_run(value: float) -> None:
    of = batch()
    of = replace(of, references={**of.references, "2": torch.tensor([0.0, value, 0.0])})
    with pytest.raises(NumericsError, match="reference reward of prompt '2' is not finite"):
        build_shaping(spec("par"))(Sequence(torch.zeros(3)), of, update=True)


def test_a_ceiling_below_every_reward_is_refused() -> None:
    shaping = build_shaping(spec("ceil", ceiling=0.5))
    with pytest.raises(RecipeError, match=r"ceiling 0\.5 is below every proxy reward .* smallest of 3 is 0\.7"):
        shaping(Sequence(torch.tensor([0.7, 2.0, 3.0])), batch(), update=True)


def test_prompts_without_references_are_named() -> None:
    of = batch()
    without = replace(of, references={"0": of.references["0"]})
    with pytest.raises(DataError, match="prompt '1' has no reference rewards"):
        build_shaping(spec("par"))(Sequence(torch.zeros(3)), without, update=True)
    with pytest.raises(DataError, match=r"prompt '0' has 3 reference reward\(s\), the shaping asks for 10"):
        build_shaping({"kind": "par"})(Sequence(torch.zeros(3)), of, update=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "parr"}, "unknown shaping 'parr'; did you mean 'par'"),
        ({"kind": "par", "reference": 3}, "unknown option 'reference'; did you mean 'references'"),
        ({"kind": "par", "references": 0}, "references is 0; it must be at least 1"),
        ({"kind": "par", "k": 0}, "k is 0; it must be above 0"),
        ({"kind": "sigmoid_k2", "k": 4.0}, "unknown option 'k'"),
        ({"kind": "ceil"}, "shaping 'ceil'.*ceiling"),
        ({"kind": "ceil", "ceiling": float("inf")}, "ceiling is 'inf'; it must be a finite number"),
        ({"kind": "ceil", "ceiling": 10**400}, "ceiling is '1000.*; it must be a finite number"),
        ({"kind": "ceil", "ceiling": {"sft_lengths": 2}}, "state a number, or {value: ..., sft_deviations: ...}"),
        ({"kind": "ceil", "ceiling": "high"}, "ceil's ceiling is 'high'; it must be a finite number"),
        ("par", "must be a mapping"),
        ([], "must be a mapping"),
        ([{"references": 3}], "must be a mapping with a kind"),
    ],
)
def test_mistakes_are_named(given: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_shaping(given)


# Constants in units of the SFT policy.

SFT = SftUnits(mean=-1.0, deviation=0.5, length=40.0)
BOTH = [
    {
        "kind": "length_penalty",
        "beyond": {"value": 300, "sft_lengths": 1.5},
        "per_token": {"value": 0.01, "sft_deviations": 2.0},
    },
    {"kind": "ceil", "ceiling": {"value": 5.0, "sft_deviations": 3.0}},
]


def test_constants_in_units_are_resolved_where_the_scale_says_so() -> None:
    in_units = build_shaping(BOTH, SFT).resolved()
    assert in_units == pytest.approx(
        {"length_penalty_beyond": 60.0, "length_penalty_per_token": 0.025, "ceil_ceiling": 0.5}
    )
    as_printed = build_shaping(BOTH, replace(SFT, constants="value")).resolved()
    assert as_printed == {"length_penalty_beyond": 300.0, "length_penalty_per_token": 0.01, "ceil_ceiling": 5.0}
    assert build_shaping({"kind": "sgfc", "shift": {"sft_deviations": 3.0}}, SFT).resolved() == {"sgfc_shift": 1.5}


def test_units_without_the_sft_policys_rewards_are_refused() -> None:
    with pytest.raises(RecipeError, match="needs the SFT policy's reference rewards"):
        build_shaping({"kind": "sgfc", "shift": {"sft_deviations": 3.0}})


def test_the_graph_knows_which_shapings_need_references() -> None:
    for kind in SHAPINGS:
        assert needs_references({"kind": kind}) == issubclass(shaping_class(kind), Referenced)
    assert {kind for kind in SHAPINGS if issubclass(shaping_class(kind), Running)} == set(RUNNING)
    assert needs_references([{"kind": "minmax"}, {"kind": "par"}])
    assert needs_references(BOTH)
    assert not needs_references({"kind": "ceil", "ceiling": 5.0})


# Useless combinations.


def test_useless_combinations_are_named() -> None:
    for kind in ("meanstd", "minmax", "centered"):
        assert "GRPO's advantages" in str(useless_combination(build_shaping(spec(kind)), "grpo"))
    for kind in SHAPINGS:
        assert "online DPO" in str(useless_combination(build_shaping(spec(kind)), "online_dpo"))


def test_of_a_chain_the_last_steps_are_named_that_change_nothing() -> None:
    chain = build_shaping([spec("length_penalty"), spec("minmax"), spec("meanstd")])
    assert str(useless_combination(chain, "grpo")).startswith("shaping 'minmax, meanstd' maps")
    chain = build_shaping([spec("length_penalty"), spec("par")])
    assert str(useless_combination(chain, "online_dpo")).startswith("shaping 'length_penalty, par' never reaches")


def test_combinations_of_use_are_not() -> None:
    for kind in ("par", "clip", "ceil", "lsc", "length_penalty", "poly"):
        assert useless_combination(build_shaping(spec(kind)), "grpo") is None
    for kind in SHAPINGS:
        assert useless_combination(build_shaping(spec(kind)), "ppo") is None
    chain = build_shaping([spec("minmax"), spec("length_penalty")])
    assert useless_combination(chain, "grpo") is None
    assert useless_combination(None, "grpo") is None


@pytest.mark.parametrize("kind", [kind for kind in SHAPINGS if shaping_class(kind).affine])
@QUICK
@given(steps=st.lists(st.integers(-40, 40), min_size=3, max_size=3, unique=True))
def test_a_shaping_that_says_so_maps_rewards_by_a_rising_line(kind: str, steps: list[int]) -> None:
    """Three responses to one prompt, of one length, rewards a tenth apart."""
    of = batch_of([[5, 6]] * 3, random_rows(0, [4, 4, 4]))
    of = replace(of, records=[{"id": "p"}] * 3, references={"p": torch.tensor([0.3, -0.2, 0.1])})
    rewards = torch.tensor(sorted(steps)) / 10
    shaped = build_shaping(spec(kind))(Sequence(rewards), of, update=True).values.double()
    slopes = shaped.diff() / rewards.double().diff()
    assert float(slopes[0]) == pytest.approx(float(slopes[1]), rel=1e-3)
    assert float(slopes[0]) > 0
