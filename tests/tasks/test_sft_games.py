"""A policy's answers against its SFT model's by a judge: the protocol, what is recorded, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.judges.templates import JudgeRequest
from tasks.evaluating.policies import Evaluator
from tasks.evaluating.sft_comparison import compare_with_sft
from tasks.params.evaluation import EvaluationConfig


class LongerWins:
    """Prefers the longer answer; the first of two alike in length; says nothing of the word 'odd', and nothing of
    'even' where it is shown first."""

    name = "longer"

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        return [self._verdict(*request.answers) for request in requests]

    def _verdict(self, first: str, second: str) -> str:
        if "odd" in (first, second) or first == "even":
            return "I prefer neither Better: A nor B"
        return f"Better: {'A' if len(first) >= len(second) else 'B'}"


def evaluator(**settings: Any) -> Evaluator:
    config = EvaluationConfig(max_new_tokens=8, task_tokens=8, over_sft="par", **settings)
    made = object.__new__(Evaluator)
    made.config, made.judge, made.world, made.instruction = config, cast(Any, LongerWins()), None, ""
    return made


def row(name: str, response: str, benchmark: str = "alpaca") -> dict[str, Any]:
    asked = {"benchmark": benchmark, "id": name, "turn": 1, "prompt": f"{name}?"}
    return {**asked, "response": response, "baseline": "", "meta": {}}


POLICY = [row("a", "longer"), row("b", "no"), row("c", "same"), row("d", "odd"), row("e", "longest")]
SFT = [row("a", "short"), row("b", "yes"), row("c", "size"), row("d", "eleven"), row("e", "even")]


def test_every_game_is_kept_with_the_judges_words_and_the_win_rate_with_its_protocol() -> None:
    found = compare_with_sft(evaluator(), cast(Any, POLICY), cast(Any, SFT))
    assert found.scores("alpaca") == {"a": 1.0, "b": 0.0, "c": 0.5}
    assert len(found.judgements) == 10
    assert {row["reference"] for row in found.judgements} == {"sft"}
    assert found.judgements[0]["raw"] == "Better: B"
    assert found.win_rate_facts == {
        "win_rate_vs_sft": {
            "reference": "sft",
            "benchmark": "alpaca",
            "protocol": {"template": "pairwise", "orders": "summed", "ties": "half", "soft": False},
            "judge": "longer",
            "prompts": 5,
            "unparsable": 1,
            "one_sided": 1,
        }
    }


def test_arena_hard_is_compared_where_the_data_has_it_and_the_settings_name_it() -> None:
    rows = [[*side, row("x", text, "arena")] for side, text in ((POLICY, "longer"), (SFT, "short"))]
    assert compare_with_sft(evaluator(), *cast(Any, rows)).metrics["arena_win_rate_vs_sft"] == 100.0
    alone = compare_with_sft(evaluator(over_sft_benchmarks=("alpaca",)), *cast(Any, rows))
    assert "arena_win_rate_vs_sft" not in alone.metrics
    assert compare_with_sft(evaluator(over_sft_benchmarks=()), *cast(Any, rows)).metrics == {}


def test_a_prompt_that_the_sft_model_did_not_answer_is_named() -> None:
    with pytest.raises(DataError, match="no answer to 1 of 5 prompts of 'alpaca', the first is 'e'"):
        compare_with_sft(evaluator(), cast(Any, POLICY), cast(Any, SFT[:-1]))
