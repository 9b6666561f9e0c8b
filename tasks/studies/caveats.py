"""Caveats of a comparison: a table of predicates over the records of a study's worlds, each with one sentence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.evaluation.statistics import Floats
from rlhf_core.evaluation.worlds import Effect, over_worlds
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.best_trials import TunedRow
from tasks.studies.equal_kl import EVEN, OVER_SFT
from tasks.studies.numbers import WorldNumbers
from tasks.studies.records import Record, Records, is_number
from tasks.studies.tree import OPTIMISER

#: The least training of a row that samples its rollouts while it trains: a policy that hardly moved shows nothing.
LEAST = {"updates": 60, "iterations": 30}
#: The ratio of the tokens that two rows learned from, from which on they are unequal.
MOST_TOKENS = 1.5
#: Metrics at the end with their words, and the ratio from which on they are far apart.
ENDS = (("kl", "KL {:.1f} and {:.1f}", 2.0), ("response_length", "{:.0f} and {:.0f} tokens a response", 1.5))
#: Parts that compared rows have in common, and their names in sentences.
SHARED = {"data": "data", "sft": "SFT models", "evaluation": "evaluation settings"}


@dataclass(frozen=True)
class ComparedRows:
    """Two rows in the cells that a hypothesis counts, with the numbers of the worlds and the rows' trials."""

    spec: StudySpec
    hypothesis: Hypothesis
    numbers: WorldNumbers
    records: Records
    tuned: Mapping[str, TunedRow]

    @property
    def rows(self) -> tuple[str, str]:
        """Returns the row of the hypothesis and the row that it is compared with."""
        return self.spec.compared(self.hypothesis)

    @cached_property
    def cells(self) -> dict[str, float]:
        """Returns the weights of the counted cells."""
        return self.spec.weighted_cells(self.hypothesis)

    @property
    def is_mean(self) -> bool:
        """Returns whether it is a mean over cells and no slope."""
        return self.hypothesis.over is None

    def values(self, metric: str, row: str, cells: Iterable[str] | None = None) -> Floats:
        """Returns a row's values of a metric, [worlds, counted cells]; NaN where there is none."""
        return self.numbers.table(metric, [(cell, row) for cell in (self.cells if cells is None else cells)])

    def runs(self, row: str) -> list[tuple[Record, str, Mapping[str, Any]]]:
        """Returns a row's runs in the counted cells of all worlds, with record and cell."""
        every = itertools.product(self.records.values(), self.cells)
        return [(record, cell, record["cells"][cell]["rows"][row]) for record, cell in every]


class Caveat(NamedTuple):
    """A sentence on what weakens a comparison, by the name of its predicate."""

    about: str
    text: str


