"""Stages that sample by continuous batching: the loop's responses, a record of the engine, and an exact resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from tasks.running.artifacts import digest
from tests.tasks.killing import killed_at_a_checkpoint
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline


def in_batches(folder: Path, name: str) -> Path:
    """Returns a settings file of which the engine of rollouts, or of answers, is continuous batching."""
    settings: dict[str, Any] = dict(SETTINGS[name])
    if "sampling" in settings:
        settings["sampling"] = {**settings["sampling"], "engine": "batch"}
    else:
        settings["engine"] = "batch"
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
    scale = {"scale": in_batches(tmp_path, "ppo")}
    both = scale | {"evaluation": in_batches(tmp_path, "evaluation")}
    result = pipeline.run("ppo", tmp_path / "a", settings=both)
    assert engines(tmp_path / "a") == ["batch"]
    expected = pipeline.result("ppo")
    for ours, loop in zip(_rows(result, "history.jsonl"), _rows(expected, "history.jsonl"), strict=True):
        clipped = {name for name in loop if name.endswith("clip_fraction")}  # rounding clips a token more or less
        assert {name: ours[name] for name in clipped} == pytest.approx({name: loop[name] for name in clipped}, abs=0.02)
        others = loop.keys() - clipped
        assert {name: ours[name] for name in others} == pytest.approx({n: loop[n] for n in others}, rel=1e-3, abs=1e-3)
        assert 0 <= ours["engine_gap"] <= ours["engine_gap_max"] < 1e-5
    answers, of_loop = (_answers(folder) for folder in (result, expected))
    assert answers == of_loop
    assert len(answers) > 4
    monkeypatch.chdir(tmp_path)
    with killed_at_a_checkpoint():
        pipeline.run("ppo", tmp_path / "b", settings=both)
    assert digest(pipeline.run("ppo", tmp_path / "b", settings=both)) == digest(result)
    pipeline.run("ppo", tmp_path / "c", settings=scale)
    assert engines(tmp_path / "c") == ["batch", "loop"]


def test_samples_and_references_are_those_of_the_loop(pipeline: Pipeline, tmp_path: Path) -> None:
    samples = pipeline.run("samples", tmp_path / "samples", settings={"spec": in_batches(tmp_path, "samples")})
    assert (samples / "samples.jsonl").read_bytes() == (pipeline.result("samples") / "samples.jsonl").read_bytes()
    made = pipeline.run("references", tmp_path / "references", settings={"scale": in_batches(tmp_path, "references")})
    for file in sorted(made.glob("*.safetensors")):
        expected = load_file(pipeline.result("references") / file.name)
        for name, values in load_file(file).items():
            assert values.tolist() == pytest.approx(expected[name].tolist(), abs=1e-5), name
    assert engines(tmp_path / "samples") == engines(tmp_path / "references") == ["batch"]


def _answers(result: Path) -> list[str]:
    return [row["response"] for row in _rows(result, "generations.jsonl") if "response" in row]


def _rows(result: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result / file).read_text().splitlines()]
