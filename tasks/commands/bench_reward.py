"""Preference accuracy of any reward model on real test sets, for `rewardsmith bench-reward`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data.quarantine import Screening
from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_bench import ScoredPair
from rlhf_core.evaluation.reward_models import pairwise_accuracy
from rlhf_core.evaluation.rm_bench import StyledPair, rm_bench_scores
from tasks.commands.options import print_table
from tasks.commands.try_reward import evenly_spaced
from tasks.data_specs.data_sets import DATA_VARIABLE
from tasks.running.stage import prepare_process
from tasks.scoring.reward_models import RewardModelInputs, Scorer, load_scorer, score_pairs

#: The preference test sets, with the field by which each is divided; None where it is not.
SETS: dict[str, str | None] = {
    "rm_bench": "subset",
    "llmbar": "subset",
    "judgebench": "subset",
    "hhh_alignment": "subset",
    "autoj": None,
    "pandalm": None,
}
ALL = "all"
#: Folder for rows that are not preference pairs, with the reason.
QUARANTINE = Path(".work/quarantine")


@dataclass(frozen=True)
class SetScore:
    """Accuracy on a set or a part of it.

    Attributes:
        name, part: the set, and the value of its field or `ALL`.
        pairs, ties: how many there are, and how many have equal rewards (which are wrong).
        accuracy, lower, upper: share with its interval, 95 %: Wilson's, of RM-Bench's styles a bootstrap over prompts.
    """

    name: str
    part: str
    pairs: int
    ties: int
    accuracy: float
    lower: float
    upper: float


def load_set(name: str, directory: Path | None, rows: int | None) -> list[dict[str, Any]]:
    """Returns a test set's pairs with their `section` (the set) and `subset` (their part of it).

    Args:
        name: of `<name>.test.jsonl` or `.jsonl.gz`.
        directory: where it lies, None for the folder that REWARDSMITH_DATA names.
        rows: the most pairs, evenly spaced; pairs of one `group_id` stay together. None for all.

    Raises:
        DataError: no folder, no such set, too many rows that are no preference pairs.
    """
    root = directory or os.environ.get(DATA_VARIABLE)
    if not root:
        raise DataError(
            "no folder with the test sets is named", remedy=f"Give --data, or set {DATA_VARIABLE} to the folder"
        )
    found = DirectorySource(root, Screening(QUARANTINE)).load(name, "test", "preference")
    if rows is not None and rows < len(found):
        found = _evenly(found, rows)
    by = SETS.get(name)
    parts = [ALL if by is None or by not in row else _part(str(row[by])) for row in found]
    return [{**row, "section": name, "subset": part} for row, part in zip(found, parts, strict=True)]


def _evenly(found: Sequence[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    """Returns at most `rows` of the rows, groups whole; at least one group."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault(str(row.get("group_id", row["id"])), []).append(row)
    several = evenly_spaced(list(groups.values()), max(1, rows * len(groups) // len(found)))
    return [row for group in several for row in group]


def _part(subset: str) -> str:
    """Returns the part of a set that a subset belongs to: JudgeBench's subjects of MMLU-Pro are one part."""
    return "mmlu-pro" if subset.startswith("mmlu-pro") else subset


def set_scores(scorer: Scorer, rows: Sequence[dict[str, Any]], batch: int) -> list[SetScore]:
    """Returns the accuracy on a set, then on each part of it, and RM-Bench's scores over styles.

    Raises:
        NumericsError: scores that depend on batch size or padding.
    """
    pairs = score_pairs(scorer, rows, batch)
    parts = {ALL: pairs}
    names = list(dict.fromkeys(pair.subset for pair in pairs))
    if len(names) > 1:
        parts |= {name: [pair for pair in pairs if pair.subset == name] for name in names}
    scores = []
    for part, own in parts.items():
        found = pairwise_accuracy([pair.chosen for pair in own], [pair.rejected for pair in own])
        counts = int(found["n"]), int(found["ties"])
        scores.append(SetScore(own[0].section, part, *counts, found["accuracy"], found["lower"], found["upper"]))
    return scores + _style_scores(rows, pairs)


def _style_scores(rows: Sequence[Mapping[str, Any]], pairs: Sequence[ScoredPair]) -> list[SetScore]:
    """Returns RM-Bench's own scores, where rows have styles: every chosen response against every rejected one of its
    prompt."""
    styled = [
        StyledPair(str(row["group_id"]), pair.subset, str(row["style"]), pair.chosen, pair.rejected)
        for row, pair in zip(rows, pairs, strict=True)
        if "style" in row and "group_id" in row
    ]
    return [
        SetScore(str(rows[0]["section"]), f"styles: {name}", score.comparisons, score.ties, score.accuracy,
                 score.lower, score.upper)
        for name, score in rm_bench_scores(styled).items()
    ]  # fmt: skip


def bench_reward(
    model: Path,
    *,
    directory: Path | None = None,
    sets: Sequence[str] = tuple(SETS),
    rows: int | None = None,
    batch: int = 16,
    template: str = "tokenizer",
    prompt: int | None = None,
    total: int | None = None,
) -> tuple[list[SetScore], float]:
    """Returns (scores of every set, share of prompts and responses that were cut to the model's limits).

    Args:
        model: result of a `reward_model` stage, or a folder of a Hugging Face classifier with one output.
        directory, sets, rows: as `load_set` takes them.
        batch: responses per forward pass.
        template: of a Hugging Face model; one of the project brings its own.
        prompt, total: the most tokens that a Hugging Face model gets; None for what it reads.

    Raises:
        DataError: a folder or set that cannot be read.
        NumericsError: scores that depend on batch size or padding.
    """
    prepare_process()
    loaded = {name: load_set(name, directory, rows) for name in sets}
    scorer = load_scorer(model, RewardModelInputs(), template=template, prompt=prompt, total=total)
    scores = [score for found in loaded.values() for score in set_scores(scorer, found, batch)]
    counts = scorer.encoder.counts
    return scores, (counts.prompts_cut + counts.responses_cut) / max(1, counts.prompts + counts.responses)


def print_scores(scores: Sequence[SetScore], cut: float) -> None:
    """Prints a table of the scores, and the share of texts that was cut."""
    rows = [
        (score.name if score.part == ALL else "", score.part, str(score.pairs), f"{score.accuracy:.3f}",
         f"{score.lower:.3f} to {score.upper:.3f}", str(score.ties))
        for score in scores
    ]  # fmt: skip
    numbers = ("pairs", "accuracy", "95 %", "ties")
    styles = ["bold" if score.part == ALL else "" for score in scores]
    print_table(("set", "part", *numbers), rows, right=numbers, styles=styles)
    print(f"cut to the model's limits: {100 * cut:.1f} % of prompts and responses")
