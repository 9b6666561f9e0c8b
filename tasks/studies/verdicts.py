"""Verdicts of a study: each hypothesis as one number per world, tested over worlds, and only once all have run.

The chance of one or more false 'confirmed' or 'contradicted' in a study, its claim included, is at most .05: the
primary hypothesis is tested at .05, the others only if it is significant, then corrected for their number
(`rlhf_core.evaluation.statistics.gatekept`). The claim of a paper is read from the corrected hypotheses, so that it
never says more than they do. Intervals are of one hypothesis alone, 95 %, not corrected. The t test is
`rlhf_core.evaluation.worlds.against_constant`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import gatekept, holm
from rlhf_core.evaluation.worlds import ALPHA, Effect, against_constant
from tasks.params.studies import Hypothesis, StudySpec, read_study
from tasks.studies.caveats import Caveat, caveats_of, compared
from tasks.studies.changed_since_start import (
    claim_changed_since_start,
    refuse_study_changed_since_start,
    tuning_at_start,
)
from tasks.studies.committed import read_records, unknown_records
from tasks.studies.drafts import draft_changes
from tasks.studies.equal_kl import hypothesis_value
from tasks.studies.provenance import code_of_starts, differences
from tasks.studies.registration import Registration, record_file, registration_of
from tasks.studies.row_settings import CellSettings, settings_at
from tasks.studies.start_log import VERDICT, refuse_edited_log, starts
from tasks.studies.tuned import broken_rows

#: Reason why a study whose commits are lost has no verdict.
WHY_EXPLORATORY = "nothing in this history shows that the study was registered before its worlds ran"
#: The word `exploratory` with its reason, for sentences.
EXPLORATORY_AND_WHY = f"exploratory: {WHY_EXPLORATORY}"
#: Reason why a hypothesis beside the primary one is not tested.
NOT_TESTED = "not tested, since the primary hypothesis is not significant"
#: Opening of a message about a record, whose file the number of its world says.
FILE = re.compile(r"^file [^,:]+(: |, )")
Word = Literal[
    "confirmed", "contradicted", "equivalent", "undecided", "over a broken baseline", "broken", "exploratory"
]
Records = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class StudyFinding:
    """A hypothesis with what its worlds say.

    Attributes:
        name: of the hypothesis.
        hypothesis: its row, the row it is compared with, and its words.
        primary: whether it is the study's primary one.
        effect: mean over worlds of the hypothesis' number; None where a world has none.
        p: of the primary hypothesis, not corrected; of the others, corrected for their number and never below the
            primary hypothesis' p; None without a test.
        word: the verdict, or 'exploratory' for none.
        sees: the smallest effect that these worlds find with a power of 80 %; None without a test, or if held
            back.
        held_back: it is not tested, since it is not the primary hypothesis and that one is not significant, or since
            the study is exploratory.
        values: the number of each world, by its index.
        why_no_effect: why there is none, with world, cell and row.
        caveats: what weakens the comparison, such as untuned rows, unequal budgets or little training.
    """

    name: str
    hypothesis: Hypothesis
    primary: bool
    effect: Effect | None
    p: float | None
    word: Word
    sees: float | None
    values: Mapping[int, float]
    why_no_effect: str | None = None
    caveats: tuple[Caveat, ...] = ()
    held_back: bool = False

    @property
    def why_untested(self) -> str | None:
        """Returns why there is no test; None where there is one."""
        if self.why_no_effect is not None:
            return self.why_no_effect
        if self.effect is not None and self.effect.reason is not None:
            return self.effect.reason
        return NOT_TESTED if self.held_back else None

    @property
    def text(self) -> str:
        """Returns the finding in words, such as 'undecided: sees only effects above 3.1'."""
        if self.word != "undecided":
            return self.word
        return f"undecided: {self.why_untested or f'sees only effects above {self.sees:.3g}'}"

    def p_on(self, side: str) -> float | None:
        """Returns the corrected p of an effect on a side of 0, 1 for an estimate on the other; None without a test."""
        if self.effect is None or self.p is None:
            return None
        return self.p if (self.effect.estimate > 0) == (side == "above") else 1.0


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
        uncommitted: records that are not committed yet, and so not counted.
        started: the day of its first start, None before it.
        notes: in what code, versions or threads of its worlds, or drafts of its file, differ.
        exploratory: its worlds ran at commits that are not in this history, so nothing shows that it was
            registered before: no hypothesis is tested, and it says nothing of its claim.
    """

    own: Registration
    spec: StudySpec
    records: Records
    findings: tuple[StudyFinding, ...]
    tuning: Mapping[str, Any] | None = None
    unused: tuple[Path, ...] = ()
    uncommitted: tuple[Path, ...] = ()
    started: str | None = None
    notes: tuple[str, ...] = ()
    exploratory: bool = False

    @property
    def complete(self) -> bool:
        """Returns whether every registered world has its record."""
        return len(self.records) == self.spec.worlds

    @property
    def progress(self) -> str:
        """Returns how many worlds have run, and since when."""
        said = f"{len(self.records)} of {self.spec.worlds} worlds"
        said += f", {len(self.uncommitted)} not committed yet" if self.uncommitted else ""
        return said if self.started is None or self.complete else f"{said}, started {self.started}"


