"""A rehearsal: rows, stand-ins, settings made small, the endpoint, the list of empty cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import RECORD_TYPES
from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.evaluation.judges.templates import TEMPLATES, JudgeRequest
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.teachers.choices import REWRITE, teacher_prompt
from tasks.dvc.pipelines import Request
from tasks.graph.check import refuse_rows
from tasks.graph.names import SUITE
from tasks.rehearsal import tree as rehearsed_tree
from tasks.rehearsal.empty_cells import EmptyCell, Listing, cells_of
from tasks.rehearsal.endpoint import REPLIES, endpoints
from tasks.rehearsal.rows import MADE_UP, SmallRows
from tasks.rehearsal.stand_ins import language_model
from tasks.rehearsal.tree import small, write_tree
from tasks.running.artifacts import write_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", [name for name in MADE_UP if name in RECORD_TYPES])
def test_made_up_rows_fit_their_schema_and_say_what_they_are(kind: str, tmp_path: Path) -> None:
    rows = SmallRows(tmp_path, None).write("set", "train", kind)
    assert not find_faults([*enumerate(rows, start=1)], RECORD_TYPES[kind])
    assert len({row["id"] for row in rows}) == 8
    assert "made up for a rehearsal" in rows[0]["source"]


def test_given_rows_are_taken_before_made_up_ones(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    pair = {"id": "1", "prompt": "Hello?", "chosen": "Hello.", "rejected": "No.", "source": "s"}
    (tmp_path / "given" / "hh_helpful.train.jsonl").write_text(json.dumps(pair) + "\n")
    rows = SmallRows(tmp_path, DirectorySource(tmp_path / "given"), {"helpful_base": "hh_helpful"})
    assert rows.write("helpful_base", "train", "preference") == [pair]
    assert "made up" in rows.write("ultrafeedback", "train", "preference")[0]["chosen"]


def test_a_model_of_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"sizes of 'someone/new' are not known.*architectures.yaml"):
        language_model("someone/new", ["text"], tmp_path / "new")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"epochs": 3, "batch": 64, "schedule": "cosine"}, {"epochs": None, "updates": 2, "batch": 2, "microbatch": 2}),
        ({"optimiser": {"iterations": 9, "rollout_batch": 64, "epochs": 4, "replay": 4}},
         {"optimiser": {"iterations": 3, "rollout_batch": 40, "minibatch": 40, "microbatch": 40, "epochs": 1,
                        "replay": 1}}),
        ({"samples": 5, "sampling": {"max_new_tokens": 512, "top_p": 0.9}}, {"samples": 2}),
        ({"prompts": None, "attention": "flash_attention_2"}, {"prompts": 5, "attention": "sdpa"}),
        ({"prompts": ["a_set"], "benchmark_rows": 3}, {"prompts": ["a_set"], "benchmark_rows": 3}),
    ],
)  # fmt: skip
def test_settings_are_capped_at_any_depth(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert small(values) == small(values) | expected
    assert small({"inner": values}) == {"inner": small(values)}


@pytest.mark.platform
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_no_setting_of_a_small_scale_is_refused(scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("params", "params.yaml"):
        (tmp_path / part).symlink_to(ROOT / part)
    monkeypatch.chdir(tmp_path)
    tree, name = write_tree(tmp_path, scale, None)
    asked = dict.fromkeys(Request(SUITE, name, full=True).papers(tree), ())
    assert {"segment", "sentence", "par"} <= asked.keys()
    refuse_rows(tree, name, asked)


def test_a_rehearsal_continues_on_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsed_tree, "_write_scale", lambda *_: None)
    (tmp_path / "params").mkdir()
    tree, _ = write_tree(tmp_path, "small", None)
    (tree / "results").mkdir()
    write_tree(tmp_path, "small", None)
    assert (tree / "results").exists(), "an interrupted rehearsal continues"
    (tmp_path / "given").mkdir()
    write_tree(tmp_path, "small", tmp_path / "given")
    assert not (tree / "results").exists(), "results are of other rows"
    with pytest.raises(RecipeError, match="rehearse small or paper"):
        write_tree(tmp_path, "testbed", None)


def test_the_endpoint_answers_every_template_in_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoints() as served:
        for name, value in served.items():
            monkeypatch.setenv(name, value)
        judge = EndpointJudge(EndpointConfig(served["REWARDSMITH_JUDGE_URL"], "any", "REWARDSMITH_JUDGE_KEY"))
        for name in REPLIES.keys() - {"locate_error", "rewrite_solution"}:
            meta = {"first": ("q", "a"), "references": ["r", "r"], "reference": "r"}
            request = JudgeRequest("1", "What?", ("one", "two")[: TEMPLATES[name].n_answers], name, meta)
            (text,) = judge.answer([request])
            assert TEMPLATES[name].parse(text) is not None, (name, text)
        question = {"id": "q", "prompt": "1 and 2?", "solution": "1 + 2 = 3.\nThe answer is 3", "answer": "3"}
        wrong = WrongSolution("q/0", question, "1 + 2 = 4.\nThe answer is 4")
        (text,) = judge.answer([JudgeRequest("1", teacher_prompt(REWRITE, wrong), (), REWRITE)])
        assert text.strip() == wrong.question["solution"].strip()


@pytest.mark.parametrize(
    ("name", "status", "why", "metric", "reason"),
    [
        (None, "not run", None, "x", "this project has no row for the printed line"),
        ("broken", "not run", None, "x", "a stage failed"),
        ("elsewhere", "not run", None, "x", "the scale has no backbone, data or evaluation of the row"),
        ("ended", "stopped", None, "x", "stopped"),
        ("ended", "not measured", "the data has no benchmark 'arena'", "arena", "the data has no benchmark 'arena'"),
        ("ended", "not measured", None, "livecode", "the scale's data do not name the benchmark"),
        ("ended", "not measured", None, "wins/judge/b", "it compares with a row that has no result"),
        ("ended", "not measured", None, "something_else", ""),
        ("ended", "not run", None, "x", ""),
    ],
)
def test_an_empty_cell_has_the_tables_words(
    name: str | None, status: str, why: str | None, metric: str, reason: str, tmp_path: Path
) -> None:
    cells = {"x": {"published": "1", "status": status, "why": why}, "y": {"published": "1", "status": "measured"}}
    row = {"name": name, "condition": "Row", "backbone": None, "cells": cells}
    columns = [{"key": "x", "printed": "WR", "metric": metric}, {"key": "y", "printed": "LC"}]
    table = {"name": "segment/1", "is_result": True, "rows": [row], "columns": columns}
    write_json(tmp_path / "tables.json", {"tables": [table]})
    filled, empty = cells_of(tmp_path, {"broken": "a stage failed", "ended": ""})
    assert (filled, empty) == (1, [EmptyCell("segment/1", "Row", "WR", reason)])
    listing = Listing(empty=empty)
    assert listing.status == int(not reason)
    assert f"- segment/1: {reason or 'WITHOUT A REASON: Row'}: WR (1)" in listing.text("paper")
    assert Listing(failed={"sft": "message"}).status == 1
