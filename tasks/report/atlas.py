"""The atlas: every study with its findings over worlds, and the papers' claims that studies name, each with its verdict
over all its studies; findings as sentences and numbers with units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from rlhf_core.evaluation.worlds import Effect
from rlhf_core.published.paper_claims import StatedClaim, stated_claims
from rlhf_core.published.printed_tables import PAPERS
from tasks.params.studies import FOLDER, Hypothesis, StudySpec, read_study
from tasks.params.study_claims import PaperClaim, tested_as_stated
from tasks.report.paper_tables import p_value
from tasks.studies.frame import compared
from tasks.studies.verdicts import (
    NOT_TESTED,
    StudiedClaim,
    StudyFinding,
    StudyState,
    Word,
    claim_word,
    load_study,
    studied_claim,
)

#: Verdicts of a hypothesis or a claim; beside them, 'open' is the word for none.
WORDS: tuple[Word, ...] = ("confirmed", "contradicted", "equivalent", "undecided", "over a broken baseline", "broken")
#: The unit of rates in percent.
POINTS = "points"


@dataclass(frozen=True)
class AtlasStudy:
    """A study as the atlas shows it.

    Attributes:
        name: of its file.
        spec: None where the file cannot be read.
        state: its records and findings; None where it is refused.
        problem: why it is refused.
    """

    name: str
    spec: StudySpec | None
    state: StudyState | None
    problem: str | None

    @property
    def title(self) -> str:
        """Returns the study's title, or its name where the file cannot be read."""
        return self.name if self.spec is None else self.spec.title

    @property
    def primary(self) -> StudyFinding | None:
        """Returns the primary finding; None before the last registered world."""
        return self.state.findings[0] if self.state is not None and self.state.findings else None

    @property
    def records(self) -> list[Mapping[str, Any]]:
        """Returns the records of its worlds in their order."""
        return [] if self.state is None else [*self.state.records.values()]

    @property
    def claim(self) -> PaperClaim | None:
        """Returns the claim of a paper's file that it names; None where it names none or is refused."""
        return None if self.state is None else self.state.spec.claim

    @property
    def says(self) -> StudiedClaim | None:
        """Returns what it says of its claim; None before its last world."""
        return studied_claim(self.state) if self.state is not None and self.claim is not None else None

    @property
    def claim_word(self) -> str:
        """Returns the verdict on its claim by this study alone, how many worlds have run without one."""
        return claim_word([self.says]) if self.says is not None else self.state.progress if self.state else "refused"

    @property
    def tested(self) -> str:
        """Returns in words how much of its claim it tests as the claims file states it."""
        assert self.state is not None
        assert self.claim is not None
        whole, stated = len(tested_as_stated(self.claim, self.state.spec)), self.claim.stated
        return f"{whole} of {len(stated.pairs) + stated.others} comparisons as stated"


@dataclass(frozen=True)
class AskedClaim:
    """A claim of a paper with all studies that name it, in the order of their names."""

    paper: str
    id: str
    studies: tuple[AtlasStudy, ...]

    @property
    def stated(self) -> StatedClaim:
        """Returns the claim's sentence and source."""
        return stated_claims(self.paper)[self.id]

    @property
    def word(self) -> str:
        """Returns the verdict over all its studies, 'open' while none is complete."""
        return claim_word([one.says for one in self.studies])


def read_atlas(root: Path) -> tuple[AtlasStudy, ...]:
    """Returns every study of a repository, complete ones first. A study that is refused has its problem.

    Raises:
        DataError: there is no study.
    """
    studies = [_study(root, file) for file in sorted((root / FOLDER).glob("*.yaml"), key=lambda file: file.stem)]
    if not studies:
        raise DataError(
            "there is no study",
            file=FOLDER.as_posix(),
            remedy="Write studies/NAME.yaml, as studies.md of the documentation shows",
        )
    return tuple(sorted(studies, key=lambda study: study.primary is None))


def _study(root: Path, file: Path) -> AtlasStudy:
    spec = None
    try:
        spec = read_study(file)
        return AtlasStudy(file.stem, spec, load_study(root, file), None)
    except RewardsmithError as error:
        return AtlasStudy(file.stem, spec, None, str(error))


