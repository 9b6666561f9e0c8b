"""Made-up stage outputs in the real layout, so that tables and pages can be tested without training.

Every number here is invented: these are fixtures, not results.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tasks.report.cells import Cell
from tasks.report.paper_tables import made_cell
from tasks.running.result_digests import digests_of

#: Invented quality per row: higher wins more games.
QUALITY = {
    "phi3-mini": 0.0,
    "bandit": 0.5,
    "sentence": 0.6,
    "token": 0.4,
    "segment": 1.1,
    "bandit-as-segment": -0.6,
    "segment-as-bandit": 1.08,
    "ngram-5": 0.7,
    "normaliser-none": 0.2,
    "cutoff-1_5": 0.6,
    "cutoff-2_0": 1.0,
    "cutoff-2_25": 0.95,
    "phi31-mini-sft": 0.1,
    "phi31-bandit": 0.5,
    "phi31-token": 0.45,
    "phi31-segment": 0.9,
}
PROMPTS = 96
TOKENS = ["The", " capital", " of", " Lor", " is", " Mira", ".", " It", " has", " 4", " gates", ".", " I", " hope",
          " this", " helps", "!", "</s>"]  # fmt: skip
REPEATED = ["Lor", " has", " 4", " gates", ".", " Lor", " has", " 4", " gates", ".", " Lor", " has", " 4", " gates",
            ".", "</s>"]  # fmt: skip
CODE = ["def", " double", "(", "x", "):", "\n", "   ", " return", " x", " *", " 2", "\n", "</s>"]
SCRIPT = "<script>document.title = 'taken over'</script>"


def cell_text(cell: Mapping[str, Any], decimals: int = 1) -> str:
    """Returns a cell of tables.json in one line."""
    row = {"group": "", "kind": "", "name": "", "runs": {}, "stopped": {}}
    return made_cell(row, {"decimals": decimals}, {**asdict(Cell(None, "")), **cell}).plain


def write(path: Path, rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, Mapping):
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def answers(quality: float, generator: np.random.Generator) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generations and judgements; a prompt's difficulty is shared by all rows, so pairing has something to gain."""
    hardness = np.random.default_rng(99).normal(size=PROMPTS)
    generations: list[dict[str, Any]] = []
    judgements: list[dict[str, Any]] = []
    for prompt in range(PROMPTS):
        p = 1 / (1 + math.exp(-(quality - 0.8 + hardness[prompt] + 0.6 * generator.normal())))
        chars = int(80 + 18 * quality + 10 * generator.normal())
        score = float(np.clip(round(6 + quality + hardness[prompt] + generator.normal()), 1, 10))
        game = {"first": "model", "template": "", "raw": "", "valid": True, "preference": None, "label": None}
        judgements.append({**game, "benchmark": "alpaca", "id": f"a-{prompt}", "preference": 1 + p, "value": 2 - p})
        judgements.append({**game, "benchmark": "mtbench", "id": f"m-{prompt}/1", "value": score})
        for first in ("model", "baseline"):
            label = "A>>B" if p > 0.8 else "A>B" if p > 0.5 else "B>A"
            judgements.append({**game, "benchmark": "arena", "id": f"r-{prompt}", "first": first, "label": label})
        generations.append(
            {"benchmark": "alpaca", "id": f"a-{prompt}", "turn": 1, "prompt": "", "response": SCRIPT,
             "baseline": "b" * 90, "n_chars": chars, "n_tokens": chars // 4,
             "true_reward": 1.2 + quality + hardness[prompt] + 0.5 * generator.normal()}
        )  # fmt: skip
    return generations, judgements


