"""Ends of training that are far apart: two rows of unequal KL, or with responses of unequal length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec

#: What is compared -> its metric, the ratio of two rows' means from which on a comparison says so, and the words.
ENDS = {
    "KL": ("kl", 2.0, "'{row}' ends at KL {own:.1f}, '{other}' at {others:.1f}"),
    "length": ("response_length", 1.5, "responses of '{row}' have {own:.0f} tokens, of '{other}' {others:.0f}"),
}


def other_ends(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the KL at which both rows of a hypothesis end, and the length of their responses, where they are far
    apart, by what it is: means over worlds and all counted cells; else, of each cell in which they are. A hypothesis at
    a KL reads no ends."""
    if hypothesis.kl is not None:
        return {}
    rows, cells, known = (hypothesis.row, hypothesis.than or spec.main), spec.weighted_cells(hypothesis), list(records)
    found = {}
    for what, (metric, ratio, words) in ENDS.items():

        def said(where: Sequence[str], metric: str = metric, ratio: float = ratio, words: str = words) -> str | None:
            means = _means(known, where, rows, metric)
            if means is None or not max(means) > 0 or max(means) < ratio * max(0.0, min(means)):
                return None
            return words.format(row=rows[0], other=rows[1], own=means[0], others=means[1])

        if not (text := said([*cells])):
            alone: dict[str, list[str]] = {}
            for cell in cells:
                alone.setdefault(said([cell]) or "", []).append(cell)
            alone.pop("", None)
            text = "; ".join(f"{words} in {', '.join(where)}" for words, where in alone.items())
        if text:
            found[what] = text
    return found


def _means(
    records: Sequence[Mapping[str, Any]], cells: Sequence[str], rows: Sequence[str], metric: str
) -> list[float] | None:
    """Returns a metric's mean of each row over worlds and cells; None where a run has no value."""
    values = [
        [record["cells"][cell]["rows"][row].get("metrics", {}).get(metric) for record in records for cell in cells]
        for row in rows
    ]
    if any(not own or any(not isinstance(value, int | float) for value in own) for own in values):
        return None
    return [fmean(own) for own in values]
