"""The atlas: every study with its findings over worlds, and what was asked of the papers' claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from rlhf_core.evaluation.worlds import Effect, over_worlds
from tasks.params.studies import FOLDER, StudySpec, read_study
from tasks.report.atlas_claims import AskedClaim, ClaimStudy, PaperCount, asked_claims, paper_counts
from tasks.report.atlas_curves import RowCurves, row_curves
from tasks.studies.equal_kl import MeanAtKL, rows_at_kl
from tasks.studies.frame import RowBudget, core_hours, row_budgets, shown_values
from tasks.studies.verdicts import OPEN, StudyFinding, StudyState, Word, load_study, studied_claim

#: Verdicts of a hypothesis or a claim; beside them, 'open' is the word for none.
WORDS: tuple[Word, ...] = ("confirmed", "contradicted", "equivalent", "undecided", "over a broken baseline", "broken")


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

    @cached_property
    def curves(self) -> list[RowCurves]:
        """Returns the rows' ways through KL in a complete study that has KL targets."""
        if self.state is None or not self.state.findings:
            return []
        return row_curves(self.state.spec, runs_of(self))

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
