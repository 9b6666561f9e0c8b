"""Made-up stage outputs of every row of a paper, with whatever a claim may read. Every number here is invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.published.row_map import data_set, recipe_row, row_names
from tests.tasks.report.fixture_results import write

PROMPTS = 40
BENCHMARKS = ("alpaca", "arena", "ood")
QUESTION_SETS = ("ecqa", "qasc", "obqa", "arc", "gsm8k", "math", "svamp", "mm")
ASPECTS = ("factuality", "relevance", "completeness", "length", "grammar", "confidence", "readability")
#: Metrics of every run; new ones go to the end, so that the numbers of the others stay.
METRICS = (
    *("win_rate_vs_sft", "peak_win_rate_vs_sft", "ood_win_rate_vs_sft", "true_reward", "kl", "proxy_reward"),
    *("average", *QUESTION_SETS, "edit_distance", "teacher_edit_distance", "ground_truth_edit_distance"),
    *("score/holistic", "score/factuality", "score/grammar", "win_rate/holistic"),
    *(f"{name}/{aspect}" for name in ("inconsistency", "win_rate") for aspect in ASPECTS),
    *("alpaca_wr", "alpaca_chars", "alpaca_tokens", "arena_wr", "arena_tokens", "arena_chars", "mtbench"),
    *("mean_segment_length", "truthfulqa", "winograd", "hellaswag", "mmlu", "mbpp_base", "mbpp_plus", "livecode"),
    *("chat", "chat_hard", "safety", "reasoning"),
    *(f"second/{name}" for name in ("response", "token", "res2sent", "sent2res")),
    *(
        f"{judge}/{name}/{n}"
        for judge in ("judge", "second")
        for name in ("alpaca", "arena")
        for n in (2, 4, 8, 16, 32)
    ),
)
#: Reward models with examples.
MODELS = {
    "segment": ("segment", "token", "ngram-5", "cutoff-1_5"),
    "sentence": ("sentence", "response", "token", "preference-transformer"),
}
PIECES = ["It", " eats", " fish", ".", " Bye", "</s>"]
EXAMPLE: dict[str, Any] = {
    "prompt": "What does the cat eat?", "response": "It eats fish. Bye", "tokens": PIECES,
    "rewards": [0.1, 0.1, 0.1, 0.9, 0.3, None],
    "segments": [[0, 1, 0.1], [1, 2, 0.1], [2, 3, 0.1], [3, 4, 0.9], [4, 5, 0.3]],
    "true_clauses": [[0, 14, "requested_true", 1.0], [14, 17, "closing", 0.2]],
}  # fmt: skip
CREDIT: dict[str, Any] = {"id": "a", "prompt": "?", "tokens": ["1", "3"], "rewrite": "12", "mistaken": [False, True]}
#: Metrics that are shares.
SHARES = ("credit_auc", "rewrite_accuracy", "teacher_rewrite_accuracy")


def make_claim_results(results: Path, paper: str, seeds: tuple[int, ...] = (0, 1, 2)) -> Path:
    """Writes every row of a paper's row map, of a quality that follows from the letters of its name, at every seed."""
    for name in row_names(paper):
        row = recipe_row(paper, name)
        letters = [ord(letter) for letter in f"{row.group}{row.kind}{row.name}" if letter.isalnum()]
        quality = 0.7 * np.random.default_rng(letters).normal()
        for seed in seeds:
            folder = results / row.group / row.kind / row.name / str(seed) / "result"
            _write_run(folder, quality, np.random.default_rng([*letters, seed]))
            if row.kind == "selection":
                write(folder / "selection.json", _selection(np.random.default_rng([*letters, seed, 1])))
    for name in MODELS.get(paper, ()):
        for seed in seeds:
            folder = results / paper / "reward_model" / name / str(seed) / "result"
            kinds = ("normal", "normal", "repetition", "code")
            write(folder / "metrics.json", {"accuracy": 0.7 + 0.01 * seed, "segment_length": 6.0})
            write(folder / "examples.jsonl", [{**EXAMPLE, "id": str(i), "kind": kind} for i, kind in enumerate(kinds)])
    variants = [
        {"id": str(i), "variant": name, "preference": 1 + p, "model_chars": chars + i % 7, "baseline_chars": 90}
        for name, chars, p in (("verbose", 140, 0.7), ("concise", 50, 0.3))
        for i in range(PROMPTS)
    ]
    write(results / "shared" / "data" / data_set(paper) / "result" / "alpaca_calibration.jsonl", variants)
    return results


