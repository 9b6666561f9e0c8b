"""Verdicts of the papers' claims over the studies that name them.

A study of a claim holds if all hypotheses that test it do (intersection-union), and contradicts it if one of them is
contradicted; both by p-values that are corrected within the study. The studies of a claim are corrected for their
number (Holm), those included that have worlds to come or are refused: registering a claim several times makes each
study harder to count, and none of them can be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core.evaluation.statistics import holm
from rlhf_core.evaluation.worlds import ALPHA
from tasks.studies.verdicts import StudyFinding, StudyState, Word

#: The state of a claim before a study of it is complete.
OPEN: Literal["open"] = "open"


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
    """Returns what a study says of its claim; None without a claim that has an id, before the last world, and of an
    exploratory study."""
    claim = state.spec.claim
    if claim is None or claim.id is None or not state.findings or state.exploratory:
        return None
    tests = [finding for finding in state.findings if finding.name in claim.tested_by]
    return StudiedClaim(
        _largest(tests),
        min(_on_other_side(finding) for finding in tests),
        any(finding.word == "over a broken baseline" for finding in tests),
        all(finding.word == "equivalent" for finding in tests),
    )


def _largest(tests: Sequence[StudyFinding]) -> float | None:
    known = [p for finding in tests if (p := finding.p_on(finding.hypothesis.side)) is not None]
    return max(known) if len(known) == len(tests) else None


def _on_other_side(finding: StudyFinding) -> float:
    p = finding.p_on("below" if finding.hypothesis.side == "above" else "above")
    return 1.0 if p is None or finding.word == "broken" else p


def claim_word(studies: Sequence[StudiedClaim | None]) -> Word | Literal["open"]:
    """Returns the verdict of a claim over all studies that name it.

    Args:
        studies: what each says; None for one that is not complete or is refused, which counts as p = 1.

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
