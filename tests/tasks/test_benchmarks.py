"""Published benchmarks on real data: prepared from a folder, measured on a policy, marked where they are partial."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.harness.choice import LEADERBOARD
from rlhf_core.evaluation.judges.games import grade_answers
from rlhf_core.evaluation.judges.templates import render
from tasks.commands import benchmark
from tasks.evaluating.benchmarks import graded_answers
from tasks.graph.check import Check
from tasks.params.data import data_spec
from tasks.prepare import make_sets
from tasks.report.cells import partial_benchmark, partial_text
from tasks.report.outputs import StageOutput
from tests.rlhf_core.evaluation.test_harness import TASKS
from tests.rlhf_core.evaluation.test_livecodebench import row as live_row
from tests.rlhf_core.evaluation.test_sandbox import isolated
from tests.tasks.golden_runs import SETTINGS, SHARED, GoldenRuns

pytest.importorskip("lm_eval")
ROOT = Path(__file__).resolve().parents[2]
GRADED = ("math", "writing", "stem")


def pair(number: int) -> dict[str, Any]:
    return {
        "id": f"p{number}",
        "prompt": f"Name {number} cups.",
        "chosen": "One cup.",
        "rejected": "No.",
        "source": "s",
    }


def question(name: str, number: int) -> dict[str, Any]:
    own = {"id": f"{name}{number}", "category": "cups", "turns": [f"What is cup {number}?"], "source": name}
    return {**own, "reference": f"Cup {number}.", "reference_generator": "gpt-4"}


def two_turns(number: int) -> dict[str, Any]:
    category = GRADED[number % 3]
    own = {"id": f"m{number}", "category": category, "turns": [f"What is {number} + 1?", "And twice?"], "source": "mt"}
    return {**own, "reference": [str(number + 1), str(2 * number + 2)] if category == "math" else None}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by file name without `.jsonl`; written by `written`."""
    return {
        "pairs.train": [pair(i) for i in range(20)],
        "pairs.test": [pair(i) for i in range(20, 24)],
        "alpaca_eval.test": [question("a", i) for i in range(3)],
        "arena_hard_v01.test": [question("h", i) for i in range(3)],
        "mt_bench.test": [two_turns(i) for i in range(3)],
        "arc.train": [*map(TASKS["arc_challenge"][5], range(4))],
        "arc.test": [*map(TASKS["arc_challenge"][5], range(3))],
        "gsm8k.train": [*map(TASKS["gsm8k"][4], range(4))],
        "gsm8k.test": [*map(TASKS["gsm8k"][4], range(2))],
    }


def written(folder: Path, files: dict[str, list[dict[str, Any]]], **changes: Any) -> dict[str, Any]:
    """Writes the files; returns a data spec of them."""
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "source": "directory",
        "directory": str(folder),
        "template": "plain",
        "limits": {"prompt": 96, "total": 192},
        "preference": ["pairs"],
        "validation_share": 0.1,
        "benchmark_rows": 805,
        "benchmarks": {"alpaca": "alpaca_eval", "arena": "arena_hard_v01", "mtbench": "mt_bench"},
        "tasks": {
            "arc": {"task": "arc_easy", "metric": "acc_norm", "shots": 2, "rows": "arc"},
            "gsm8k": {"task": "gsm8k", "metric": "exact_match", "filter": "strict-match", "shots": 1, "rows": "gsm8k"},
        },
    }
    return {**spec, **changes}


def sets_of(spec: dict[str, Any], folder: Path) -> tuple[Any, Any]:
    return make_sets(data_spec(spec, "data"), folder / "quarantine")


