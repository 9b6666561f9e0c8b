"""A policy sampled by a user's own engine: the loop's responses, a record of the engine, and an exact resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.running.artifacts import digest
from tests.shifted_engine import ENGINE, GAP
from tests.tasks.killing import killed_at_a_checkpoint
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline


def by_own_engine(folder: Path, name: str) -> Path:
    """Returns a settings file of which the engine of rollouts, or of answers, is the user's own."""
    settings: dict[str, Any] = dict(SETTINGS[name])
    if "sampling" in settings:
        settings["sampling"] = {**settings["sampling"], "engine": ENGINE}
    else:
        settings["engine"] = ENGINE
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def engines(out: Path) -> Any:
    return json.loads((out / "record" / "record.json").read_text())["engines"]


def test_a_policy_ends_as_on_the_loop_and_its_record_says_which_engine_sampled(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engines(pipeline.out("ppo")) == ["loop"]
    assert engines(pipeline.out("entropies")) == []
    scale = {"scale": by_own_engine(tmp_path, "ppo")}
    both = scale | {"evaluation": by_own_engine(tmp_path, "evaluation")}
    result = pipeline.run("ppo", tmp_path / "a", settings=both)
    assert engines(tmp_path / "a") == [ENGINE]
    expected = pipeline.result("ppo")
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
        pipeline.run("ppo", tmp_path / "b", settings=both)
    assert digest(pipeline.run("ppo", tmp_path / "b", settings=both)) == digest(result)
    pipeline.run("ppo", tmp_path / "c", settings=scale)
    assert engines(tmp_path / "c") == ["loop", ENGINE]


def _answers(result: Path) -> list[str]:
    return [row["response"] for row in _rows(result, "generations.jsonl") if "response" in row]


def _rows(result: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result / file).read_text().splitlines()]
