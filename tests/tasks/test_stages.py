"""Promises of every stage, on the tiny pipeline."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from rlhf_core.errors import DataError, NumericsError, RecipeError, RewardsmithError
from tasks import policy, prepare
from tasks.graph.results import HEADLINE_FILE, HEADLINES, headlines
from tasks.running.artifacts import digest, read_json, read_jsonl, read_tensors, write_json
from tests.tasks.tiny_pipeline import RUNS, SEEDED, SETTINGS, Pipeline, changed

RECORDED = {
    "stage", "version", "seconds", "startup_seconds", "started", "peak_memory_mb", "threads", "device", "host_cpu",
    "cpu_capability", "engines",
    "python", "versions", "commit", "dirty", "sources", "inputs", "out", "files", "result_digest",
}  # fmt: skip
POLICY_FILES = {
    "model", "metrics.json", "history.jsonl", "checkpoints.jsonl", "rollouts.jsonl", "generations.jsonl",
    "judgements.jsonl",
}  # fmt: skip
FILES = {
    "tokenizer": {"tokenizer.json", "tokenizer_config.json", "metrics.json"},
    "sft": {"model", "metrics.json", "history.jsonl", "generations.jsonl", "judgements.jsonl"},
    "entropies": {"entropies.safetensors", "cutoffs.json", "metrics.json"},
    "reward_model": {"model", "metrics.json", "history.jsonl", "examples.jsonl"},
    "normaliser": {"normaliser.json", "metrics.json"},
    "references": {"references.safetensors", "references.json", "metrics.json"},
    "ppo": POLICY_FILES,
    "par": POLICY_FILES,
    "dpo": POLICY_FILES,
    "question_tokenizer": {"tokenizer.json", "tokenizer_config.json", "metrics.json"},
    "question_sft": {"model", "metrics.json", "history.jsonl", "generations.jsonl"},
    "samples": {"samples.jsonl", "tokenizer", "metrics.json"},
    "teacher": {"rewrites.jsonl", "metrics.json"},
    "generative_reward_model": {"model", "token_rewards.jsonl", "grm_rewrites.jsonl", "history.jsonl", "metrics.json"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_stage_leaves_result_record_and_headline_metrics_and_nothing_else(pipeline: Pipeline, name: str) -> None:
    headline = {HEADLINE_FILE} if RUNS[name][0] in HEADLINES else set()
    assert {path.name for path in pipeline.out(name).iterdir()} == {"result", "record"} | headline
    assert FILES.get(name, {"data.json"}) <= {path.name for path in pipeline.result(name).iterdir()}


def test_the_headline_is_the_first_six_metrics_of_the_stage() -> None:
    metrics = dict.fromkeys([*reversed(HEADLINES["policy"]), "entropy"], 1.0)
    assert list(headlines("policy", metrics)) == list(HEADLINES["policy"][:6])
    assert list(headlines("tables", {"verdicts/confirmed": 2.0, "cells": 1.0})) == ["verdicts/confirmed"]


@pytest.mark.parametrize("name", FILES)
def test_metrics_are_flat_and_finite(pipeline: Pipeline, name: str) -> None:
    metrics = pipeline.metrics(name)
    assert metrics
    assert all(type(value) in (int, float) and math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", RUNS)
def test_the_record_says_what_made_the_result(pipeline: Pipeline, name: str) -> None:
    record = pipeline.record(name)
    stage, files, _ = RUNS[name]
    assert set(record) - {"resolved"} == RECORDED
    assert record["stage"] == stage
    assert record["version"] == import_module(f"tasks.{stage}").VERSION
    assert record["seconds"] >= 0
    assert record["result_digest"] == digest(pipeline.result(name))
    given = [*(pipeline.settings(file) for file in files.values()), *pipeline.upstream(name).values()]
    assert record["inputs"] == {path.as_posix(): digest(path) for path in given}


@pytest.mark.parametrize("name", RUNS)
def test_the_same_inputs_and_seed_give_the_same_result(pipeline: Pipeline, name: str, tmp_path: Path) -> None:
    assert digest(pipeline.run(name, tmp_path)) == pipeline.record(name)["result_digest"]


def test_dropout_repeats_by_seed(pipeline: Pipeline, tmp_path: Path) -> None:
    settings = altered(pipeline, tmp_path, "sft", "spec", "architecture.attention_dropout", 0.3)
    first, again = (digest(pipeline.run("sft", tmp_path / name, settings=settings)) for name in "ab")
    assert first == again != pipeline.record("sft")["result_digest"]


@pytest.mark.parametrize("name", [name for name in SEEDED if "model" in FILES[name]])
def test_another_seed_gives_another_model(pipeline: Pipeline, name: str, tmp_path: Path) -> None:
    other = pipeline.run(name, tmp_path, seed=1)
    assert digest(other / "model") != digest(pipeline.result(name) / "model")


def test_rewards_of_rollouts_are_the_sum_of_their_breakdown(pipeline: Pipeline) -> None:
    rollouts = pipeline.rows("ppo", "rollouts.jsonl")
    assert {row["step"] for row in rollouts} == {1, 2}
    for row in rollouts:
        assert len(row["tokens"]) == len(row["rewards"]) == len(row["advantages"])
        total = [sum(parts) for parts in zip(*row["breakdown"].values(), strict=True)]
        assert total == pytest.approx(row["rewards"], abs=1e-6)


def test_rewards_of_examples_are_their_segments_rewards_spread_over_tokens(pipeline: Pipeline) -> None:
    for row in pipeline.rows("reward_model", "examples.jsonl"):
        covered = [i for start, end, _ in row["segments"] for i in range(start, end)]
        assert covered == list(range(len(covered)))
        paid = sum(row["rewards"][i] for i in covered)
        assert paid == pytest.approx(sum(value for *_, value in row["segments"]), abs=1e-5)
        assert all(value is None for value in row["rewards"][len(covered) :])


def test_a_policy_is_compared_with_its_sft_model_on_every_benchmark(pipeline: Pipeline) -> None:
    for name in ("ppo", "dpo"):
        generations = pipeline.rows(name, "generations.jsonl")
        baseline = pipeline.rows("sft", "generations.jsonl")
        assert [(r["benchmark"], r["id"], r["turn"]) for r in generations] == [
            (r["benchmark"], r["id"], r["turn"]) for r in baseline
        ]
        assert 0 <= pipeline.metrics(name)["win_rate_vs_sft"] <= 100
    steps = [row["step"] for row in pipeline.rows("ppo", "history.jsonl")]
    assert steps == [1, 2]
    assert [row["step"] for row in pipeline.rows("ppo", "checkpoints.jsonl")] == [1]


def altered(pipeline: Pipeline, folder: Path, name: str, argument: str, path: str, value: object) -> dict[str, Path]:
    """A settings file with one value changed, by the argument that takes it."""
    file = RUNS[name][1][argument]
    target = folder / f"{file}.yaml"
    target.write_text(yaml.safe_dump(changed(SETTINGS[file], path, value)), encoding="utf-8")
    return {argument: target}


@pytest.mark.parametrize(
    ("name", "argument", "path", "value", "error", "message"),
    [
        (
            "sft",
            "spec",
            "training.learning_rate",
            1e30,
            NumericsError,
            r"file .*sft.jsonl: step \d: .*nan.*lower",
        ),
        ("sft", "spec", "training.learning_rate", math.nan, RecipeError, "learning_rate.*nan"),
        ("reward_model", "scale", "learning_rate", 1e30, NumericsError, r"preference.train.jsonl: step \d: .*nan"),
        ("ppo", "scale", "optimiser.critic_lr", 1e30, NumericsError, "lower the learning rate"),
        ("dpo", "scale", "optimiser.learning_rate", 1e30, NumericsError, r"preference.train.jsonl: step \d: .*nan"),
    ],
)
def test_a_failing_stage_leaves_nothing_and_the_next_run_works(
    pipeline: Pipeline,
    tmp_path: Path,
    name: str,
    argument: str,
    path: str,
    value: object,
    error: type[RewardsmithError],
    message: str,
) -> None:
    out = tmp_path / "out"
    with pytest.raises(error, match=message):
        pipeline.run(name, out, settings=altered(pipeline, tmp_path, name, argument, path, value))
    left = {path.name for path in out.iterdir()} if out.exists() else set()
    assert left <= ({"diverged.json"} if error is NumericsError else set())
    assert digest(pipeline.run(name, out)) == pipeline.record(name)["result_digest"]
    assert not (out / "diverged.json").exists()


OWN_REWARDS = """
import torch

