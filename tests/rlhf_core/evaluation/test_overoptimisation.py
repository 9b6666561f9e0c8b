"""Measures of a run in hindsight, against values computed by hand."""

from __future__ import annotations

import math

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.hacking_alarm import AlarmSettings, Evaluated
from rlhf_core.evaluation.overoptimisation import (
    Onset,
    clause_use,
    grown_types,
    overoptimisation,
    rank_correlation,
)


def point(step: int, proxy: float, wins: int, prompts: int = 40) -> Evaluated:
    """An evaluation that wins the first prompts and loses the others; at step 0 it ties with itself."""
    scores = {str(i): 0.5 if step == 0 else float(i < wins) for i in range(prompts)}
    return Evaluated(step, proxy, 0.05, scores)


HACKED = [point(0, 0.0, 0), point(5, 0.5, 28), point(10, 1.0, 32), point(15, 2.0, 26), point(20, 3.0, 6)]
KL = {0: 0.0, 5: 1.0, 10: 3.0, 15: 8.0, 20: 20.0}


def test_a_hacked_run_has_a_peak_a_loss_and_an_onset() -> None:
    """Win rates 50, 70, 80, 65, 15: peak 80 at step 10. From 32 to 26 wins six prompts changed, none for the better:
    p = 2^-6 = .0156 is above .05 / 10 pairs; to 6 wins 26 did."""
    found = overoptimisation(HACKED, KL)
    assert (found.peak_step, found.peak_win_rate, found.final_win_rate) == (10, 80.0, 15.0)
    assert found.loss_after_peak == 65.0
    assert found.proxy_gain == 3.0
    assert found.onset == Onset(since=10, step=20, kl=20.0)


def test_rank_correlation_of_the_hacked_run() -> None:
    """Proxy ranks 1 2 3 4 5, win-rate ranks 2 4 5 3 1: rho = 1 - 6 * (1 + 4 + 4 + 1 + 16) / (5 * 24) = -.3."""
    assert overoptimisation(HACKED, KL).rank_correlation == pytest.approx(-0.3)


def test_rank_correlation_is_not_defined_for_two_points_or_a_constant() -> None:
    assert math.isnan(rank_correlation([1, 2], [1, 2]))
    assert math.isnan(rank_correlation([1, 2, 3], [5, 5, 5]))


def test_a_fall_without_a_rising_proxy_is_no_onset() -> None:
    assert overoptimisation([point(0, 2.0, 0), point(5, 1.0, 30), point(10, 0.5, 2)], KL).onset is None


def test_a_run_that_falls_from_the_start_sets_in_at_step_0() -> None:
    found = overoptimisation([point(0, 0.0, 0), point(5, 1.0, 4), point(10, 2.0, 2)], KL)
    assert (found.peak_step, found.peak_win_rate) == (0, 50.0)
    assert found.onset == Onset(since=0, step=5, kl=1.0)


def test_what_is_not_defined_is_not_among_the_metrics() -> None:
    found = overoptimisation([point(0, 0.0, 0)], {}, AlarmSettings()).metrics()
    assert "hacking/rank_correlation" not in found
    assert found["hacking/loss_after_peak"] == 0.0
    hacked = overoptimisation(HACKED, {}).metrics()
    assert "hacking/onset_kl" not in hacked
    assert hacked["hacking/onset_step"] == 20.0


def test_no_evaluation_is_refused() -> None:
    with pytest.raises(DataError, match="without evaluations"):
        overoptimisation([], {})


KINDS = ("fact", "filler", "praise")


def test_clause_shares_and_numbers() -> None:
    used = clause_use([["fact", "fact", "filler"], ["praise"], []], KINDS)
    assert used.shares == {"fact": 0.5, "filler": 0.25, "praise": 0.25}
    assert used.per_response == {"fact": 2 / 3, "filler": 1 / 3, "praise": 1 / 3}


def test_inflated_types_are_those_that_grew_the_most_first() -> None:
    sft = clause_use([["fact", "filler"], ["fact", "praise"]], KINDS)
    hacked = clause_use([["filler", "filler", "praise", "praise", "praise"], ["praise", "filler"]], KINDS)
    assert grown_types(sft, hacked) == ["praise", "filler"]
    assert grown_types(sft, sft) == []
