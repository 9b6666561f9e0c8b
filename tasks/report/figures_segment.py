"""Figures 2 to 11 of *Segmenting Text and Learning Their Rewards*, and what the testbed shows beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf_core.evaluation.fidelity import boundary_scores
from rlhf_core.published.row_map import RecipeRow, recipe_row
from tasks.report.claims import paper_claims_figure
from tasks.report.figure_data import (
    FigureData,
    Panel,
    Series,
    Style,
    curve,
    mean_series,
    metric_bars,
    metric_by_seed,
    published_figure,
    token_spans,
)
from tasks.report.figures_training import coloured_examples, examples, reward_models, training_curves
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.win_rates import win_rate_source

METHODS = ("segment", "bandit", "token", "sentence", "bandit-as-segment", "segment-as-bandit")
LABELS = {
    "segment": "Segment (Ours)",
    "bandit": "Bandit",
    "token": "Token",
    "sentence": "Sentence",
    "bandit-as-segment": "Bandit as Segment",
    "segment-as-bandit": "Segment as Bandit",
    "ngram-5": "5-gram",
}
#: Palette slots; the method keeps its colour in every figure.
COLOURS = {name: slot for slot, name in enumerate(METHODS)}
CUTOFFS = {"cutoff-1_5": 1.5, "segment": 1.75, "cutoff-2_0": 2.0, "cutoff-2_25": 2.25}
REWARD_MODELS = (
    *("bandit", "sentence", "token", "segment", "ngram-2", "ngram-5", "ngram-10", "ngram-20"),
    *("cutoff-1_5", "cutoff-2_0", "cutoff-2_25"),
    *("phi31-bandit", "phi31-token", "phi31-segment", "llama3-bandit", "llama3-token", "llama3-segment"),
)
CODE_BENCHMARKS = {"mbpp_base": "MBPP Base", "mbpp_plus": "MBPP Plus", "livecode": "LiveCode"}


def figures(tree: ResultTree) -> list[FigureData]:
    """Returns all figures in the order of the page."""
    policies = [recipe_row("segment", name) for name in METHODS]
    models = [RecipeRow(name, "segment", "reward_model") for name in REWARD_MODELS]
    return [
        paper_claims_figure("segment", tree),
        training_curves(
            tree,
            policies,
            LABELS,
            COLOURS,
            "Means over worlds; the band is one standard error. Rows of Table 1.",
        ),
        reward_models(
            tree,
            models,
            "Accuracy on held-out pairs beside the Bayes ceiling of the annotator that labelled them; ECE is "
            "the expected calibration error; fidelity is the correlation of learned segment rewards with the "
            "true rewards of the clauses they cover; boundary F1 compares segment starts with true clause starts.",
        ),
        reward_colouring(tree),
        entropy_cutoffs(tree),
        kl_frontier(tree),
        code_bars(tree),
        *segmentations(tree),
        normaliser_fits(tree),
    ]


def reward_colouring(tree: ResultTree) -> FigureData:
    """Returns Figure 2: the same responses under the segment, token and 5-gram models, a repetition among them."""
    figure = published_figure(
        "segment/2",
        "Colour shows each model's reward before normalisation, on one scale per model and text, "
        "centred at 0; hover over a piece for its value.",
        kind="coloured_text",
    )
    return coloured_examples(figure, tree, "segment", {name: LABELS[name] for name in ("segment", "token", "ngram-5")})


def _segment_length(tree: ResultTree, name: str) -> tuple[float, float | None] | None:
    """Returns the mean tokens per segment: of the policy's responses where recorded, else of the preference data."""
    return metric_by_seed(tree.outputs("segment", "policy", name), "mean_segment_length") or metric_by_seed(
        tree.outputs("segment", "reward_model", name), "segment_length"
    )