def _write_run(folder: Path, quality: float, generator: np.random.Generator) -> None:
    own = quality + 0.15 * generator.normal()
    hardness = np.random.default_rng(99).normal(size=PROMPTS)
    numbers = {name: 50 + 8 * (own + 0.3 * generator.normal()) for name in METRICS}
    shares = {name: float(np.clip(0.8 + 0.04 * generator.normal(), 0, 1)) for name in SHARES}
    numbers["loss_after_peak"] = numbers["peak_win_rate_vs_sft"] - numbers["win_rate_vs_sft"]
    write(folder / "metrics.json", numbers | shares)
    paid = {"step": 40, "prompt": "Tell me.", "tokens": PIECES, "rewards": [0, 0, 0, 0, 0, own], "true_reward": 0.5}
    write(folder / "rollouts.jsonl", [{**paid, "step": 20}, paid])
    write(folder / "credit.jsonl", [{**CREDIT, "credit": [0.0, -0.1], "unclipped": [0.4, own]}])
    for name in ("generations.jsonl", "peak_generations.jsonl"):
        write(
            folder / name, [*_answers(own, hardness, generator), *_solutions(own, hardness, generator), _program(own)]
        )
    names = ("holistic", *ASPECTS)
    scores = [{n: round(own + hardness[i] + generator.normal(), 1) for n in names} for i in range(PROMPTS)]
    write(folder / "scores.jsonl", [{"id": str(i), **row} for i, row in enumerate(scores)])
    sides = [{n: round(generator.normal(), 1) for n in names} for _ in range(2 * PROMPTS)]
    pairs = [{"id": str(i), "greedy": sides[2 * i], "sampled": sides[2 * i + 1]} for i in range(PROMPTS)]
    write(folder / "answers.jsonl", pairs)
    write(folder / "judge.json", {"judge": None, "lower_is_better": ["grammar"]})
    write(folder / "history.jsonl", [_update(step, own, generator) for step in range(1, 21)])
    write(folder / "checkpoints.jsonl", [_evaluation(step, own, generator) for step in range(1, 9)])
    write(folder / "judgements.jsonl", _judgements(own, hardness, generator))


def _answers(own: float, hardness: np.ndarray, generator: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {"benchmark": name, "id": str(i), "turn": 1, "prompt": f"{name} {i}",
         "response": f"{own} {generator.normal()}", "baseline": "b" * 90,
         "n_chars": int(90 + 20 * generator.normal()), "true_reward": own + hardness[i] + 2 * generator.normal()}
        for name in BENCHMARKS
        for i in range(PROMPTS)
    ]  # fmt: skip


def _program(own: float) -> dict[str, Any]:
    response = f"def f():\n    return {own}"
    return {"benchmark": "mbpp_base", "id": "7", "prompt": "Write f.", "response": response, "right": own > 0,
            "true_reward": None, "n_chars": len(response)}  # fmt: skip


def _solutions(own: float, hardness: np.ndarray, generator: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in QUESTION_SETS:
        for i in range(PROMPTS):
            right = bool(own + hardness[i] + generator.normal() > 0)
            error = None if right else int(generator.integers(0, 4))
            rows.append({"benchmark": name, "id": str(i), "prompt": f"{name} {i}", "response": f"{right} {i}",
                         "right": right, "extracted": "1", "steps": 4,
                         "first_error": error, "true_reward": None})  # fmt: skip
    return rows


def _judgements(own: float, hardness: np.ndarray, generator: np.random.Generator) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(PROMPTS):
        p = float(1 / (1 + np.exp(-(own + hardness[i] + generator.normal()))))
        common = {"id": str(i), "valid": True}
        rows.append({**common, "benchmark": "alpaca", "preference": 1 + p})
        rows.append({**common, "benchmark": "mtbench", "value": 5 + own + hardness[i]})
        rows.append({**common, "benchmark": "arena", "label": "A>B" if p > 0.5 else "B>A"})
    return rows


def _selection(generator: np.random.Generator) -> dict[str, Any]:
    def interval() -> dict[str, float]:
        estimate = float(generator.uniform(30, 70))
        return {"estimate": estimate, "lower": estimate - 3, "upper": estimate + 3}

    aspects = {name: {"inconsistency": interval(), "win_rate": interval(), "trials": 40} for name in ASPECTS}
    return {"aspects": aspects, "holistic": {"win_rate": interval()}, "chosen": ["factuality"]}


def _update(step: int, own: float, generator: np.random.Generator) -> dict[str, Any]:
    value = own + 0.2 * generator.normal()
    return {"step": step, "value_loss": 2 + value, "reward": value + 0.05 * step, "train_accuracy": 50 + 5 * value}


def _evaluation(step: int, own: float, generator: np.random.Generator) -> dict[str, Any]:
    rate = 50 + 2 * step * (1 + own) + generator.normal()
    return {"step": step, "win_rate_vs_sft": rate, "kl": 0.3 * step, "preference_score": 0.5 + 0.03 * step * own}
