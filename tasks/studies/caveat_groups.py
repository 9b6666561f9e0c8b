"""Caveats of a study by the comparisons that they weaken, each once: hypotheses share rows, and cells overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.caveats import Caveat, compared
from tasks.studies.verdicts import StudyFinding

#: Subject of a caveat that names its cells itself.
CELLS = "cells"
#: Name of a group whose caveats weaken all comparisons of a study.
ALL = "all comparisons"
Pair = tuple[str, str]


@dataclass(frozen=True)
class CaveatGroup:
    """Caveats that some comparisons have in common.

    Attributes:
        comparisons: the rows compared, in words, such as 'segment less bandit'.
        texts: of the caveats.
    """

    comparisons: str
    texts: tuple[str, ...]


def caveat_groups(spec: StudySpec, findings: Sequence[StudyFinding]) -> list[CaveatGroup]:
    """Returns the caveats of a study's findings, grouped by the comparisons that have them.

    Of caveats with one subject, that of the hypothesis that counts more cells stays. One that holds in a part of the
    cells alone says in which. What weakens all comparisons comes first.
    """
    by_pair: dict[Pair, list[StudyFinding]] = {}
    for finding in findings:
        by_pair.setdefault(compared(spec, finding.hypothesis), []).append(finding)
    pairs_of: dict[str, list[Pair]] = {}
    for pair, own in by_pair.items():
        for text in dict.fromkeys(_texts(spec, own)):
            pairs_of.setdefault(text, []).append(pair)
    groups: dict[tuple[Pair, ...], list[str]] = {}
    for text, pairs in pairs_of.items():
        groups.setdefault(tuple(pairs), []).append(text)
    shown = sorted(groups, key=lambda pairs: len(pairs) < len(by_pair))
    return [CaveatGroup(_name(pairs, len(by_pair)), tuple(groups[pairs])) for pairs in shown]


def caveat_count(spec: StudySpec, findings: Sequence[StudyFinding]) -> int:
    """Returns how many different caveats a study's findings have."""
    return sum(len(group.texts) for group in caveat_groups(spec, findings))


def _texts(spec: StudySpec, findings: Sequence[StudyFinding]) -> Iterable[str]:
    """Yields the caveats of hypotheses that compare the same rows."""
    cells = {finding.name: {*spec.weighted_cells(finding.hypothesis)} for finding in findings}
    every = set().union(*cells.values())
    for finding in findings:
        wider = [other for other in findings if cells[other.name] > cells[finding.name]]
        for caveat in finding.caveats:
            if any(caveat.about in _subjects(other.caveats) for other in wider):
                continue
            part = cells[finding.name] < every and caveat.about != CELLS
            yield caveat.text + (_where(finding.hypothesis) if part else "")


def _subjects(caveats: Iterable[Caveat]) -> set[str]:
    return {caveat.about for caveat in caveats}


def _where(hypothesis: Hypothesis) -> str:
    levels = [
        f"{dial} is {level if isinstance(level, str) else ' or '.join(level)}" for dial, level in hypothesis.at.items()
    ]
    return f" (where {' and '.join(levels)})" if levels else ""


def _name(pairs: Sequence[Pair], number: int) -> str:
    if len(pairs) == number > 1:
        return ALL
    return ", ".join(f"{row} less {other}" for row, other in pairs)
