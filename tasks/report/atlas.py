"""The atlas: every study with its findings over worlds, and the papers' claims that studies name, each with its verdict
over all its studies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from rlhf_core.evaluation.worlds import Effect, over_worlds
from rlhf_core.published.paper_claims import StatedClaim, stated_claims
from rlhf_core.published.printed_tables import PAPERS
from tasks.params.studies import FOLDER, StudySpec, read_study
from tasks.params.study_claims import PaperClaim, tested_as_stated
from tasks.studies.equal_kl import MeanAtKL, rows_at_kl
from tasks.studies.frame import RowBudget, core_hours, row_budgets, shown_values
from tasks.studies.verdicts import (
    OPEN,
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


@dataclass(frozen=True)
class ClaimStudy:
    """A study that names a claim.

    Attributes:
        study: its name.
        spec: as it was registered.
        claim: its claim, with an id.
        status: of its worlds in words, or 'refused'.
        says: what it says of the claim; None before its last world, and where it is refused.
    """

    study: str
    spec: StudySpec
    claim: PaperClaim
    status: str
    says: StudiedClaim | None

    @property
    def word(self) -> str:
        """Returns the verdict of this study alone, its state without one."""
        return self.status if self.says is None else claim_word([self.says])

    @property
    def tested(self) -> str:
        """Returns in words how much of the claim the study tests as the claims file states it."""
        whole, stated = len(tested_as_stated(self.claim, self.spec)), self.claim.stated
        return f"{whole} of {len(stated.pairs) + stated.others} comparisons as stated"


@dataclass(frozen=True)
class AskedClaim:
    """A claim of a paper with all studies that name it, in the order of their names."""

    paper: str
    id: str
    studies: tuple[ClaimStudy, ...]

    @property
    def stated(self) -> StatedClaim:
        """Returns the claim's sentence and source."""
        return stated_claims(self.paper)[self.id]

    @property
    def word(self) -> str:
        """Returns the verdict over all its studies, 'open' while none is complete."""
        return claim_word([one.says for one in self.studies])


@dataclass(frozen=True)
class PaperCount:
    """Claims of a paper, and what was found of those that studies ask.

    Attributes:
        claims: how many the paper's file has.
        asked: how many of them a study names.
        elsewhere: studies of the paper that name none of them.
        words: how many of the asked claims have each verdict, 'open' included.
    """

    paper: str
    claims: int
    asked: int
    elsewhere: int
    words: Mapping[str, int]


def asked_claims(studies: Sequence[ClaimStudy]) -> tuple[AskedClaim, ...]:
    """Returns the claims that studies name, in the order of the papers and of their files."""
    named: dict[tuple[str, str], list[ClaimStudy]] = {}
    for study in studies:
        named.setdefault((study.claim.paper, str(study.claim.id)), []).append(study)
    order = [(paper, claim) for paper in PAPERS for claim in stated_claims(paper)]
    return tuple(AskedClaim(*key, tuple(named[key])) for key in order if key in named)


def paper_counts(asked: Sequence[AskedClaim], elsewhere: Mapping[str, int]) -> tuple[PaperCount, ...]:
    """Returns the counts of each paper.

    Args:
        asked: claims that studies name.
        elsewhere: of each paper, studies that name no claim of its file.
    """
    found = []
    for paper in PAPERS:
        words = Counter(claim.word for claim in asked if claim.paper == paper)
        found.append(PaperCount(paper, len(stated_claims(paper)), words.total(), elsewhere.get(paper, 0), words))
    return tuple(found)


@dataclass(frozen=True)
class CellMean:
    """A row's metric in a cell over worlds; None with a reason where a world has none."""

    row: str
    cell: str
    effect: Effect | None
    reason: str | None = None


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
    def word(self) -> str:
        """Returns the word of the primary finding, 'open' before the last world."""
        return OPEN if self.primary is None else self.primary.word

    @property
    def status(self) -> str:
        """Returns how many worlds have run, in words."""
        return "refused" if self.state is None else self.state.progress

    @property
    def of_claim(self) -> ClaimStudy | None:
        """Returns it as a study of the claim that it names; None where it names none or is refused."""
        if self.state is None or (claim := self.state.spec.claim) is None or claim.id is None:
            return None
        return ClaimStudy(self.name, self.state.spec, claim, self.status, studied_claim(self.state))

    @property
    def core_hours(self) -> float:
        """Returns core-hours of the worlds that have run."""
        return 0.0 if self.state is None else core_hours(self.state.frame)

    @cached_property
    def budgets(self) -> Mapping[str, RowBudget]:
        """Returns the budgets of the rows of a complete study by name."""
        if self.state is None or not self.state.findings:
            return {}
        return row_budgets(self.state.spec, self.state.frame, self.state.tuned)

    @cached_property
    def at_kl(self) -> list[MeanAtKL]:
        """Returns the rows at the KL targets of a complete study."""
        if self.state is None or not self.state.findings:
            return []
        return rows_at_kl(self.state.spec, self.state.records)

    def means(self, metric: str) -> dict[tuple[str, str], CellMean]:
        """Returns the mean over worlds of each row, or stage above the rows, in each cell of a complete study, by (row,
        cell)."""
        if self.state is None or not self.state.findings:
            return {}
        shown = shown_values(self.state.spec, self.state.ends, metric)
        return {place: _cell_mean(*place, *found) for place, found in shown.items()}


@dataclass(frozen=True)
class Atlas:
    """All studies of a repository, the claims that they ask, and the counts of the papers' claims."""

    studies: tuple[AtlasStudy, ...]
    claims: tuple[AskedClaim, ...]
    paper_counts: tuple[PaperCount, ...]

    @property
    def total_count(self) -> PaperCount:
        """Returns the counts of all papers together."""
        words = Counter[str]()
        for paper in self.paper_counts:
            words.update(paper.words)
        claims = sum(paper.claims for paper in self.paper_counts)
        asked = sum(paper.asked for paper in self.paper_counts)
        return PaperCount("all", claims, asked, sum(paper.elsewhere for paper in self.paper_counts), words)


def read_atlas(root: Path) -> Atlas:
    """Returns every study of a repository, complete ones first. A study that is refused has its problem.

    Raises:
        DataError: there is no study.
    """
    files = sorted((root / FOLDER).glob("*.yaml"), key=lambda file: file.stem)
    found = [_study(root, file) for file in files]
    studies = tuple(sorted(found, key=lambda study: study.primary is None))
    if not studies:
        raise DataError(
            "there is no study",
            file=FOLDER.as_posix(),
            remedy="Write studies/NAME.yaml, as studies.md of the documentation shows",
        )
    asked = asked_claims([claim for study in studies if (claim := study.of_claim) is not None])
    others = Counter(
        study.state.spec.claim.paper
        for study in studies
        if study.state is not None and study.state.spec.claim is not None and study.of_claim is None
    )
    return Atlas(studies, asked, paper_counts(asked, others))


def _study(root: Path, file: Path) -> AtlasStudy:
    spec = None
    try:
        spec = read_study(file)
        return AtlasStudy(file.stem, spec, load_study(root, file), None)
    except RewardsmithError as error:
        return AtlasStudy(file.stem, spec, None, str(error))


def _cell_mean(row: str, cell: str, values: Mapping[int, float], missing: int) -> CellMean:
    if missing:
        return CellMean(row, cell, None, f"{missing} of {len(values) + missing} worlds have no number")
    return CellMean(row, cell, over_worlds(values))


def runs_of(study: AtlasStudy) -> list[Mapping[str, Any]]:
    """Returns the records of a study's worlds in their order."""
    return [] if study.state is None else [*study.state.records.values()]
