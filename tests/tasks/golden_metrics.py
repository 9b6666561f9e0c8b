"""Golden metrics: what the tiny pipeline measured when each stage's VERSION was last stepped.

A stage whose code changes its results must step its VERSION, or stored results of the old code pass for results of
the new code.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.tasks.tiny_pipeline import RUNS, Pipeline

FOLDER = Path(__file__).parent / "golden"
REFRESH = "python -m tests.tasks.refresh_golden"
#: Another processor rounds differently; anything larger is a change of the method.
RELATIVE_TOLERANCE = 2e-3

#: Metrics that show a change of the method and that rounding hardly moves.
KEY_METRICS: dict[str, tuple[str, ...]] = {
    "tokenizer": ("vocabulary",),
    "sft": ("validation_nll", "parameters", "alpaca_chars", "alpaca_tokens", "true_reward", "alpaca_wr", "arena_wr"),
    "entropies": ("entropy_mean", "entropy_q10", "entropy_q50", "entropy_q90"),
    "reward_model": ("accuracy", "ece", "loss", "segments_per_response", "segment_length", "fidelity_pearson"),
    "normaliser": (
        *("segments", "bins", "dropped_bins", "global_mean"),
        *(f"{estimator}_{name}" for estimator in ("huber", "ols") for name in ("w_mean", "b_mean", "w_std", "b_std")),
    ),
    "ppo": ("reward", "entropy", "response_length", "mean_segment_length", "true_reward", "alpaca_chars"),
    "references": ("responses", "reward_mean", "reward_std", "reward_std_within_prompts", "length", "truncated"),
    "par": ("reward", "entropy", "response_length", "true_reward", "shaping/segment/length_penalty_beyond"),
    "question_tokenizer": ("vocabulary",),
    "question_sft": ("validation_nll", "parameters", "seen", "unseen"),
    "samples": ("questions", "erroneous", "without_answer", "tokens"),
    "teacher": ("accepted", "edit_distance", "located", "refused/same_text", "locating_accuracy"),
    "generative_reward_model": ("rewriting_rows", "held_out_wrong", "rewrite_accuracy", "fidelity/mistaken"),
    "dpo": ("dpo_loss", "dpo_accuracy", "true_reward", "alpaca_chars"),
}


def measured(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """Version and key metrics of a run; of prepared data, the rows of each set and a digest of their ids and texts."""
    version = import_module(f"tasks.{RUNS[name][0]}").VERSION
    if RUNS[name][0] == "prepare":
        facts = json.loads((pipeline.result(name) / "data.json").read_text(encoding="utf-8"))
        texts = {
            f"{path.stem}_letters": len(path.read_text(encoding="utf-8"))
            for path in sorted(pipeline.result(name).rglob("*.jsonl"))
        }
        return {"version": version, "metrics": {**{f"{k}_rows": v for k, v in facts["rows"].items()}, **texts}}
    metrics = pipeline.metrics(name)
    return {"version": version, "metrics": {key: metrics[key] for key in KEY_METRICS[name]}}


def stored(name: str) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return golden


def store(name: str, value: dict[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def differences(golden: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """'name: was -> is' for each metric that left its tolerance; whole numbers must agree exactly."""
    result = []
    for name in sorted(golden.keys() | found.keys()):
        before, after = golden.get(name), found.get(name)
        if before is None or after is None:
            same = False
        elif float(before).is_integer() and float(after).is_integer():
            same = before == after
        else:
            same = abs(before - after) <= RELATIVE_TOLERANCE * max(abs(before), abs(after))
        if not same:
            result.append(f"{name}: {before} -> {after}")
    return result
