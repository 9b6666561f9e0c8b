"""Figures that every paper has: training curves and the table of its reward models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_core.published.row_map import RecipeRow
from tasks.report.figure_data import FigureData, Panel, curve_series, metric_by_seed
from tasks.report.outputs import ResultTree

CURVES = (
    ("reward", "Proxy reward", "reward per response"),
    ("true_reward", "True reward", "sum over clauses"),
    ("kl", "KL to the SFT policy", "nats per response"),
)
REWARD_MODEL_COLUMNS = (
    ("accuracy", "Accuracy"),
    ("bayes_ceiling", "Bayes ceiling"),
    ("ece", "ECE"),
    ("fidelity_pearson", "Fidelity (Pearson)"),
    ("fidelity_spearman", "Fidelity (Spearman)"),
    ("boundary_f1", "Boundary F1"),
)


def training_curves(
    tree: ResultTree,
    rows: Sequence[RecipeRow],
    labels: Mapping[str, str],
    colours: Mapping[str, int],
    caption: str,
) -> FigureData:
    """Returns the reward, true reward and KL over training steps, one line per row."""
    figure = FigureData(key="training-curves", title="Training curves", caption=caption)
    figure.panels = [Panel(title, "training step", unit, []) for _, title, unit in CURVES]
    for row in rows:
        outputs = tree.of(row)
        if not outputs:
            figure.missing.append(row.name)
        for (metric, _, _), panel in zip(CURVES, figure.panels, strict=True):
            panel.series += curve_series(
                labels.get(row.name, row.name),
                outputs,
                metric,
                colour=colours.get(row.name, len(panel.series)),
            )
    return figure


def reward_models(tree: ResultTree, rows: Sequence[RecipeRow], caption: str) -> FigureData:
    """Returns the accuracy against the Bayes ceiling, calibration and credit-assignment fidelity, one line per
    model."""
    figure = FigureData(key="reward-models", title="Reward models", caption=caption, kind="table")
    lines = []
    for row in rows:
        outputs = tree.of(row)
        if not outputs:
            figure.missing.append(row.name)
            continue
        cells = [metric_by_seed(outputs, metric) for metric, _ in REWARD_MODEL_COLUMNS]
        lines.append(
            {
                "name": row.name,
                "run": f"{row.group}/{row.kind}/{row.name}",
                "cells": [{"mean": c[0], "se": c[1]} if c else None for c in cells],
            }
        )
    if lines:
        figure.blocks = [{"columns": [title for _, title in REWARD_MODEL_COLUMNS], "rows": lines}]
    return figure
