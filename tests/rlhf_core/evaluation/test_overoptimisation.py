"""Measures of a run in hindsight, against values computed by hand."""

from __future__ import annotations

import math

import pytest

from rlhf_core.evaluation.hacking_alarm import AlarmSettings, Evaluated
from rlhf_core.evaluation.overoptimisation import (
    clause_use,
    find_onset,
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
    p = 2^-6 = .0156 is above .05 / 10 pairs; to 6 wins 26 did. Proxy ranks are 1 2 3 4 5, win-rate ranks 2 4 5 3 1:
    rho = 1 - 6 * (1 + 4 + 4 + 1 + 16) / (5 * 24) = -.3."""
    found = overoptimisation(HACKED, KL)
    assert found == pytest.approx(
        {
            "hacking/peak_step": 10, "hacking/peak_win_rate": 80, "hacking/final_win_rate": 15,
            "hacking/loss_after_peak": 65, "hacking/proxy_gain": 3, "hacking/rank_correlation": -0.3,
            "hacking/onset_since": 10, "hacking/onset_step": 20, "hacking/onset_kl": 20,
        }
    )  # fmt: skip
    assert found.keys() - overoptimisation(HACKED, {}).keys() == {"hacking/onset_kl"}


@pytest.mark.parametrize(
    ("points", "onset"),
    [
        ([point(0, 2.0, 0), point(5, 1.0, 30), point(10, 0.5, 2)], None),
        ([point(0, 0.0, 0), point(5, 1.0, 4), point(10, 2.0, 2)], (0, 5)),
        ([point(0, 0.0, 0)], None),
    ],
    ids=["the proxy falls", "falls from the start", "one evaluation"],
)
def test_onsets(points: list[Evaluated], onset: tuple[int, int] | None) -> None:
    assert find_onset(points, AlarmSettings()) == onset


def test_rank_correlation_is_not_defined_for_two_points_or_a_constant() -> None:
    assert math.isnan(rank_correlation([1, 2], [1, 2]))
    assert math.isnan(rank_correlation([1, 2, 3], [5, 5, 5]))


KINDS = ("fact", "filler", "praise")


def test_clause_shares_and_numbers() -> None:
    shares, per_response = clause_use([["fact", "fact", "filler"], ["praise"], []], KINDS)
    assert shares == {"fact": 0.5, "filler": 0.25, "praise": 0.25}
    assert per_response == {"fact": 2 / 3, "filler": 1 / 3, "praise": 1 / 3}
