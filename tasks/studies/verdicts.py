"""Verdicts of a study: each hypothesis as one number per world, tested over worlds, and only once all have run.

The chance of one or more false 'confirmed' or 'contradicted' in a study, its claim included, is at most .05: the
primary hypothesis is tested at .05, the others only if it is significant, then corrected for their number
(`rlhf_core.evaluation.statistics.gatekept`). The claim of a paper is read from the corrected hypotheses, so that it
never says more than they do. Intervals are of one hypothesis alone, 95 %, not corrected. The t test is
`rlhf_core.evaluation.worlds.over_worlds`.

A study of a claim holds if all hypotheses that test it do (intersection-union), and contradicts it if one of them is
contradicted. The studies of a claim are corrected for their number (Holm), those with worlds to come included:
registering a claim several times makes each study harder to count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlhf_core.evaluation.statistics import gatekept, holm
from rlhf_core.evaluation.worlds import ALPHA, Effect, over_worlds
from tasks.params.studies import Hypothesis, StudySpec, read_study
from tasks.studies.best_trials import TunedRow, read_tuning, tuned_rows, tuning_file
from tasks.studies.caveats import Caveat, ComparedRows, caveats_of
from tasks.studies.numbers import WorldNumbers, numbers_of, weights_of
from tasks.studies.records import Records, read_records, why_no_number
from tasks.studies.registration import Registration, introduced_by, registration_of, why_not_before

#: Reason why a hypothesis beside the primary one is not tested.
NOT_TESTED = "not tested, since the primary hypothesis is not significant"
#: The state of a claim before a study of it is complete.
OPEN: Literal["open"] = "open"
Word = Literal["confirmed", "contradicted", "equivalent", "undecided", "over a broken baseline", "broken"]


@dataclass(frozen=True)
class StudyFinding:
    """A hypothesis with what its worlds say.

    Attributes:
        name, hypothesis: the hypothesis.
        primary: whether it is the study's primary one.
        effect: mean over worlds of the hypothesis' number; None where a world has none.
        p: of the primary hypothesis, not corrected; of the others, corrected for their number and never below the
            primary hypothesis' p; None without a test.
        word: the verdict.
        sees: the smallest effect that these worlds find with a power of 80 %; None without a test, or if held
            back.
        values: the number of each world, by its seed.
        why_no_effect: why there is none, with world, cell and row.
        caveats: what weakens the comparison.
        held_back: it is not tested, since it is not the primary hypothesis and that one is not significant.
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

    def p_on(self, side: str) -> float | None:
        """Returns the corrected p of an effect on a side of 0, 1 for an estimate on the other; None without a test."""
        if self.effect is None or self.p is None:
            return None
        return self.p if (self.effect.estimate > 0) == (side == "above") else 1.0


@dataclass(frozen=True)
class StudyState:
    """A study with the worlds that it has.

    Attributes:
        own, spec: the study's file as git has it, and its settings.
        records: that count, by the worlds' seeds.
        findings: of its hypotheses, the primary one first; empty before the registered number of worlds.
        tuned: its rows with their trials, empty without tuning.
        notes: records, or a tuning, that do not count, in words.
    """

    own: Registration
    spec: StudySpec
    records: Records
    findings: tuple[StudyFinding, ...]
    tuned: Mapping[str, TunedRow] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def numbers(self) -> WorldNumbers:
        """Returns the numbers of the records."""
        return numbers_of(self.spec, self.records)

    @property
    def progress(self) -> str:
        """Returns how many worlds have run."""
        return f"{len(self.records)} of {self.spec.worlds} worlds"


def load_study(root: Path, file: Path) -> StudyState:
    """Returns a registered study with its records, and its verdicts as `findings`, one for each hypothesis.

    Raises:
        RewardsmithError: the file is not committed as it is, or a record or the tuning cannot be read.
    """
    spec, own = read_study(file), registration_of(root, file)
    records, notes = read_records(root, own, spec)
    tuning, late = _tuning_before(root, own.study, records)
    tuned = {} if tuning is None else tuned_rows(tuning)
    findings = findings_of(spec, records, tuned) if len(records) == spec.worlds else ()
    return StudyState(own, spec, records, findings, tuned, (*notes, *late))


def _tuning_before(root: Path, study: str, records: Records) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Returns the record of a study's tuning; None, with a note, where it is not committed before every world."""
    file = tuning_file(study).as_posix()
    tuning = read_tuning(root, study)
    if tuning is None or not records:
        return tuning, []
    commit = introduced_by(root, file)
    if commit is None:
        return None, [f"not counted: {file} is not committed as it is; rows count as not tuned"]
    for later in dict.fromkeys(record["commit"] for record in records.values()):
        if (why := why_not_before(root, commit, later)) is not None:
            return None, [f"not counted: {file}, changed by commit {commit[:10]}: {why}; rows count as not tuned"]
    return tuning, []