def asked_claims(studies: Sequence[AtlasStudy]) -> list[AskedClaim]:
    """Returns the claims that studies name, in the order of the papers and of their files."""
    named: dict[tuple[str, str], list[AtlasStudy]] = {}
    for study in studies:
        if (claim := study.claim) is not None:
            named.setdefault((claim.paper, claim.id), []).append(study)
    order = [(paper, claim) for paper in PAPERS for claim in stated_claims(paper)]
    return [AskedClaim(*key, tuple(named[key])) for key in order if key in named]


def unit(spec: StudySpec) -> str:
    """Returns the unit of a metric: points of a rate in percent, such as the average of tasks; else its name."""
    in_percent = any(part in spec.metric for part in ("win_rate", "accuracy")) or spec.metric == "average"
    return POINTS if in_percent else spec.metric


def amount(spec: StudySpec, value: float, *, sign: bool = True) -> str:
    """Returns a number in the unit of a study's metric, with a true minus."""
    digits = 1 if unit(spec) == POINTS else 3
    plus = "+" if sign and value > 0 else ""
    return f"{value + 0.0:{plus}.{digits}f}".replace("-", "−")  # a zero has no sign, a rounded number its own


def interval_text(spec: StudySpec, effect: Effect) -> str:
    """Returns the 95 % interval as '+1.1 to +7.3', nothing without a test."""
    interval = effect.interval()
    return "" if interval is None else f"{amount(spec, interval.lower)} to {amount(spec, interval.upper)}"


def measured(spec: StudySpec, hypothesis: Hypothesis) -> str:
    """Returns the quantity of a hypothesis in words, such as 'segment − bandit, per level of length'."""
    row, other = compared(spec, hypothesis)
    parts = [f"{row} − {other}"]
    if hypothesis.over is not None:
        parts.append(f"per level of {hypothesis.over}")
    parts += [f"{dial} {level}" for dial, level in _levels(hypothesis, " and ").items()]
    return ", ".join(parts)


def _levels(hypothesis: Hypothesis, joined: str) -> dict[str, str]:
    """Returns the levels that a hypothesis is about by dial."""
    return {dial: level if isinstance(level, str) else joined.join(level) for dial, level in hypothesis.at.items()}


def tested_p(finding: StudyFinding) -> str:
    """Returns the p of a finding, or that it is not tested."""
    return "not tested" if finding.held_back else p_value(finding.p)


def sentence(spec: StudySpec, finding: StudyFinding) -> str:
    """Returns a finding as one or two sentences: effect, interval, worlds, and what follows from the word."""
    if finding.effect is None:
        return f"No effect is shown: {finding.why_no_effect}."
    hypothesis, effect = finding.hypothesis, finding.effect
    row, other = compared(spec, hypothesis)
    size = f"{amount(spec, abs(effect.estimate), sign=False)} {unit(spec)}"
    if hypothesis.over is None:
        text = f"{row} is {size} {'above' if effect.estimate >= 0 else 'below'} {other}"
    else:
        grows = "grows" if effect.estimate >= 0 else "shrinks"
        text = f"the lead of {row} over {other} {grows} by {size} for each level of {hypothesis.over}"
    text += "".join(f" where {dial} is {level}" for dial, level in _levels(hypothesis, " or ").items())
    facts = [f"{effect.worlds} worlds"]
    if effect.interval() is not None:
        facts = [f"95 % interval {interval_text(spec, effect)}", tested_p(finding), *facts]
    return f"{text[0].upper()}{text[1:]} ({', '.join(facts)}){_ending(spec, finding)}"


def _ending(spec: StudySpec, finding: StudyFinding) -> str:
    undecided = f". It is not tested: {finding.why_untested}."
    if finding.held_back:
        undecided = f". It is {NOT_TESTED}."
    elif finding.sees is not None:
        smallest = f"{amount(spec, finding.sees, sign=False)} {unit(spec)}"
        undecided = f". These worlds find an effect of {smallest} with 80 % power."
    who = "the row that lost" if finding.hypothesis.over is None else "one of the two rows"
    return {
        "confirmed": ".",
        "contradicted": ": the other side than claimed.",
        "equivalent": f": within ±{spec.margin or 0:g} {unit(spec)}, which counts as no difference.",
        "undecided": undecided,
        "over a broken baseline": ". This confirms nothing, since one of the two rows is broken.",
        "broken": f". This contradicts nothing, since {who} is broken.",
    }[finding.word]
