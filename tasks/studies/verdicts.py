"""Verdicts of a study: each hypothesis as one number per world, tested over worlds, and only once all have run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import holm
from rlhf_core.evaluation.worlds import ALPHA, Effect, against
from tasks.params.studies import Hypothesis, StudySpec, read_study
from tasks.studies.caveats import caveats_of, compared
from tasks.studies.records import read_records, unknown_records, value_of
from tasks.studies.registration import Registration, check_log, check_unchanged, registration
from tasks.studies.trial_records import read_tuning
from tasks.studies.tuned import broken_rows

Word = Literal["confirmed", "contradicted", "equivalent", "undecided", "over a broken baseline"]
Records = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class StudyFinding:
    """A hypothesis with what its worlds say.

    Attributes:
        name: of the hypothesis.
        hypothesis: its row, the row it is compared with, and its words.
        primary: whether it is the study's primary one.
        effect: mean over worlds of the hypothesis' number; None where a world has none.
        p: the primary one's own; of others corrected for their number (Holm); None without a test.
        word: what was found.
        sees: the smallest effect that these worlds find with a power of 80 %; None without a test.
        values: the number of each world, by its index.
        refused: why there is no effect, with world, cell and row.
        caveats: what is to be known of the rows.
    """

    name: str
    hypothesis: Hypothesis
    primary: bool
    effect: Effect | None
    p: float | None
    word: Word
    sees: float | None
    values: Mapping[int, float]
    refused: str | None = None
    caveats: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Returns the finding in words, such as 'undecided: sees only effects above 3.1'."""
        if self.refused is not None:
            return f"undecided: {self.refused}"
        if self.word != "undecided" or self.effect is None:
            return self.word
        return (
            f"undecided: {self.effect.reason}"
            if self.sees is None
            else f"undecided: sees only effects above {self.sees:.3g}"
        )


@dataclass(frozen=True)
class StudyState:
    """A study with the worlds that it has; `findings` is empty before the registered number of worlds.

    Attributes:
        own: the study's file as git has it.
        spec: its settings.
        records: of its worlds by index.
        findings: of its hypotheses, the primary one first.
        tuning: the record of its tuning, None without one.
        unused: files among its records that none of its worlds has.
    """

    own: Registration
    spec: StudySpec
    records: Records
    findings: tuple[StudyFinding, ...]
    tuning: Mapping[str, Any] | None = None
    unused: tuple[Path, ...] = ()

    @property
    def complete(self) -> bool:
        """Returns whether every registered world has its record."""
        return len(self.records) == self.spec.worlds


def world_value(spec: StudySpec, hypothesis: Hypothesis, record: Mapping[str, Any]) -> float:
    """Returns a hypothesis' number in one world: the weighted sum over cells of the row less the other row.

    Raises:
        DataError: a row that stopped or has no finite number.
    """
    row, other = compared(spec, hypothesis)
    return math.fsum(
        weight * (value_of(record, cell, row, spec.metric) - value_of(record, cell, other, spec.metric))
        for cell, weight in spec.weighted_cells(hypothesis).items()
    )


def findings_of(spec: StudySpec, records: Records, tuning: Mapping[str, Any] | None = None) -> tuple[StudyFinding, ...]:
    """Returns the findings of all hypotheses over some worlds.

    A hypothesis of which a world has no number has no effect, whatever the other worlds say; it still counts among
    those that are corrected for.
    """
    numbers: dict[str, dict[int, float]] = {}
    refused: dict[str, str] = {}
    for name, hypothesis in spec.hypotheses.items():
        try:
            numbers[name] = {index: world_value(spec, hypothesis, one) for index, one in sorted(records.items())}
        except DataError as error:
            refused[name] = str(error)
    effects = {name: over_worlds(values) for name, values in numbers.items()}
    own = dict.fromkeys(spec.hypotheses, 1.0)
    own |= {name: effect.p for name, effect in effects.items() if effect.p is not None}
    first, *others = spec.hypotheses
    corrected = dict(zip(others, holm([own[name] for name in others]), strict=True)) | {first: own[first]}
    broken = {*broken_rows(tuning)}
    found = []
    for name, hypothesis in spec.hypotheses.items():
        effect, primary = effects.get(name), name == first
        tested = effect is not None and effect.reason is None
        finding = StudyFinding(
            name,
            hypothesis,
            primary,
            effect,
            corrected[name] if tested else None,
            "undecided" if effect is None else _word(spec, hypothesis, effect, corrected[name], broken),
            None if effect is None else effect.smallest_visible(ALPHA if primary else ALPHA / len(others)),
            numbers.get(name, {}),
            refused.get(name),
            caveats_of(spec, hypothesis, records.values(), tuning),
        )
        found.append(finding)
    return tuple(found)


def over_worlds(values: Mapping[int, float]) -> Effect:
    """Returns the mean of one number a world, with its test against 0."""
    return against({"": {index: [value] for index, value in values.items()}}, "", 0.0)


def _word(spec: StudySpec, hypothesis: Hypothesis, effect: Effect, p: float, broken: set[str]) -> Word:
    if effect.reason is None and p < ALPHA:
        if (effect.estimate > 0) != (hypothesis.side == "above"):
            return "contradicted"
        row, other = compared(spec, hypothesis)
        losing = {row, other} if hypothesis.over is not None else {other if effect.estimate > 0 else row}
        return "over a broken baseline" if losing & broken and not hypothesis.collapse else "confirmed"
    if spec.margin is not None and hypothesis.over is None and effect.equivalent(spec.margin):
        return "equivalent"
    return "undecided"


def state_of(root: Path, own: Registration, spec: StudySpec) -> StudyState:
    """Returns a study with its records; findings only where every registered world has one.

    Raises:
        DataError: a record that does not fit the study.
    """
    records, tuning = read_records(root, own, spec), read_tuning(root, own.study)
    findings = findings_of(spec, records, tuning) if len(records) == spec.worlds else ()
    return StudyState(own, spec, records, findings, tuning, tuple(unknown_records(root, own, spec)))


def load_study(root: Path, file: Path) -> StudyState:
    """Returns a registered study with its records.

    Raises:
        RewardsmithError: it is not registered, was changed after its start, or has a record that does not fit.
    """
    spec, own = read_study(file), registration(root, file)
    check_log(root)
    check_unchanged(root, own)
    return state_of(root, own, spec)
