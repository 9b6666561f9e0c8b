"""Figures 2 to 9 of *Reward Shaping to Mitigate Reward Hacking in RLHF*.

Curves as the paper draws them: proxy reward solid (left axis), win rate over the SFT model dashed (right axis), one
colour a method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rlhf_core.published.row_map import RecipeRow, recipe_row
from tasks.report.claims import paper_claims_figure
from tasks.report.figure_data import (
    FigureData,
    Panel,
    Series,
    Style,
    curve,
    curve_series,
    published_figure,
    spread_note,
)
from tasks.report.figures_training import reward_models
from tasks.report.outcomes_par import outcomes
from tasks.report.outputs import ResultTree
from tasks.report.win_rates import win_rate_source

METHODS = ("par", "vanilla", "minmax", "warm", "meanstd", "clip", "lsc", "odin", "reg")
LABELS = {
    "par": "PAR",
    "vanilla": "Vanilla",
    "minmax": "Minmax",
    "warm": "WARM",
    "meanstd": "Meanstd",
    "clip": "Clip",
    "lsc": "LSC",
    "odin": "ODIN",
    "reg": "Reg",
}
#: Palette slots; a method keeps its colour in every figure.
COLOURS = {name: slot for slot, name in enumerate(METHODS)}
#: Prefixes of the rows of each model and data set.
SETTINGS = {
    "": "Gemma2-2B, Ultrafeedback-Binarized",
    "llama3-": "Llama3-8B, Ultrafeedback-Binarized",
    "hh-": "Gemma2-2B, HH-RLHF",
    "llama3-hh-": "Llama3-8B, HH-RLHF",
}
SIGMOIDS = {
    "par": "sigmoid (centered), PAR",
    "sigmoid": "sigmoid (uncentered)",
    "tanh-centered": "tanh (centered)",
    "tanh": "tanh (uncentered)",
    "sigmoid-k2": "sigmoidk2 (centered)",
    "sigmoid-k3": "sigmoidk3 (centered)",
    "poly": "poly_fitted (centered)",
    "sgfc": "sgfc (centered)",
}
BOUNDS = {
    "par-2-epochs": "PAR",
    "vanilla-2-epochs": "Vanilla",
    "minmax-2-epochs": "Minmax",
    "warm-2-epochs": "WARM",
    "ceil5_0": "ceil5.0",
    "ceil3_0": "ceil3.0",
    "kl0_01": "kl0.01",
    "kl0_1": "kl0.1",
}
REFERENCES = {"par": "PARref10", "par-ref5": "PARref5", "par-ref1": "PARref1", "sigmoid": "sigmoid"}
GRPO = {"grpo-par": "PAR", "grpo-vanilla": "Vanilla", "grpo-minmax": "Minmax", "grpo-meanstd": "Meanstd"}
ONLINE_DPO = {"online-dpo": "Vanilla", "online-dpo-par": "PAR"}
CURVES = (
    "Solid: mean proxy reward of the evaluated answers, by the row's own reward model. Dashed: {verdicts} win rate "
    "over the SFT model in percent. Ten evaluations an epoch."
)
#: Metric, style and side of the curves of a row.
AXES: tuple[tuple[str, Style, bool], ...] = (("proxy_reward", "line", False), ("win_rate_vs_sft", "dashed", True))


def figures(tree: ResultTree) -> list[FigureData]:
    """Returns all figures in the order of the page."""
    verdicts = win_rate_source(tree, "par")
    caption = CURVES.format(verdicts=verdicts)
    names = [f"{prefix}{name}" for prefix in SETTINGS for name in ("standard", "odin", "reg", "warm")]
    return [
        paper_claims_figure("par", tree),
        *outcomes(tree, SETTINGS, LABELS, verdicts),
        losses(tree),
        curves(tree, published_figure("par/3", caption), BOUNDS),
        curves(tree, published_figure("par/4a", caption), SIGMOIDS),
        sigmoid_functions(),
        curves(tree, published_figure("par/5", caption), LABELS),
        curves(tree, published_figure("par/6a", caption), REFERENCES),
        calibration(tree, verdicts),
        curves(tree, published_figure("par/7", caption), GRPO),
        *(
            curves(tree, published_figure(f"par/{number}", caption), LABELS, prefix)
            for number, prefix in (("8a", "llama3-"), ("8b", "hh-"), ("8c", "llama3-hh-"))
        ),
        case_studies(tree),
        curves(
            tree,
            FigureData(
                "online-dpo", "Online DPO", f"Pairs are ordered by the raw proxy, so both are one run. {caption}"
            ),
            ONLINE_DPO,
        ),
        reward_models(
            tree,
            [RecipeRow(name, "par", "reward_model") for name in names],
            "Accuracy on held-out pairs beside the Bayes ceiling of the annotator that labelled them; of ODIN, its "
            "quality head.",
        ),
    ]


def _colour(name: str, position: int) -> int:
    """Returns a method's own slot; other rows take those that follow."""
    return COLOURS.get(name.removesuffix("-2-epochs").removeprefix("grpo-"), position)


