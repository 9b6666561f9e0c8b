"""The atlas: every study with its findings over worlds, and what was asked of the papers' claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from rlhf_core.evaluation.worlds import Effect
from rlhf_core.published.printed_tables import PAPERS, claim_ids
from tasks.params.studies import FOLDER, Hypothesis, StudySpec, read_study
from tasks.studies.budgets import RowBudget, core_hours, row_budgets
from tasks.studies.caveats import MeanAtKL, compared, rows_at_kl
from tasks.studies.records import value_of
from tasks.studies.verdicts import StudyFinding, StudyState, Word, load_study, over_worlds

#: Findings of a study of a claim, and its state before that.
WORDS: tuple[Word, ...] = ("confirmed", "contradicted", "equivalent", "undecided", "over a broken baseline")
OPEN = "open"


@dataclass(frozen=True)
class Point:
    """A row less another one over worlds, in a part of the cells.

    Attributes:
        label: the level of a dial, or the cell.
        series: levels of the other dials; empty for the mean over them.
        effect: over worlds.
    """

    label: str
    series: str
    effect: Effect


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
        """Returns the word of the primary finding, 'open' without one."""
        return OPEN if self.primary is None else self.primary.word

    @property
    def status(self) -> str:
        """Returns how many worlds have run, in words."""
        if self.spec is None or self.state is None:
            return "refused"
        return f"{len(self.state.records)} of {self.spec.worlds} worlds"

    @property
    def unused(self) -> tuple[Path, ...]:
        """Returns files among its records that none of its worlds has."""
        return () if self.state is None else self.state.unused

    @property
    def hours(self) -> float:
        """Returns core-hours of the worlds that have run."""
        return 0.0 if self.state is None else core_hours(self.state.records.values())

    @cached_property
    def budgets(self) -> Mapping[str, RowBudget]:
        """Returns the budgets of the rows of a complete study by name."""
        if self.state is None or not self.state.findings:
            return {}
        return row_budgets(self.state.spec, self.state.records.values(), self.state.tuning)

    @cached_property
    def at_kl(self) -> list[MeanAtKL]:
        """Returns the rows at the KL targets of a complete study."""
        if self.state is None or not self.state.findings:
            return []
        return rows_at_kl(self.state.spec, self.state.records.values())

    def means(self, metric: str) -> dict[tuple[str, str], CellMean]:
        """Returns the mean over worlds of each row in each cell of a complete study, by (row, cell)."""
        if self.state is None or not self.state.findings:
            return {}
        spec = self.state.spec
        found = {}
        for cell, levels in spec.cells.items():
            for row in spec.rows_of(levels):
                found[row, cell] = _cell_mean(self.state, cell, row, metric)
        return found


@dataclass(frozen=True)
class PaperCount:
    """Claims of a paper, and what studies asked and found of them.

    Attributes:
        claims: how many the paper's file has.
        asked: how many of them a study names by `claim.id`.
        elsewhere: studies of the paper that name none of them.
        words: how many of the studies that name a claim found each word, 'open' included; refused studies count
            nowhere.
    """

    paper: str
    claims: int
    asked: int
    elsewhere: int
    words: Mapping[str, int]


@dataclass(frozen=True)
class Atlas:
    """All studies of a repository and the counts of the papers' claims."""

    studies: tuple[AtlasStudy, ...]
    papers: tuple[PaperCount, ...]

    @property
    def total(self) -> PaperCount:
        """Returns the counts of all papers together."""
        words = Counter[str]()
        for paper in self.papers:
            words.update(paper.words)
        claims, asked = sum(paper.claims for paper in self.papers), sum(paper.asked for paper in self.papers)
        return PaperCount("all", claims, asked, sum(paper.elsewhere for paper in self.papers), words)


def read_atlas(root: Path) -> Atlas:
    """Returns every study of a repository; one that is refused has its problem.

    Raises:
        DataError: there is no study.
    """
    studies = tuple(_study(root, file) for file in sorted((root / FOLDER).glob("*.yaml")))
    if not studies:
        raise DataError("there is no study", file=FOLDER.as_posix(), remedy="Write one; docs/studies.md has an example")
    return Atlas(studies, tuple(_count(paper, studies) for paper in PAPERS))


def _study(root: Path, file: Path) -> AtlasStudy:
    spec = None
    try:
        spec = read_study(file)
        return AtlasStudy(file.stem, spec, load_study(root, file), None)
    except RewardsmithError as error:
        return AtlasStudy(file.stem, spec, None, str(error))


def _count(paper: str, studies: tuple[AtlasStudy, ...]) -> PaperCount:
    claims = [(study, study.state.spec.claim) for study in studies if study.state is not None]
    own = [(study, claim.id) for study, claim in claims if claim is not None and claim.paper == paper]
    named = [(study, claim) for study, claim in own if claim is not None]
    words = Counter(study.word for study, _ in named)
    return PaperCount(paper, len(claim_ids(paper)), len({claim for _, claim in named}), len(own) - len(named), words)


def _cell_mean(state: StudyState, cell: str, row: str, metric: str) -> CellMean:
    values: dict[int, float] = {}
    lost = []
    for index, record in state.records.items():
        try:
            values[index] = value_of(record, cell, row, metric)
        except DataError as error:
            lost.append(str(error))
    if lost:
        return CellMean(row, cell, None, f"{len(lost)} of {len(state.records)} worlds have no number: {lost[0]}")
    return CellMean(row, cell, over_worlds(values))


def points_of(state: StudyState, hypothesis: Hypothesis) -> list[Point]:
    """Returns the difference of a hypothesis' rows at each level of its dial, or in each cell without one.

    Of several cells at a level the mean comes last, with an empty `series`.

    Raises:
        DataError: a row that stopped or has no finite number.
    """
    spec, (row, other) = state.spec, compared(state.spec, hypothesis)
    cells = {name: spec.cells[name] for name in spec.weighted_cells(hypothesis)}

    def effect(names: list[str]) -> Effect:
        return over_worlds({
            index: fmean(
                value_of(record, name, row, spec.metric) - value_of(record, name, other, spec.metric) for name in names
            )
            for index, record in state.records.items()
        })  # fmt: skip

    if hypothesis.over is None:
        return [Point(name, "", effect([name])) for name in cells]
    dial, found = hypothesis.over, []
    levels = [level for level in spec.dials[dial] if any(cell[dial] == level for cell in cells.values())]
    by_level = {level: [name for name, cell in cells.items() if cell[dial] == level] for level in levels}
    for place, names in by_level.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(f"{key} {level}" for key, level in cells[name].items() if key != dial)
            found.append(Point(place, others, effect([name])))
    return found + [Point(level, "", effect(names)) for level, names in by_level.items()]


def runs_of(study: AtlasStudy) -> list[Mapping[str, Any]]:
    """Returns the records of a study's worlds in their order."""
    return [] if study.state is None else [study.state.records[index] for index in sorted(study.state.records)]