def entropy_cutoffs(tree: ResultTree) -> FigureData:
    """Returns Figure 3: scores of the policies and their mean segment length over the entropy cutoff."""
    figure = published_figure(
        "segment/3",
        "The horizontal axis names the paper's cutoffs; at testbed scale each stands for the quantile of the "
        "SFT entropy that gives the paper's ordering of segment lengths. Mean segment length is that of the "
        "responses that the reward model is trained on. Error bars: one standard error.",
    )
    metrics = (
        ("alpaca_wr", "AlpacaEval 2.0 WR", "percent"),
        ("arena_wr", "Arena-Hard WR", "percent"),
        ("mtbench", "MT-Bench", "score 1 to 10"),
    )
    runs = {name: tree.outputs("segment", "policy", name) for name in CUTOFFS}
    figure.missing = [name for name, outputs in runs.items() if not outputs]
    points = [
        (title, unit, {cutoff: metric_by_seed(runs[name], metric) for name, cutoff in CUTOFFS.items()})
        for metric, title, unit in metrics
    ]
    lengths = {cutoff: _segment_length(tree, name) for name, cutoff in CUTOFFS.items()}
    points.append(("Mean segment length", "tokens", lengths))
    for title, unit, means in points:
        if series := mean_series(LABELS["segment"], means, colour=0):
            figure.panels.append(Panel(title, "entropy cutoff c_ent", unit, series))
    return figure


def _frontier(outputs: Mapping[int, StageOutput], label: str, colour: int) -> list[Series]:
    """Returns the win rate over KL: the checkpoints of the runs and, last, their final policies."""
    x, y, error = curve(outputs, "win_rate_vs_sft", file="checkpoints.jsonl", x="kl")
    final_kl, final = metric_by_seed(outputs, "kl"), metric_by_seed(outputs, "win_rate_vs_sft")
    if final_kl and final:
        x, y, error = [*x, final_kl[0]], [*y, final[0]], [*error, final[1]]
    order = sorted(range(len(x)), key=x.__getitem__)
    drawn = Series(label, [x[i] for i in order], [y[i] for i in order], [error[i] for i in order], colour=colour)
    return [drawn] if x else []


def kl_frontier(tree: ResultTree) -> FigureData:
    """Returns Figure 4: win rate over KL to the SFT policy, from the checkpoints of each run."""
    verdicts = win_rate_source(tree, "segment")
    figure = published_figure(
        "segment/4",
        f"One point per checkpoint of a run and one for its final policy: {verdicts} win rate over the SFT policy "
        "against the KL to it, means over worlds with one standard error. The paper's axis is the "
        "length-controlled AlpacaEval win rate.",
    )
    for prefix, title in (("phi31-", "Phi3.1-mini-SFT (as in the paper)"), ("", "Phi3-mini")):
        panel = Panel(title, "KL to the SFT policy, nats per response", f"{verdicts} win rate vs SFT, %", [])
        for method in ("segment", "bandit", "token"):
            outputs = figure.needs(prefix + method, tree.outputs("segment", "policy", prefix + method))
            panel.series += _frontier(outputs, LABELS[method], COLOURS[method])
        figure.panels.append(panel)
    return figure


def code_bars(tree: ResultTree) -> FigureData:
    """Returns Figure 5: pass@1 on the code benchmarks, by backbone and action space."""
    figure = published_figure("segment/5", "pass@1 in percent; bars are means over worlds with one standard error.")
    for prefix, title in (("phi31-", "Phi3.1-mini-SFT"), ("llama3-", "Llama-3-8B-SFT")):
        panel = Panel(title, "", "pass@1, %", [])
        for method in ("bandit", "token", "segment"):
            outputs = figure.needs(prefix + method, tree.outputs("segment", "policy", prefix + method))
            panel.series += metric_bars(LABELS[method], outputs, CODE_BENCHMARKS, COLOURS[method])
        figure.panels.append(panel)
    return figure


