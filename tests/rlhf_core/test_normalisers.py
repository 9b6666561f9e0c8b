"""Normalisers against statistics by hand, closed forms, and what they must refuse."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, responses_of

from rlhf_core.errors import RecipeError
from rlhf_core.normalisers import (
    CalibrationSet,
    LocationAware,
    NoNormaliser,
    Scalar,
    build_normaliser,
    fit_line,
    fit_location_aware,
    fit_statistics,
    location_bins,
)
from rlhf_core.segmentation.segmenters import NGram
from rlhf_core.signals import Segments, Sequence, Tokens


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7), st.floats(-5, 5)), min_size=1, max_size=30),
    st.integers(1, 3),
)
def test_bins_are_the_statistics_of_equal_rounded_locations(
    drawn: list[tuple[int, int, float]], min_samples: int
) -> None:
    samples = [(min(t, total) / total, r) for t, total, r in drawn]
    grouped: dict[float, list[float]] = {}
    for p, r in samples:
        grouped.setdefault(round(p, 3), []).append(r)
    bins = location_bins(np.array([p for p, _ in samples]), np.array([r for _, r in samples]), min_samples)
    kept = {p: rewards for p, rewards in sorted(grouped.items()) if len(rewards) >= min_samples}
    np.testing.assert_allclose(bins.location, list(kept))
    assert bins.samples.tolist() == [len(rewards) for rewards in kept.values()]
    np.testing.assert_allclose(bins.mean, [sum(r) / len(r) for r in kept.values()], atol=1e-9)
    naive = [math.sqrt(sum((x - sum(r) / len(r)) ** 2 for x in r) / len(r)) for r in kept.values()]
    np.testing.assert_allclose(bins.std, naive, atol=1e-7)
    assert bins.dropped == len(grouped) - len(kept)


def test_no_bin_is_at_zero() -> None:
    """More than 2,000 segments put the first one at p below 0.0005, which rounds to 0."""
    locations = np.tile(np.arange(1, 3001) / 3000, 2)
    bins = location_bins(locations, np.linspace(-1, 1, locations.size))
    assert bins.location[0] == 0.001
    assert bins.samples.sum() == locations.size
    rewards = np.linspace(-1, 1, locations.size)
    assert math.isfinite(fit_location_aware(CalibrationSet(rewards, locations, rewards)).w_mean)


def test_huber_finds_the_line_despite_an_outlier_and_minimises_its_own_loss() -> None:
    from scipy.optimize import minimize

    rng = np.random.default_rng(1)
    x = np.log(np.arange(1, 41) / 40)
    y = 0.7 * x + 0.2 + 0.05 * rng.normal(size=40)
    y[3] += 30
    slope, intercept = fit_line(x, y, "huber")
    assert abs(slope - 0.7) < 0.05
    assert abs(intercept - 0.2) < 0.05
    assert abs(fit_line(x, y, "ols")[0] - 0.7) > 0.5

    def objective(v: np.ndarray) -> float:  # concomitant scale, with scikit-learn's ridge alpha 1e-4
        w, b, log_sigma = v
        sigma, z = math.exp(log_sigma), np.abs(y - w * x - b) / math.exp(log_sigma)
        huber = np.where(z < 1.35, z**2, 2 * 1.35 * z - 1.35**2)
        return float((sigma + huber * sigma).sum() + 1e-4 * w * w)

    exact = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 9000}
    best = minimize(objective, [0.5, 0.0, -1.0], method="Nelder-Mead", options=exact)
    np.testing.assert_allclose((slope, intercept), best.x[:2], atol=2e-3)


def test_one_location_gives_a_constant() -> None:
    rewards = np.array([1.0, 3.0, 1.0, 3.0])
    line = fit_location_aware(CalibrationSet(rewards, np.ones(4), rewards))
    assert (line.w_mean, line.b_mean, line.w_std, line.b_std) == (0.0, 2.0, 0.0, 1.0)
    assert line.floor == pytest.approx(0.1)
    at_one = line.statistics(torch.ones(1))
    assert (float(at_one[0]), float(at_one[1])) == (2.0, 1.0)


@pytest.mark.parametrize("rewards", [np.zeros(0), np.full(6, 2.5)])
def test_a_constant_or_empty_calibration_is_refused(rewards: np.ndarray) -> None:
    with pytest.raises(RecipeError, match="standard deviation"):
        fit_location_aware(CalibrationSet(rewards, np.linspace(0.5, 1, rewards.size), rewards))


def segments_of(values: list[list[float]], n: int = 2) -> Segments:
    rows = [[5] * (n * len(row)) + [EOS] for row in values]
    segmentation = NGram(n).segment(responses_of(rows))
    padded = torch.full(segmentation.ends.shape, 77.0)
    for i, row in enumerate(values):
        padded[i, : len(row)] = torch.tensor(row)
    return Segments(padded, segmentation)


def test_location_aware_by_hand_with_the_floor_counted() -> None:
    normaliser = LocationAware(w_mean=0.5, b_mean=1.0, w_std=1.0, b_std=1.2, floor=0.1)
    signal = segments_of([[1.0, 2.0, 3.0, 4.0], [5.0]])
    out = normaliser(signal)
    assert isinstance(out, Segments)
    floored = 0
    for i, count in enumerate((4, 1)):
        for t in range(count):
            p = (t + 1) / count
            std = math.log(p) + 1.2
            floored += std < 0.1
            expected = (float(signal.values[i, t]) - (0.5 * math.log(p) + 1.0)) / max(std, 0.1)
            assert float(out.values[i, t]) == pytest.approx(expected, rel=1e-5)
    assert out.values[1, 1:].abs().sum() == 0
    assert floored == 1
    assert (normaliser.floor_uses, normaliser.segments) == (1, 5)
    normaliser(signal)
    assert (normaliser.floor_uses, normaliser.segments) == (2, 10)


def test_scalar_by_hand_on_every_signal() -> None:
    scalar = Scalar(2.0, 4.0)
    assert scalar(Sequence(torch.tensor([2.0, 10.0]))).values.tolist() == [0.0, 2.0]
    out = scalar(segments_of([[6.0, 10.0], [2.0]]))
    assert out.values.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert NoNormaliser()(Sequence(torch.tensor([3.0]))).values.tolist() == [3.0]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.0), (math.nan, 1.0), (0.0, math.inf), (0.0, -1.0)])
def test_scalar_refuses_unusable_statistics(mean: float, std: float) -> None:
    with pytest.raises(RecipeError, match="statistics"):
        Scalar(mean, std)


def test_calibration_holds_every_normaliser_and_survives_json() -> None:
    values = [[1.0, 2.0, 4.0], [0.0, 3.0], [5.0], [2.0, 2.0, 8.0], [1.0, 7.0], [2.0]]
    parts = [segments_of(values[:3]), segments_of(values[3:])]
    e = np.array([sum(v) / len(v) for v in values])
    fitted = json.loads(json.dumps(fit_statistics(parts, e)))
    flat = np.array([x for v in values for x in v])
    last = np.array([v[-1] for v in values])
    for name, expected in (("global", flat), ("last", last), ("sequence", e)):
        assert fitted[name]["mean"] == pytest.approx(expected.mean())
        assert fitted[name]["std"] == pytest.approx(expected.std())
    assert fitted["counts"] == {"segments": 12, "responses": 6, "bins": 4, "dropped_bins": 0}
    assert fitted["bins"]["location"] == pytest.approx([0.333, 0.5, 0.667, 1.0])
    assert fitted["bins"]["samples"] == [2, 2, 2, 6]
    x = np.log(np.array([0.333, 0.5, 0.667, 1.0]))
    slope, intercept = np.polyfit(x, [1.5, 0.5, 2.0, last.mean()], 1)
    ols = build_normaliser("location_aware", fitted, "ols")
    assert isinstance(ols, LocationAware)
    assert (ols.w_mean, ols.b_mean) == pytest.approx((slope, intercept))
    assert ols.floor == pytest.approx(0.1 * flat.std())
    assert build_normaliser("last", fitted) == Scalar(**fitted["last"])


def test_missing_coefficients_and_unknown_names_are_refused() -> None:
    assert build_normaliser("none", None) == NoNormaliser()
    for name in ("global", "last", "sequence", "location_aware"):
        with pytest.raises(RecipeError, match="no calibration"):
            build_normaliser(name, None)
        with pytest.raises(RecipeError, match="no calibration"):
            build_normaliser(name, {"bins": {}})
    with pytest.raises(RecipeError, match="'ols'"):
        build_normaliser("location_aware", {"location_aware": {"huber": {}}}, "ols")
    with pytest.raises(RecipeError, match="unknown normaliser"):
        build_normaliser("zscore", {})
    assert Tokens not in LocationAware.takes