def curves(tree: ResultTree, figure: FigureData, labels: Mapping[str, str], prefix: str = "") -> FigureData:
    """Returns the proxy reward and win rate over training, one colour a row."""
    panel = Panel(SETTINGS[prefix], "training step", "proxy reward", [], right_label="win rate over SFT, %")
    for position, (name, label) in enumerate(labels.items()):
        outputs = figure.needs(prefix + name, tree.of(recipe_row("par", prefix + name)))
        colour = _colour(name, position)
        for metric, style, right in AXES:
            for series in curve_series(label, outputs, metric, colour=colour, file="checkpoints.jsonl"):
                panel.series.append(replace(series, style=style, right=right))
    figure.panels.append(panel)
    figure.caption += spread_note(figure.panels)
    return figure


def losses(tree: ResultTree) -> FigureData:
    """Returns Figure 2: losses of policy and critic under PAR and without shaping."""
    figure = published_figure(
        "par/2",
        "Losses of each update; while the replay buffer fills there is none.",
    )
    for metric, title in (("policy_loss", "Policy loss"), ("value_loss", "Critic loss")):
        panel = Panel(title, "training step", "loss", [])
        for name in ("par", "vanilla"):
            outputs = tree.of(recipe_row("par", name))
            panel.series += curve_series(LABELS[name], outputs, metric, colour=COLOURS[name])
        figure.panels.append(panel)
    figure.caption += spread_note(figure.panels)
    figure.missing = [name for name in ("par", "vanilla") if not tree.of(recipe_row("par", name))]
    return figure


def sigmoid_functions() -> FigureData:
    """Returns Figure 4b: the functions themselves, of the centred reward."""
    import torch

    from rlhf_core.shaping.functions import polynomial, sgfc, sigmoid, tanh

    x, zero = torch.linspace(-6, 6, 121), torch.zeros(121, 1)
    drawn = {
        "sigmoid": sigmoid(x),
        "sigmoidk2": sigmoid(x, 2.0),
        "sigmoidk3": sigmoid(x, 3.0),
        "tanh": tanh(x),
        "poly_fitted": polynomial(x[:, None], zero)[:, 0],
        "sgfc": sgfc(x[:, None], zero)[:, 0],
    }
    panel = Panel("Functions", "centered reward", "RL reward", [])
    for slot, (name, values) in enumerate(drawn.items()):
        panel.series.append(Series(name, x.tolist(), list(values.tolist()), colour=slot))
    figure = published_figure("par/4b", "As computed by rlhf_core.shaping.functions; no run is needed.")
    figure.panels.append(panel)
    return figure


def _calibration_series(tree: ResultTree, names: Iterable[str]) -> list[Series]:
    found = []
    for name in names:
        x, y, _ = curve(
            tree.of(recipe_row("par", name)), "win_rate_vs_sft", file="checkpoints.jsonl", x="preference_score"
        )
        if x:
            found.append(Series(LABELS[name], [100 * value for value in x], y, style="path", colour=COLOURS[name]))
    return found


def calibration(tree: ResultTree, verdicts: str = "true") -> FigureData:
    """Returns Figure 6b: the reward model's preference over the SFT model's answers beside the win rate."""
    figure = published_figure(
        "par/6b",
        "One point an evaluation, joined in the order of training, means over worlds: the mean of σ(r(y) − r(y_SFT)) "
        f"by the row's own reward model, and the {verdicts} win rate. On the dotted line the model is calibrated.",
    )
    shaped = [name for name in METHODS if name not in ("warm", "odin", "reg")]
    for title, names in (("Shapings", shaped), ("Reward models", ["warm", "odin", "reg"])):
        panel = Panel(title, "preference score, %", f"{verdicts} win rate vs SFT, %", _calibration_series(tree, names))
        drawn = [x for series in panel.series for x in (*series.x, *series.y)]
        if drawn:
            ends = [min(drawn), max(drawn)]
            panel.series.append(Series("calibrated", ends, ends, style="guide"))
        figure.panels.append(panel)
    figure.missing = [name for name in METHODS if not tree.of(recipe_row("par", name))]
    return figure


def case_studies(tree: ResultTree) -> FigureData:
    """Returns Figure 9: rollouts of the last step of vanilla PPO, with what they were paid."""
    figure = published_figure(
        "par/9",
        "Of vanilla PPO's last rollouts the one with the highest reward, which is paid on the last token.",
        kind="coloured_text",
    )
    for prefix, title in SETTINGS.items():
        outputs = tree.of(recipe_row("par", f"{prefix}vanilla"))
        if not outputs:
            figure.missing.append(f"{prefix}vanilla")
            continue
        rows = next(iter(outputs.values())).rows("rollouts.jsonl")
        last = [row for row in rows if row["step"] == max(r["step"] for r in rows)]
        for row in sorted(last, key=lambda row: -sum(row["rewards"]))[:1]:
            true = "" if row["true_reward"] is None else f", true reward {row['true_reward']:.2f}"
            figure.blocks.append(
                {
                    "title": f"{title}: paid {sum(row['rewards']):.2f}{true}",
                    "prompt": row["prompt"],
                    "models": [{"name": "Vanilla", **{k: row[k] for k in ("tokens", "rewards")}, "segments": []}],
                }
            )
    return figure
