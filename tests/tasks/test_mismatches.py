"""Results that say some things twice: an honest one agrees with itself, one that was mixed up does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks import tables
from tasks.commands.result_mismatches import result_mismatches
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.result_digests import digests_of
from tests.tasks.report.fixture_results import make_results
from tests.tasks.tiny_pipeline import RUNS, Pipeline

Rows = list[dict[str, Any]]
MODEL = "generative_reward_model"


def next_rows(*fields: str) -> Callable[[Rows], Rows]:
    """Returns a change that gives each row some fields of the next row."""
    return lambda rows: [
        row | {name: other[name] for name in fields if name in other}
        for row, other in zip(rows, [*rows[1:], rows[0]], strict=True)
    ]


def each(**values: Callable[[dict[str, Any]], Any]) -> Callable[[Rows], Rows]:
    """Returns a change of fields of each row."""
    return lambda rows: [row | {name: value(row) for name, value in values.items()} for row in rows]


def seal(out: Path) -> None:
    """Makes a record fit its result."""
    record = out / "record" / "record.json"
    kept = {name: value for name, value in read_json(record).items() if name not in ("files", "result_digest")}
    write_json(record, kept | digests_of(out / "result"))


def with_rows(out: Path, copy: Path, file: str, change: Callable[[Rows], Rows]) -> Path:
    """Returns a copy of a stage's output with other rows in a file, and a record that fits."""
    shutil.copytree(out, copy)
    rows = change(read_jsonl(out / "result" / file))
    write_jsonl(copy / "result" / file, rows)
    seal(copy)
    return copy


@pytest.mark.parametrize("name", RUNS)
def test_an_honest_result_agrees_with_itself(pipeline: Pipeline, name: str) -> None:
    assert result_mismatches(pipeline.out(name), pipeline.root) == []


@pytest.mark.parametrize(
    ("name", "file", "change", "said"),
    [
        ("teacher", "rewrites.jsonl", next_rows("rewrite"), "another 'edit_distance'"),
        ("teacher", "rewrites.jsonl", next_rows("prediction"), "another 'prediction'"),
        ("teacher", "rewrites.jsonl", each(first_error_step=lambda row: 9), "locating_accuracy"),
        ("teacher", "rewrites.jsonl", each(accepted=lambda row: not row["accepted"]), "another 'accepted'"),
        ("teacher", "rewrites.jsonl", lambda rows: rows[1:], "11 rows for 12"),
        (
            MODEL,
            "token_rewards.jsonl",
            next_rows("rewards", "probabilities"),
            "number of rewards than of tokens",
        ),
        (
            MODEL,
            "token_rewards.jsonl",
            each(rewards=lambda row: [0.3] * len(row["rewards"])),
            "another 'rewards'",
        ),
        (
            MODEL,
            "token_rewards.jsonl",
            each(probabilities=lambda row: row["probabilities"][::-1]),
            "fidelity/auc",
        ),
        (MODEL, "token_rewards.jsonl", next_rows("token_ids"), "another 'token_ids'"),
        (MODEL, "grm_rewrites.jsonl", each(rewrite=lambda row: "no"), "another 'edit_distance'"),
        ("ppo", "history.jsonl", each(**{"proxy/segment": lambda row: row["true_reward"]}), "train_proxy/segment"),
        ("ppo", "history.jsonl", each(kl=lambda row: 2 * row["kl"]), "train_kl"),
        ("ppo", "rollouts.jsonl", next_rows("response"), "another 'true_reward'"),
        ("ppo", "rollouts.jsonl", each(rewards=lambda row: row["advantages"]), "sum of their breakdown"),
        ("ppo", "generations.jsonl", next_rows("response"), "another 'n_chars'"),
        ("ppo", "generations.jsonl", next_rows("true_reward"), "another 'true_reward'"),
        ("ppo", "judgements.jsonl", each(preference=lambda row: 1.0, value=lambda row: 1.0), "alpaca_wr"),
        ("ppo", "history.jsonl", each(reward=lambda row: row["reward"] - 0.1 * row["kl"] - 1), "sum of its components"),
        ("ppo", "history.jsonl", each(kl=lambda row: -row["kl_k3"] - 1, kl_k3=lambda row: 1.0), "never below 0"),
        ("ppo", "judgements.jsonl", each(first=lambda row: "model"), "another 'preference'"),
        ("ppo", "alarms.jsonl", lambda rows: [*rows, {"step": 1}], "hacking_alarms"),
        ("dpo", "history.jsonl", each(loss=lambda row: row["margin"]), "dpo_loss"),
        ("sft", "generations.jsonl", each(n_tokens=lambda row: row.get("n_tokens", 0) + 1), "tokens"),
    ],
)
def test_a_result_that_was_mixed_up_contradicts_itself(
    pipeline: Pipeline, tmp_path: Path, name: str, file: str, change: Callable[[Rows], Rows], said: str
) -> None:
    planted = with_rows(pipeline.out(name), tmp_path / name, file, change)
    assert said in "\n".join(result_mismatches(planted, pipeline.root))


