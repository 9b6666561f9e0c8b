"""Figures that are more than curves and bars of recorded metrics; `figures` names them by kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scipy import stats

from tasks.report.figure_data import Panel, Request, Series, mean_series
from tasks.report.figures_texts import TASKS, examples, token_spans
from tasks.report.numbers import steps_to_answer
from tasks.report.outputs import stage_record
from tasks.report.worlds import Mean, mean_and_standard_error, mean_of

#: Half of a 95 % interval in standard errors.
HALF = 1.96
REWARD_MODEL_COLUMNS = {
    "accuracy": "Accuracy",
    "bayes_ceiling": "Bayes ceiling",
    "ece": "ECE",
    "fidelity_pearson": "Fidelity (Pearson)",
    "fidelity_spearman": "Fidelity (Spearman)",
    "boundary_f1": "Boundary F1",
}
#: Metrics of an outcome, and what they are called.
OUTCOMES = {"win_rate_vs_sft": "at the end", "peak_win_rate_vs_sft": "at its best"}
#: Tokens before a sentence's end that are shown.
BEFORE_END = 6
#: Steps between the first error and the final answer that have a bar of their own.
FARTHEST = 4
GROUND_TRUTH = "GT (ground truth)"
#: Refiners of wrong solutions, and the metrics of a generative reward model that measure them.
REFINED = {
    "TM (teacher)": ("teacher_edit_distance", "teacher_rewrite_accuracy"),
    "GRM (generative reward model)": ("edit_distance", "rewrite_accuracy"),
    GROUND_TRUTH: ("ground_truth_edit_distance", ""),
}


def reward_models(request: Request) -> Iterator[dict[str, Any]]:
    """Yields accuracy against the Bayes ceiling, calibration and credit-assignment fidelity, one line per model."""
    rows = []
    for line in request.lines:
        if outputs := request.runs(f"reward_model/{line.name}"):
            means = [mean_of(outputs, metric) for metric in REWARD_MODEL_COLUMNS]
            cells = [{"mean": mean[0], "se": mean[1]} if mean else None for mean in means]
            rows.append({"name": line.name, "run": f"{request.paper}/reward_model/{line.name}", "cells": cells})
    if rows:
        yield {"columns": list(REWARD_MODEL_COLUMNS.values()), "rows": rows}


def selection(request: Request) -> Iterator[Panel]:
    """Yields each aspect's inconsistency with the holistic reward, and win rates of greedy over sampled answers."""
    names: Mapping[str, str] = request.options["names"]
    (line,) = request.lines
    found = [output.values("selection.json") for output in request.runs(f"selection/{line.name}").values()]
    if not found:
        return
    aspects, chosen = list(found[0]["aspects"]), {aspect for one in found for aspect in one["chosen"]}
    labels = {aspect: names.get(aspect, aspect) + ("*" if aspect in chosen else "") for aspect in aspects}
    apart = {labels[a]: _over_worlds([one["aspects"][a]["inconsistency"] for one in found]) for a in aspects}
    wins = {names["holistic"]: _over_worlds([one["holistic"]["win_rate"] for one in found])}
    wins |= {labels[a]: _over_worlds([one["aspects"][a]["win_rate"] for one in found]) for a in aspects}
    for title, label, values in (
        ("Inconsistency with the holistic reward", "inconsistency", apart),
        ("Win rate of greedy decoding over pure sampling", "win rate", wins),
    ):
        heights, errors = zip(*(value or (None, None) for value in values.values()), strict=True)
        yield Panel(title, "", "%", [Series(label, [*values], [*heights], [*errors], style="bars", colour=0)])


def _over_worlds(intervals: list[Mapping[str, Any]]) -> Mean | None:
    """Returns the mean and standard error of the seeds' estimates; of a single world, the bootstrap's."""
    known = [one for one in intervals if one["estimate"] is not None]
    if len(known) == 1:
        (one,) = known
        return one["estimate"], None if one["upper"] is None else (one["upper"] - one["lower"]) / (2 * HALF)
    return mean_and_standard_error([one["estimate"] for one in known]) if known else None


def normaliser_fits(request: Request) -> Iterator[Panel]:
    """Yields the mean and standard deviation of segment rewards over their location, with the fits (Eq. 11, 12)."""
    for line in request.lines:
        for output in list(request.runs(f"normaliser/{line.name}").values())[:1]:
            fitted = output.values("normaliser.json")
            for statistic, name in (("mean", "mean"), ("std", "standard deviation")):
                series = list(_fits(fitted["bins"], statistic, fitted["location_aware"]))
                yield Panel(f"{line.label}: {name}", "normalised location p = (t+1)/T", "reward", series)


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


def shaping_functions(_: Request) -> Iterator[Panel]:
    """Yields PAR's functions of the centred reward."""
    import torch

    from rlhf_core.shaping.choices import SHAPINGS

    x = torch.linspace(-6, 6, 121)
    names = {
        "par": "sigmoid",
        "sigmoid_k2": "sigmoidk2",
        "sigmoid_k3": "sigmoidk3",
        "tanh_centered": "tanh",
        "poly": "poly_fitted",
        "sgfc": "sgfc",
    }
    series = [
        Series(name, x.tolist(), SHAPINGS[kind]().curve(x).tolist(), colour=slot)  # type: ignore[attr-defined]
        for slot, (kind, name) in enumerate(names.items())
    ]
    yield Panel("Functions", "centered reward", "RL reward", series)


