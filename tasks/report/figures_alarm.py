"""Claims of *ALARM*, its Figures 3 and 4 (the selection), and the gate's behaviour during policy training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.published.row_map import recipe_row
from tasks.report.claims import paper_claims_figure
from tasks.report.figure_data import FigureData, Panel, Series, curve_series, published_figure
from tasks.report.figures_training import training_curves
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error
from tasks.running.artifacts import read_object

#: Selection behind each figure, and how the paper names what it compares.
SELECTIONS = {"alarm/3": "qa", "alarm/4": "mt"}
NAMES = {
    "holistic": "Holistic",
    "relevance": "Relevance (rate)",
    "factuality": "Factuality (rate)",
    "completeness": "Completeness",
    "length": "Length",
    "grammar": "Grammar (error rate)",
    "confidence": "Confidence",
    "readability": "Readability",
}
LABELS = {
    "qa-alarm": "ALARM",
    "qa-holistic": "Holistic Reward",
    "qa-factuality": "Factuality Reward",
    "qa-weighted-sum": "Weighted Sum",
    "mt-alarm": "ALARM (MT)",
    "mt-holistic": "Holistic Reward (MT)",
    "mt-grammar": "Grammar Reward (MT)",
    "mt-weighted-sum": "Weighted Sum (MT)",
}
COLOURS = {name: slot for slot, name in enumerate(LABELS)}
GATED = ("qa-alarm", "qa-alarm-selected", "qa-alarm-quantile", "mt-alarm", "mt-alarm-selected")
#: Half of a 95 % interval in standard errors.
HALF = 1.96


def figures(tree: ResultTree) -> list[FigureData]:
    """Returns all figures in the order of the page."""
    rows = [recipe_row("alarm", name) for name in LABELS]
    return [
        paper_claims_figure("alarm", tree),
        *(selection(tree, name, of) for name, of in SELECTIONS.items()),
        gate(tree),
        training_curves(tree, rows, LABELS, COLOURS, "Means over worlds. Rows of Tables 1 and 4."),
    ]


def selection(tree: ResultTree, name: str, of: str) -> FigureData:
    """Returns the inconsistency of each aspect with the holistic reward, and win rates of greedy over sampled
    answers."""
    figure = published_figure(
        name,
        "Greedy against purely sampled answers of the initial policy to training prompts. Bars are means over worlds "
        "with one standard error; with one world, that of the bootstrap over prompts. Chosen aspects carry a star.",
    )
    outputs = tree.outputs("alarm", "selection", of)
    if not outputs:
        figure.missing.append(f"selection/{of}")
        return figure
    found = [read_object(output.result / "selection.json") for output in outputs.values()]
    aspects = list(found[0]["aspects"])
    chosen = {aspect for one in found for aspect in one["chosen"]}
    labels = {aspect: NAMES.get(aspect, aspect) + ("*" if aspect in chosen else "") for aspect in aspects}
    apart = {labels[a]: _over_worlds([one["aspects"][a]["inconsistency"] for one in found]) for a in aspects}
    wins = {NAMES["holistic"]: _over_worlds([one["holistic"]["win_rate"] for one in found])}
    wins |= {labels[a]: _over_worlds([one["aspects"][a]["win_rate"] for one in found]) for a in aspects}
    figure.panels = [
        Panel("Inconsistency with the holistic reward", "", "%", [_bars("inconsistency", apart)]),
        Panel("Win rate of greedy decoding over pure sampling", "", "%", [_bars("win rate", wins)]),
    ]
    return figure


def _over_worlds(intervals: list[Mapping[str, Any]]) -> tuple[float, float | None] | None:
    """Returns the mean and standard error of the seeds' estimates; of a single world, the bootstrap's."""
    known = [one for one in intervals if one["estimate"] is not None]
    if not known:
        return None
    if len(known) == 1:
        (one,) = known
        width = None if one["upper"] is None else (one["upper"] - one["lower"]) / (2 * HALF)
        return one["estimate"], width
    return mean_and_standard_error([one["estimate"] for one in known])


def _bars(label: str, values: Mapping[str, tuple[float, float | None] | None]) -> Series:
    names = list(values)
    return Series(
        label,
        names,
        [None if (found := values[name]) is None else found[0] for name in names],
        [None if (found := values[name]) is None else found[1] for name in names],
        style="bars",
        colour=0,
    )


def gate(tree: ResultTree) -> FigureData:
    """Returns the realised share of rollouts above the threshold, and pairs that KL turns around, over training."""
    figure = FigureData(
        key="gate",
        title="The gate while policies train",
        caption="Left: share of rollouts whose holistic reward reaches the threshold, meant to be near 30 % at the "
        "start. Right: of the pairs with one response above the gate and one below it, the share whose totals stand "
        "the other way round once KL is subtracted. Before KL there is none.",
    )
    rows: dict[str, Mapping[int, StageOutput]] = {name: tree.of(recipe_row("alarm", name)) for name in GATED}
    for metric, title, unit in (
        ("gate/share_above", "Share above the threshold", "share of rollouts"),
        ("gate/violation_share", "Order turned around by KL", "share of pairs"),
    ):
        series = [s for i, (n, runs) in enumerate(rows.items()) for s in curve_series(n, runs, metric, colour=i)]
        figure.panels.append(Panel(title, "iteration", unit, series))
    figure.missing = [name for name, runs in rows.items() if not runs]
    return figure