def evaluated(quality: float, rows: list[dict[str, Any]], generator: np.random.Generator) -> dict[str, float]:
    """Metrics of a policy whose judgements are given."""
    wins = [row["preference"] - 1 for row in rows if row["benchmark"] == "alpaca"]
    scores = [row["value"] for row in rows if row["benchmark"] == "mtbench"]
    jitter = generator.normal(size=12)
    return {
        "alpaca_wr": 100 * float(np.mean(wins)),
        "alpaca_chars": 80 + 18 * quality,
        "arena_wr": 30 + 14 * quality + jitter[0],
        "arena_tokens": 40 + 8 * quality,
        "mtbench": float(np.mean(scores)),
        "win_rate_vs_sft": 50 + 14 * quality + jitter[1],
        "ood_win_rate_vs_sft": 48 + 12 * quality + jitter[2],
        "true_reward": 1.2 + quality,
        "kl": 2 + 2 * abs(quality),
        "mean_segment_length": 6 + quality + 0.1 * jitter[3],
        **{name: 40 + 3 * quality + jitter[4 + i] for i, name in enumerate(("arc", "truthfulqa", "winograd"))},
        **{name: 35 + 2 * quality + jitter[7 + i] for i, name in enumerate(("hellaswag", "mmlu", "gsm8k"))},
        "average": 38 + 3 * quality,
        "mbpp_base": 30 + 10 * quality,
        "mbpp_plus": 25 + 9 * quality,
        "livecode": 12 + 5 * quality,
    }


def training(quality: float, generator: np.random.Generator) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """History (one row a step) and checkpoints."""
    history, checkpoints = [], []
    for step in range(1, 41):
        progress = 1 - math.exp(-step / 12)
        history.append(
            {"step": step, "reward": progress * (1.5 + 0.2 * generator.normal()),
             "true_reward": 1.2 + quality * progress + 0.08 * generator.normal(), "kl": 4 * progress**2,
             "entropy": 2 - progress, "response_length": 42.0, "policy_loss": 0.1, "value_loss": 0.2}
        )  # fmt: skip
        if step % 5 == 0:
            checkpoints.append(
                {
                    "step": step,
                    "kl": 4 * progress**2,
                    "win_rate_vs_sft": 50 + 16 * quality * progress + generator.normal(),
                }
            )
    return history, checkpoints


def example(kind: str, number: int, name: str, generator: np.random.Generator) -> dict[str, Any]:
    """One example response with a reward model's rewards."""
    tokens = {"normal": TOKENS, "repetition": REPEATED, "code": CODE}[kind]
    text = "".join(tokens)
    dense = list(generator.normal(scale=0.6, size=len(tokens)))
    width = {"token": 1, "ngram-5": 5}.get(name, 6)
    body = len(tokens) - 1
    cuts = [*range(0, body, width), body]
    segments = [[a, b, float(np.mean(dense[a:b]))] for a, b in itertools.pairwise(cuts)]
    ends = {b - 1: reward for _, b, reward in segments}
    stops = [i + 1 for i, character in enumerate(text) if character in ".!\n"] or [len(text)]
    stops = [stop for stop in stops if stop <= len(text.removesuffix("</s>"))]
    starts = [0, *stops[:-1]]
    return {
        "id": f"{kind}-{number}",
        "kind": kind,
        "prompt": f"What is the capital of Lor? {SCRIPT}" if number == 0 else f"Tell me about Lor, part {number}.",
        "response": text.removesuffix("</s>"),
        "label": "chosen",
        "tokens": tokens,
        "rewards": [ends.get(i) for i in range(len(tokens))],
        "segments": segments,
        "true_clauses": [[a, b, "fact", 1.0] for a, b in zip(starts, stops, strict=True)],
    }


def record(stage: str, seed: int) -> dict[str, Any]:
    """Returns a record without digests of the result."""
    return {
        "stage": stage, "version": 1, "seconds": 31.4 + seed, "started": "2026-03-01T09:12:00Z", "device": "cpu",
        "peak_memory_mb": 811.0, "threads": 1, "commit": "0123456789abcdef0123", "dirty": False,
        "inputs": {f"results/testbed/shared/sft/phi3-mini/{seed}/result": "ab"},
        "versions": {"torch": "2.13.0"},
    }  # fmt: skip


def write_record(out: Path, stage: str, seed: int) -> None:
    """Writes the record of a stage's result, without digests; see `sign`."""
    write(out / "record" / "record.json", record(stage, seed))


def sign(root: Path) -> None:
    """Makes the records of a tree fit its results, as if its stages had written them so."""
    for file in root.rglob("record/record.json"):
        write(file, {**json.loads(file.read_text()), **digests_of(file.parent.parent / "result")})