def _mean_and_half(values: Sequence[float]) -> Mean:
    """Returns a mean and half of its 95 % interval over worlds (Student's t); None with one world."""
    mean, error = sum(values) / len(values), mean_and_standard_error(values)[1]
    return mean, None if error is None else float(stats.t.ppf(0.975, len(values) - 1)) * error


def outcomes(request: Request) -> Iterator[Panel]:
    """Yields the win rates of every method at the end and at its best, a panel for each setting."""
    for prefix, title in request.options["settings"].items():
        runs, series = {line.label: request.runs(prefix + line.name) for line in request.lines}, []
        for slot, (metric, name) in enumerate(OUTCOMES.items()):
            values = {
                label: [out.metrics[metric] for out in of.values() if metric in out.metrics]
                for label, of in runs.items()
            }
            if known := {label: _mean_and_half(own) for label, own in values.items() if own}:
                means, halves = zip(*known.values(), strict=True)
                series.append(Series(name, [*means], [*known], [*halves], style="intervals", colour=slot))
        if series:
            series.append(Series("the SFT model", [50.0, 50.0], [0.0, 1.0], style="guide"))
        yield Panel(title, f"{request.verdicts} win rate over SFT, %", "", series)


def before_ends(request: Request) -> Iterator[Panel]:
    """Yields weighted rewards of a reward model's tokens by their distance from a clause's end."""
    (line,) = request.lines
    shares: dict[int, list[float]] = {}
    for row in examples(request, line.name).get(line.name, {}).values():
        for distance, share in shares_before_ends(row) if row.get("true_clauses") else ():
            shares.setdefault(distance, []).append(share)
    distances = sorted((distance for distance in shares if distance <= BEFORE_END), reverse=True)
    means = {str(-distance): mean_and_standard_error(shares[distance]) for distance in distances}
    series = mean_series("Preference transformer", means, colour=0, style="bars")
    yield Panel("example responses", "tokens from the clause's end", "share of the mean", series)


def shares_before_ends(row: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Returns (tokens up to the end of the clause, absolute weighted reward in units of the response's mean) of every
    token of an example response."""
    spans = token_spans(row["tokens"], row["response"])
    worth = [(start, abs(value)) for start, end, value in row["segments"] if start < end]
    mean = sum(value for _, value in worth) / max(1, len(worth))
    if not mean:
        return []
    ends = [len(row["response"][:end].rstrip()) for _, end, *_ in row["true_clauses"]]
    last = [max((i for i, (start, _) in enumerate(spans) if start < end), default=0) for end in ends]
    ahead = [(min((place - token for place in last if place >= token), default=-1), value) for token, value in worth]
    return [(distance, value / mean) for distance, value in ahead if distance >= 0]


def training_time(request: Request) -> Iterator[Panel]:
    """Yields the seconds of the rows' policy stages, from their records."""
    means: dict[str, Mean | None] = {}
    for line in request.lines:
        records = [record for output in request.runs(line.name).values() if (record := stage_record(output.path))]
        if records:
            means[line.label] = mean_and_standard_error([float(record["seconds"]) for record in records])
    yield Panel("training time", "", "seconds", mean_series("training time", means, colour=0, style="bars"))


def rewriting(request: Request) -> Iterator[Panel]:
    """Yields how much of wrong solutions each refiner edits, and how often the result is right."""
    models = {task: request.runs(f"generative_reward_model/{task}") for task in TASKS}
    teachers = {task: request.runs(f"shared/teacher/rlmec-{task}") for task in TASKS}
    for place, (title, unit) in enumerate((("Edit distance", "tokens"), ("Right rewrites", "share"))):
        series: list[Series] = []
        for slot, (label, metrics) in enumerate(REFINED.items()):
            sources = teachers if label == GROUND_TRUTH else models
            means = {TASKS[task]: mean_of(outputs, metrics[place]) for task, outputs in sources.items()}
            if not metrics[place]:  # ground truths are right
                means = {TASKS[task]: (1.0, None) for task, outputs in models.items() if outputs}
            series += mean_series(label, means, colour=slot, style="bars")
        yield Panel(title, "", unit, series)


def error_positions(request: Request) -> Iterator[Panel]:
    """Yields how far before the final answer the first error is, before and after training."""
    before, colour = request.labels["before"], list(request.labels).index("before")
    for task, title in TASKS.items():
        drawn = [(before, colour, f"rlmec-{task}")]
        drawn += [(line.label, line.colour, f"{task}-{line.name}") for line in request.lines]
        series: list[Series] = []
        for label, slot, row in drawn:
            shares = [
                _shares(found) for out in request.runs(row).values() if (found := steps_to_answer(out.generations))
            ]
            names = shares[0] if shares else ()
            means = {name: mean_and_standard_error([own[name] for own in shares]) for name in names}
            series += mean_series(label, means, colour=slot, style="bars")
        yield Panel(title, "steps from the first error to the answer", "share of wrong solutions", series)


def _shares(distances: Sequence[int]) -> dict[str, float]:
    """Returns the share of each distance, '0' to '4+'."""
    names = [*map(str, range(FARTHEST)), f"{FARTHEST}+"]
    return {name: sum(min(d, FARTHEST) == i for d in distances) / len(distances) for i, name in enumerate(names)}
