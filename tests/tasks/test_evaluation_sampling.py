"""Sampling of evaluations: dialogue is answered with the temperature, top-p and top-k that the settings state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.typed import typed
from tasks.evaluating import policies
from tasks.evaluating.policies import Evaluator
from tasks.params.evaluation import EvaluationConfig


def sampling_of(config: EvaluationConfig) -> Sampling:
    """The sampling that an evaluator asks its policy for."""
    drawn: list[Sampling] = []

    def noted(_policy: object, _encoder: object, rows: list[Any], sampling: Sampling, *_: object) -> list[Any]:
        drawn.append(sampling)
        return [("text", 1) for _ in rows]

    made = object.__new__(Evaluator)
    item = {"id": "a", "turns": ["?"], "metas": [{}], "baseline": [""]}
    made.data, made.config, made.world, made.encoder = Path("data"), config, None, cast(Any, None)
    made.items = lambda name: [item]  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "answer", noted)
        made.generate_dialogue(cast(Any, None), "alpaca")
    assert len(drawn) == 1
    return drawn[0]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.floats(0.05, 1.0), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_dialogue_is_answered_as_the_evaluation_states(top_k: int, top_p: float, temperature: float) -> None:
    config = EvaluationConfig(8, 8, temperature=temperature, top_p=top_p, top_k=top_k)
    assert sampling_of(config) == Sampling(8, temperature, top_p, top_k)
    assert config.dialogue_answers()["top_k"] == top_k


@pytest.mark.parametrize("top_k", [-1, 1.5, "50"])
def test_a_wrong_top_k_is_refused(top_k: object) -> None:
    with pytest.raises(RecipeError, match=r"evaluation.yaml:par: top_k is .*must be"):
        typed(EvaluationConfig, {"max_new_tokens": 8, "task_tokens": 8, "top_k": top_k}, "evaluation.yaml:par")