def findings_of(
    spec: StudySpec, records: Records, tuned: Mapping[str, TunedRow] | None = None
) -> tuple[StudyFinding, ...]:
    """Returns the findings of all hypotheses over some worlds.

    A hypothesis of which a world has no number has no effect, whatever the other worlds say; it still counts among
    those that are corrected for.
    """
    numbers, tuned = numbers_of(spec, records), tuned or {}
    by_world: dict[str, dict[int, float]] = {}
    effects: dict[str, Effect] = {}
    why_none: dict[str, str] = {}
    for name, hypothesis in spec.hypotheses.items():
        weights = weights_of(spec, hypothesis)
        parts = numbers.table(spec.metric, weights) * np.array([*weights.values()])
        if np.isnan(parts).any():
            world, place = map(int, np.argwhere(np.isnan(parts))[0])
            cell, row = [*weights][place]
            why_none[name] = why_no_number(records[numbers.worlds[world]], cell, row, spec.metric)
        else:
            by_world[name] = {world: math.fsum(line) for world, line in zip(numbers.worlds, parts, strict=True)}
            effects[name] = over_worlds(by_world[name], scale=float(np.abs(parts).max()))
    p_values = {name: effects[name].p if name in effects else None for name in spec.hypotheses}
    every = [1.0 if p is None else p for p in p_values.values()]
    corrected = dict(zip(p_values, gatekept(every), strict=True))
    within, broken = _within_margin(spec, effects), {name for name, row in tuned.items() if row.broken}
    found: list[StudyFinding] = []
    for name, hypothesis in spec.hypotheses.items():
        effect, primary = effects.get(name), not found
        held_back = not primary and every[0] >= ALPHA
        level = ALPHA / (1 if primary else len(every) - 1)
        found.append(
            StudyFinding(
                name,
                hypothesis,
                primary,
                effect,
                p=None if p_values[name] is None else corrected[name],
                word=_word(spec, hypothesis, effect, corrected[name], name in within, broken),
                sees=None if effect is None or held_back else effect.smallest_visible(level),
                values=by_world.get(name, {}),
                why_no_effect=why_none.get(name),
                caveats=caveats_of(ComparedRows(spec, hypothesis, numbers, records, tuned)),
                held_back=held_back,
            )
        )
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


def _word(
    spec: StudySpec, hypothesis: Hypothesis, effect: Effect | None, p: float, within: bool, broken: set[str]
) -> Word:
    if effect is not None and effect.reason is None and p < ALPHA:
        row, other = spec.compared(hypothesis)
        losing = {row, other} if hypothesis.over is not None else {other if effect.estimate > 0 else row}
        if (effect.estimate > 0) != (hypothesis.side == "above"):
            return "broken" if losing & broken else "contradicted"
        return "over a broken baseline" if losing & broken and not hypothesis.collapse else "confirmed"
    return "equivalent" if within else "undecided"


def caveat_groups(spec: StudySpec, findings: Sequence[StudyFinding]) -> dict[str, list[str]]:
    """Returns the caveats of a study's findings, each once, by the comparisons that they weaken, such as 'segment less
    bandit'. Of one caveat of two rows, that of the hypothesis which counts most cells stays."""
    cells = {finding.name: len(spec.weighted_cells(finding.hypothesis)) for finding in findings}
    texts: dict[tuple[str, str], str] = {}
    for finding in sorted(findings, key=lambda one: -cells[one.name]):
        pair = " less ".join(spec.compared(finding.hypothesis))
        for caveat in finding.caveats:
            texts.setdefault((pair, caveat.about), caveat.text)
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts.values()):
        groups.setdefault(", ".join(pair for (pair, _), own in texts.items() if own == text), []).append(text)
    return groups


@dataclass(frozen=True)
class StudiedClaim:
    """Evidence of a complete study on the claim that it names.

    Attributes:
        p_holds: the largest p of the hypotheses that test it, each on its expected side; None where one has no test.
        p_contrary: the smallest p of the same hypotheses on the other side; 1 without a test, and where the losing row
            is broken.
        broken: one of them is a win over a broken baseline.
        equivalent: all of them are equivalent.
    """

    p_holds: float | None
    p_contrary: float
    broken: bool
    equivalent: bool


def studied_claim(state: StudyState) -> StudiedClaim | None:
    """Returns what a study says of its claim; None without a claim that has an id, and before the last world."""
    claim = state.spec.claim
    if claim is None or not state.findings:
        return None
    tests = [finding for finding in state.findings if finding.name in claim.tested_by]
    holds = [finding.p_on(finding.hypothesis.side) for finding in tests]
    other_side = {"above": "below", "below": "above"}
    contrary = [
        1.0 if finding.word == "broken" or (p := finding.p_on(other_side[finding.hypothesis.side])) is None else p
        for finding in tests
    ]
    known = [p for p in holds if p is not None]
    return StudiedClaim(
        max(known) if len(known) == len(holds) else None,
        min(contrary),
        any(finding.word == "over a broken baseline" for finding in tests),
        all(finding.word == "equivalent" for finding in tests),
    )


def claim_word(studies: Sequence[StudiedClaim | None]) -> Word | Literal["open"]:
    """Returns the verdict of a claim over all studies that name it.

    Args:
        studies: what each says; None for one that is not complete, which counts as p = 1.

    Returns:
        contradicted if one study contradicts it; else confirmed if one confirms it, or 'over a broken baseline' if only
        such do; equivalent if all studies are; open while none is complete.
    """
    done = [study for study in studies if study is not None]
    if not done:
        return OPEN
    holds = holm([1.0 if one is None or one.p_holds is None else one.p_holds for one in studies])
    contrary = holm([1.0 if one is None else one.p_contrary for one in studies])
    confirming = [one for one, p in zip(studies, holds, strict=True) if one is not None and p < ALPHA]
    if min(contrary) < ALPHA:
        return "contradicted"
    if confirming:
        return "over a broken baseline" if all(one.broken for one in confirming) else "confirmed"
    return "equivalent" if len(done) == len(studies) and all(one.equivalent for one in done) else "undecided"
