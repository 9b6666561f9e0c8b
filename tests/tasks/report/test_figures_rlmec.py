"""Figures of RLMEC, drawn from results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.report.figures import paper_figures
from tasks.report.figures_numbers import error_distances
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import write_jsonl


def answer(
    number: int, *, right: bool, first_error: int | None, text: str = "1 + 1 = 3.\nThe answer is 3."
) -> dict[str, Any]:
    made = {"benchmark": "gsm8k", "id": str(number), "prompt": "What is 1 + 1?", "response": text, "steps": 2}
    return made | {"extracted": "3", "right": right, "first_error": first_error}


def result(root: Path, kind: str, name: str, metrics: dict[str, float], **files: list[dict[str, Any]]) -> None:
    folder = root / ("shared" if kind in ("sft", "teacher") else "rlmec") / kind / name / "0" / "result"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    for file, rows in files.items():
        write_jsonl(folder / f"{file}.jsonl", rows)


def test_distances_count_steps_from_the_first_error_to_the_answer() -> None:
    rows = [answer(0, right=True, first_error=None), answer(1, right=False, first_error=0)]
    rows += [answer(2, right=False, first_error=1), answer(3, right=False, first_error=2)]  # what is missing comes last
    assert error_distances(rows) == {"0": 2 / 3, "1": 1 / 3, "2": 0.0, "3": 0.0, "4+": 0.0}
    assert error_distances(rows[:1]) == {}


def test_figures_draw_what_was_run_and_name_what_was_not(tmp_path: Path) -> None:
    wrong, right = (
        answer(1, right=False, first_error=0),
        answer(1, right=True, first_error=None, text="The answer is 2."),
    )
    history = [{"step": 1, "train_accuracy": 40.0}, {"step": 2, "train_accuracy": 60.0}]
    credit = [{"id": "a", "prompt": "?", "tokens": ["1", "3"], "credit": [0.0, -0.1], "rewrite": "12"}]
    credit[0]["mistaken"] = [False, True]
    result(tmp_path, "sft", "rlmec-math", {}, generations=[wrong])
    result(
        tmp_path, "policy", "math-rlmec", {"credit_auc": 0.9, "credit_precision": 0.7},
        generations=[right], history=history, credit=[{**credit[0], "unclipped": [0.4, -0.45]}],
    )  # fmt: skip
    result(tmp_path, "policy", "math-vanilla-ppo", {"credit_auc": 0.5}, credit=credit)
    grm = {"edit_distance": 2.0, "teacher_edit_distance": 1.5, "rewrite_accuracy": 0.8, "teacher_rewrite_accuracy": 0.9}
    grm |= {"fidelity/auc": 0.95, "fidelity/precision": 0.6}
    result(tmp_path, "generative_reward_model", "math", grm)
    result(tmp_path, "teacher", "rlmec-math", {"ground_truth_edit_distance": 6.0})
    drawn = {figure.key: figure.to_json() for figure in paper_figures("rlmec", ResultTree(tmp_path, (0,)))}
    (curve,) = drawn["figure-3"]["panels"]
    assert curve["series"][0]["y"] == [40.0, 60.0]
    assert "qa-rlmec" in drawn["figure-3"]["missing"]
    assert [(series["label"], series["y"]) for series in drawn["figure-4"]["panels"][0]["series"]] == [
        ("TM (teacher)", [1.5]),
        ("GRM (generative reward model)", [2.0]),
        ("GT (ground truth)", [6.0]),
    ]
    assert drawn["figure-5"]["panels"][0]["series"][0]["y"][1] == 1.0
    (block,) = drawn["table-8"]["blocks"]
    assert {model["name"]: model["rewards"] for model in block["models"]} == {
        "RLMEC": [0.4, -0.45],
        "Vanilla PPO": [0.0, -0.1],
    }
    assert block["models"][0]["marked"] == [False, True]
    assert block["note"] == "Corrected: 12"
    (case,) = drawn["table-10"]["blocks"]
    assert [(model["name"], model["rewards"]) for model in case["models"]] == [
        ("Before training: wrong", [-1.0, -1.0]),
        ("RLMEC: right", [1.0]),
    ]
    assert drawn["table-9"]["status"] == "not run"
    (bars,) = drawn["fidelity"]["panels"]
    assert {series["label"]: dict(zip(series["x"], series["y"], strict=True)) for series in bars["series"]} == {
        "RLMEC before clipping": {"AUC": 0.95},
        "RLMEC": {"AUC": 0.9, "Precision": 0.7},
        "Vanilla PPO": {"AUC": 0.5},
    }
    assert [row["name"] for row in drawn["credit-fidelity"]["blocks"][0]["rows"]] == [
        "math, before clipping", "math-rlmec", "math-vanilla-ppo",
    ]  # fmt: skip


def test_a_right_answer_by_a_wrong_step_is_coloured_by_its_steps_and_comes_last(tmp_path: Path) -> None:
    before = [answer(n, right=False, first_error=0) for n in (1, 2)]
    after = [answer(1, right=True, first_error=1), answer(2, right=True, first_error=None)]
    result(tmp_path, "sft", "rlmec-math", {}, generations=before)
    result(tmp_path, "policy", "math-rlmec", {}, generations=after)
    blocks = next(f for f in paper_figures("rlmec", ResultTree(tmp_path, (0,))) if f.key == "table-10").blocks
    assert [block["title"] for block in blocks] == ["gsm8k, 2", "gsm8k, 1"]
    assert [block["models"][1]["rewards"] for block in blocks] == [[1.0, 1.0], [1.0, -1.0]]


def test_rewrites_that_keep_a_wrong_step_are_counted_where_their_answer_is_right(tmp_path: Path) -> None:
    steps = [["1 + 1 = 2."], ["2 + 1 = 3."], ["The answer is 3."]]
    folder = tmp_path / "shared" / "data" / "mathematics" / "result"
    folder.mkdir(parents=True)
    write_jsonl(folder / "questions.jsonl", [{"id": "q", "meta": {"steps": steps}}, {"id": "real"}])
    wrong = "1 + 1 = 4.\n4 + 1 = 5.\nThe answer is 5."
    rewrites = {
        "1 + 1 = 2.\n2 + 1 = 3.\nThe answer is 3.": True,
        "1 + 1 = 4.\n2 + 1 = 3.\nThe answer is 3.": True,  # kept
        "1 + 1 = 9.\n2 + 1 = 3.\nThe answer is 3.": True,  # wrong, but not the prediction's
        wrong: False,
    }
    rows = [
        {"question_id": "q", "prediction": wrong, "rewrite": rewrite, "accepted": accepted}
        for rewrite, accepted in rewrites.items()
    ]
    rows.append({**rows[0], "question_id": "real"})
    result(tmp_path, "generative_reward_model", "math", {}, grm_rewrites=rows)
    result(tmp_path, "teacher", "rlmec-math", {}, rewrites=rows[:1])
    figure = next(f for f in paper_figures("rlmec", ResultTree(tmp_path, (0,))) if f.key == "kept-wrong-steps")
    assert [(row["name"], row["cells"][0]["mean"]) for row in figure.blocks[0]["rows"]] == [
        ("teacher rlmec-math", 0.0),
        ("generative reward model math", 1 / 3),
    ]
    assert "generative_reward_model/qa" in figure.missing
