"""Figures and tables that are more than curves and bars of recorded metrics; `figures` names them by kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scipy import stats

from rlhf_core.evaluation.statistics import mean_and_standard_error as over_values
from rlhf_core.published.row_map import RecipeRow
from rlhf_core.testbed.oracle import kept_errors
from tasks.report.figure_data import (
    FigureData,
    Mean,
    Panel,
    Request,
    Series,
    mean_series,
    metric_bars,
    metric_by_seed,
    table_line,
    token_spans,
)
from tasks.report.figures_texts import TASKS, examples
from tasks.report.outputs import StageOutput, mean_and_standard_error, stage_record

#: Half of a 95 % interval in standard errors.
HALF = 1.96
#: Two-sided level of the intervals of outcomes.
LEVEL = 0.95
#: Metrics of an outcome, and what they are called.
OUTCOMES = {
    "win_rate_vs_sft": "at the end",
    "peak_win_rate_vs_sft": "at its best",
    "loss_after_peak": "lost after the peak",
}
#: Tokens before a sentence's end that are shown.
BEFORE_END = 6
#: Data sets behind RLMEC's tasks.
DATA = {"qa": "questions", "math": "mathematics"}
#: Steps between the first error and the final answer that have a bar of their own.
FARTHEST = 4
#: Measures of a row's credit: name behind `credit_` or `fidelity/`, and what it is called.
CREDIT = {"auc": "AUC", "auc_within": "AUC within", "precision": "Precision", "recall": "Recall"}
GROUND_TRUTH = "GT (ground truth)"
#: Refiners of wrong solutions, and the metrics of a generative reward model that measure them.
REFINED = {
    "TM (teacher)": ("teacher_edit_distance", "teacher_rewrite_accuracy"),
    "GRM (generative reward model)": ("edit_distance", "rewrite_accuracy"),
    GROUND_TRUTH: ("ground_truth_edit_distance", ""),
}


def worlds_of(count: int) -> str:
    """'1 world', '3 worlds'."""
    return f"{count} world{'s' * (count != 1)}"


def selection(figure: FigureData, request: Request) -> None:
    """Draws the inconsistency of each aspect with the holistic reward, and win rates of greedy over sampled answers."""
    names: Mapping[str, str] = request.spec.options["names"]
    (line,) = request.lines
    outputs = figure.needs(f"selection/{line.name}", request.tree.outputs(request.paper, "selection", line.name))
    found = [output.values("selection.json") for output in outputs.values()]
    if not found:
        return
    aspects = list(found[0]["aspects"])
    chosen = {aspect for one in found for aspect in one["chosen"]}
    labels = {aspect: names.get(aspect, aspect) + ("*" if aspect in chosen else "") for aspect in aspects}
    apart = {labels[a]: _over_worlds([one["aspects"][a]["inconsistency"] for one in found]) for a in aspects}
    wins = {names["holistic"]: _over_worlds([one["holistic"]["win_rate"] for one in found])}
    wins |= {labels[a]: _over_worlds([one["aspects"][a]["win_rate"] for one in found]) for a in aspects}
    for title, label, values in (
        ("Inconsistency with the holistic reward", "inconsistency", apart),
        ("Win rate of greedy decoding over pure sampling", "win rate", wins),
    ):
        heights, errors = zip(*(value or (None, None) for value in values.values()), strict=True)
        bars = Series(label, list(values), list(heights), list(errors), style="bars", colour=0)
        figure.panels.append(Panel(title, "", "%", [bars]))


def _over_worlds(intervals: list[Mapping[str, Any]]) -> Mean | None:
    """Returns the mean and standard error of the seeds' estimates; of a single world, the bootstrap's."""
    known = [one for one in intervals if one["estimate"] is not None]
    if len(known) == 1:
        (one,) = known
        return one["estimate"], None if one["upper"] is None else (one["upper"] - one["lower"]) / (2 * HALF)
    return mean_and_standard_error([one["estimate"] for one in known]) if known else None


def normaliser_fits(figure: FigureData, request: Request) -> None:
    """Draws the mean and standard deviation of segment rewards over their location, with the fits (Eq. 11, 12)."""
    for line in request.lines:
        runs = request.tree.outputs(request.paper, "normaliser", line.name)
        for output in list(figure.needs(f"normaliser/{line.name}", runs).values())[:1]:
            fitted = output.values("normaliser.json")
            for statistic, name in (("mean", "mean"), ("std", "standard deviation")):
                series = list(_fits(fitted["bins"], statistic, fitted["location_aware"]))
                figure.panels.append(
                    Panel(f"{line.label}: {name}", "normalised location p = (t+1)/T", "reward", series)
                )


def _fits(bins: Mapping[str, Any], statistic: str, lines: Mapping[str, Any]) -> Iterator[Series]:
    """Yields a statistic of the bins over their location, both regressions and, for the deviation, its floor."""
    location: list[float] = list(bins["location"])
    yield Series("bins", location, list(bins[statistic]), style="points", colour=5)
    for name, label, colour in (("huber", "Huber", 0), ("ols", "OLS", 1)):
        fit = lines[name]
        heights = [fit[f"w_{statistic}"] * math.log(p) + fit[f"b_{statistic}"] for p in location]
        yield Series(label, location, heights, style="dashed" if colour else "line", colour=colour)
    if statistic == "std":
        yield Series("floor", location, [lines["huber"]["floor"]] * len(location), style="dashed", colour=2)


def shaping_functions(figure: FigureData, request: Request) -> None:
    """Draws PAR's functions of the centred reward."""
    import torch

    from rlhf_core.shaping.choices import SHAPINGS

    x = torch.linspace(-6, 6, 121)
    names = {
        "par": "sigmoid",
        "sigmoid_k2": "sigmoidk2",
        "sigmoid_k3": "sigmoidk3",
        "tanh_centered": "tanh",
        "poly": "poly_fitted",
    }
    series = [
        Series(names.get(kind, kind), x.tolist(), SHAPINGS[kind]().curve(x).tolist(), colour=slot)  # type: ignore[attr-defined]
        for slot, kind in enumerate((*names, "sgfc"))
    ]
    figure.panels.append(Panel("Functions", "centered reward", "RL reward", series))


