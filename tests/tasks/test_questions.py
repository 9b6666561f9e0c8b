"""Data of questions: generated ones, real ones from a folder, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.reasoning.grading import extract_answer, is_right, question_prompt
from tasks import prepare
from tasks.evaluating.solving import averages, graded, harness_accuracies
from tasks.running.artifacts import read_jsonl

SPEC: dict[str, Any] = {
    "source": "directory",
    "task": "mathematics",
    "template": "plain",
    "limits": {"prompt": 64, "total": 128},
    "train": ["sums"],
    "tests": {"sums": "seen"},
    "rows": {"sft": 6, "sft_validation": 2, "questions": 4, "test": 2},
}


def sums(count: int, solution: str | None = "It is {n} + 1 = {m}.") -> list[dict[str, Any]]:
    return [
        {
            "id": f"sum-{n}",
            "question": f"What is {n} + 1?",
            "solution": solution and solution.format(n=n, m=n + 1),
            "answer": str(n + 1),
            "source": "made up",
        }
        for n in range(count)
    ]


def prepared(root: Path, train: list[dict[str, Any]], changes: dict[str, Any]) -> Path:
    files = root / "files"
    files.mkdir(exist_ok=True)
    for split, rows in (("train", train), ("test", sums(3))):
        (files / f"sums.{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    spec = root / "spec.yaml"
    spec.write_text(yaml.safe_dump({**SPEC, "directory": str(files), **changes}), encoding="utf-8")
    prepare.main(["--spec", str(spec), "--out", str(root / "out")])
    return root / "out" / "result"


def test_a_folder_gives_every_set(tmp_path: Path) -> None:
    made = prepared(tmp_path, sums(10), {})
    facts = json.loads((made / "data.json").read_text())
    assert facts["rows"] | {"texts": 0} == {
        "sft": 6, "sft.validation": 2, "questions": 4, "prompts": 4, "tests/sums": 2, "texts": 0
    }  # fmt: skip
    assert facts["tests"] == {"sums": "seen"}
    named = prepared(tmp_path, sums(10), {"columns": {"sums": "gsm8k"}})
    assert json.loads((named / "data.json").read_text())["tests"] == {"gsm8k": "seen"}
    assert len(read_jsonl(named / "tests" / "gsm8k.jsonl")) == 2
    learnt = {row["id"] for row in read_jsonl(made / "sft.jsonl")}
    assert {row["id"] for row in read_jsonl(made / "questions.jsonl")} <= learnt
    assert not learnt & {row["id"] for row in read_jsonl(made / "sft.validation.jsonl")}
    for row in read_jsonl(made / "sft.jsonl"):
        number = int(row["id"].removeprefix("sum-"))
        assert row["response"].endswith(f"\nThe answer is {number + 1}")


def test_messages_of_a_question_are_not_asked_in_place_of_its_prompt(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Nobody."}]
    made = prepared(tmp_path, [{**row, "messages": other, "history": other} for row in sums(10)], {})
    for name in ("questions", "sft", "prompts"):
        for row in read_jsonl(made / f"{name}.jsonl"):
            number = int(row["id"].removeprefix("sum-"))
            assert [one["content"] for one in prompt_messages(row)] == [question_prompt(f"What is {number} + 1?", None)]


def test_sets_are_mixed_before_questions_are_held_out_the_same_way_again(tmp_path: Path) -> None:
    rows = {"sft": 30, "sft_validation": 10, "questions": 10, "test": 2}
    ids: dict[tuple[int, str], list[str]] = {}
    for place, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(place)
        (folder / "files").mkdir(parents=True)
        others = [{**row, "id": f"other-{row['id']}"} for row in sums(20)]
        for split in ("train", "test"):
            text = "".join(json.dumps(row) + "\n" for row in others)
            (folder / "files" / f"others.{split}.jsonl").write_text(text, encoding="utf-8")
        made = prepared(folder, sums(20), {"train": ["sums", "others"], "rows": rows, "seed": seed})
        for name in ("sft.validation", "questions"):
            ids[place, name] = [row["id"] for row in read_jsonl(made / f"{name}.jsonl")]
            assert 0 < sum(each.startswith("other") for each in ids[place, name]) < len(ids[place, name])
    assert ids[0, "questions"] == ids[1, "questions"] != ids[2, "questions"]


def test_questions_without_steps_are_left_out_and_counted(tmp_path: Path) -> None:
    made = prepared(tmp_path, [*sums(8), *({**row, "id": f"bare-{row['id']}"} for row in sums(5, None))], {})
    assert json.loads((made / "data.json").read_text())["without_steps"] == 5
    assert not any(row["id"].startswith("bare") for row in read_jsonl(made / "questions.jsonl"))


def test_a_set_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="field 'solution': 0 of 10 questions have a solution with steps"):
        prepared(tmp_path, sums(10, ""), {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "poetry"}, "task is 'poetry'; known: mathematics, multiple_choice"),
        ({"columns": {"sum": "gsm8k"}}, r"columns: sum is not one of the tests \(sums\)"),
        ({"source": "huggingface"}, "source is 'huggingface'; known: testbed, directory"),
        ({"source": "testbed"}, "name the sets of a directory, and only of one"),
        ({"tests": {"sums": "known"}}, "tests.sums is 'known'; known: seen, unseen"),
        ({"rows": {"sft": 6}}, "'rows.questions' and .* are missing"),
        ({"difficulty": {"slip": 2.0}, "source": "testbed", "train": [], "tests": {}}, "slip is 2.0; it must be from"),
    ],
)
def test_unusable_specs_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        prepared(tmp_path, sums(10), changes)


REAL = {
    "mathematics": (["gsm8k"], {"gsm8k": "seen", "math": "unseen", "svamp": "unseen"}),
    "multiple_choice": (["ecqa", "qasc"], {"ecqa": "seen", "qasc": "seen", "openbookqa": "unseen", "arc": "unseen"}),
}


@pytest.mark.parametrize("task", REAL)
def test_true_solutions_of_real_sets_are_graded_right(task: str, real_data: Path, tmp_path: Path) -> None:
    train, tests = REAL[task]
    rows = {"sft": 60, "sft_validation": 10, "questions": 40, "test": 40}
    changes = {"task": task, "train": train, "tests": tests, "directory": str(real_data), "rows": rows}
    made = prepared(tmp_path, sums(3), changes)
    for name in ("questions", *(f"tests/{test}" for test in tests)):
        found = read_jsonl(made / f"{name}.jsonl")
        right = [is_right(extract_answer(row["solution"], row), row) for row in found]
        assert len(right) == 40
        assert sum(right) >= (38 if name == "tests/math" else 40)


def test_predictions_are_graded_with_their_first_wrong_step() -> None:
    question = {"answer": "3", "meta": {"steps": [["1 + 2 = 3."], ["The answer is 3."]]}}
    assert graded(question, "1 + 2 = 3.\nThe answer is 4.") == {
        "extracted": "4", "right": False, "steps": 2, "first_error": 1
    }  # fmt: skip
    assert graded({"answer": "3"}, "") == {"extracted": None, "right": False, "steps": 0}


def test_the_harness_grades_by_its_two_modes() -> None:
    texts = ["4 + 14 = 18\n#### 18", "The answer is 18.", "It is 18 or 19."]
    assert harness_accuracies(["18"] * 3, texts) == {
        "gsm8k_strict": pytest.approx(100 / 3),
        "gsm8k_flexible": pytest.approx(200 / 3),
    }


def test_averages_are_means_over_sets() -> None:
    sets = {"a": "seen", "b": "seen", "c": "unseen"}
    assert averages({"a": 10.0, "b": 20.0, "c": 60.0}, sets) == {"seen": 15.0, "unseen": 60.0, "average": 30.0}
