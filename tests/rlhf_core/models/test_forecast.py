"""The model of GPU hours: linear in tokens and parameters, and near what is published."""

from __future__ import annotations

import pytest

from rlhf_core.models.forecast import supervised


def test_one_trillion_tokens_on_seven_billion_parameters_take_about_what_llama_reports() -> None:
    """LLaMA (Touvron et al. 2023, Table 15): 82,432 A100 hours for 7B parameters on 1T tokens."""
    assert supervised(6_738_000_000, 1, 1, 1e12).gpu_hours() == pytest.approx(82_432, rel=0.4)