def measured_on_a_policy(tmp_path: Path, spec: dict[str, Any]) -> GoldenRuns:
    """Trains a tiny policy on prepared data and measures its benchmarks."""
    architecture = {**SETTINGS["backbone"]["architecture"], "max_position_embeddings": 2048}
    backbone = {**SETTINGS["backbone"], "architecture": architecture, "training": SHARED["supervised"]}
    evaluation = {"max_new_tokens": 8, "task_tokens": 8, "judge": None}
    made = GoldenRuns(tmp_path).write(
        {"data/dialogue": spec, "tokenizer": {"vocabulary": 420}, "backbone": backbone, "evaluation": evaluation}
    )
    for name in ("dialogue", "dialogue-tokenizer", "sft"):
        made.run(name)
    return made


def test_a_policy_is_measured_and_its_numbers_say_on_what(tmp_path: Path, files: Any) -> None:
    spec = written(tmp_path / "files", files)
    made = measured_on_a_policy(tmp_path, spec)
    metrics = made.read("sft")
    assert {"arc", "gsm8k", "gsm8k_flexible_extract", "alpaca_chars", "arena_chars", "mtbench_chars"} <= set(metrics)
    found = json.loads((made.result("sft") / "benchmarks.json").read_text())
    assert {name: (facts["rows"], facts["of"]) for name, facts in found.items()} == {
        "alpaca": (3, 805), "arena": (3, 500), "mtbench": (3, 80), "arc": (3, 2376), "gsm8k": (2, 1319),
    }  # fmt: skip
    stated = {key: found["gsm8k"][key] for key in ("task", "filter", "shots", "examples_seed", "chat_template", "bos")}
    assert stated == {
        "task": "gsm8k", "filter": "strict-match", "shots": 1, "examples_seed": 1234, "chat_template": None,
        "bos": False,
    }  # fmt: skip
    rows = made.read("sft", "generations.jsonl")
    assert sum(row["benchmark"] == "arc" for row in rows) == 3
    again = tmp_path / "again"
    benchmark.main(
        [*("--policy", str(made.result("sft")), "--data", str(made.result("dialogue")), "--only", "arc"),
         *("--spec", str(made.settings("data/dialogue")), "--out", str(again))]
    )  # fmt: skip
    assert json.loads((again / "metrics.json").read_text())["arc"] == metrics["arc"]
    assert list(json.loads((again / "benchmarks.json").read_text())) == ["arc"]
    output = StageOutput(made.out("sft"), 0)
    assert partial_text("arc", [output]) == "3 of 2,376, arc_easy, 2-shot"
    assert partial_text("alpaca_lc", [output]) == "3 of 805"
    assert partial_text("lc_win_rate_vs_sft", [output]) == "3 of 805"
    assert partial_text("kl", [output]) is None


def test_rows_of_the_published_schema_are_taken_with_their_references(tmp_path: Path, files: Any) -> None:
    sets, facts = sets_of(written(tmp_path / "files", files), tmp_path)
    assert [row["baseline"] for row in sets["benchmarks/alpaca"]] == [["Cup 0."], ["Cup 1."], ["Cup 2."]]
    assert [row.get("references") for row in sets["benchmarks/mtbench"]] == [["1", "2"], None, None]
    assert [summary["quarantined"] for summary in facts["quarantine"]] == [0] * 5
    assert facts["benchmarks"]["arena"]["baseline"] == ["gpt-4"]


def test_real_copies_are_taken_whole(tmp_path: Path, real_data: Path, files: Any) -> None:
    names = ("alpaca_eval", "arena_hard_v01", "mt_bench")
    spec = written(tmp_path / "files", {name: files[name] for name in ("pairs.train", "pairs.test")}, tasks={})
    for name in names:
        (tmp_path / "files" / f"{name}.test.jsonl.gz").symlink_to(real_data / f"{name}.test.jsonl.gz")
    _, facts = sets_of(spec, tmp_path)
    rows = {name: found["rows"] for name, found in facts["benchmarks"].items()}
    assert [each["quarantined"] for each in facts["quarantine"] if each["file"].split(".")[0] in names] == [0, 0, 0]
    assert rows == {"alpaca": 722, "arena": 450, "mtbench": 72}


