"""Caveats beside an effect: rows that were not tuned, or tuned in other cells, or are not alike; unequal budgets,
settings, KL or lengths, little training, broken rows, useless aspect models, cells or slopes of opposite sign, effects
that one cell or the last step carries, rows no better than their SFT model, runs below it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.budgets import little_training, more_tokens, not_as_tuned, unequal, untuned
from tasks.studies.end_of_training import other_ends
from tasks.studies.equal_kl import at_kl
from tasks.studies.fragile_effects import fragile_effects, not_above_sft
from tasks.studies.opposite_signs import opposite_cells, opposite_slopes
from tasks.studies.origins import other_origins
from tasks.studies.row_settings import CellSettings, other_settings
from tasks.studies.shown import trains
from tasks.studies.trial_records import EVEN, OVER_SFT
from tasks.studies.tuned import broken_rows, has_tuned_settings, tuned_rows

#: Percent of right slices less percent of wrong ones that an aspect model calls right; below, it tells little.
TOLD_APART = 30.0

#: The mark of a value at a KL target, and what it says.
ASSUMED = "*"
WHAT_IS_ASSUMED = "read before the row's first evaluation in some world, from the win rate of 50 % assumed at KL 0"


@dataclass(frozen=True)
class Caveat:
    """A sentence on what weakens a comparison.

    Attributes:
        about: its subject; two caveats of one subject differ in the cells that they count.
        text: the sentence.
        row: of which alone it speaks, whatever the row is compared with, and with whose name in quotes it begins; empty
            where it is of both rows.
    """

    about: str
    text: str
    row: str = ""


def caveats_of(
    spec: StudySpec,
    hypothesis: Hypothesis,
    records: Iterable[Mapping[str, Any]],
    tuning: Mapping[str, Any] | None,
    settings: CellSettings | None,
) -> tuple[Caveat, ...]:
    """Returns what a reader must know of the rows that a hypothesis compares.

    Args:
        spec: the study.
        hypothesis: one of its hypotheses.
        records: of its worlds.
        tuning: the record of its tuning, None without one.
        settings: of the optimisers of its rows, None where they cannot be read.
    """
    known, rows = list(records), compared(spec, hypothesis)
    found = _of_tuning(spec, hypothesis, tuning)
    of_both: dict[str, Iterable[str | None]] = {
        "tuning": [untuned(spec, hypothesis, tuning)],
        "budgets": [unequal(spec, hypothesis, known, tuning)],
        "tokens": [more_tokens(spec, hypothesis, known)],
        "settings": other_settings(spec, hypothesis, tuning, settings),
        **{f"end {what}": [text] for what, text in other_ends(spec, hypothesis, known).items()},
        f"assumed at {hypothesis.kl}": _assumed(spec, hypothesis, known),
        "origins": other_origins(spec, hypothesis, known),
        "aspects": _useless_aspects(spec.weighted_cells(hypothesis), rows, known),
        "cells": opposite_cells(spec, hypothesis, known),
        f"slopes over {hypothesis.over}": opposite_slopes(spec, hypothesis, known),
        "fragile": fragile_effects(spec, hypothesis, known),
        "not above SFT": not_above_sft(spec, hypothesis, known),
    }
    found += _numbered("", of_both)
    for row in rows:
        of_row = {
            f"tuning of {row}": not_as_tuned(spec, row, known, tuning),
            f"training of {row}": little_training(row, known),
            f"runs of {row}": _fallen(spec, hypothesis, known, row),
        }
        found += _numbered(row, of_row)
    return tuple(found)


def _numbered(row: str, said: Mapping[str, Iterable[str | None]]) -> list[Caveat]:
    """Returns the sentences of a row, or of both, by their subject; several of one subject are numbered."""
    found = []
    for about, texts in said.items():
        present = [text for text in texts if text is not None]
        found += [Caveat(f"{about} {place}" if place else about, text, row) for place, text in enumerate(present)]
    return found


def _of_tuning(spec: StudySpec, hypothesis: Hypothesis, tuning: Mapping[str, Any] | None) -> list[Caveat]:
    """Returns which rows tuning found broken, chose at the edge of what it tried, or saw in other cells alone."""
    rows, broken = compared(spec, hypothesis), broken_rows(tuning)
    found = [Caveat(f"broken {row}", f"'{row}' was {broken[row]}", row) for row in rows if row in broken]
    tuned = {} if tuning is None else tuned_rows(tuning)
    for row in (row for row in rows if row in tuned and has_tuned_settings(spec, tuned[row])):
        edges = " and ".join(f"the {bound}est {name}" for name, bound in tuned[row].edges.items())
        found += [Caveat(f"edges {row}", f"'{row}' has {edges} tried in tuning", row)] if edges else []
    others = [cell for cell in spec.weighted_cells(hypothesis) if cell not in spec.tuned_at]
    if any(row in tuned for row in rows) and spec.tuned_at and others:
        said = f"tuned in {', '.join(spec.tuned_at)}, not in {', '.join(others)}"
        found.append(Caveat("tuned cells", said))
    return found


def compared(spec: StudySpec, hypothesis: Hypothesis) -> tuple[str, str]:
    """Returns the row of a hypothesis and the row that it is compared with."""
    return hypothesis.row, hypothesis.than or spec.main


def _useless_aspects(cells: Iterable[str], rows: Iterable[str], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the aspect models that rows are paid by and that, in some worlds, call hardly more of right slices right
    than of wrong ones (`TOLD_APART`)."""
    found: dict[str, list[str]] = {}
    for cell in cells if records else ():
        above = [record["cells"][cell].get("above", {}) for record in records]
        for stage in above[0]:
            room, _, aspect = stage.partition("/")
            measured = [each.get(stage, {}).get("metrics", {}) for each in above]
            both_classes = all(0 < each.get("share_right", 0) < 1 for each in measured)  # pairs have no classes
            if room == "aspect_model" and both_classes and _may_pay(records, cell, rows, aspect):
                shares = [_called_right(each) for each in measured]
                useless = sum(right - wrong < TOLD_APART for right, wrong in shares)
                right, wrong = (fmean(each) for each in zip(*shares, strict=True))
                called = f"(right: {right:.0f} % of right slices, {wrong:.0f} % of wrong ones)"
                said = f"{useless} of {len(shares)} worlds of {cell} {called}"
                found.setdefault(aspect, []).extend([said] if useless else [])
    return [f"the aspect model '{name}' tells little in {', '.join(where)}" for name, where in found.items() if where]