def cut(tokens: int) -> Callable[[Rows], Rows]:
    def shorten(rows: Rows) -> Rows:
        return [row | {"n_tokens": min(row["n_tokens"], tokens)} if "n_tokens" in row else row for row in rows]

    return shorten


def test_answers_that_end_before_the_limit_without_an_end_are_found(pipeline: Pipeline, tmp_path: Path) -> None:
    planted = with_rows(pipeline.out("ppo"), tmp_path / "ppo", "generations.jsonl", cut(5))
    assert "answers cut before 12 tokens, the longest at 5" in "\n".join(result_mismatches(planted, pipeline.root))


def test_cells_of_tables_are_computed_again(tmp_path: Path) -> None:
    """Such as plain win rates where length-controlled ones belong."""
    results = make_results(tmp_path, (0, 1), ("phi3-mini", "bandit"))
    out = results / "segment" / "tables"
    tables.main(["--results", str(results), "--paper", "segment", "--seeds", "0", "1", "--out", str(out)])
    assert result_mismatches(out, tmp_path) == []
    metrics = read_json(out / "result" / "metrics.json")
    controlled = [name for name in metrics if name.endswith("/0/alpaca_lc")]
    plain = read_json(results / "segment" / "policy" / "bandit" / "0" / "result" / "metrics.json")["alpaca_wr"]
    write_json(out / "result" / "metrics.json", metrics | dict.fromkeys(controlled, plain))
    seal(out)
    said = result_mismatches(out, tmp_path)
    assert len(said) >= 1
    assert "/0/alpaca_lc" in said[0]


def test_a_table_without_a_row_or_a_metric_is_found(tmp_path: Path) -> None:
    results = make_results(tmp_path, (0, 1), ("phi3-mini", "bandit"))
    out = results / "segment" / "tables"
    tables.main(["--results", str(results), "--paper", "segment", "--seeds", "0", "1", "--out", str(out)])
    content, metrics = (read_json(out / "result" / f"{name}.json") for name in ("tables", "metrics"))
    first, *others = content["tables"]
    first["rows"] = first["rows"][1:]
    write_json(out / "result" / "tables.json", content | {"tables": [first, *others[1:]]})
    name, *kept = metrics
    write_json(out / "result" / "metrics.json", {name: metrics[name] for name in kept})
    with (out / "result" / "curves.csv").open("a") as file:
        file.write("bandit,0,9,reward,1.0\n")
    seal(out)
    assert result_mismatches(out, tmp_path) == [
        f"metrics.json and its runs' tables do not both have {name}",
        f"tables.json and its runs do not both have {others[0]['id']}",
        f"tables.json has another {first['id']} than its runs give",
        "curves.csv is not that of its runs' histories",
    ]