def test_answers_of_another_file_become_the_references(tmp_path: Path, files: Any) -> None:
    for row in files["arena_hard_v01.test"]:
        del row["reference"], row["reference_generator"]
    files["answers.test"] = [
        {"id": f"x{i}", "question_id": f"h{i}", "generator": "gpt-4-0314", "output": f"Answer {i}", "source": "s"}
        for i in range(3)
    ]
    sets, facts = sets_of(written(tmp_path / "files", files, references={"arena": "answers"}), tmp_path)
    assert [row["baseline"] for row in sets["benchmarks/arena"]] == [["Answer 0"], ["Answer 1"], ["Answer 2"]]
    assert facts["benchmarks"]["arena"]["baseline"] == ["gpt-4-0314"]


def test_mt_bench_asks_a_judge_by_turn_and_beside_references_where_the_category_has_them() -> None:
    rows: list[Any] = [
        {"benchmark": "mtbench", "id": category, "turn": turn, "prompt": f"q{turn}", "response": f"a{turn}", "meta": {},
         "category": category, **({"references": ["r1", "r2"]} if category == "math" else {})}
        for category in ("math", "writing") for turn in (1, 2)
    ]  # fmt: skip
    answers = graded_answers(rows)
    assert [answer.template for answer in answers] == [
        "mt_bench_reference", "mt_bench_reference_turns", "mt_bench", "mt_bench_turns",
    ]  # fmt: skip
    shown = [render(request) for request in answers]
    assert ["r1" in user for _, user in shown] == [True, True, False, False]
    assert ["a1" in user and "a2" in user for _, user in shown] == [False, True, False, True]
    assert "r2" in shown[1][1]
    assert ["correctness" in system for system, _ in shown] == [True, True, False, False]

    class Five:
        name = "five"

        def answer(self, requests: Any) -> list[str]:
            return ["Rating: [[5]]"] * len(requests)

    assert [game.verdict for game in grade_answers(Five(), answers)] == [5.0] * 4


def without(files: Any, name: str) -> Any:
    return {file: rows for file, rows in files.items() if file != name}


