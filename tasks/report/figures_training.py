"""Figures of several papers: training curves, the table of reward models, examples coloured by reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.published.row_map import RecipeRow
from tasks.report.figure_data import FigureData, Panel, curve_series, metric_by_seed, table_line
from tasks.report.outputs import ResultTree, of_one_seed

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
        outputs = figure.needs(row.name, tree.of(row))
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
        if outputs := figure.needs(row.name, tree.of(row)):
            means = [metric_by_seed(outputs, metric) for metric, _ in REWARD_MODEL_COLUMNS]
            lines.append(table_line(row.name, row, means))
    if lines:
        figure.blocks = [{"columns": [title for _, title in REWARD_MODEL_COLUMNS], "rows": lines}]
    return figure


def examples(tree: ResultTree, paper: str, *names: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the example responses of reward models by name and id, of the first seed that all of them have."""
    found = of_one_seed({name: tree.outputs(paper, "reward_model", name) for name in names})
    return {name: {row["id"]: row for row in output.rows("examples.jsonl")} for name, output in found.items()}


def coloured_examples(figure: FigureData, tree: ResultTree, paper: str, labels: Mapping[str, str]) -> FigureData:
    """Returns the figure with the same responses under several reward models, a repetition among them.

    Args:
        labels: titles of the reward models by name.
    """
    models = examples(tree, paper, *labels)
    figure.missing = [f"reward_model/{name}" for name in labels if not models.get(name)]
    present = {name: rows for name, rows in models.items() if rows}
    if not present:
        return figure
    shared = set.intersection(*(set(rows) for rows in present.values()))
    first = next(iter(present.values()))
    for kind, title in (("normal", "Normal text"), ("repetition", "Text with repetition")):
        example = next((i for i, row in first.items() if row["kind"] == kind and i in shared), None)
        if example is not None:
            shown = [
                {"name": labels[name], **{key: rows[example][key] for key in ("tokens", "rewards", "segments")}}
                for name, rows in present.items()
            ]
            figure.blocks.append({"title": title, "prompt": first[example]["prompt"], "models": shown})
    return figure
