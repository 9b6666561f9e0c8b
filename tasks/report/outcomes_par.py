"""Outcomes of PAR's rows: win rate at the end and loss after the peak, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from rlhf_core.evaluation.statistics import mean_and_standard_error
from rlhf_core.published.row_map import recipe_row
from tasks.report.figure_data import FigureData, Panel, Series
from tasks.report.outputs import ResultTree, StageOutput

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
