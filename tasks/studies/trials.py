"""Trials of tuning: each row of a study at the same points of its optimiser's search space, in worlds of tuning seeds.

A trial is the row with the point's values in its `optimiser`, trained in the cells that the study names by `tuned_at`
(every cell unless given). Trial 3 of row `segment` is the row `segment-t3` of the trees of all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.graph.items import result_of
from tasks.graph.rows import papers, row_addresses
from tasks.params.pages import merge, read_settings
from tasks.params.row_parser import TRAINING
from tasks.params.studies import FIXED, LIKE, OF_STUDIES, StudySpec
from tasks.params.tuning import Space, tuning_spec
from tasks.studies.origins import OPTIMISER, settings_digest
from tasks.studies.sobol_points import Point, search_points
from tasks.studies.tree import WorldTree

#: A row and the number of one of its trials.
Trial = tuple[str, int]


@dataclass(frozen=True)
class TrialRows:
    """Rows of some trials in some cells of a study.

    Attributes:
        spec: the study.
        of: the trial of each row.
        rows: by name: settings as a study's row has them.
        cells: in which they are trained.
    """

    spec: StudySpec
    of: Mapping[str, Trial]
    rows: Mapping[str, Mapping[str, Any]]
    cells: Mapping[str, Mapping[str, str]]

    @property
    def reward_models(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the study's own reward models."""
        return self.spec.reward_models

    def rows_of(self, cell: Mapping[str, str]) -> list[str]:
        """Returns the rows that are trained in a cell."""
        own = self.spec.rows_of(cell)
        return [name for name, (row, _) in self.of.items() if row in own]

    def overlay(self, cell: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Returns what is laid over the scale's pages in a cell."""
        return self.spec.overlay(cell)


@dataclass(frozen=True)
class TuningPlan:
    """The trials of a study's rows.

    Attributes:
        study, spec: its name, and what it says.
        optimisers: kind of optimiser of each row that trains a policy.
        points: of each kind of optimiser, one for each trial.
        spaces: ranges of each kind of optimiser.
    """

    study: str
    spec: StudySpec
    optimisers: Mapping[str, str]
    points: Mapping[str, Sequence[Point]]
    spaces: Mapping[str, Space]

    @property
    def cells(self) -> dict[str, dict[str, str]]:
        """Returns the cells in which rows are tuned, by name."""
        return {name: cell for name, cell in self.spec.cells.items() if name in (self.spec.tuned_at or self.spec.cells)}

    def cells_of(self, row: str) -> list[str]:
        """Returns the names of the cells in which a row is tuned."""
        return self.spec.tuning_cells(row)

    def space_of(self, row: str) -> dict[str, dict[str, Any]]:
        """Returns the ranges that a row's trials are of, by setting."""
        fixed = self.spec.fixed(row)
        return {name: asdict(range_) for name, range_ in self.spaces[self.optimisers[row]].items() if name not in fixed}

    def point(self, trial: Trial) -> Point:
        """Returns the settings of a trial: the point of its number, without what the row fixes."""
        row, number = trial
        fixed = self.spec.fixed(row)
        return {name: value for name, value in self.points[self.optimisers[row]][number].items() if name not in fixed}

    def points_of(self, row: str) -> list[Point]:
        """Returns the settings of all trials of a row."""
        return [self.point((row, number)) for number in range(len(self.points[self.optimisers[row]]))]

    def trial_rows(self, trials: Iterable[Trial]) -> TrialRows:
        """Returns the rows of some trials, and the cells that have any of them."""
        of = {trial_name(trial): trial for trial in trials}
        rows = {name: self._row(trial) for name, trial in of.items()}
        used = {name for row, _ in of.values() for name in self.cells_of(row)}
        return TrialRows(self.spec, of, rows, {name: cell for name, cell in self.cells.items() if name in used})

    def _row(self, trial: Trial) -> dict[str, Any]:
        row = self.spec.rows[trial[0]]
        return {**row, OPTIMISER: {**row.get(OPTIMISER, {}), **self.point(trial)}}


def trial_name(trial: Trial) -> str:
    """Returns the name of a trial's row."""
    return f"{trial[0]}-t{trial[1]}"


def tuning_plan(root: Path, study: str, spec: StudySpec, trials: int) -> TuningPlan:
    """Returns the trials of a study's rows.

    Raises:
        DataError: params/tuning.yaml cannot be read.
        RecipeError: an unknown row, a row in none of the cells of `tuned_at`, an optimiser without a search space, or
            a study without rows that train a policy.
    """
    spaces, kinds = tuning_spec(root), trained_kinds(root, study, spec)
    if not kinds:
        raise RecipeError(f"study '{study}' has no row that trains a policy; there is nothing to tune")
    used = sorted(set(kinds.values()))
    points = {kind: search_points(spaces.spaces[kind], trials) for kind in used}
    plan = TuningPlan(study, spec, kinds, points, spaces.spaces)
    for name in kinds:
        if not plan.cells_of(name):
            raise RecipeError(f"study '{study}': rows.{name} is in none of the cells of tuned_at; name one of its own")
    return plan


def trained_kinds(root: Path, study: str, spec: StudySpec) -> dict[str, str]:
    """Returns the kind of optimiser of each row that trains a policy.

    Raises:
        DataError: params/tuning.yaml cannot be read.
        RecipeError: an unknown row, an optimiser without a search space, or a fixed setting that is not searched.
    """
    spaces, kinds = tuning_spec(root), dict[str, str]()
    for name, row in spec.rows.items():
        settings, where = row_settings(root, study, name, row), f"study '{study}': rows.{name}"
        if settings.get("kind", "reward") in TRAINING:
            kinds[name] = str(settings.get(OPTIMISER, {}).get("kind"))
            _check_fixed(spec.fixed(name), spaces.space(kinds[name], where), f"{where}.{FIXED}")
    return kinds


def _check_fixed(fixed: Sequence[str], space: Space, where: str) -> None:
    for name in fixed:
        if name not in space:
            raise RecipeError(f"{where} names '{name}', which tuning does not search{hint(name, sorted(space))}")
    if {*fixed} >= {*space}:
        raise RecipeError(f"{where} has every setting that tuning searches; leave at least one of them")


def row_settings(root: Path, study: str, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a study's row: what it says over the row that it is like.

    Raises:
        RecipeError: the row that it is like does not exist.
    """
    paper, like = str(row[LIKE]).split("/")
    known = row_addresses(root, paper) if paper in papers(root) else {}
    if like not in known:
        near = hint(like, sorted(known), more=3) if known else hint(paper, papers(root), more=3)
        raise RecipeError(f"study '{study}': rows.{name}: no row '{row[LIKE]}'{near}")
    own = {field: value for field, value in row.items() if field not in OF_STUDIES}
    return merge(read_settings(known[like].under(root)), own)


def settings_digests(world: WorldTree, plan: TuningPlan) -> dict[tuple[Trial, str], str]:
    """Returns a digest of all that each trial is trained from, without the values of its point, by trial and cell.

    A trial whose row, reward model, data or scale was changed, or a stage's version, has another digest.
    """
    assert isinstance(world.spec, TrialRows)
    found = {}
    for cell in world.spec.cells:
        items = {result_of(item): item for item in world.items(cell)}
        for name, item in world.stages(cell).items():
            trial = world.spec.of[name]
            found[trial, cell] = settings_digest(world.tree, item, items, plan.point(trial))
    return found
