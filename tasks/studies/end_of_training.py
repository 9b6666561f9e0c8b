"""Ends of training that are far apart: two rows of unequal KL, or with responses of unequal length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec


@dataclass(frozen=True)
class End:
    """A quantity in which two rows may end far apart.

    Attributes:
        metric: of the rows' stages.
        ratio: of both rows' means, from which on they are far apart.
        sentence: with the names of both rows and their means.
    """

    metric: str
    ratio: float
    sentence: str

    def far_apart(self, means: Sequence[float]) -> bool:
        """Returns whether one of two means is at least `ratio` times the other one."""
        return max(means) > 0 and max(means) >= self.ratio * max(0.0, min(means))


ENDS = {
    "KL": End("kl", 2.0, "'{}' ends at KL {:.1f}, '{}' at {:.1f}"),
    "length": End("response_length", 1.5, "responses of '{}' have {:.0f} tokens, of '{}' {:.0f}"),
}


def other_ends(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the KL at which both rows of a hypothesis end, and the length of their responses, where they are far
    apart, by the name in `ENDS`: means over worlds and all counted cells; else, of each cell in which they are. A
    hypothesis at a KL reads no ends."""
    if hypothesis.kl is not None:
        return {}
    rows, cells, known = (hypothesis.row, hypothesis.than or spec.main), [*spec.weighted_cells(hypothesis)], [*records]
    found = {
        name: _sentence(end, rows, cells, known) or _by_cell(end, rows, cells, known) for name, end in ENDS.items()
    }
    return {name: text for name, text in found.items() if text}


def _by_cell(end: End, rows: tuple[str, str], cells: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the sentences on single cells, each with the cells that it is true of."""
    cells_of: dict[str, list[str]] = {}
    for cell in cells:
        if text := _sentence(end, rows, [cell], records):
            cells_of.setdefault(text, []).append(cell)
    return "; ".join(f"{text} in {', '.join(those)}" for text, those in cells_of.items())


def _sentence(end: End, rows: tuple[str, str], cells: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the sentence on rows that end far apart in the mean of some cells; '' where they do not, or where a run
    has no value."""
    values = [
        [record["cells"][cell]["rows"][row].get("metrics", {}).get(end.metric) for record in records for cell in cells]
        for row in rows
    ]
    if any(not own or any(not isinstance(value, int | float) for value in own) for own in values):
        return ""
    means = [fmean(own) for own in values]
    return end.sentence.format(rows[0], means[0], rows[1], means[1]) if end.far_apart(means) else ""
