"""How a judge compares a policy's answers with its SFT model's: PAR's both orders, summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from tasks.evaluating.policies import Evaluator
from tasks.params.evaluation import EvaluationConfig
from tasks.policy_run.hacking_watch import scores_over_sft


class LongerWins:
    """Prefers the longer answer; the first of two alike in length; says nothing of the word 'odd'."""

    name = "longer"

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        return [self._verdict(*request.answers) for request in requests]

    def _verdict(self, first: str, second: str) -> str:
        if "odd" in (first, second):
            return "I prefer neither Better: A nor B"
        return f"Better: {'A' if len(first) >= len(second) else 'B'}"


def evaluator() -> Evaluator:
    config = EvaluationConfig(max_new_tokens=8, task_tokens=8, sft_games="summed")
    made = object.__new__(Evaluator)
    made.config, made.judge, made.world, made.instruction = config, cast(Any, LongerWins()), None, ""
    return made


def row(name: str, response: str) -> dict[str, Any]:
    return {"benchmark": "alpaca", "id": name, "prompt": f"{name}?", "response": response, "baseline": "", "meta": {}}


def test_the_higher_total_wins_and_the_judges_position_bias_is_a_tie() -> None:
    policy = [row("a", "longer"), row("b", "no"), row("c", "same"), row("d", "odd")]
    sft = [row("a", "short"), row("b", "yes"), row("c", "size"), row("d", "even")]
    assert scores_over_sft(evaluator(), policy, sft) == {"a": 1.0, "b": 0.0, "c": 0.5}


def test_another_protocol_is_refused() -> None:
    with pytest.raises(RecipeError, match="sft_games is 'both'; known: drawn, summed"):
        EvaluationConfig(max_new_tokens=8, task_tokens=8, sft_games="both")
