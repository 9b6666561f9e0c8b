"""Made-up stage outputs of PAR's rows in the real layout. Every number here is invented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.tasks.report.fixture_results import record, write

PROMPTS = 600
SEEDS = (0, 1, 2)
#: Invented true win rates in percent: at the end, and at the best evaluation.
ENDS: dict[str, tuple[float, float]] = {
    "par": (85, 85),
    "minmax": (70, 72),
    "warm": (68, 70),
    "lsc": (50, 68),
    "meanstd": (30, 67),
    "clip": (28, 68),
    "odin": (20, 66),
    "reg": (22, 67),
    "vanilla": (15, 68),
}
MODELS = {"": "gemma2-2b", "llama3-": "llama3-8b", "hh-": "gemma2-2b-hh", "llama3-hh-": "llama3-8b-hh"}


def _answers(rate: float, generator: np.random.Generator) -> list[dict[str, Any]]:
    """AlpacaEval answers of which about `rate` percent beat the SFT model's, whose true reward is 0."""
    won = generator.permutation(PROMPTS) < rate / 100 * PROMPTS
    return [
        {"benchmark": "alpaca", "id": f"a-{i}", "true_reward": 1.0 if won[i] else -1.0, "n_chars": 80, "turn": 1}
        for i in range(PROMPTS)
    ]


def _evaluations(end: float, peak: float, generator: np.random.Generator) -> list[dict[str, Any]]:
    """Ten evaluations: the proxy rises throughout, the win rate to its peak and then to its end."""
    rows = []
    for number in range(1, 11):
        along = min(number / 5, 1.0) * (peak - 50) + max(number - 5, 0) / 5 * (end - peak)
        rows.append(
            {"step": 4 * number, "win_rate_vs_sft": 50 + along + generator.normal(), "kl": 0.2 * number,
             "proxy_reward": 0.3 * number * (1.5 if end < peak - 5 else 1.0), "preference_score": 0.5 + 0.03 * number}
        )  # fmt: skip
    return rows


def noise(name: str, seed: int) -> tuple[float, float]:
    """Invented points by which a row's end and peak differ from its means at a seed."""
    drawn = np.random.default_rng([*map(ord, name), seed]).uniform(-1, 1, size=2)
    return round(float(drawn[0]), 2), round(float(drawn[1]), 2)


def write_policy(results: Path, name: str, seed: int, end: float, peak: float, **more: Any) -> None:
    """One row at one seed; `more` are metrics."""
    generator = np.random.default_rng([len(name), seed])
    folder = results / "par" / "policy" / name / str(seed)
    metrics = {"win_rate_vs_sft": end, "peak_win_rate_vs_sft": peak, "loss_after_peak": peak - end, "proxy_reward": 1.0}
    write(folder / "result" / "metrics.json", {**metrics, **more})
    write(folder / "result" / "generations.jsonl", _answers(end, generator))
    write(folder / "result" / "peak_generations.jsonl", _answers(peak, generator))
    write(folder / "result" / "checkpoints.jsonl", _evaluations(end, peak, generator))
    losses = [{"step": step, "policy_loss": 0.01, "value_loss": 2.0 - 0.04 * step} for step in range(5, 41)]
    write(folder / "result" / "history.jsonl", losses)
    pieces = ["What", " a", " fine", " question", ".", "</s>"]
    paid = {"step": 40, "prompt": "Tell me.", "tokens": pieces, "rewards": [0, 0, 0, 0, 0, 2.0], "true_reward": 0.5}
    write(folder / "result" / "rollouts.jsonl", [paid])
    inputs = {f"results/testbed/par/references/standard/{seed}/result": "ab"}
    made = record("policy", seed) | {"seconds": 60.0, "inputs": inputs if "par" in name or "lsc" in name else {}}
    write(folder / "record" / "record.json", made)


def make_par_results(
    root: Path, seeds: Sequence[int] = SEEDS, rows: Mapping[str, tuple[float, float]] | None = None
) -> Path:
    """Writes invented outputs; without rows, every method in every setting.

    Returns:
        the scale's folder, `<root>/results/testbed`.
    """
    results = root / "results" / "testbed"
    made = rows or {prefix + name: ends for prefix in MODELS for name, ends in ENDS.items()}
    for seed in seeds:
        for model in MODELS.values():
            folder = results / "shared" / "sft" / model / str(seed)
            write(folder / "result" / "metrics.json", {"true_reward": 0.0, "mtbench": 4.5})
            zeros = [{**row, "true_reward": 0.0} for row in _answers(0, np.random.default_rng(0))]
            write(folder / "result" / "generations.jsonl", zeros)
        for name, (end, peak) in made.items():
            more, higher = noise(name, seed)
            write_policy(results, name, seed, end + more, peak + higher)
        folder = results / "par" / "references" / "standard" / str(seed)
        write(folder / "result" / "metrics.json", {"length": 20.0})
        write(folder / "record" / "record.json", record("references", seed) | {"seconds": 30.0})
    return results
