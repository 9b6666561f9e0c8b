"""Promises of every stage, on the tiny golden."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from rlhf_core.errors import RewardsmithError
from tasks import prepare
from tasks.graph.results import HEADLINE_FILE, HEADLINES, headlines
from tasks.running.artifacts import digest, read_json
from tests.tasks.golden_runs import RUNS, SharedRuns, changed

RECORDED = {
    "stage", "version", "seconds", "startup_seconds", "started", "peak_memory_mb", "threads", "device", "host_cpu",
    "cpu_capability", "engines",
    "python", "versions", "commit", "dirty", "sources", "inputs", "out", "files", "result_digest",
}  # fmt: skip


#: The first golden run of each stage.
FIRST = {run.stage: name for name, run in reversed(RUNS.items()) if run.stage != "tables"}


@pytest.mark.parametrize("stage", FIRST)
def test_a_stage_leaves_result_record_and_headline_metrics_and_nothing_else(golden: SharedRuns, stage: str) -> None:
    name = FIRST[stage]
    out, result = golden.out(name), golden.result(name)
    headline = {HEADLINE_FILE} if stage in HEADLINES else set()
    assert {path.name for path in out.iterdir()} == {"result", "record"} | headline
    record = read_json(out / "record" / "record.json")
    assert set(record) - {"resolved"} == RECORDED
    assert (record["stage"], record["version"]) == (stage, import_module(f"tasks.{stage}").VERSION)
    assert record["result_digest"] == digest(result)
    assert record["inputs"] == {path: digest(path) for path in map(str, golden.inputs(name))}


def test_the_headline_is_the_first_six_metrics_of_the_stage() -> None:
    metrics = dict.fromkeys([*reversed(HEADLINES["policy"]), "entropy"], 1.0)
    assert list(headlines("policy", metrics)) == list(HEADLINES["policy"][:6])
    assert list(headlines("tables", {"verdicts/confirmed": 2.0, "cells": 1.0})) == ["verdicts/confirmed"]


def test_dropout_repeats_by_seed(golden: SharedRuns, tmp_path: Path) -> None:
    for name in "ab":
        golden.run("sft", spec=changed("backbone", "architecture.attention_dropout", 0.3), out=tmp_path / name)
    first, again = (digest(tmp_path / name / "result") for name in "ab")
    assert first == again != digest(golden.result("sft"))


def test_a_run_removes_what_a_killed_run_left(golden: SharedRuns, tmp_path: Path) -> None:
    (tmp_path / ".partial-123" / "result").mkdir(parents=True)
    golden.run("entropies", out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"result", "record"}


def test_another_stage_version_is_refused(golden: SharedRuns, tmp_path: Path) -> None:
    with pytest.raises(
        RewardsmithError, match=f"'prepare' has version {prepare.VERSION} but version 999 was asked for"
    ):
        golden.run("dialogue", out=tmp_path / "out", stage_version="999")
    assert not (tmp_path / "out").exists()
