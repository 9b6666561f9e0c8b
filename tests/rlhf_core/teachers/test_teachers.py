"""The teachers behind one interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.rewriting import Correction, WrongSolution
from rlhf_core.reasoning.steps import split_steps
from rlhf_core.teachers.choices import LOCATE, REWRITE, EndpointTeacher, exemplars, teacher_prompt
from rlhf_core.testbed.oracle import OracleTeacher
from tests.chat_endpoint import ChatEndpoint, completion

QUESTION: dict[str, Any] = {
    "id": "q",
    "prompt": "1 and 2?",
    "solution": "1 + 2 = 3.\nThe answer is 3.",
    "answer": "3",
    "meta": {"steps": [["1 + 2 = 3.", "2 + 1 = 3."], ["The answer is 3."]]},
}
WRONG = WrongSolution("q/0", QUESTION, "2 + 1 = 4.\nThe answer is 4.")
MANY = [WrongSolution(f"q/{i}", QUESTION, WRONG.prediction) for i in range(200)]


def test_the_oracle_makes_the_true_minimal_edit() -> None:
    assert OracleTeacher().correct([WRONG]) == [
        Correction("The first error step is [0]", "2 + 1 = 3.\nThe answer is 3.")
    ]


def test_the_oracle_errs_as_often_as_told_and_the_same_way_again() -> None:
    teacher = OracleTeacher(noise=0.5)
    said = teacher.correct(MANY)
    assert said == OracleTeacher(noise=0.5).correct(MANY)
    right = [is_right(extract_answer(one.rewrite, QUESTION), QUESTION) for one in said]
    assert 0.4 < sum(right) / len(right) < 0.6
    assert {"", WRONG.prediction} <= {one.rewrite for one in said}


def test_the_oracle_needs_to_know_the_right_steps() -> None:
    unknown = WrongSolution("r/0", {**QUESTION, "id": "r", "meta": {}}, "The answer is 4.")
    with pytest.raises(DataError, match="'r' does not list its right steps"):
        OracleTeacher().correct([unknown])
    with pytest.raises(RecipeError, match=r"noise is 2; it must be from 0 to 1"):
        OracleTeacher(noise=2)


def test_prompts_show_solved_exemplars_of_the_task_and_end_with_the_question() -> None:
    prompt = teacher_prompt(LOCATE, WRONG)
    assert prompt.count("Given the problem") == len(exemplars("mathematics")) + 1
    assert "Declan" in prompt
    assert "Prediction: [0] 2 + 1 = 4.\n[1] The answer is 4.\nWhich step" in prompt
    assert teacher_prompt(REWRITE, WRONG).endswith("Prediction: 2 + 1 = 4.\nThe answer is 4.\nCorrect prediction:")
    choice = WrongSolution("c", {**QUESTION, "choices": ["3", "4"]}, WRONG.prediction)
    assert "chemistry lab" in teacher_prompt(REWRITE, choice)


@pytest.mark.parametrize("task", ["mathematics", "multiple_choice"])
def test_a_correct_prediction_is_shown_where_errors_are_located_and_not_where_they_are_rewritten(task: str) -> None:
    wrong = WrongSolution("c", {**QUESTION, **({"choices": ["3", "4"]} if task == "multiple_choice" else {})}, "4")
    (right,) = [item for item in exemplars(task) if "step" not in item]
    located = teacher_prompt(LOCATE, wrong)
    assert located.count("any other words.\ncorrect\n") == 1
    assert right["problem"] in located
    assert right["problem"] not in teacher_prompt(REWRITE, wrong)
    assert split_steps(right["prediction"])[-1] == split_steps(right["solution"])[-1]
    assert right["prediction"] != right["solution"]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    """A chat endpoint that names step 0 and rewrites rightly."""

    def reply(body: dict[str, Any]) -> Any:
        locates = body["messages"][-1]["content"].rstrip().endswith("words.")
        return completion("[0]" if locates else "Correct prediction: 2 + 1 = 3.\nThe answer is 3.")

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ChatEndpoint(reply) as fake:
        yield fake


def test_an_endpoint_is_asked_both_and_paid_for_once(endpoint: ChatEndpoint, tmp_path: Path) -> None:
    url, asked = endpoint.url, endpoint.bodies
    config = EndpointConfig(
        url, "teacher", api_key_variable=None, cache_path=tmp_path / "cache.jsonl", input_price=1.0, output_price=2.0
    )
    first = EndpointTeacher(config)
    assert first.correct([WRONG]) == [Correction("[0]", "2 + 1 = 3.\nThe answer is 3.")]
    assert first.costs()["calls"] == 2 == len(asked)
    assert first.costs()["cost"] == pytest.approx(2 * (100 * 1.0 + 10 * 2.0) / 1e6)
    again = EndpointTeacher(config)
    assert again.correct([WRONG]) == first.correct([WRONG])
    assert (again.costs()["calls"], again.costs()["from_cache"], again.costs()["cost"]) == (0, 2, 0)
    assert len(asked) == 2
