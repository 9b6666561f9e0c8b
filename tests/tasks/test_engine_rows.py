"""A policy sampled by a user's own engine: the loop's responses, a record of the engine, and an exact resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.running.artifacts import digest
from tests.shifted_engine import ENGINE, GAP
from tests.tasks.golden_runs import SharedRuns, changed
from tests.tasks.killing import killed_at_a_checkpoint


def engines(out: Path) -> Any:
    return json.loads((out / "record" / "record.json").read_text())["engines"]


def test_a_policy_ends_as_on_the_loop_and_its_record_says_which_engine_sampled(
    golden: SharedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engines(golden.out("segment")) == ["loop"]
    assert engines(golden.out("entropies")) == []
    scale = {"scale": changed("policy/ppo", "sampling.engine", ENGINE)}
    both = scale | {"evaluation": changed("evaluation", "engine", ENGINE)}
    result = golden.run("segment", **both, out=tmp_path / "a")
    assert engines(tmp_path / "a") == [ENGINE]
    expected = golden.result("segment")
    for ours, loop in zip(_rows(result, "history.jsonl"), _rows(expected, "history.jsonl"), strict=True):
        clipped = {name for name in loop if name.endswith("clip_fraction")}  # rounding clips a token more or less
        assert {name: ours[name] for name in clipped} == pytest.approx({name: loop[name] for name in clipped}, abs=0.02)
        others = loop.keys() - clipped
        assert {name: ours[name] for name in others} == pytest.approx({n: loop[n] for n in others}, rel=1e-3, abs=1e-3)
        assert ours["engine_gap_max"] == pytest.approx(GAP, abs=1e-4)
    answers, of_loop = (_answers(folder) for folder in (result, expected))
    assert answers == of_loop
    assert len(answers) > 4
    monkeypatch.chdir(tmp_path)
    with killed_at_a_checkpoint():
        golden.run("segment", **both, out=tmp_path / "b")
    assert digest(golden.run("segment", **both, out=tmp_path / "b")) == digest(result)
    golden.run("segment", **scale, out=tmp_path / "c")
    assert engines(tmp_path / "c") == ["loop", ENGINE]


def _answers(result: Path) -> list[str]:
    return [row["response"] for row in _rows(result, "generations.jsonl") if "response" in row]


def _rows(result: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result / file).read_text().splitlines()]
