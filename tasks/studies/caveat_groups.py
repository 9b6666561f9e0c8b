"""Caveats of a study, each once: by the comparisons that they weaken, or by the row of which alone they speak.
Hypotheses share rows, and cells overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.caveats import Caveat, compared
from tasks.studies.verdicts import StudyFinding

#: Subject of a caveat that names its cells itself.
CELLS = "cells"
#: Name of a group whose caveats weaken all comparisons of a study.
ALL = "all comparisons"
#: Name of a group whose caveats every row has.
EVERY_ROW = "every row"
#: The rows of a comparison, or one row.
Rows = tuple[str, ...]


@dataclass(frozen=True)
class CaveatGroup:
    """Caveats that some comparisons, or some rows, have in common.

    Attributes:
        of: what has them, in words, such as 'segment less bandit' or 'bandit'.
        texts: of the caveats; of one row without its name.
    """

    of: str
    texts: tuple[str, ...]


def caveat_groups(spec: StudySpec, findings: Sequence[StudyFinding]) -> list[CaveatGroup]:
    """Returns the caveats of a study's findings, grouped by the comparisons or rows that have them.

    Of caveats with one subject, that of the hypothesis that counts more cells stays. One that holds in a part of the
    cells alone says in which. What weakens all comparisons comes first, what is of single rows last.
    """
    of_pairs: dict[Rows, list[StudyFinding]] = {}
    of_rows: dict[Rows, list[StudyFinding]] = {}
    for finding in findings:
        pair = compared(spec, finding.hypothesis)
        of_pairs.setdefault(pair, []).append(finding)
        for row in pair:
            of_rows.setdefault((row,), []).append(finding)
    pairs = _grouped(spec, of_pairs)
    groups = {_pairs_name(those, len(of_pairs)): texts for those, texts in pairs.items()}
    first = {ALL: groups.pop(ALL)} if ALL in groups else {}
    rows = {_rows_name(those, len(of_rows)): texts for those, texts in _grouped(spec, of_rows).items()}
    return [CaveatGroup(of, tuple(texts)) for of, texts in {**first, **groups, **rows}.items()]


def caveat_count(spec: StudySpec, findings: Sequence[StudyFinding]) -> int:
    """Returns how many different caveats a study's findings have."""
    return sum(len(group.texts) for group in caveat_groups(spec, findings))


def _grouped(spec: StudySpec, owners: Mapping[Rows, Sequence[StudyFinding]]) -> dict[tuple[Rows, ...], list[str]]:
    """Returns texts by the owners, comparisons or rows, that have them in common."""
    owners_of: dict[str, list[Rows]] = {}
    for owner, findings in owners.items():
        for text in dict.fromkeys(_texts(spec, findings, owner[0] if len(owner) == 1 else "")):
            owners_of.setdefault(text, []).append(owner)
    groups: dict[tuple[Rows, ...], list[str]] = {}
    for text, those in owners_of.items():
        groups.setdefault(tuple(those), []).append(text)
    return groups


def _texts(spec: StudySpec, findings: Sequence[StudyFinding], row: str) -> Iterable[str]:
    """Yields the caveats of a row, without its name, or of the hypotheses that compare the same two rows."""
    cells = {finding.name: {*spec.weighted_cells(finding.hypothesis)} for finding in findings}
    every = set().union(*cells.values())
    for finding in findings:
        wider = [other for other in findings if cells[other.name] > cells[finding.name]]
        for caveat in finding.caveats:
            if caveat.row != row or any(caveat.about in _subjects(other.caveats) for other in wider):
                continue
            part = cells[finding.name] < every and caveat.about != CELLS
            yield caveat.text.removeprefix(f"'{row}' ") + (_where(finding.hypothesis) if part else "")


def _subjects(caveats: Iterable[Caveat]) -> set[str]:
    return {caveat.about for caveat in caveats}


def _where(hypothesis: Hypothesis) -> str:
    levels = [
        f"{dial} is {level if isinstance(level, str) else ' or '.join(level)}" for dial, level in hypothesis.at.items()
    ]
    return f" (where {' and '.join(levels)})" if levels else ""


def _pairs_name(pairs: Sequence[Rows], number: int) -> str:
    if len(pairs) == number > 1:
        return ALL
    return ", ".join(f"{row} less {other}" for row, other in pairs)


def _rows_name(rows: Sequence[Rows], number: int) -> str:
    if len(rows) == number:
        return EVERY_ROW
    return f"{'each of ' if len(rows) > 1 else ''}{', '.join(row for (row,) in rows)}"
