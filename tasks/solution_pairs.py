"""Stage `solution_pairs`: preference pairs of correct and wrong sampled solutions, as data for a reward model.

Writes preference.{train,validation}.jsonl (of different questions), examples.jsonl (wrong solutions, for pictures) and
data.json with the template and limits of the data that was sampled from. Source: RLMEC, §5.1 (the discriminative reward
models of its baselines).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.data.solutions import Row, pairs
from rlhf_core.errors import DataError
from tasks.policy_run.solutions import SAMPLES_FILE
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.stage import stage

VERSION = 1

#: Every so-manieth question is kept for validation.
VALIDATION_EVERY = 8
#: Wrong solutions that reward models colour.
PICTURES = 8


def split_pairs(samples: Sequence[Row], file: str) -> dict[str, list[dict[str, Any]]]:
    """Returns {train, validation}: pairs of the samples, every eighth question's kept for validation.

    Raises:
        DataError: fewer than two questions have both a correct and a wrong solution.
    """
    made = pairs(samples)
    questions = list(dict.fromkeys(row["question_id"] for row in made))
    if len(questions) < 2:
        raise DataError(
            f"{len(questions)} questions have both a correct and a wrong solution; a reward model needs at least 2",
            file=file,
            field="correct",
            remedy="Sample more solutions per question, or at a higher temperature",
        )
    kept = set(questions[::VALIDATION_EVERY])
    return {
        "train": [dict(row) for row in made if row["question_id"] not in kept],
        "validation": [dict(row) for row in made if row["question_id"] in kept],
    }


def pair_solutions(
    data: Path,
    samples: Annotated[Path, "result of `samples`"],
    result: Path,
) -> None:
    """Pairs sampled solutions."""
    file = samples / SAMPLES_FILE
    drawn = read_jsonl(file)
    splits = split_pairs(drawn, str(file))
    for split, rows in splits.items():
        write_jsonl(result / f"preference.{split}.jsonl", rows)
    examples = [
        {"id": row["id"], "prompt": row["prompt"], "response": row["prediction"], "kind": "normal", "true_clauses": []}
        for row in drawn
        if not row["correct"]
    ]
    write_jsonl(result / "examples.jsonl", examples[:PICTURES])
    facts = read_json(data / "data.json")
    common = {name: facts[name] for name in ("source", "template", "limits")}
    write_json(result / "data.json", {**common, "rows": {f"preference.{k}": len(v) for k, v in splits.items()}})


main = stage(pair_solutions, models=False)
