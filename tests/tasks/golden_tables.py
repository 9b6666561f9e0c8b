"""Made-up rows: files of data, and results of several seeds for the golden runs of the tables.

The golden policies are too few and too short for a table: length-controlled win rates take five prompts, comparisons
several seeds and answers of different length. Here each row has a skill and a length, and its answers vary around
both.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tasks.running.result_rows import Generation, Judgement, Metrics

#: Rows of real data by the file's name; one of them is bad, and goes into quarantine.
FILES: dict[str, list[dict[str, Any]]] = {
    **{
        f"talks.{split}": [
            {"id": f"{split}-{n}", "prompt": f"Where is house number {n}?", "source": "made up"}
            | {"chosen": f"It is in street {n}, near the river." if n != 7 else "", "rejected": "I do not know."}
            for n in range(count)
        ]
        for split, count in (("train", 20), ("test", 5))
    },
    **{
        f"sums.{split}": [
            {"id": f"{split}-{n}", "question": f"What is {n} + 1?", "answer": str(n + 1), "source": "made up"}
            | {"solution": f"It is {n} + 1 = {n + 1}." if n % 3 else None}
            for n in range(count)
        ]
        for split, count in (("train", 20), ("test", 5))
    },
}
#: Folder that FILES are written to.
FILES_FOLDER = "files"

#: Scale below whose results the rows of the tables are.
SCALE = "made"
SEEDS = (0, 1, 2)
PROMPTS = 10
BENCHMARKS = ("alpaca", "ood", "arena")
#: Mean true reward and mean length in characters by the row's folder.
ROWS: dict[str, tuple[float, int]] = {
    "segment/policy/segment": (0.9, 60),
    "segment/policy/bandit": (0.4, 75),
    "segment/policy/token": (0.2, 85),
    "sentence/policy/sentence": (0.9, 55),
    "sentence/policy/response": (0.3, 80),
    "sentence/policy/token": (0.1, 70),
    "shared/sft/phi3-mini": (0.0, 65),
    "shared/sft/llama32-3b-sft": (0.0, 65),
}
#: Deviation of single answers from their row's means.
REWARD_SPREAD, LENGTH_SPREAD = 0.8, 15.0


def baseline_length(number: int) -> int:
    """Returns the characters of the baseline's answer to a prompt."""
    return 30 + 4 * number


def calibration() -> list[dict[str, Any]]:
    """Returns judged variants of the baseline, which tell a longer answer from a shorter one of the same content."""
    return [
        {"id": f"alpaca-{number}", "variant": variant, "preference": preference}
        | {"model_chars": round(factor * baseline_length(number)), "baseline_chars": baseline_length(number)}
        for variant, factor, preference in (("verbose", 1.8, 1.7), ("concise", 0.6, 1.2))
        for number in range(PROMPTS)
    ]


def generations(row: str, seed: int) -> list[Generation]:
    """Returns the answers of a row at a seed."""
    (reward, length), rng = ROWS[row], random.Random(f"{row}/{seed}")
    answers: list[Generation] = []
    for benchmark in BENCHMARKS:
        for number in range(PROMPTS):
            characters = max(1, round(rng.gauss(length, LENGTH_SPREAD)))
            answers.append(
                Generation(
                    benchmark=benchmark,
                    id=f"{benchmark}-{number}",
                    turn=1,
                    prompt=f"Question {number}?",
                    baseline="b" * baseline_length(number),
                    response="a" * characters,
                    n_chars=characters,
                    n_tokens=characters // 4,
                    true_reward=round(rng.gauss(reward, REWARD_SPREAD), 6),
                )
            )
    return answers


def _reward(answer: Generation) -> float:
    return answer["true_reward"] or 0.0


def _preference(answer: Generation) -> float:
    """Returns the preference of a judge that sees the true reward and likes long answers; 1 and 2 are among them."""
    longer = answer["n_chars"] - len(answer["baseline"])
    return round(1 + 1 / (1 + math.exp(0.5 - _reward(answer) - 0.03 * longer)), 1)


def judgement(answer: Generation) -> Judgement:
    """Returns the verdict on an answer against the baseline."""
    preference = _preference(answer)
    return Judgement(
        benchmark=answer["benchmark"],
        id=answer["id"],
        first="baseline",
        template="alpaca_eval",
        raw=f"preference: {preference}",
        valid=True,
        preference=preference,
        label=None,
        value=preference,
    )


def metrics(answers: Sequence[Generation]) -> Metrics:
    """Returns what a policy run records of its answers."""
    found: Metrics = {}
    for benchmark in BENCHMARKS:
        own = [answer for answer in answers if answer["benchmark"] == benchmark]
        found |= {
            f"{benchmark}_chars": fmean(answer["n_chars"] for answer in own),
            f"{benchmark}_tokens": fmean(answer["n_tokens"] for answer in own),
            f"{benchmark}_wr": 100 * fmean(_preference(answer) - 1 for answer in own),
            "true_reward" if benchmark == "alpaca" else f"{benchmark}_true_reward": fmean(map(_reward, own)),
        }
    return found


def write(root: Path, results: Path) -> None:
    """Writes the files of data, the results of all rows and seeds, and the calibration of their judge."""
    for name, rows in FILES.items():
        _write_rows(root / FILES_FOLDER / f"{name}.jsonl", rows)
    _write_rows(results / SCALE / "shared/data/dialogue/result/alpaca_calibration.jsonl", calibration())
    for row in ROWS:
        for seed in SEEDS:
            folder = results / SCALE / row / str(seed) / "result"
            answers = generations(row, seed)
            _write_rows(folder / "generations.jsonl", answers)
            _write_rows(folder / "judgements.jsonl", [judgement(answer) for answer in answers])
            (folder / "metrics.json").write_text(json.dumps(metrics(answers)), encoding="utf-8")


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
