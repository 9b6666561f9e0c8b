"""Ends of training that are far apart: two rows of unequal KL, or with responses of unequal length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec

#: Ratio of two rows' KL, and of their responses' lengths, from which on a comparison says so.
MOST_KL, MOST_LENGTH = 2.0, 1.5


def other_ends(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the KL at which both rows of a hypothesis end, and the length of their responses, where they are far
    apart, by what it is: means over worlds and counted cells, of rows that have them everywhere. A hypothesis at a KL
    reads no ends."""
    if hypothesis.kl is not None:
        return {}
    rows, known = (hypothesis.row, hypothesis.than or spec.main), list(records)

    def means(metric: str) -> list[float] | None:
        values = [
            [record["cells"][cell]["rows"][row].get("metrics", {}).get(metric) for record in known
             for cell in spec.weighted_cells(hypothesis)]
            for row in rows
        ]  # fmt: skip
        if any(not own or any(not isinstance(value, int | float) for value in own) for own in values):
            return None
        return [fmean(own) for own in values]

    found = {}
    if (kl := means("kl")) is not None and max(kl) > MOST_KL * max(0.0, min(kl)):
        found["KL"] = f"'{rows[0]}' ends at KL {kl[0]:.1f}, '{rows[1]}' at {kl[1]:.1f}"
    length = means("response_length")
    if length is not None and max(length) >= MOST_LENGTH * min(length) and min(length) > 0:
        found["length"] = f"responses of '{rows[0]}' have {length[0]:.0f} tokens, of '{rows[1]}' {length[1]:.0f}"
    return found