def _parts(spec: StudySpec, hypothesis: Hypothesis, record: Mapping[str, Any]) -> list[float]:
    """Returns what each row of each cell adds to a hypothesis' number in one world."""
    row, other = compared(spec, hypothesis)
    return [
        weight * sign * hypothesis_value(spec, hypothesis, record, cell, name)
        for cell, weight in spec.weighted_cells(hypothesis).items()
        for sign, name in ((1, row), (-1, other))
    ]


def findings_of(
    spec: StudySpec,
    records: Records,
    tuning: Mapping[str, Any] | None = None,
    settings: CellSettings | None = None,
) -> tuple[StudyFinding, ...]:
    """Returns the findings of all hypotheses over some worlds.

    A hypothesis of which a world has no number has no effect, whatever the other worlds say; it still counts among
    those that are corrected for.

    Args:
        spec: the study.
        records: of its worlds by index.
        tuning: the record of its tuning, None without one.
        settings: of the optimisers of its rows, None where they cannot be read.
    """
    numbers: dict[str, dict[int, float]] = {}
    effects: dict[str, Effect] = {}
    why_no_effect: dict[str, str] = {}
    for name, hypothesis in spec.hypotheses.items():
        try:
            parts = {index: _parts(spec, hypothesis, one) for index, one in sorted(records.items())}
        except DataError as error:
            why_no_effect[name] = FILE.sub("", str(error))
        else:
            numbers[name] = {index: math.fsum(each) for index, each in parts.items()}
            effects[name] = over_worlds(numbers[name], max(abs(part) for each in parts.values() for part in each))
    own = dict.fromkeys(spec.hypotheses, 1.0)
    own |= {name: effect.p for name, effect in effects.items() if effect.p is not None}
    corrected = dict(zip(own, gatekept(list(own.values())), strict=True))
    within = _within_margin(spec, effects)
    first, others = next(iter(own)), max(1, len(own) - 1)
    broken = {*broken_rows(tuning)}
    found = []
    for name, hypothesis in spec.hypotheses.items():
        effect, primary = effects.get(name), name == first
        held_back = not primary and own[first] >= ALPHA
        tested = effect is not None and effect.reason is None
        word: Word = "undecided"
        caveats = caveats_of(spec, hypothesis, records.values(), tuning, settings)
        if effect is not None:
            word = _word(spec, hypothesis, effect, corrected[name], name in within, broken)
        if name in within and word != "equivalent":
            said = f"the difference is real, and within the margin of {spec.margin:g}, which counts as none"
            caveats = (Caveat("margin", said), *caveats)
        finding = StudyFinding(
            name,
            hypothesis,
            primary,
            effect,
            corrected[name] if tested else None,
            word,
            None if effect is None or held_back else effect.smallest_visible(ALPHA if primary else ALPHA / others),
            numbers.get(name, {}),
            why_no_effect.get(name),
            caveats,
            held_back,
        )
        found.append(finding)
    return tuple(found)