def test_tables_are_computed_again_from_the_data_of_their_runs(tmp_path: Path) -> None:
    """Which each world has its own of, beside data of other prompts that all may share."""
    results = make_results(tmp_path, (0, 1), ("phi3-mini", "bandit"))
    data = results / "shared" / "data" / "dialogue"
    for seed in (0, 1):
        shutil.copytree(data / "result", data / str(seed) / "result")
        for run in (results / "segment" / "policy" / "bandit", results / "shared" / "sft" / "phi3-mini"):
            record = run / str(seed) / "record" / "record.json"
            read = {f"results/testbed/shared/data/dialogue/{seed}/result": "ab"}
            write_json(record, read_json(record) | {"inputs": read})
    write_jsonl(data / "result" / "alpaca_calibration.jsonl", [])
    out = results / "segment" / "tables"
    tables.build(results, "segment", (0, 1), out, frozenset(path.as_posix() for path in results.glob("**/result")))
    assert any("alpaca_lc" in name for name in read_json(out / "result" / "metrics.json"))
    assert result_mismatches(out, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("samples", "accuracy"),
        ("samples", "tokens"),
        ("teacher", "ground_truth_edit_distance"),
        (MODEL, "silent"),
        ("normaliser", "global_mean"),
        ("entropies", "entropy_mean"),
        ("references", "truncated"),
        ("reward_model", "share_of_ceiling"),
        ("sft", "mtbench_turn2"),
        ("sft", "mmlu"),
        ("question_sft", "math"),
        ("ppo", "win_rate_vs_sft"),
        ("ppo", "ood_wr"),
        ("ppo", "truncated"),
    ],
)
def test_a_metric_that_does_not_follow_is_found(pipeline: Pipeline, tmp_path: Path, name: str, metric: str) -> None:
    planted = Path(shutil.copytree(pipeline.out(name), tmp_path / name))
    metrics = read_json(planted / "result" / "metrics.json")
    write_json(planted / "result" / "metrics.json", metrics | {metric: metrics[metric] + 1})
    seal(planted)
    said = result_mismatches(planted, pipeline.root)
    assert f"metrics.json has {metric} " in "\n".join(said)


def test_a_value_outside_its_bounds_is_found(pipeline: Pipeline, tmp_path: Path) -> None:
    planted = Path(shutil.copytree(pipeline.out("sft"), tmp_path / "sft"))
    metrics = read_json(planted / "result" / "metrics.json")
    name = next(each for each in metrics if metrics.get(f"{each}_upper") is not None)
    ends = {f"{name}_lower": metrics[name] + 1, f"{name}_upper": metrics[name] + 2}
    write_json(planted / "result" / "metrics.json", metrics | ends)
    seal(planted)
    assert f"has {name} {metrics[name]:.6g} outside its own bounds" in "\n".join(
        result_mismatches(planted, pipeline.root)
    )


@pytest.mark.parametrize(
    ("name", "said"), [("ppo", "the saved weights and"), ("reward_model", "the saved model rewards")]
)
def test_other_weights_are_found(pipeline: Pipeline, tmp_path: Path, name: str, said: str) -> None:
    """Such as those of another step, or a head of another model."""
    planted = Path(shutil.copytree(pipeline.out(name), tmp_path / name))
    file = planted / "result" / "model" / ("model.safetensors" if name == "ppo" else "heads.safetensors")
    save_file({key: tensor * 1.05 for key, tensor in load_file(file).items()}, file)
    seal(planted)
    assert said in "\n".join(result_mismatches(planted, pipeline.root))


@pytest.mark.parametrize(
    ("name", "file", "field"),
    [
        ("samples", "samples.jsonl", "prediction"),
        ("samples", "samples.jsonl", "solution"),
        ("reward_model", "examples.jsonl", "response"),
        ("reward_model", "examples.jsonl", "segments"),
    ],
)
def test_fields_of_the_next_row_are_found(pipeline: Pipeline, tmp_path: Path, name: str, file: str, field: str) -> None:
    planted = with_rows(pipeline.out(name), tmp_path / name, file, next_rows(field))
    assert result_mismatches(planted, pipeline.root)


def made(root: Path, kind: str, *inputs: Path, **files: Any) -> Path:
    """Writes an output of a kind of stage, files by name without their ending; returns its folder."""
    out = root / kind
    (out / "result").mkdir(parents=True)
    (out / "record").mkdir()
    for name, content in files.items():
        if isinstance(content, list):
            write_jsonl(out / "result" / f"{name}.jsonl", content)
        else:
            write_json(out / "result" / f"{name}.json", content)
    record = {"stage": kind, "version": 1, "inputs": {str(path): "a" * 64 for path in inputs}}
    write_json(out / "record" / "record.json", record)
    seal(out)
    return out