def _segmentation_block(row: Mapping[str, Any]) -> dict[str, Any]:
    response = row["response"]
    spans = token_spans(row["tokens"], response)
    found = [(spans[start][0], spans[end - 1][1]) for start, end, _ in row["segments"]]
    true = [(start, end, kind, reward) for start, end, kind, reward in row["true_clauses"]]
    return {
        "prompt": row["prompt"],
        "true": [{"text": response[s:e], "kind": kind, "reward": reward} for s, e, kind, reward in true],
        "found": [{"text": response[s:e]} for s, e in found],
        # a token may carry the space before its word
        "f1": boundary_scores([[s for s, _ in found]], [[s for s, *_ in true]], tolerance=1).f1,
    }


def segmentations(tree: ResultTree) -> list[FigureData]:
    """Returns figures 6 to 11: true clause boundaries beside entropy boundaries, dialogue and code."""
    found = {name: examples(tree, "segment", name).get(name, {}) for name in ("cutoff-1_5", "segment")}
    source = next((name for name, rows in found.items() if rows), None)
    rows = list(found[source].values()) if source else []
    dialogue = [row for row in rows if row["kind"] == "normal"]
    code = [row for row in rows if row["kind"] == "code"]
    drawn = []
    for number, pool in ((6, dialogue), (7, dialogue), (8, dialogue), (9, dialogue), (10, code), (11, code)):
        figure = published_figure(f"segment/{number}", "", kind="segmentation")
        if number == 6:
            figure.caption = (
                "Left: the true clauses of the testbed, which stand for the human annotation. Right: "
                f"segments by the entropy of the SFT model, as reward model '{source}' reads them."
            )
        elif number == 9:
            figure.caption = "The paper's example is bilingual; the testbed has English only."
        index = number - (6 if pool is dialogue else 10)
        if index < len(pool):
            figure.blocks = [_segmentation_block(pool[index])]
        elif not rows:
            figure.missing = ["reward_model/cutoff-1_5"]
        elif not pool:
            figure.missing = ["code responses among the reward model's examples"]
        drawn.append(figure)
    return drawn


def _fit_panel(title: str, unit: str, bins: Mapping[str, Any], statistic: str, lines: Mapping[str, Any]) -> Panel:
    """Returns one statistic over the location: the bins, both regressions and, for the deviation, its floor."""
    location: list[float] = list(bins["location"])
    series = [Series("bins", location, list(bins[statistic]), style="points", colour=5)]
    styles: tuple[tuple[str, str, Style, int], ...] = (
        ("huber", "Huber", "line", 0),
        ("ols", "OLS", "dashed", 1),
    )
    for name, label, style, colour in styles:
        fit = lines[name]
        heights: list[float | None] = [fit[f"w_{statistic}"] * math.log(p) + fit[f"b_{statistic}"] for p in location]
        series.append(Series(label, location, heights, style=style, colour=colour))
    if statistic == "std":
        floor = lines["huber"]["floor"]
        series.append(Series("floor", location, [floor] * len(location), style="dashed", colour=2))
    return Panel(title, "normalised location p = (t+1)/T", unit, series)


def normaliser_fits(tree: ResultTree) -> FigureData:
    """Returns the mean and standard deviation of segment rewards over their location, with the fits (Eq. 11, 12)."""
    figure = FigureData(
        key="normaliser-fits",
        title="Location-aware normaliser",
        caption="Statistics of the segment rewards per bin of the normalised location, and the regressions "
        "on log p (Eq. 11 and 12) that the normaliser uses; the floor keeps the standard deviation positive.",
    )
    for name in ("segment", "token"):
        found: StageOutput | None = next(iter(tree.outputs("segment", "normaliser", name).values()), None)
        if found is None:
            figure.missing.append(f"normaliser/{name}")
            continue
        fitted = found.values("normaliser.json")
        lines = fitted["location_aware"]
        figure.panels += [
            _fit_panel(f"{LABELS[name]}: mean", "reward", fitted["bins"], "mean", lines),
            _fit_panel(f"{LABELS[name]}: standard deviation", "reward", fitted["bins"], "std", lines),
        ]
    return figure