def make_results(root: Path, seeds: Sequence[int] = (0, 1), rows: Sequence[str] = tuple(QUALITY)) -> Path:
    """Writes invented outputs of the given rows (policies, raw backbones, reward models, normalisers).

    Returns:
        the scale's folder, `<root>/results/testbed`.
    """
    results = root / "results" / "testbed"
    for position, name in enumerate(rows):
        raw = name in ("phi3-mini", "phi31-mini-sft")
        place = ("shared", "sft") if raw else ("segment", "policy")
        for seed in seeds:
            generator = np.random.default_rng([position, seed])
            folder = results.joinpath(*place, name, str(seed))
            generations, judgements = answers(QUALITY[name], generator)
            metrics = evaluated(QUALITY[name], judgements, generator)
            if raw:
                metrics = {key: value for key, value in metrics.items() if "vs_sft" not in key and key != "kl"}
            history, checkpoints = training(QUALITY[name], generator)
            write(folder / "result" / "metrics.json", metrics)
            write(folder / "result" / "judgements.jsonl", judgements)
            write(folder / "result" / "generations.jsonl", generations)
            write(folder / "result" / "history.jsonl", history)
            write(folder / "result" / "checkpoints.jsonl", [] if raw else checkpoints)
            write_record(folder, place[1], seed)
    write(
        results / "shared" / "data" / "dialogue" / "result" / "data.json",
        {"source": "testbed", "world": {"version": 1, "seed": 0}, "bayes_ceiling": {"validation": 0.8}},
    )
    write(results / "shared" / "data" / "dialogue" / "result" / "alpaca_calibration.jsonl", calibration())
    write_record(results / "shared" / "data" / "dialogue", "prepare", 0)
    make_reward_models(results, seeds)
    make_normaliser(results / "segment" / "normaliser" / "segment" / str(seeds[0]))
    return results


def calibration() -> list[dict[str, Any]]:
    """Judged variants of the baseline: longer answers win a little more."""
    generator = np.random.default_rng(98)
    return [
        {"id": f"a-{prompt}", "variant": variant, "preference": 1 + float(generator.uniform(low, low + 0.5)),
         "model_chars": int(factor * 90 + 10 * generator.normal()), "baseline_chars": 90}
        for variant, factor, low in (("verbose", 1.6, 0.4), ("concise", 0.6, 0.1))
        for prompt in range(PROMPTS)
    ]  # fmt: skip


def make_reward_models(results: Path, seeds: Sequence[int]) -> None:
    for name in ("bandit", "token", "segment", "ngram-5", "cutoff-1_5"):
        for seed in seeds:
            generator = np.random.default_rng([len(name), seed])
            folder = results / "segment" / "reward_model" / name / str(seed)
            numbers = generator.normal(scale=0.01, size=4)
            write(
                folder / "result" / "metrics.json",
                {"accuracy": 0.74 + numbers[0], "bayes_ceiling": 0.8, "ece": 0.05 + numbers[1],
                 "boundary_f1": 0.7, "segment_length": 6.0 + len(name),
                 "fidelity_pearson": 0.6 + numbers[2], "fidelity_spearman": 0.55 + numbers[3]},
            )  # fmt: skip
            kinds = ("normal", "normal", "normal", "normal", "repetition", "code", "code")
            counts: dict[str, int] = {}
            examples = []
            for kind in kinds:
                examples.append(example(kind, counts.setdefault(kind, 0), name, generator))
                counts[kind] += 1
            write(folder / "result" / "examples.jsonl", examples)
            write_record(folder, "reward_model", seed)


def make_normaliser(folder: Path) -> None:
    location = [round(0.1 * i, 3) for i in range(1, 11)]
    line = {"w_mean": 0.3, "b_mean": 0.8, "w_std": -0.05, "b_std": 0.4, "floor": 0.05}
    write(
        folder / "result" / "normaliser.json",
        {
            "location_aware": {"huber": line, "ols": {**line, "b_mean": 0.78}},
            "bins": {
                "location": location,
                "mean": [0.8 + 0.3 * math.log(p) + 0.05 * math.sin(9 * p) for p in location],
                "std": [0.4 - 0.05 * math.log(p) for p in location],
                "samples": [40] * 10,
            },
        },
    )
    write(folder / "result" / "metrics.json", {"bins": 10})
    write_record(folder, "normaliser", 0)