def _within_margin(spec: StudySpec, effects: Mapping[str, Effect]) -> set[str]:
    """Returns the hypotheses whose differences are within the study's margin: two one-sided tests at .05, corrected for
    their number (Holm). A slope has no margin."""
    if spec.margin is None:
        return set()
    names = [name for name, hypothesis in spec.hypotheses.items() if hypothesis.over is None]
    p_values = [effects[name].p_within(spec.margin) if name in effects else None for name in names]
    corrected = holm([1.0 if p is None else p for p in p_values])
    return {name for name, p in zip(names, corrected, strict=True) if p < ALPHA}


def over_worlds(values: Mapping[int, float], scale: float = 0.0) -> Effect:
    """Returns the mean of one number a world, with its test against 0.

    Args:
        values: of the worlds by index.
        scale: the largest number that those of the worlds are differences of; such as differ by its rounding are equal.
    """
    return against_constant({"": {index: [value] for index, value in values.items()}}, "", 0.0, scale)


def _word(spec: StudySpec, hypothesis: Hypothesis, effect: Effect, p: float, within: bool, broken: set[str]) -> Word:
    if effect.reason is None and p < ALPHA:
        row, other = compared(spec, hypothesis)
        losing = {row, other} if hypothesis.over is not None else {other if effect.estimate > 0 else row}
        if (effect.estimate > 0) != (hypothesis.side == "above"):
            return "broken" if losing & broken else "contradicted"
        return "over a broken baseline" if losing & broken and not hypothesis.collapse else "confirmed"
    return "equivalent" if within else "undecided"


def state_of(root: Path, own: Registration, spec: StudySpec) -> StudyState:
    """Returns a study with its records; findings only where every registered world has one.

    Raises:
        DataError: a record that does not fit the study, or a record of tuning that was changed after its start.
    """
    found, (tuning, tuning_notes) = read_records(root, own, spec), tuning_at_start(root, own.study)
    records, every = found.committed, {own.world_seed(index) for index in range(spec.worlds)}
    lost = tuple(commit[:10] for commit in found.lost)
    commit_notes = (f"worlds ran at commits that are not in this history: {', '.join(lost)}",) if lost else ()
    begun = [line for line in starts(root) if line["study"] == own.study and line["kind"] == VERDICT]
    return StudyState(
        own,
        spec,
        records,
        _findings(root, own, spec, records, tuning, exploratory=bool(lost)),
        tuning,
        tuple(unknown_records(root, own, spec)),
        tuple(record_file(own.study, record["world"]) for record in found.uncommitted.values()),
        min((line["time"][:10] for line in begun), default=None),
        (
            *commit_notes,
            *differences(records.values()),
            *code_of_starts(begun, every),
            *tuning_notes,
            *claim_changed_since_start(root, own.study, spec.claim),
            *draft_changes(root, own.study),
        ),
        bool(lost),
    )


def _findings(
    root: Path,
    own: Registration,
    spec: StudySpec,
    records: Records,
    tuning: Mapping[str, Any] | None,
    *,
    exploratory: bool,
) -> tuple[StudyFinding, ...]:
    """Returns the findings of a study, none before its last world; those of an exploratory one are not tested."""
    if len(records) < spec.worlds:
        return ()
    commit = next(iter(records.values()))["commit"]
    found = findings_of(spec, records, tuning, settings_at(root, commit, own.study, spec))
    if not exploratory:
        return found
    return tuple(replace(one, p=None, word="exploratory", sees=None, held_back=True) for one in found)


def load_study(root: Path, file: Path) -> StudyState:
    """Returns a registered study with its records.

    Raises:
        RewardsmithError: it is not registered, was changed after its start, or has a record that does not fit.
    """
    spec, own = read_study(file), registration_of(root, file)
    refuse_edited_log(root)
    refuse_study_changed_since_start(root, own)
    return state_of(root, own, spec)
