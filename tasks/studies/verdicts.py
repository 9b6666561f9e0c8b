"""Verdicts of a study: each hypothesis as one number per world, tested over worlds, and only once all have run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_core.evaluation.statistics import holm
from rlhf_core.evaluation.worlds import ALPHA, Effect, against
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.records import read_records, value_of
from tasks.studies.registration import Registration

Word = Literal["confirmed", "contradicted", "equivalent", "undecided"]
Records = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class StudyFinding:
    """A hypothesis with what its worlds say.

    Attributes:
        name, says: of the hypothesis.
        primary: whether it is the study's primary one.
        effect: mean over worlds of the hypothesis' number.
        p: the primary one's own; of others corrected for their number (Holm); None without a test.
        word: what was found, with `sees` where it is undecided.
        sees: the smallest effect that these worlds find with a power of 80 %; None without a test.
        values: the number of each world, by its index.
    """

    name: str
    says: str
    primary: bool
    effect: Effect
    p: float | None
    word: Word
    sees: float | None
    values: Mapping[int, float]

    @property
    def text(self) -> str:
        """Returns the finding in words, such as 'undecided: sees only effects above 3.1'."""
        if self.word != "undecided":
            return self.word
        return (
            f"undecided: {self.effect.reason}"
            if self.sees is None
            else f"undecided: sees only effects above {self.sees:.3g}"
        )


@dataclass(frozen=True)
class StudyState:
    """A study with the worlds that it has; `findings` is empty before the registered number of worlds."""

    own: Registration
    spec: StudySpec
    records: Records
    findings: tuple[StudyFinding, ...]

    @property
    def complete(self) -> bool:
        """Returns whether every registered world has its record."""
        return len(self.records) == self.spec.worlds


def world_value(spec: StudySpec, hypothesis: Hypothesis, record: Mapping[str, Any]) -> float:
    """Returns a hypothesis' number in one world: the weighted sum over cells of the row less the other row."""
    rows = hypothesis.row, hypothesis.than or spec.main
    return math.fsum(
        weight * (value_of(record, cell, rows[0], spec.metric) - value_of(record, cell, rows[1], spec.metric))
        for cell, weight in spec.weighted_cells(hypothesis).items()
    )


def findings_of(spec: StudySpec, records: Records) -> tuple[StudyFinding, ...]:
    """Returns the findings of all hypotheses over some worlds.

    Raises:
        DataError: a row that stopped or has no finite number in some world.
    """
    numbers = {
        name: {index: world_value(spec, hypothesis, record) for index, record in sorted(records.items())}
        for name, hypothesis in spec.hypotheses.items()
    }
    effects = {
        name: against({name: {index: [value] for index, value in values.items()}}, name, 0.0)
        for name, values in numbers.items()
    }
    first, *others = spec.hypotheses
    own = {name: 1.0 if effects[name].p is None else float(effects[name].p or 0.0) for name in effects}
    corrected = dict(zip(others, holm([own[name] for name in others]), strict=True)) | {first: own[first]}
    return tuple(
        _finding(spec, name, effects[name], corrected[name], numbers[name], count=len(others))
        for name in spec.hypotheses
    )


def _finding(
    spec: StudySpec, name: str, effect: Effect, p: float, values: Mapping[int, float], *, count: int
) -> StudyFinding:
    hypothesis, primary = spec.hypotheses[name], name == next(iter(spec.hypotheses))
    word: Word = "undecided"
    if effect.reason is None and p < ALPHA:
        word = "confirmed" if (effect.estimate > 0) == (hypothesis.side == "above") else "contradicted"
    elif spec.margin is not None and hypothesis.over is None and effect.equivalent(spec.margin):
        word = "equivalent"
    sees = effect.smallest_visible(ALPHA if primary else ALPHA / max(1, count))
    tested = None if effect.reason else p
    return StudyFinding(name, hypothesis.says, primary, effect, tested, word, sees, values)


def state_of(root: Path, own: Registration, spec: StudySpec) -> StudyState:
    """Returns a study with its records; findings only where every registered world has one.

    Raises:
        DataError: a record that does not fit the study.
    """
    records = read_records(root, own, spec)
    return StudyState(own, spec, records, findings_of(spec, records) if len(records) == spec.worlds else ())