def test_accuracies_of_a_benchmark_are_those_of_its_pairs(tmp_path: Path) -> None:
    pair = {"id": "1", "benchmark": "chat", "subset": "easy", "chosen": 1.0, "rejected": 0.0}
    honest = [pair | {"right": True}, pair | {"rejected": 2.0, "right": False}]
    metrics = {"chat": 50.0, "accuracy": 50.0}
    agreeing = made(tmp_path / "a", "reward_bench", generations=honest, metrics=metrics)
    assert result_mismatches(agreeing, tmp_path) == []
    exchanged = [row | {"right": not row["right"]} for row in honest]
    out = made(tmp_path / "b", "reward_bench", generations=exchanged, metrics=metrics | {"chat": 75.0})
    said = "\n".join(result_mismatches(out, tmp_path))
    assert "another 'right' in 2 of 2 rows" in said
    assert "metrics.json has chat 75" in said


def test_sentences_and_pools_are_counted_again(tmp_path: Path) -> None:
    ends = made(tmp_path, "segmenter", sentences={"a": [4, 8], "b": [2]}, metrics={"sentences_per_response": 3.0})
    assert result_mismatches(ends, tmp_path) == [
        "metrics.json has sentences_per_response 3, but the rows beside it give 1.5"
    ]
    pool = made(tmp_path, "pool", responses=[{"benchmark": "x", "samples": ["a", "a"]}], metrics={"x_distinct": 2.0})
    assert result_mismatches(pool, tmp_path) == ["metrics.json has x_distinct 2, but the rows beside it give 1"]


def test_rewards_of_references_are_those_at_their_last_tokens(tmp_path: Path) -> None:
    """Checks a reward model that pays whole responses, on two responses of 1 and 2 tokens."""
    model = made(tmp_path, "reward_model")
    (model / "result" / "model").mkdir()
    write_json(model / "result" / "model" / "reward_model.json", {"segmenter": {"kind": "bandit"}})
    seal(model)
    metrics = {"reward_mean": 2.0, "reward_std": 1.0, "reward_std_within_prompts": 1.0, "truncated": 0.0}
    out = made(tmp_path, "references", model / "result", references={"prompts": ["a"]}, metrics=metrics)
    lengths, ended = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([True, True])
    stored = {"lengths": lengths, "ended": ended, "values.reward": torch.tensor([1.0, 9.0, 3.0])}
    save_file(stored, out / "result" / "references.safetensors")
    seal(out)
    assert result_mismatches(out, tmp_path) == []
    save_file(stored | {"values.reward": torch.tensor([1.0, 3.0, 9.0])}, out / "result" / "references.safetensors")
    seal(out)
    assert [words.split()[2] for words in result_mismatches(out, tmp_path)] == [*metrics][:3]


def answers(**values: list[list[float]]) -> Rows:
    """Returns rows of answers.jsonl from greedy and sampled values of each reward."""
    kinds = ("greedy", "sampled")
    return [
        {kind: {name: sides[k][i] for name, sides in values.items()} for k, kind in enumerate(kinds)} for i in range(4)
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"chosen": ["far", "near"]}, ["selection.json has another 'chosen' in 1 of 1 rows"]),
        ({"holistic": {"mean": 2.0}}, ["selection.json has another 'mean' in 1 of 1 rows"]),
    ],
)
def test_a_selection_follows_from_the_scores_of_both_answers(
    tmp_path: Path, changes: dict[str, Any], said: list[str]
) -> None:
    page = tmp_path / "selection.yaml"
    page.write_text("{title: t, backbone: b, holistic: h, aspects: [near, far]}")
    zeros, ones = [0.0] * 4, [1.0] * 4
    rows = answers(holistic=[ones, zeros], near=[ones, zeros], far=[zeros, ones])
    rates = {"near": (0.0, 100.0), "far": (100.0, 0.0)}
    aspects = {
        name: {"higher_is_better": True, "inconsistency": {"estimate": i}, "win_rate": {"estimate": w}}
        for name, (i, w) in rates.items()
    }
    holistic = {"mean": 0.0, "std": 0.0, "win_rate": {"estimate": 100.0}, **changes.get("holistic", {})}
    own = {"chosen": ["near"], "aspects": aspects, **changes, "holistic": holistic}
    out = made(tmp_path, "selection", page, answers=rows, selection=own)
    found = result_mismatches(out, tmp_path)
    assert [words.partition(" than ")[0] for words in found] == said
