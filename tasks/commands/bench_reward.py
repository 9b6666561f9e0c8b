"""Preference accuracy of any reward model on real test sets, for `rewardsmith bench-reward`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data.quarantine import Screening
from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_bench import pairwise_accuracy
from rlhf_core.evaluation.rm_bench import StyledPair, rm_bench_scores
from tasks.commands.options import print_table
from tasks.commands.try_reward import evenly_spaced
from tasks.data_specs.data_sets import DATA_VARIABLE
from tasks.running.launch import prepare_process
from tasks.scoring.reward_models import Scorer, load_scorer, score_pairs

#: The preference test sets; rows of those that are divided have a `subset`.
SETS = ("rm_bench", "llmbar", "judgebench", "hhh_alignment", "autoj", "pandalm")
ALL = "all"
#: Folder for rows that are not preference pairs, with the reason.
QUARANTINE = Path(".work/quarantine")


class SetScore(NamedTuple):
    """Accuracy on a set or a part of it.

    Attributes:
        name, part: the set, and its part or `ALL`.
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
    """Returns the pairs of `<name>.test.jsonl[.gz]` with their `section` (the set) and `subset` (their part of it).

    Args:
        directory: where it is, None for the folder that REWARDSMITH_DATA names.
        rows: the most pairs, evenly spaced; pairs of one `group_id` stay together. None for all.

    Raises:
        DataError: no folder, no such set, too many rows that are no preference pairs.
    """
    root = directory or os.environ.get(DATA_VARIABLE)
    if not root:
        remedy = f"Give --data, or set {DATA_VARIABLE} to the folder"
        raise DataError("no folder with the test sets is named", remedy=remedy)
    found = DirectorySource(root, Screening(QUARANTINE)).load(name, "test", "preference")
    if rows is not None and rows < len(found):
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in found:
            groups.setdefault(str(row.get("group_id", row["id"])), []).append(row)
        several = evenly_spaced(list(groups.values()), max(1, rows * len(groups) // len(found)))
        found = [row for group in several for row in group]
    subsets = [str(row.get("subset", ALL)) for row in found]
    # JudgeBench's subjects of MMLU-Pro are one part
    parts = ["mmlu-pro" if subset.startswith("mmlu-pro") else subset for subset in subsets]
    return [{**row, "section": name, "subset": part} for row, part in zip(found, parts, strict=True)]


def set_scores(scorer: Scorer, rows: Sequence[dict[str, Any]], batch: int) -> list[SetScore]:
    """Returns the accuracy on a set, then on each part of it, and RM-Bench's scores over styles: there every chosen
    response is compared with every rejected one of its prompt.

    Raises:
        NumericsError: scores that depend on batch size or padding.
    """
    pairs, name = score_pairs(scorer, rows, batch), str(rows[0]["section"])
    subsets = list(dict.fromkeys(pair.subset for pair in pairs))
    scores = []
    for part in (ALL, *(subsets if len(subsets) > 1 else ())):
        own = [pair for pair in pairs if part in (ALL, pair.subset)]
        found = pairwise_accuracy([pair.chosen for pair in own], [pair.rejected for pair in own])
        ties = sum(pair.chosen == pair.rejected for pair in own)
        scores.append(SetScore(name, part, len(own), ties, found.estimate, found.lower, found.upper))
    styled = [
        StyledPair(str(row["group_id"]), pair.subset, str(row["style"]), pair.chosen, pair.rejected)
        for row, pair in zip(rows, pairs, strict=True)
        if "style" in row and "group_id" in row
    ]
    return scores + [
        SetScore(name, f"styles: {style}", count, ties, one.estimate, one.lower, one.upper)
        for style, (one, count, ties) in rm_bench_scores(styled).items()
    ]


def bench_reward(
    model: Path, sets: Sequence[str], *, directory: Path | None = None, rows: int | None = None, batch: int = 16,
    **hub_model: Any,
) -> tuple[list[SetScore], float]:  # fmt: skip
    """Returns (scores of every set, share of prompts and responses that were cut to the model's limits).

    Args:
        model: result of a `reward_model` stage, or a folder of a Hugging Face classifier with one output.
        hub_model: chat `template`, and the most tokens of `prompt` and in `total`, of a Hugging Face model.

    Raises:
        DataError: a folder or set that cannot be read.
        NumericsError: scores that depend on batch size or padding.
    """
    prepare_process()
    loaded = [load_set(name, directory, rows) for name in sets]
    scorer = load_scorer(model, hub_model)
    scores = [score for found in loaded for score in set_scores(scorer, found, batch)]
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