def _runs_at(point: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    stated = row.get(OPTIMISER, {})
    return all(stated.get(name) == value for name, value in point.items())


def _tuning(made: ComparedRows) -> list[str]:
    found = []
    for row in dict.fromkeys(made.rows):
        own = made.tuned.get(row)
        if own is None:
            found.append(f"'{row}' was not tuned")
        elif own.broken:
            found.append(f"'{row}' was {next(flag for flag in own.flags if flag.startswith('broken'))}")
        elif own.best is None or not _runs_at(own.point, made.spec.rows[row]):
            found.append(f"'{row}' does not run at the settings that tuning chose")
        elif own.edges:
            edges = " and ".join(f"the {bound}est {name}" for name, bound in own.edges.items())
            found.append(f"'{row}' has {edges} tried")
        trained = {run.get("origin", {}).get("settings", "") for _, _, run in made.runs(row)}
        if own is not None and own.digests.isdisjoint(trained):
            found.append(f"'{row}' was tuned at other settings or stage versions")
    elsewhere = [cell for cell in made.cells if cell not in (made.spec.tuned_at or made.cells)]
    if elsewhere and {*made.rows} & {*made.tuned}:
        found.append(f"tuned in {', '.join(made.spec.tuned_at)}, not in {', '.join(elsewhere)}")
    return found


def _budgets(made: ComparedRows) -> list[str]:
    (row, other), found = made.rows, []
    trials = [made.tuned[name].trials if name in made.tuned else 0 for name in made.rows]
    if trials[0] != trials[1]:
        found.append(f"{trials[0]} trials of '{row}' and {trials[1]} of '{other}'")
    for name in ("updates", "rollouts"):
        one, two = (made.values(f"training/{name}", each) for each in made.rows)
        if not np.array_equal(one, two, equal_nan=True):
            found.append(f"{name} {one.mean():g} of '{row}' and {two.mean():g} of '{other}'")
    tokens = {name: made.values("training/tokens", name).mean() for name in made.rows}
    most, least = sorted(tokens, key=lambda name: -tokens[name])
    if tokens[most] > MOST_TOKENS * tokens[least]:
        found.append(f"'{most}' learned from {tokens[most] / tokens[least]:.1f} times as many tokens as '{least}'")
    for name in made.rows:
        sampled = made.values("training/rollouts", name) > 0
        for amount, enough in LEAST.items():
            fewest = made.values(f"training/{amount}", name)[sampled].min(initial=math.inf)
            if fewest < enough:
                found.append(f"'{name}' has {fewest:g} {amount}, fewer than {enough}")
    return found


def _ends(made: ComparedRows) -> list[str]:
    """Returns the metrics whose means at the end are far apart: in all cells together, else the cells where they
    are."""
    found = []
    for metric, words, most in ENDS:

        def apart(cells: list[str], metric: str = metric, words: str = words, most: float = most) -> str | None:
            means = [float(made.values(metric, row, cells).mean()) for row in made.rows]
            far = 0 < max(means) >= most * max(0.0, min(means)) and not any(map(math.isnan, means))
            return words.format(*means) if far else None

        everywhere = apart([*made.cells])
        parts = {cell: apart([cell]) for cell in made.cells}
        found += [everywhere] if everywhere else [f"{text} in {cell}" for cell, text in parts.items() if text]
    return found


def _origins(made: ComparedRows) -> list[str]:
    origins = [[run.get("origin", {}) for _, _, run in made.runs(row)] for row in made.rows]
    pairs = list(zip(*origins, strict=True))
    return [word for name, word in SHARED.items() if any(one.get(name) != two.get(name) for one, two in pairs)]


def _signs(made: ComparedRows) -> list[str]:
    """Returns the difference in each cell where signs differ by more than the margin; a slope has no such parts."""
    one, two = (made.values(made.spec.metric, row).mean(axis=0) for row in made.rows)
    means, margin = dict(zip(made.cells, map(float, one - two), strict=True)), made.spec.margin or 0.0
    differ = made.is_mean and min(means.values()) < -margin and max(means.values()) > margin
    return [f"{_signed(value)} in {cell}" for cell, value in means.items()] if differ else []


def _step(made: ComparedRows) -> list[str]:
    """Returns whether another step than the last would say otherwise: an effect that is shown (its 95 % interval leaves
    out 0) only at the end, or one larger than its standard error with the other sign at the evaluation before."""
    end = _effect(made, *(made.values(made.spec.metric, row) for row in made.rows))
    if not made.is_mean or end is None:
        return []
    shown = _leaves_out_zero(end)
    pick: Callable[[list[float]], float] = (
        (lambda values: max(values, default=math.nan)) if shown else lambda values: [math.nan, math.nan, *values][-2]
    )
    other = _effect(made, *(_while_training(made, row, pick) for row in made.rows))
    if other is None:
        return []
    if shown:
        return [] if _leaves_out_zero(other) else [f"{_text(other)} at the best evaluations while training"]
    turned = abs(end.estimate) > (end.standard_error or math.inf) and end.estimate * other.estimate < 0
    return [f"{_text(other)} at the evaluation before the last"] if turned else []


def _while_training(made: ComparedRows, row: str, pick: Callable[[list[float]], float]) -> Floats:
    """Returns one value of the evaluations of each run while training, [worlds, counted cells]."""
    found, metric = [], made.spec.metric
    for _, _, run in made.runs(row):
        points = sorted(run.get("curve", {}).get("points", ()), key=lambda point: point["step"])
        found.append(pick([point[metric] for point in points if is_number(point.get(metric))]))
    return np.array(found).reshape(len(made.records), -1)


def _effect(made: ComparedRows, one: Floats, two: Floats) -> Effect | None:
    """Returns the effect of the mean over cells of two rows; None where a run has no value."""
    means = one.mean(axis=1), two.mean(axis=1)
    if np.isnan(means).any():
        return None
    return over_worlds(dict(zip(made.records, means[0] - means[1], strict=True)), scale=float(np.abs(means).max()))


def _leaves_out_zero(effect: Effect) -> bool:
    interval = effect.interval()
    return interval is not None and not interval.lower <= 0 <= interval.upper


def _text(effect: Effect) -> str:
    interval = effect.interval()
    bounds = (effect.estimate, effect.estimate) if interval is None else (interval.lower, interval.upper)
    return f"{_signed(effect.estimate)} ({' to '.join(map(_signed, bounds))})"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _sft(made: ComparedRows) -> list[str]:
    """Returns how often a row ended below its SFT model, and whether neither is shown to end above it: rows are also
    alike where no training did any good."""
    if not made.spec.metric.endswith(OVER_SFT):
        return []
    found, gains = [], []
    for row in made.rows:
        values = made.values(made.spec.metric, row)
        if below := int((values < EVEN).sum()):
            found.append(f"'{row}' ended below it in {below} of {values.size} runs, lowest {np.nanmin(values):.1f}")
        gain = _effect(made, values, np.full_like(values, EVEN)) if made.is_mean else None
        interval = None if gain is None else gain.interval()
        if gain is not None and interval is not None and interval.lower <= 0:
            gains.append(f"'{row}' {_text(gain)}")
    return found + ([f"neither row is shown to end above it: {', '.join(gains)}"] if len(gains) > 1 else [])


def _runs(made: ComparedRows) -> list[str]:
    found = []
    for row in made.rows:
        runs = made.runs(row)
        for word in ("stopped", "diverged"):
            lost = [f"world {record['world']}, {cell}: {run[word]}" for record, cell, run in runs if word in run]
            if lost:
                found.append(f"'{row}' {word} in {len(lost)} of {len(runs)} runs ({lost[0]})")
    return found


#: By name: the opening of the sentence, and the predicate that returns its facts, none where the caveat does not hold.
CAVEATS: Mapping[str, tuple[str, Callable[[ComparedRows], list[str]]]] = {
    "tuning": ("tuning", _tuning),
    "budgets": ("unequal or little training", _budgets),
    "ends": ("ends far apart", _ends),
    "origins": ("not shared", _origins),
    "signs": ("unequal signs", _signs),
    "step": ("depends on the step", _step),
    "SFT": ("the SFT model", _sft),
    "runs": ("runs", _runs),
}


def caveats_of(made: ComparedRows) -> tuple[Caveat, ...]:
    """Returns what a reader must know of the rows that a hypothesis compares."""
    found = ((name, opening, facts_of(made)) for name, (opening, facts_of) in CAVEATS.items())
    return tuple(Caveat(name, f"{opening}: {'; '.join(facts)}") for name, opening, facts in found if facts)