def with_row(files: Any, name: str, **change: Any) -> Any:
    """The files with other fields in the second row of one."""
    files[name][1] |= change
    return files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda files: with_row(files, "alpaca_eval.test", reference=None),
            "alpaca_eval.test, row 2, field 'reference': 'a1' has 0 reference",
        ),
        (
            lambda files: with_row(files, "mt_bench.test", category="coding"),
            "mt_bench.test, row 2, field 'reference': 'm1' has 0 reference answers",
        ),
        (lambda files: with_row(files, "arc.test", choices=None), "arc.test.jsonl, row 2: .*allenai/ai2_arc"),
        (lambda files: without(files, "arc.train"), "the data set 'arc' has no split 'train'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, files: Any, change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        sets_of(written(tmp_path / "files", change(files)), tmp_path)


def test_the_leaderboard_is_the_harness_group_openllm() -> None:
    from rlhf_core.evaluation.harness.choice import harness_folder

    group = yaml.safe_load((harness_folder() / "benchmarks" / "openllm.yaml").read_text())
    shots = {task["task"]: task["num_fewshot"] for task in group["task"]}
    assert {choice.task.removesuffix("_mc2"): choice.shots for choice in LEADERBOARD.values()} == shots


def test_a_task_that_the_harness_does_not_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    page = tmp_path / "params/scales/paper/data.yaml"
    page.write_text(page.read_text().replace("task: arc_challenge", "task: arc_chalenge"))
    problems = Check(tmp_path).named("paper", "segment", ["segment"])
    assert len(problems) == 1
    assert "data.yaml" in problems[0]
    assert "tasks.arc: task is 'arc_chalenge', which lm-eval does not have; did you mean arc_challenge" in problems[0]


# --- code ------------------------------------------------------------------------------------------------------------


def code_spec(folder: Path, files: Any, rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    kept = {name: files[name] for name in ("pairs.train", "pairs.test")}
    spec = {"benchmarks": {}, "tasks": {}, "code": {"livecode": "lcb"}} | changes
    return written(folder, {**kept, "lcb.test": rows}, **spec)


def live(day: str, number: int) -> dict[str, Any]:
    return live_row(question_id=f"q{number}", contest_date=f"{day}T00:00:00")


DAYS = ("2024-07-31", "2024-08-01", "2024-12-31", "2025-01-01")


@pytest.mark.parametrize(
    ("window", "ids", "says"),
    [
        ({}, ["q0", "q1", "q2", "q3"], "4 of 880"),
        ({"from": "2024-08-01", "to": date(2024, 12, 31)}, ["q1", "q2"], "2 lcb, from 2024-08-01 to 2024-12-31"),
        ({"from": "2025-01-01"}, ["q3"], "1 lcb, from 2025-01-01 to the last"),
    ],
)
def test_live_code_bench_is_taken_in_its_window(
    tmp_path: Path, files: Any, window: Any, ids: list[str], says: str
) -> None:
    rows = [live(day, number) for number, day in enumerate(DAYS)]
    spec = code_spec(tmp_path / "files", files, rows, livecode_window=window)
    sets, facts = sets_of(spec, tmp_path)
    assert [row["id"] for row in sets["functions.livecode"]] == ids
    assert partial_benchmark("livecode", facts["benchmarks"]["livecode"]) == says


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"livecode_window": {"from": "August"}}, "livecode_window.from is 'August'; it must be a date such as"),
        ({"livecode_window": {"from": "2025-01-01", "to": "2024-01-01"}}, "livecode_window is empty"),
        ({"livecode_window": {"from": "2025-01-01"}, "code": {}}, "'livecode_window' needs the column 'livecode'"),
        ({"code": {"livecod": "lcb"}}, "did you mean 'livecode'"),
    ],
)
def test_a_window_that_holds_nothing_is_refused_before_anything_is_read(
    tmp_path: Path, files: Any, changes: dict[str, Any], message: str
) -> None:
    spec = code_spec(tmp_path / "files", files, [live(DAYS[0], 0)], **changes)
    with pytest.raises(RecipeError) as found:
        data_spec(spec, "data")
    assert message in str(found.value)


def test_several_files_of_the_hub_are_one_set(tmp_path: Path, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(("test", "test2")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(live(DAYS[number], number)) + "\n")
    own = {"path": "json", "mapping": {}, "splits": {"test": "test"}}
    own["data_files"] = {"test": [str(tmp_path / "test.jsonl"), str(tmp_path / "test2.jsonl")]}
    base = code_spec(tmp_path / "files", files, [])
    pairs = {"path": "json", "mapping": {name: name for name in ("prompt", "chosen", "rejected")}, "kind": "preference"}
    pairs["data_files"] = {split: str(tmp_path / f"files/pairs.{split}.jsonl") for split in ("train", "test")}
    spec = {**base, "source": "huggingface", "sets": {"lcb": own, "pairs": pairs}}
    del spec["directory"]
    sets, _ = sets_of(spec, tmp_path)
    assert [row["id"] for row in sets["functions.livecode"]] == ["q0", "q1"]


@isolated
def test_answers_to_live_code_bench_are_measured_on_a_policy(tmp_path: Path, files: Any) -> None:
    spec = code_spec(tmp_path / "files", files, [live(DAYS[0], 0), live(DAYS[1], 1)])
    made = measured_on_a_policy(tmp_path, spec)
    assert made.read("sft")["livecode"] == 0
    rows = [row for row in made.read("sft", "generations.jsonl") if row["benchmark"] == "livecode"]
    assert [(row["id"], row["right"]) for row in rows] == [("q0", False), ("q1", False)]
    found = json.loads((made.result("sft") / "benchmarks.json").read_text())
    assert (found["livecode"]["rows"], found["livecode"]["of"]) == (2, 880)
