"""Figures that are more than curves and bars of recorded metrics; `figures` names them by kind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.evaluation.worlds import over_worlds
from tasks.report.figure_data import Drawing, Panel, Series, mean_series
from tasks.report.figures_texts import TASKS, examples, token_spans
from tasks.report.numbers import steps_to_answer
from tasks.report.worlds import Mean, mean_and_standard_error, mean_of
from tasks.running.artifacts import stage_record

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
#: Refiners of wrong solutions, the stage that measures each, and its metrics: edit distance, right rewrites.
REFINED = {
    "TM (teacher)": ("generative_reward_model/", "teacher_edit_distance", "teacher_rewrite_accuracy"),
    "GRM (generative reward model)": ("generative_reward_model/", "edit_distance", "rewrite_accuracy"),
    "GT (ground truth)": ("shared/teacher/rlmec-", "ground_truth_edit_distance", ""),
}
#: PAR's functions of the centred reward, and their names in the paper.
FUNCTIONS = {
    "par": "sigmoid", "sigmoid_k2": "sigmoidk2", "sigmoid_k3": "sigmoidk3", "tanh_centered": "tanh",
    "poly": "poly_fitted", "sgfc": "sgfc",
}  # fmt: skip


def reward_models(drawing: Drawing) -> Iterator[dict[str, Any]]:
    """Yields accuracy against the Bayes ceiling, calibration and credit-assignment fidelity, one line per model."""
    rows = []
    for name, *_ in drawing.lines():
        if outputs := drawing.runs(f"reward_model/{name}"):
            means = [mean_of(outputs, metric) for metric in REWARD_MODEL_COLUMNS]
            cells = [{"mean": mean[0], "se": mean[1]} if mean else None for mean in means]
            rows.append({"name": name, "run": f"{drawing.paper}/reward_model/{name}", "cells": cells})
    if rows:
        yield {"columns": list(REWARD_MODEL_COLUMNS.values()), "rows": rows}


def selection(drawing: Drawing) -> Iterator[Panel]:
    """Yields each aspect's inconsistency with the holistic reward, and win rates of greedy over sampled answers."""
    names: Mapping[str, str] = drawing.spec.options["names"]
    (line,) = drawing.lines()
    found = [output.values("selection.json") for output in drawing.runs(f"selection/{line.name}").values()]
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


def normaliser_fits(drawing: Drawing) -> Iterator[Panel]:
    """Yields the mean and standard deviation of segment rewards over their location, with the fits (Eq. 11, 12)."""
    for line in drawing.lines():
        for output in list(drawing.runs(f"normaliser/{line.name}").values())[:1]:
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


def shaping_functions(_: Drawing) -> Iterator[Panel]:
    """Yields PAR's functions of the centred reward."""
    import torch

    from rlhf_core.shaping.choices import SHAPINGS

    x = torch.linspace(-6, 6, 121)
    series = [
        Series(name, x.tolist(), SHAPINGS[kind]().curve(x).tolist(), colour=slot)  # type: ignore[attr-defined]
        for slot, (kind, name) in enumerate(FUNCTIONS.items())
    ]
    yield Panel("Functions", "centered reward", "RL reward", series)


def outcomes(drawing: Drawing) -> Iterator[Panel]:
    """Yields the win rates of every method at the end and at its best, a panel for each setting."""
    for prefix, title in drawing.spec.options["settings"].items():
        runs = {line.label: drawing.runs(prefix + line.name) for line in drawing.lines()}
        series: list[Series] = []
        for slot, (metric, name) in enumerate(OUTCOMES.items()):
            rates = {label: {s: out.metrics.get(metric) for s, out in of.items()} for label, of in runs.items()}
            known = {label: {s: v for s, v in of.items() if v is not None} for label, of in rates.items()}
            effects = {label: over_worlds(of) for label, of in known.items() if of}
            halves = [
                None if own is None else own.upper - own.estimate
                for own in (one.interval() for one in effects.values())
            ]
            if effects:
                means = [one.estimate for one in effects.values()]
                series.append(Series(name, means, [*effects], halves, style="intervals", colour=slot))
        if series:
            series.append(Series("the SFT model", [50.0, 50.0], [0.0, 1.0], style="guide"))
        yield Panel(title, drawing.in_words("{verdicts} win rate over SFT, %"), "", series)


def before_ends(drawing: Drawing) -> Iterator[Panel]:
    """Yields weighted rewards of a reward model's tokens by their distance from a clause's end."""
    (line,) = drawing.lines()
    shares: dict[int, list[float]] = {}
    for row in examples(drawing, line.name).get(line.name, {}).values():
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


def training_time(drawing: Drawing) -> Iterator[Panel]:
    """Yields the seconds of the rows' policy stages, from their records."""
    means: dict[str, Mean | None] = {}
    for line in drawing.lines():
        records = [record for output in drawing.runs(line.name).values() if (record := stage_record(output.path))]
        if records:
            means[line.label] = mean_and_standard_error([float(record["seconds"]) for record in records])
    yield Panel("training time", "", "seconds", mean_series("training time", means, colour=0, style="bars"))


def rewriting(drawing: Drawing) -> Iterator[Panel]:
    """Yields how much of wrong solutions each refiner edits, and how often the result is right."""
    for place, (title, unit) in enumerate((("Edit distance", "tokens"), ("Right rewrites", "share"))):
        series: list[Series] = []
        for slot, (label, (stage, *metrics)) in enumerate(REFINED.items()):
            if metric := metrics[place]:
                means = {name: mean_of(drawing.runs(f"{stage}{task}"), metric) for task, name in TASKS.items()}
            else:  # ground truths are right
                tasks = {task: name for task, name in TASKS.items() if drawing.runs(f"generative_reward_model/{task}")}
                means = dict.fromkeys(tasks.values(), (1.0, None))
            series += mean_series(label, means, colour=slot, style="bars")
        yield Panel(title, "", unit, series)


def error_positions(drawing: Drawing) -> Iterator[Panel]:
    """Yields how far before the final answer the first error is, before and after training."""
    before, colour = drawing.labels["before"], list(drawing.labels).index("before")
    for task, title in TASKS.items():
        rows = [(before, colour, f"rlmec-{task}")]
        rows += [(line.label, line.colour, f"{task}-{line.name}") for line in drawing.lines()]
        series: list[Series] = []
        for label, slot, row in rows:
            found = (steps_to_answer(out.generations) for out in drawing.runs(row).values())
            shares = [_shares(distances) for distances in found if distances]
            means = {name: mean_and_standard_error([own[name] for own in shares]) for name in (shares or [{}])[0]}
            series += mean_series(label, means, colour=slot, style="bars")
        yield Panel(title, "steps from the first error to the answer", "share of wrong solutions", series)


def _shares(distances: list[int]) -> dict[str, float]:
    """Returns the share of each distance, '0' to '4+'."""
    names = [*map(str, range(FARTHEST)), f"{FARTHEST}+"]
    return {name: sum(min(d, FARTHEST) == i for d in distances) / len(distances) for i, name in enumerate(names)}