def half_width(values: Sequence[float]) -> float | None:
    """Returns the half of the 95 % interval of a mean over worlds (Student's t); None with one world."""
    if len(values) < 2:
        return None
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return quantile * over_values(list(values))[1]


def outcome(outputs: Mapping[int, StageOutput]) -> dict[str, Mean | None]:
    """Returns the win rate at the end and at the best evaluation, and what was lost between them: mean and half of the
    95 % interval over worlds."""
    values = {metric: [out.metrics[metric] for out in outputs.values() if metric in out.metrics] for metric in OUTCOMES}
    return {metric: (sum(own) / len(own), half_width(own)) if own else None for metric, own in values.items()}


def _settings(figure: FigureData, request: Request) -> Iterator[tuple[str, str, str, Mapping[int, StageOutput]]]:
    """Yields title, row, label and runs of every method in every setting that was run."""
    for prefix, title in request.spec.options["settings"].items():
        for line in request.lines:
            if outputs := figure.needs(prefix + line.name, request.runs(prefix + line.name)):
                yield title, prefix + line.name, line.label, outputs


def _intervals_note(request: Request) -> str:
    return (
        f"Of {worlds_of(len(request.tree.seeds))} where a row does not say otherwise; 95 % intervals are over worlds, "
        "and one world has none."
    )


def outcomes(figure: FigureData, request: Request) -> None:
    """Draws the win rates of every method at the end and at its best, a panel for each setting."""
    figure.caption = f"On all test prompts. {_intervals_note(request)}"
    found: dict[str, dict[str, dict[str, Mean | None]]] = {}
    for title, _, label, outputs in _settings(figure, request):
        found.setdefault(title, {})[label] = outcome(outputs)
    for title in request.spec.options["settings"].values():
        series = []
        for slot, metric in enumerate(list(OUTCOMES)[:2]):
            known = {label: mean for label, of in found.get(title, {}).items() if (mean := of[metric])}
            if known:
                means, halves = zip(*known.values(), strict=True)
                named = OUTCOMES[metric]
                series.append(Series(named, list(means), list(known), list(halves), style="intervals", colour=slot))
        if series:
            series.append(Series("the SFT model", [50.0, 50.0], [0.0, 1.0], style="guide"))
        figure.panels.append(Panel(title, f"{request.verdicts} win rate over SFT, %", "", series))


def outcomes_table(figure: FigureData, request: Request) -> None:
    """Fills in the outcomes of every method in every setting."""
    figure.caption = (
        f"{request.verdicts.capitalize()} win rate over the SFT model in percent: of the last weights, of those of the "
        "best evaluation, and the points lost between them. After ± stands half of a 95 % interval. "
        f"{_intervals_note(request)}"
    )
    lines: list[dict[str, Any]] = []
    for title, row, label, outputs in _settings(figure, request):
        cells = [{"mean": mean[0], "se": mean[1]} if mean else None for mean in outcome(outputs).values()]
        line = {"name": label, "group": title, "run": row, "cells": cells}
        lines.append(line | ({"note": worlds_of(len(outputs))} if len(outputs) < len(request.tree.seeds) else {}))
    if lines:
        figure.blocks = [{"head": "method", "columns": list(OUTCOMES.values()), "rows": lines, "decimals": 1}]