def shape(batch):
    return torch.zeros(len(batch), 999)

def fails(batch):
    return batch.texts[0].undefined

def nan(batch):
    return torch.full((len(batch),), float("nan"))
"""


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("shape", RecipeError, r"^reward function own_wrong:shape returned shape \(16, 999\); .* wants \(16,\)"),
        ("fails", RecipeError, r"^reward function own_wrong:fails failed: AttributeError.*line 8 of .*own_wrong.py"),
        ("nan", NumericsError, r"^reward function own_wrong:nan: the reward of response 0 of the batch is not finite"),
    ],
)
def test_a_wrong_reward_function_is_an_error_of_the_function(
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[RewardsmithError],
    said: str,
) -> None:
    """No file of data is blamed, and only a value that is not finite is a divergence."""
    (tmp_path / "own_wrong.py").write_text(OWN_REWARDS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_wrong", raising=False)
    row = {"title": "Own", "kind": "reward", "backbone": "tiny", "optimiser": {"kind": "ppo"}}
    row |= {"function": f"own_wrong:{name}", "gives": "sequence", "credit": "last_token"}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(row), encoding="utf-8")
    given = {"row": file, "scale": pipeline.settings("ppo"), "evaluation": pipeline.settings("evaluation")}
    given |= {"data": pipeline.result("data"), "sft": pipeline.result("sft")}
    out = tmp_path / "out"
    line = [part for key, path in given.items() for part in (f"--{key}", str(path))]
    with pytest.raises(error, match=said):
        policy.main([*line, "--out", str(out), "--seed", "0"])
    assert (out / "diverged.json").exists() == (error is NumericsError)


def test_a_failing_run_leaves_the_earlier_result_in_place(pipeline: Pipeline, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = digest(pipeline.run("sft", out))
    with pytest.raises(NumericsError):
        pipeline.run("sft", out, settings=altered(pipeline, tmp_path, "sft", "spec", "training.learning_rate", 1e30))
    assert digest(out / "result") == before
    assert {path.name for path in out.iterdir()} == {"result", "record", HEADLINE_FILE}


def test_a_run_removes_what_a_killed_run_left(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / ".partial-123" / "result").mkdir(parents=True)
    pipeline.run("entropies", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"result", "record"}


def test_a_reward_recipe_without_its_inputs_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    _, line = pipeline.arguments("ppo", tmp_path / "out")
    position = line.index("--normaliser")
    del line[position : position + 2]
    with pytest.raises(RecipeError, match=r"1 reward model\(s\) and 0 normaliser\(s\) are given"):
        import_module("tasks.policy").main(line)
    assert not list((tmp_path / "out").iterdir())


def test_reward_models_and_a_function_of_the_users_own_add_up(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two components read two reward models, a third one is a function in the working directory."""
    (tmp_path / "own_brevity.py").write_text("def brevity(batch):\n    return -0.01 * batch.responses.lengths\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    row = dict(SETTINGS["segment"])
    model = {name: row.pop(name) for name in ("reward_model", "readout", "normaliser", "credit")}
    function = {"function": "own_brevity:brevity", "gives": "sequence", "credit": "last_token", "name": "brevity"}
    row["components"] = [model, {**model, "reward_model": "other", "name": "other", "weight": 0.5}, function]
    (tmp_path / "row.yaml").write_text(yaml.safe_dump(row))
    _, line = pipeline.arguments("ppo", tmp_path / "out", settings={"row": tmp_path / "row.yaml"})
    for flag in ("--reward-model", "--normaliser"):
        line.insert(line.index(flag) + 1, line[line.index(flag) + 1])
    import_module("tasks.policy").main(line)
    first = json.loads((tmp_path / "out/result/rollouts.jsonl").read_text().splitlines()[0])
    parts = first["breakdown"]
    assert set(parts) == {"segment", "other", "brevity", "clamp"}
    assert parts["other"] == pytest.approx([0.5 * value for value in parts["segment"]])
    assert sum(parts["brevity"]) == pytest.approx(-0.01 * len(first["tokens"]))


def test_a_missing_upstream_result_is_named(pipeline: Pipeline, tmp_path: Path) -> None:
    _, line = pipeline.arguments("entropies", tmp_path / "out")
    line[line.index("--sft") + 1] = str(tmp_path / "none")
    with pytest.raises(DataError, match=r"none: input does not exist. Run the stage that makes it first"):
        import_module("tasks.entropies").main(line)
    assert not (tmp_path / "out").exists()


def test_a_damaged_upstream_result_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    with pytest.raises(DataError, match=r"history\.jsonl, row 3: not valid JSON .*Re-run its stage"):
        read_jsonl(path)
    (tmp_path / "metrics.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"metrics\.json: not valid JSON .*Re-run its stage"):
        read_json(tmp_path / "metrics.json")
    (tmp_path / "entropies.safetensors").write_bytes(b"half")
    with pytest.raises(DataError, match=r"entropies\.safetensors: not valid safetensors .*Re-run its stage"):
        read_tensors(tmp_path / "entropies.safetensors")


def test_a_metric_that_is_not_finite_is_named(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match=r"metrics\.json: alpaca_wr, rows/1/kl not finite"):
        write_json(tmp_path / "metrics.json", {"alpaca_wr": math.nan, "rows": [{"kl": 1.0}, {"kl": -math.inf}]})
    assert not (tmp_path / "metrics.json").exists()


def test_another_stage_version_is_refused_with_exit_code_2(pipeline: Pipeline, tmp_path: Path) -> None:
    module, line = pipeline.arguments("data", tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", module, *line, "--stage-version", "999"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"stage 'prepare' has version {prepare.VERSION} but version 999 was asked for" in done.stderr
    assert not (tmp_path / "out").exists()