def _may_pay(records: Sequence[Mapping[str, Any]], cell: str, rows: Iterable[str], aspect: str) -> bool:
    """Returns whether an aspect may be part of the reward of one of the rows in a cell: it is, by the name of a
    component, or no component has the name of any aspect model."""
    trained = [record["cells"][cell]["rows"].get(row, {}) for record in records for row in rows]
    metrics = (name.partition("train_proxy/") for run in trained for name in run.get("metrics", {}))
    components = {name for before, prefix, name in metrics if prefix and not before}
    aspects = {stage.removeprefix("aspect_model/") for record in records for stage in record["cells"][cell]["above"]}
    return aspect in components or not components & aspects


def _called_right(metrics: Mapping[str, float]) -> tuple[float, float]:
    """Returns the percentages of right and of wrong slices that an aspect model calls right."""
    share, f1, errors = metrics["share_right"], metrics["f1_right"], 1 - metrics["accuracy"]
    # of all slices; F1 is 2 told / (2 told + errors)
    told = f1 * errors / (2 * (1 - f1)) if f1 < 1 else share
    return 100 * told / share, 100 * (1 - (metrics["accuracy"] - told) / (1 - share))


def _assumed(spec: StudySpec, hypothesis: Hypothesis, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how many runs of a hypothesis at a KL are read before their first evaluation, in words."""
    if hypothesis.kl is None:
        return []
    runs = [
        record["cells"][cell]["rows"][row].get("curve", {})
        for record in records
        for cell in spec.weighted_cells(hypothesis)
        for row in compared(spec, hypothesis)
    ]
    count = sum(at_kl(curve, [hypothesis.kl], spec.metric)[0].assumed for curve in runs)
    if not count:
        return []
    where = f"at {hypothesis.kl:g} nats before their first evaluation"
    return [f"{count} of {len(runs)} runs are read {where}, from the win rate of 50 % assumed at KL 0"]


def _fallen(spec: StudySpec, hypothesis: Hypothesis, records: Sequence[Mapping[str, Any]], row: str) -> list[str]:
    """Returns a row's runs that stopped or diverged, and how many ended below the SFT model, the lowest named."""
    stopped, below, runs = [], [], 0
    for record in records:
        for cell in spec.weighted_cells(hypothesis):
            run, where = record["cells"][cell]["rows"][row], f"world {record['world']}, cell '{cell}'"
            value = run.get("metrics", {}).get(spec.metric)
            runs += 1
            if "stopped" in run:
                stopped.append(f"'{row}' stopped in {where}: {run['stopped']}")
                continue
            if "diverged" in run:
                at = run.get("scored_at")
                scores = "it has no score" if at is None else f"it scores its evaluation after step {at}"
                stopped.append(f"'{row}' diverged in {where}, {scores}: {run['diverged']}")
            if spec.metric.endswith(OVER_SFT) and isinstance(value, int | float) and value < EVEN:
                below.append((value, where))
    if not below:
        return stopped
    lowest, where = min(below)
    said = f"'{row}' ended below its SFT model in {len(below)} of {runs} runs, lowest {lowest:.1f} ({where})"
    return [*stopped, said]


@dataclass(frozen=True)
class MeanAtKL:
    """A row's metric at a KL target in a cell; the mean over worlds.

    Attributes:
        row, cell: their names.
        target: nats per response.
        value: None where a world has none: a mean over the other worlds would choose among them.
        reason: why it has none.
        assumed: a world is read before the row's first evaluation.
    """

    row: str
    cell: str
    target: float
    value: float | None
    reason: str | None
    assumed: bool = False

    @property
    def text(self) -> str:
        """Returns the value, marked where it is assumed in part; empty without one."""
        return "" if self.value is None else f"{self.value:.1f}{ASSUMED if self.assumed else ''}"


def rows_at_kl(spec: StudySpec, records: Iterable[Mapping[str, Any]]) -> list[MeanAtKL]:
    """Returns the metric of each row that trains a policy at the study's KL targets, by cell."""
    known, found = list(records), []
    trained = [row for row in spec.rows if trains(known, row)]
    for cell, levels in spec.cells.items() if spec.kl_targets else ():
        for row in (row for row in spec.rows_of(levels) if row in trained):
            curves = [record["cells"][cell]["rows"][row].get("curve", {}) for record in known]
            by_world = [at_kl(curve, spec.kl_targets, spec.metric) for curve in curves]
            for target, points in zip(spec.kl_targets, zip(*by_world, strict=True), strict=True):
                blank = [point.reason for point in points if point.value is None]
                values = [point.value for point in points if point.value is not None]
                reason = f"{len(blank)} of {len(points)} worlds: {blank[0]}" if blank else None
                value, assumed = None if blank else fmean(values), any(point.assumed for point in points)
                found.append(MeanAtKL(row, cell, target, value, reason, assumed))
    return found