def before_ends(figure: FigureData, request: Request) -> None:
    """Draws weighted rewards of a reward model's tokens by their distance from a clause's end."""
    (line,) = request.lines
    found = examples(request.tree, request.paper, line.name).get(line.name, {})
    rows = [row for row in found.values() if row.get("true_clauses")]
    if not rows:
        figure.missing = [f"reward_model/{line.name}"]
        return
    shares: dict[int, list[float]] = {}
    for distance, share in (each for row in rows for each in _shares_before_ends(row)):
        shares.setdefault(distance, []).append(share)
    distances = sorted((distance for distance in shares if distance <= BEFORE_END), reverse=True)
    means = {str(-distance): mean_and_standard_error(shares[distance]) for distance in distances}
    series = mean_series("Preference transformer", means, colour=0, style="bars")
    figure.panels = [Panel("example responses", "tokens from the clause's end", "share of the mean", series)]


def _shares_before_ends(row: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(tokens up to the end of the clause, absolute weighted reward in units of the response's mean) of every token."""
    spans = token_spans(row["tokens"], row["response"])
    worth = [(start, abs(value)) for start, end, value in row["segments"] if start < end]
    mean = sum(value for _, value in worth) / max(1, len(worth))
    if not mean:
        return []
    ends = [len(row["response"][:end].rstrip()) for _, end, *_ in row["true_clauses"]]
    last = [max((i for i, (start, _) in enumerate(spans) if start < end), default=0) for end in ends]
    ahead = [(min((place - token for place in last if place >= token), default=-1), value) for token, value in worth]
    return [(distance, value / mean) for distance, value in ahead if distance >= 0]


def training_time(figure: FigureData, request: Request) -> None:
    """Draws the seconds of the rows' policy stages, from their records."""
    means: dict[str, Mean | None] = {}
    for line in request.lines:
        outputs = request.tree.outputs(request.paper, "policy", line.name)
        records = [record for output in outputs.values() if (record := stage_record(output.path))]
        if records:
            means[line.label] = mean_and_standard_error([float(record["seconds"]) for record in records])
        else:
            figure.missing.append(line.name)
    series = mean_series("training time", means, colour=0, style="bars")
    figure.panels = [Panel("training time", "", "seconds", series)]


def rewriting(figure: FigureData, request: Request) -> None:
    """Draws how much of wrong solutions each refiner edits, and how often the result is right."""
    models = {task: request.tree.outputs("rlmec", "generative_reward_model", task) for task in TASKS}
    teachers = {task: request.tree.outputs("shared", "teacher", f"rlmec-{task}") for task in TASKS}
    figure.missing = [f"generative_reward_model/{task}" for task, outputs in models.items() if not outputs]
    for place, (title, unit) in enumerate((("Edit distance", "tokens"), ("Right rewrites", "share"))):
        panel = Panel(title, "", unit, [])
        for slot, (label, metrics) in enumerate(REFINED.items()):
            sources = teachers if label == GROUND_TRUTH else models
            means = {TASKS[task]: metric_by_seed(outputs, metrics[place]) for task, outputs in sources.items()}
            if not metrics[place]:  # ground truths are right
                means = {TASKS[task]: (1.0, None) for task, outputs in models.items() if outputs}
            panel.series += mean_series(label, means, colour=slot, style="bars")
        figure.panels.append(panel)


def error_distances(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the share of wrong solutions by how many steps lie between their first error and their final answer.

    Args:
        rows: generations with `right`, `steps` and `first_error`.

    Returns:
        {'0': ..., '4+': ...}; empty without a wrong solution whose first error is known.
    """
    wrong = [row for row in rows if row.get("right") is False and row.get("first_error") is not None]
    names = [*map(str, range(FARTHEST)), f"{FARTHEST}+"]
    distances = [max(0, int(row["steps"]) - 1 - int(row["first_error"])) for row in wrong]
    return {name: sum(min(d, FARTHEST) == i for d in distances) / len(wrong) for i, name in enumerate(names) if wrong}


def error_positions(figure: FigureData, request: Request) -> None:
    """Draws how far before the final answer the first error is, before and after training."""
    before, colour = request.labels["before"], list(request.labels).index("before")
    for task, title in TASKS.items():
        panel = Panel(title, "steps from the first error to the answer", "share of wrong solutions", [])
        drawn = [(before, colour, f"rlmec-{task}")]
        drawn += [(line.label, line.colour, f"{task}-{line.name}") for line in request.lines]
        for label, slot, row in drawn:
            runs = request.runs(row).values()
            found = [shares for out in runs if (shares := error_distances(out.generations))]
            if not found:
                figure.missing.append(f"{task}: {label}")
                continue
            means = {name: mean_and_standard_error([shares[name] for shares in found]) for name in found[0]}
            panel.series += mean_series(label, means, colour=slot, style="bars")
        figure.panels.append(panel)


def _credit(
    figure: FigureData, request: Request, task: str
) -> Iterator[tuple[str, RecipeRow, Mapping[int, StageOutput], dict[str, str]]]:
    """Yields key of the label, row, runs and measures of everything that credits the tokens of a task; before clipping
    there is no sign, only an order."""
    model = RecipeRow(task, "rlmec", "generative_reward_model")
    order = {f"fidelity/{metric}": name for metric, name in CREDIT.items() if metric.startswith("auc")}
    yield "unclipped", model, figure.needs(f"{model.kind}/{task}", request.tree.of(model)), order
    for name in ("rlmec", "ppo-a2c", "vanilla-ppo"):
        row = RecipeRow(f"{task}-{name}", "rlmec", "policy")
        own = {f"credit_{metric}": title for metric, title in CREDIT.items()}
        yield name, row, figure.needs(row.name, request.tree.of(row)), own


def credit_fidelity(figure: FigureData, request: Request) -> None:
    """Draws precision and recall with which negative credit finds wrong tokens, and the area under its curve."""
    for task, title in TASKS.items():
        panel = Panel(title, "", "share of tokens, or chance", [])
        for key, row, outputs, measures in _credit(figure, request, task):
            bars = metric_bars(request.labels[key], outputs, measures, list(request.labels).index(key))
            if outputs and not bars:
                figure.missing.append(row.name if key != "unclipped" else f"{row.kind}/{task}")
            panel.series += bars
        figure.panels.append(panel)


def credit_fidelity_table(figure: FigureData, request: Request) -> None:
    """Fills in the numbers of the fidelity figure."""
    lines = []
    for task in TASKS:
        for key, row, outputs, measures in _credit(figure, request, task):
            if outputs:
                means = {name: metric_by_seed(outputs, metric) for metric, name in measures.items()}
                name = f"{row.name}, before clipping" if key == "unclipped" else row.name
                lines.append(table_line(name, row, [means.get(title) for title in CREDIT.values()]))
    if lines:
        figure.blocks = [{"columns": list(CREDIT.values()), "rows": lines}]


def kept_wrong_steps(figure: FigureData, request: Request) -> None:
    """Fills in the share of accepted rewrites with a right answer that keep a wrong step of the prediction."""
    lines, tree = [], request.tree
    for task, data in DATA.items():
        steps = {
            seed: {row["id"]: row.get("meta", {}).get("steps") for row in tree.data_rows(data, seed, "questions.jsonl")}
            for seed in tree.seeds
        }
        for source, file in (
            each
            for size in ("", "-13b")
            for each in (
                (RecipeRow(f"rlmec-{task}{size}", "shared", "teacher"), "rewrites.jsonl"),
                (RecipeRow(f"{task}{size}", "rlmec", "generative_reward_model"), "grm_rewrites.jsonl"),
            )
        ):
            outputs = figure.needs(f"{source.kind}/{source.name}", tree.of(source))
            found = [_kept_share(output.rows(file), steps[seed]) for seed, output in outputs.items()]
            shares = [share for share in found if share is not None]
            if shares:
                name = f"{source.kind.replace('_', ' ')} {source.name}"
                lines.append(table_line(name, source, [mean_and_standard_error(shares)]))
    if lines:
        figure.blocks = [{"columns": ["Keeps a wrong step"], "rows": lines}]


def _kept_share(rows: Sequence[Mapping[str, Any]], steps: Mapping[str, Any]) -> float | None:
    """Returns the share of accepted rewrites with a wrong step of the prediction; None without one whose right steps
    are known."""
    known = [
        bool(kept_errors(right, row["prediction"], row["rewrite"]))
        for row in rows
        if row["accepted"] and (right := steps.get(row["question_id"])) is not None
    ]
    return sum(known) / len(known) if known else None
