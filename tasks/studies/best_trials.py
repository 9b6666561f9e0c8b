"""Choice of tuning: of each row the trial with the best mean over tuning seeds and cells, and what it says of the row.

Values at the edge of what was tried and rows that stay below their own SFT model are flagged. Nothing is chosen before
every row has all its trials. Trials are recorded in reference/tuning/<study>.json (`tasks.studies.trials`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rlhf_core.errors import RecipeError
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_object
from tasks.studies.records import refuse_if_started
from tasks.studies.tree import OPTIMISER

TRIALS = Path("reference") / "tuning"
#: Settings of one trial by name.
Point = dict[str, float]


@dataclass(frozen=True)
class TunedRow:
    """A row with its best trial, whose settings the study uses.

    Attributes:
        row, kind: its name, and its kind of optimiser.
        trials, missing: how many have run with every seed, in every cell, and how many have not.
        scores: mean of the metric of each trial; None for one that has not run, diverged, stopped or is blank.
        lost: why a trial has no score, by its number.
        best: number of the trial with the largest score; None where no trial has a score, or some are missing.
        point, edges: its settings, and those whose value is the lowest (`low`) or highest (`high`) that was tried.
        at_best: the mean metric of its best evaluation, while training or at the end.
        sft: the mean metric of the row's own SFT models; None where they have no such metric.
        core_seconds, digests: of all trials, and of what they were trained from.
    """

    row: str
    kind: str
    trials: int
    missing: int
    scores: tuple[float | None, ...]
    lost: Mapping[int, str]
    best: int | None
    point: Point
    edges: Mapping[str, str]
    at_best: float | None
    sft: float | None
    core_seconds: float
    digests: frozenset[str]

    @property
    def broken(self) -> bool:
        """Returns whether the row is below its own SFT model even at its best, or every trial diverged or stopped.

        A blank metric is the judge's fault: a row without a score for it is not broken.
        """
        if self.best is None:
            return not self.missing and not any(why.startswith("blank") for why in self.lost.values())
        return self.at_best is not None and self.sft is not None and self.at_best < self.sft

    @property
    def flags(self) -> list[str]:
        """Returns what is to be known of the best trial, in words."""
        if self.missing:
            return [f"{self.missing} of {len(self.scores)} trials have not run"]
        found = [f"{name} is the {bound}est tried" for name, bound in self.edges.items()]
        if self.best is None:
            found.append("broken: no trial has a score" if self.broken else "no trial has a score")
        elif self.broken:
            found.append(f"broken: {self.at_best:.4g} at its best, its SFT model has {self.sft:.4g}")
        return found + [f"trial {number} {why}" for number, why in self.lost.items()]


def tuning_file(study: str) -> Path:
    """Returns where the record of a study's tuning is, relative to the root."""
    return TRIALS / f"{study}.json"


def read_tuning(root: Path, study: str) -> dict[str, Any] | None:
    """Returns the record of a study's tuning; None where nothing was tried."""
    file = root / tuning_file(study)
    return read_object(file) if file.exists() else None


def tuned_rows(record: Mapping[str, Any]) -> dict[str, TunedRow]:
    """Returns the rows of a study's tuning by name, each with its best trial."""
    return {row: _tuned(row, made, record["seeds"]) for row, made in record["rows"].items()}


def _tuned(row: str, made: Mapping[str, Any], seeds: Sequence[int]) -> TunedRow:
    trials = made["trials"]
    runs = [
        [trial["runs"].get(str(seed), {}).get(cell) for seed in seeds for cell in made["cells"]] for trial in trials
    ]
    missing = sum(None in each for each in runs)
    finished = [run for each in runs for run in each if run is not None]
    lost = {number: why for number, each in enumerate(runs) if (why := _lost(each)) is not None}
    scores = tuple(
        None if None in each or number in lost else fmean(run["metric"] for run in each)
        for number, each in enumerate(runs)
    )
    known = [(score, -number) for number, score in enumerate(scores) if score is not None]
    best = None if missing or not known else -max(known)[1]  # of equal scores the first
    point, of_best = (trials[best]["point"], runs[best]) if best is not None else ({}, [])
    sft = [run["sft"] for run in of_best]
    return TunedRow(
        row,
        made["kind"],
        trials=len(trials) - missing,
        missing=missing,
        scores=scores,
        lost=lost,
        best=best,
        point=point,
        edges=_edges(point, [trial["point"] for trial in trials]),
        at_best=_at_best(of_best) if of_best else None,
        sft=fmean(sft) if sft and None not in sft else None,
        core_seconds=math.fsum(run["core_seconds"] for run in finished),
        digests=frozenset(run["settings"] for run in finished),
    )


def _lost(runs: Sequence[Mapping[str, Any] | None]) -> str | None:
    """Returns why a trial has no score; None where it has one, or has not run."""
    words = ((word, run) for run in runs if run is not None for word in ("diverged", "stopped", "blank"))
    return next((f"{word}: {run[word]}" for word, run in words if word in run), None)


def _edges(point: Point, tried: Sequence[Point]) -> dict[str, str]:
    """Returns the settings of a point whose value no other point tried goes beyond, and on which side."""
    values = {name: [other[name] for other in tried] for name in (point if len(tried) > 1 else ())}
    highest = {name: "high" for name, every in values.items() if point[name] == max(every)}
    return highest | {name: "low" for name, every in values.items() if point[name] == min(every)}


def _at_best(runs: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean metric of the runs at the step where it is largest, of those that every run was evaluated at,
    or at the end."""
    steps = set.intersection(*({*run["curve"]} for run in runs))
    means = [fmean(run["curve"][step] for run in runs) for step in steps]
    return max([*means, fmean(run["metric"] for run in runs)])


def write_overrides(root: Path, file: Path, rows: Mapping[str, TunedRow]) -> None:
    """Writes the chosen settings into the rows of a study's file; its comments stay.

    Raises:
        RecipeError: the study has records, or a row has trials that have not run or no trial with a score.
    """
    from ruamel.yaml import YAML

    refuse_if_started(root, file.stem)
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 120
    content, made = yaml.load(file.read_text(encoding="utf-8")), io.StringIO()
    for name, row in rows.items():
        if row.best is None:
            raise RecipeError(f"rows.{name} of study '{file.stem}' has no best trial: {'; '.join(row.flags)}")
        content["rows"][name].setdefault(OPTIMISER, {}).update(row.point)
    yaml.dump(content, made)
    write_whole(file, made.getvalue())
