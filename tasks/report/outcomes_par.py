"""Outcomes of PAR's rows: win rate at the end and loss after the peak, with intervals, and their cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from rlhf_core.evaluation.statistics import mean_and_standard_error
from rlhf_core.published.row_map import recipe_row
from tasks.report.figure_data import FigureData, Panel, Series
from tasks.report.outputs import ResultTree, StageOutput, stage_record
from tasks.report.outputs import mean_and_standard_error as over_worlds

#: The SFT model that the rows of each prefix start from.
BACKBONES = {"": "gemma2-2b", "llama3-": "llama3-8b", "hh-": "gemma2-2b-hh", "llama3-hh-": "llama3-8b-hh"}
WIN_RATE, PEAK = "win_rate_vs_sft", "peak_win_rate_vs_sft"
#: Two-sided level of the intervals.
LEVEL = 0.95
Cell = dict[str, float | None]


def half_width(values: Sequence[float]) -> float | None:
    """Returns the half of the 95 % interval of a mean over worlds (Student's t); None with one world."""
    if len(values) < 2:
        return None
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return quantile * mean_and_standard_error(list(values)).standard_error


def outcome(outputs: Mapping[int, StageOutput]) -> dict[str, Cell | None]:
    """Returns the win rate at the end and at the best evaluation, and what was lost between them, by name.

    Args:
        outputs: of a row, by seed.
    """
    cells: dict[str, Cell | None] = {}
    for metric in (WIN_RATE, PEAK, "loss_after_peak"):
        values = [out.metrics[metric] for out in outputs.values() if metric in out.metrics]
        cells[metric] = {"mean": sum(values) / len(values), "se": half_width(values)} if values else None
    return cells


def worlds_of(count: int) -> str:
    """'1 world', '3 worlds'."""
    return f"{count} world{'s' * (count != 1)}"


def outcomes(
    tree: ResultTree, settings: Mapping[str, str], labels: Mapping[str, str], verdicts: str = "true"
) -> list[FigureData]:
    """Returns the outcome of every method in every setting, as a picture and as numbers.

    Args:
        settings: title of each prefix of rows.
        labels: title of each method.
        verdicts: who decides the win rates: 'true' rewards, or 'judged'.
    """
    intervals = (
        f"Of {worlds_of(len(tree.seeds))} where a row does not say otherwise; 95 % intervals are over worlds, and one "
        "world has none."
    )
    picture = FigureData(
        "outcomes",
        f"{verdicts.capitalize()} win rate at the end and at its best",
        f"On all test prompts. {intervals}",
        panels=[],
    )
    table = FigureData(
        "outcomes-table",
        "Win rate and what was lost after the peak",
        f"{verdicts.capitalize()} win rate over the SFT model in percent: of the last weights, of those of the best "
        f"evaluation, and the points lost between them. After ± stands half of a 95 % interval. {intervals}",
        kind="table",
    )
    columns = {WIN_RATE: "at the end", PEAK: "at its best", "loss_after_peak": "lost after the peak"}
    lines: list[dict[str, Any]] = []
    for prefix, title in settings.items():
        found = {}
        for name, label in labels.items():
            outputs = tree.of(recipe_row("par", prefix + name))
            if not outputs:
                picture.missing.append(prefix + name)
                continue
            found[label] = outcome(outputs)
            cells = [*map(found[label].get, columns)]
            few = len(outputs) < len(tree.seeds)
            line = {"name": label, "group": title, "run": prefix + name, "cells": cells}
            lines.append(line | ({"note": worlds_of(len(outputs))} if few else {}))
        picture.panels.append(Panel(title, f"{verdicts} win rate over SFT, %", "", _dots(found, columns)))
    if lines:
        table.blocks = [{"head": "method", "columns": list(columns.values()), "rows": lines, "decimals": 1}]
    table.missing = list(picture.missing)
    return [picture, table]


def _dots(found: Mapping[str, Mapping[str, Cell | None]], columns: Mapping[str, str]) -> list[Series]:
    series = []
    for slot, metric in ((0, WIN_RATE), (1, PEAK)):
        known = {label: cell for label, cells in found.items() if (cell := cells[metric]) is not None}
        if known:
            means, halves = [cell["mean"] for cell in known.values()], [cell["se"] for cell in known.values()]
            series.append(Series(columns[metric], means, list(known), halves, style="intervals", colour=slot))
    if series:
        series.append(Series("the SFT model", [50.0, 50.0], [0.0, 1.0], style="guide"))
    return series


# The cost.


def references_of(tree: ResultTree, record: Mapping[str, Any]) -> list[Path]:
    """Returns the reference-reward stages that a policy's record names as its inputs."""
    names = [name for name in record.get("inputs", {}) if "/references/" in name and name.endswith("/result")]
    places = [Path(name).parts[-5:-1] for name in names]
    return [tree.folder(group, kind, name, int(seed)) for group, kind, name, seed in places]


@dataclass(frozen=True)
class Spent:
    """Seconds from the records of stages.

    Attributes:
        policies: of every policy, by row and seed.
        read: the reference stages that each of them reads.
        references: of every reference stage that is read.
    """

    policies: Mapping[tuple[str, int], float]
    read: Mapping[tuple[str, int], list[Path]]
    references: Mapping[Path, float]

    @property
    def readers(self) -> dict[Path, int]:
        """Returns the number of policies that read each reference stage."""
        return {path: sum(path in paths for paths in self.read.values()) for path in self.references}


def spent_on(tree: ResultTree, rows: Iterable[str]) -> Spent:
    """Returns seconds and memory of policies and their reference rewards; runs without a record are left out."""
    outputs = {name: tree.of(recipe_row("par", name)) for name in rows}
    found = {(name, seed): stage_record(out.path) for name, by_seed in outputs.items() for seed, out in by_seed.items()}
    records = {key: record for key, record in found.items() if "seconds" in record}
    read = {key: references_of(tree, record) for key, record in records.items()}
    seconds = {path: float(stage_record(path).get("seconds", 0.0)) for paths in read.values() for path in paths}
    return Spent({key: float(record["seconds"]) for key, record in records.items()}, read, seconds)


def costs(tree: ResultTree, rows: Mapping[str, str]) -> FigureData:
    """Returns seconds of every policy and of its reference rewards, from the records of the stages that made them.

    Args:
        rows: titles of the rows by name.
    """
    figure = FigureData(
        key="costs",
        title="What a policy costs",
        caption="Seconds of whole stages on the machine that ran them, evaluations included; stages side by side share "
        "its cores. Reference rewards are sampled once for each reward model and seed and serve every row that reads "
        "it; rows that state a constant in units of the SFT policy's rewards need them, too. The share is theirs of "
        "both together: alone, for a row run by itself; shared, with their seconds divided among the policies here "
        "that read them. From cache they cost nothing.",
        kind="table",
    )
    spent = spent_on(tree, rows)
    lines = [line for name, title in rows.items() if (line := _cost(spent, name, title, len(tree.seeds)))]
    if not lines:
        figure.missing = list(rows)
        return figure
    policies, references = sum(spent.policies.values()), sum(spent.references.values())
    total = (policies / len(spent.policies), references / max(1, len(spent.references)))
    cells = [_cell([total[0]]), _cell([total[1]]), None, _cell([100 * references / (references + policies)])]
    note = f"policies: {len(spent.policies)}, sets of reference rewards: {len(spent.references)}"
    lines.append({"name": "all together", "run": "", "cells": cells, "note": note})
    columns = ["policy, s", "reference rewards, s", "share alone, %", "share, shared, %"]
    figure.blocks = [{"head": "row", "columns": columns, "rows": lines, "decimals": 1}]
    return figure


def _cost(spent: Spent, name: str, title: str, seeds: int) -> dict[str, Any] | None:
    """Returns the line of a row; None where it was not run."""
    own = [key for key in spent.policies if key[0] == name]
    if not own:
        return None
    time = [spent.policies[key] for key in own]
    alone = [sum(spent.references[path] for path in spent.read[key]) for key in own]
    shared = [sum(spent.references[path] / spent.readers[path] for path in spent.read[key]) for key in own]
    cells: list[Cell | None] = [_cell(time), None, None, None]
    if any(alone):
        shares = [[100 * r / (r + t) for r, t in zip(of, time, strict=True)] for of in (alone, shared)]
        cells[1:] = [_cell(alone), *map(_cell, shares)]
    note = {"note": worlds_of(len(own))} if len(own) < seeds else {}
    return {"name": title, "run": name, "cells": cells, **note}


def _cell(values: Sequence[float]) -> Cell:
    mean, error = over_worlds(values)
    return {"mean": mean, "se": error}
