"""Effects that say little: of rows that are no better than their SFT models, or by one choice, that of the cells which
are averaged or of the step at which training ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rlhf_core.evaluation.worlds import Effect, against_constant, paired
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.trial_records import EVEN, OVER_SFT

Run = Mapping[str, Any]


def fragile_effects(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns where an effect at the end of training is not shown: in some of its cells alone, at best evaluations. Of
    one that is not shown at the end, either, but larger than its standard error, returns whether it had the other sign
    at the evaluation before.

    Shown is an effect whose 95 % interval over worlds leaves out 0. Slopes, and rows read at a KL, have no such words.
    """
    if hypothesis.over is not None or hypothesis.kl is not None:
        return []
    known, cells = list(records), [*spec.weighted_cells(hypothesis)]
    rows = (hypothesis.row, hypothesis.than or spec.main)
    end = _effect(known, cells, rows, lambda run: _end(run, spec.metric))
    if not _shown(end):
        before = _effect(known, cells, rows, lambda run: _before(run, spec.metric))
        if end is None or before is None or not _turned(end, before):
            return []
        return [f"of the other sign at the evaluation before the last ({_text(before)})"]
    found = []
    if len(cells) > 1:
        alone = {cell: _effect(known, [cell], rows, lambda run: _end(run, spec.metric)) for cell in cells}
        not_shown = [f"{cell} ({_text(effect)})" for cell, effect in alone.items() if effect and not _shown(effect)]
        found += [f"not shown in {', '.join(not_shown)} alone"] if not_shown else []
    best = _effect(known, cells, rows, lambda run: _best(run, spec.metric))
    if best is not None and not _shown(best):
        found.append(f"not shown at the best evaluations while training ({_text(best)})")
    return found


def not_above_sft(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns that neither row is shown to end above its SFT model, with how far above both end: rows are also alike
    where no training did any good. Slopes, and rows read at a KL, have no such words."""
    if hypothesis.over is not None or hypothesis.kl is not None or not spec.metric.endswith(OVER_SFT):
        return []
    known, cells, said = list(records), [*spec.weighted_cells(hypothesis)], []
    for row in (hypothesis.row, hypothesis.than or spec.main):
        values = _means(known, cells, row, lambda run: _end(run, spec.metric))
        above = against_constant({row: values}, row, EVEN) if values else None
        interval = None if above is None else above.interval()
        if above is None or interval is None or interval.lower > 0:
            return []
        said.append(f"'{row}' {_text(above)}")
    return [f"neither row is shown to end above its SFT model ({'; '.join(said)})"]


def _end(run: Run, metric: str) -> float | None:
    value = run.get("metrics", {}).get(metric)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _best(run: Run, metric: str) -> float | None:
    values = [point[metric] for point in run.get("curve", {}).get("points", []) if metric in point]
    return max(values, default=None)


def _before(run: Run, metric: str) -> float | None:
    """Returns the metric at the evaluation before the last."""
    points = sorted(
        (point["step"], point[metric]) for point in run.get("curve", {}).get("points", []) if metric in point
    )
    return points[-2][1] if len(points) > 1 else None


def _effect(
    records: Sequence[Mapping[str, Any]],
    cells: Sequence[str],
    rows: tuple[str, str],
    value_of: Callable[[Run], float | None],
) -> Effect | None:
    """Returns the effect of some cells' mean over worlds; None where a run has no value."""
    values = {row: _means(records, cells, row, value_of) for row in rows}
    return paired(values, *rows) if all(values.values()) and rows[0] != rows[1] else None


def _means(
    records: Sequence[Mapping[str, Any]], cells: Sequence[str], row: str, value_of: Callable[[Run], float | None]
) -> dict[int | str, list[float]]:
    """Returns a row's mean over some cells in each world; none where a run has no value."""
    means: dict[int | str, list[float]] = {}
    for record in records:
        found = [value_of(record["cells"][cell]["rows"].get(row, {})) for cell in cells]
        known = [value for value in found if value is not None]
        if len(known) < len(cells):
            return {}
        means[record["world"]] = [fmean(known)]
    return means


def _shown(effect: Effect | None) -> bool:
    interval = None if effect is None else effect.interval()
    return interval is not None and not interval.lower <= 0 <= interval.upper


def _turned(end: Effect, before: Effect) -> bool:
    """Returns whether an effect larger than its standard error had the other sign before."""
    larger = end.standard_error is not None and abs(end.estimate) > end.standard_error
    return larger and end.estimate * before.estimate < 0


def _text(effect: Effect) -> str:
    interval = effect.interval()
    low, high = (effect.estimate, effect.estimate) if interval is None else (interval.lower, interval.upper)
    return f"{effect.estimate:+.1f}, {low:+.1f} to {high:+.1f}".replace("-", "−")
