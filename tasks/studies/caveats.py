"""Caveats beside an effect: rows that were not tuned, or tuned in other cells, or are not alike; unequal budgets,
little training, broken rows, useless aspect models, cells of opposite sign, runs below their SFT model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.budgets import little_training, more_tokens, unequal, untuned
from tasks.studies.equal_kl import at_kl
from tasks.studies.origins import other_origins
from tasks.studies.shown import trains
from tasks.studies.trial_records import EVEN, OVER_SFT
from tasks.studies.tuned import broken_rows, has_tuned_settings, tuned_rows


def caveats_of(
    spec: StudySpec,
    hypothesis: Hypothesis,
    records: Iterable[Mapping[str, Any]],
    tuning: Mapping[str, Any] | None,
) -> tuple[str, ...]:
    """Returns what a reader must know of the rows that a hypothesis compares, in words.

    Args:
        spec: the study.
        hypothesis: one of its hypotheses.
        records: of its worlds.
        tuning: the record of its tuning, None without one.
    """
    known, rows = list(records), compared(spec, hypothesis)
    broken = broken_rows(tuning)
    found = [f"'{row}' was {broken[row]}" for row in rows if row in broken]
    tuned = {} if tuning is None else tuned_rows(tuning)
    for row in (row for row in rows if row in tuned and has_tuned_settings(spec, tuned[row])):
        edges = " and ".join(f"{name} at the {bound}est value" for name, bound in tuned[row].edges.items())
        found += [f"tuning of '{row}' chose {edges} that it tried"] if edges else []
    counted = spec.weighted_cells(hypothesis)
    if (
        any(row in tuned for row in rows)
        and spec.tuned_at
        and (others := [c for c in counted if c not in spec.tuned_at])
    ):
        found.append(f"rows were tuned in {', '.join(spec.tuned_at)}, not in {', '.join(others)}")
    budgets = unequal(spec, hypothesis, known, tuning)
    more = untuned(spec, hypothesis, tuning), budgets, more_tokens(spec, hypothesis, known)
    found += [said for said in more if said is not None]
    found += other_origins(spec, hypothesis, known)
    found += little_training(spec, hypothesis, known)
    found += _useless_aspects(counted, known)
    found += _opposite_cells(spec, hypothesis, known)
    for row in rows:
        found += _fallen(spec, hypothesis, known, row)
    return tuple(found)


def compared(spec: StudySpec, hypothesis: Hypothesis) -> tuple[str, str]:
    """Returns the row of a hypothesis and the row that it is compared with."""
    return hypothesis.row, hypothesis.than or spec.main


def _useless_aspects(cells: Iterable[str], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the aspect models that in some cells are right less often than their larger class alone would be."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for cell in cells if records else ():
        above = [record["cells"][cell].get("above", {}) for record in records]
        for stage in above[0]:
            measured = [each.get(stage, {}).get("metrics", {}) for each in above]
            if stage.startswith("aspect_model/") and all({"accuracy", "majority"} <= each.keys() for each in measured):
                right, larger = (100 * fmean(each[name] for each in measured) for name in ("accuracy", "majority"))
                if right < larger:
                    found.setdefault(stage.partition("/")[2], []).append((cell, right, larger))
    return [
        f"the aspect model '{name}' tells nothing in {', '.join(cell for cell, *_ in worse)}: right on "
        f"{fmean(right for _, right, _ in worse):.0f} % of slices, where the larger class is "
        f"{fmean(larger for *_, larger in worse):.0f} %"
        for name, worse in found.items()
    ]


def _opposite_cells(spec: StudySpec, hypothesis: Hypothesis, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the mean difference in each cell, if a hypothesis averages cells that differ in sign by more than the
    margin."""
    if hypothesis.over is not None or hypothesis.kl is not None:
        return []
    row, other = compared(spec, hypothesis)
    means: dict[str, float] = {}
    for cell in spec.weighted_cells(hypothesis):
        runs = [record["cells"][cell]["rows"] for record in records]
        both = [[run[name].get("metrics", {}).get(spec.metric) for name in (row, other)] for run in runs]
        if not both or any(not isinstance(value, int | float) for pair in both for value in pair):
            return []
        means[cell] = fmean(one - two for one, two in both)
    margin = spec.margin or 0.0
    if not means or min(means.values()) >= -margin or max(means.values()) <= margin:
        return []
    signed = {cell: f"{value:+.1f}".replace("-", "−") for cell, value in means.items()}
    return ["cells differ in sign: " + ", ".join(f"{text} in {cell}" for cell, text in signed.items())]


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
    """

    row: str
    cell: str
    target: float
    value: float | None
    reason: str | None


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
                found.append(MeanAtKL(row, cell, target, None if blank else fmean(values), reason))
    return found
