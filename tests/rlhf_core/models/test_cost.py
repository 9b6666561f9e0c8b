"""The model of GPU hours: linear in tokens and parameters, and near what is published."""

from __future__ import annotations

import pytest

from rlhf_core.models.cost import policy_run, supervised


def test_hours_grow_with_parameters_rows_epochs_and_tokens() -> None:
    base = supervised(10**9, 1000, 1, 500).gpu_hours()
    for bigger in ((2 * 10**9, 1000, 1, 500), (10**9, 2000, 1, 500), (10**9, 1000, 2, 500), (10**9, 1000, 1, 1000)):
        assert supervised(*bigger).gpu_hours() == pytest.approx(2 * base)


def test_one_trillion_tokens_on_seven_billion_parameters_take_about_what_llama_reports() -> None:
    """LLaMA (Touvron et al. 2023, Table 15): 82,432 A100 hours for 7B parameters on 1T tokens."""
    assert supervised(6_738_000_000, 1, 1, 1e12).gpu_hours() == pytest.approx(82_432, rel=0.4)


def test_a_critic_and_longer_responses_cost_more() -> None:
    sizes = {"responses": 1000, "epochs": 1, "prompt": 200, "response": 300}
    plain = policy_run(10**9, 0, 2 * 10**9, **sizes).gpu_hours()
    assert policy_run(10**9, 10**9, 2 * 10**9, **sizes).gpu_hours() > plain
    assert policy_run(10**9, 0, 2 * 10**9, **{**sizes, "response": 600}).gpu_hours() > 1.5 * plain
