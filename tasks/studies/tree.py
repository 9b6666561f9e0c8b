"""The working tree of one world of a study: the project's pages with the study's rows, and a scale for each cell.

A tree is a repository of its own in an untracked folder: `params/`, a dvc.yaml for each cell, DVC's cache. The
scheduler runs it as it runs any other; it may be deleted once the world's record is written.

    <tree>/params/scales/<cell>/*.yaml           the scale's pages, the study's settings and the cell's levels over them
    <tree>/params/<paper>/rows_<study>.yaml      rows `<study>-<row>`, beside the row that each is like
    <tree>/pipelines/<cell>/<paper>/dvc.yaml
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.graph import dvc_files as graph
from tasks.graph.check import check_rows, refuse
from tasks.graph.items import Graph, Item
from tasks.graph.rows import papers, row_addresses, row_named
from tasks.graph.scale import Scale
from tasks.params.pages import entries, merge, page_files, read_settings
from tasks.params.scales import DEFAULT_SCALE, KINDS, RESOURCES, STAGES, scale_entries
from tasks.params.stages import RUNS
from tasks.params.studies import LIKE, OF_STUDIES, TWIN, StudySpec
from tasks.params.tuning import FILE as TUNING_FILE
from tasks.params.yaml_files import yaml_text
from tasks.running.progress import REUSED
from tasks.studies.registration import TWIN_APART

#: A row and the number of one of its trials.
Trial = tuple[str, int]
#: Pages of a paper that a study adds to.
ROWS, MODELS = "rows", "reward_models"
#: The field of a row that tuning changes.
OPTIMISER = "optimiser"


@dataclass(frozen=True)
class WorldTree:
    """One world of a study in a tree.

    Attributes:
        study, spec: its name, and the study.
        seed: of everything in the world, its number.
        tree: the folder.
        trials: settings of the optimiser of each trial; these rows are then trained in the place of the study's, in the
            cells in which they are tuned.
    """

    study: str
    spec: StudySpec
    seed: int
    tree: Path
    trials: Mapping[Trial, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def trial_of(self) -> dict[str, Trial]:
        """Returns the trial of each row: `segment-t3` is the row of trial 3 of `segment`; a study's own row is 0."""
        return {f"{row}-t{number}": (row, number) for row, number in self.trials} or {n: (n, 0) for n in self.spec.rows}

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the rows by name, as a study's file has them."""
        if not self.trials:
            return self.spec.rows
        return {
            name: merge(self.spec.rows[row], {OPTIMISER: self.trials[row, number]})
            for name, (row, number) in self.trial_of.items()
        }

    @cached_property
    def cells(self) -> dict[str, Mapping[str, str]]:
        """Returns the levels of the cells that are trained, by name."""
        used = {cell for row, _ in self.trials for cell in self.spec.tuning_cells(row)}
        return {name: levels for name, levels in self.spec.cells.items() if name in used or not self.trials}

    def stages(self, cell: str) -> dict[str, Item]:
        """Returns the last stage of every row of a cell, by the row's name."""
        return {row: items[-1] for row, items in self._rows(cell).items()}

    def items(self, cell: str) -> list[Item]:
        """Returns every stage of a cell, each once."""
        made = Graph(cell)
        for items in self._rows(cell).values():
            made.add(items)
        return made.items()

    def _rows(self, cell: str) -> dict[str, list[Item]]:
        scale = Scale(self.tree, cell)
        found = {}
        here = self.spec.rows_of(self.cells[cell])
        for row, own in self.rows.items():
            if self.trial_of[row][0] not in here:
                continue
            paper, name = _paper(own), own_name(self.study, row)
            spec = row_named(self.tree, paper, name)
            twin = own.get(TWIN, False)
            found[row] = scale.row(spec, self.seed + TWIN_APART if twin else self.seed)
        return found

    @property
    def pipelines(self) -> list[str]:
        """Returns the dvc.yaml files, relative to the tree."""
        return [f"pipelines/{cell}/{self.study}/dvc.yaml" for cell in self.cells]


def own_name(study: str, name: str) -> str:
    """Returns the name of a study's row or reward model in its settings page."""
    return f"{study}-{name}"


def _paper(row: Mapping[str, Any]) -> str:
    return str(row[LIKE]).partition("/")[0]


def write_tree(project: Path, world: WorldTree) -> None:
    """Writes the pages and pipelines of a world into a repository of DVC; the tree's results stay.

    Raises:
        RecipeError: a row or setting of the study that does not exist or does not fit.
    """
    write_pages(project, world)
    for cell, file in zip(world.cells, world.pipelines, strict=True):
        made = Graph(cell)
        made.add(world.items(cell))
        content = graph.pipeline_file(world.tree, made, Path(file).parent)
        (world.tree / file).parent.mkdir(parents=True, exist_ok=True)
        (world.tree / file).write_text(graph.HEADER + yaml_text(content), encoding="utf-8")
    (world.tree / REUSED).mkdir(parents=True, exist_ok=True)
    if not (world.tree / ".dvc").is_dir():
        subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=world.tree, check=True)


def write_pages(project: Path, world: WorldTree) -> None:
    """Writes the pages of a world.

    Raises:
        RecipeError: a row or setting of the study that does not exist or does not fit.
    """
    world.tree.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(world.tree / "params", ignore_errors=True)
    for paper in papers(project):
        shutil.copytree(project / "params" / paper, world.tree / "params" / paper)
        for page in page_files(world.tree / "params" / paper, ROWS):
            page.unlink()  # a setting of the study that another row cannot have is not its concern
    if (project / TUNING_FILE).exists():
        shutil.copy(project / TUNING_FILE, world.tree / TUNING_FILE)
    (world.tree / RUNS).write_text(yaml_text({"suite": {"seeds": [world.seed], "scale_seeds": {"default": [0]}}}))
    for cell, levels in world.cells.items():
        _write_scale(project, world, cell, world.spec.overlay(levels))
    _write_rows(project, world)
    stated = dict.fromkeys(map(_paper, world.rows.values()))
    problems = [
        f"study '{world.study}': {problem}"
        for cell in world.cells
        for paper in stated
        for problem in check_rows(world.tree, paper, row_addresses(world.tree, paper), cell)
    ]
    refuse(problems)


def _write_scale(project: Path, world: WorldTree, cell: str, overlay: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the pages of a cell: the testbed's entries, laid over and drawn by the world's number."""
    folder = world.tree / "params" / "scales" / cell
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        known = scale_entries(project, DEFAULT_SCALE, kind)
        made = {name: read_settings(address.under(project)) for name, address in known.items()}
        for name, values in overlay.get(kind, {}).items():
            if name not in made:
                raise RecipeError(f"study '{world.study}': {kind} has no entry '{name}'{hint(name, sorted(made))}")
            made[name] = merge(made[name], values)
        if kind == "data":
            # facts, rows and labels of generated data, which has a seed, follow from the world's number
            made = {n: {**own, "world": world.seed} if "seed" in own else dict(own) for n, own in made.items()}
        if kind == "backbones" and any(row.get(TWIN) for row in world.rows.values()):
            made = {name: {**values, "seed": world.seed} for name, values in made.items()}
        if kind == STAGES:
            made[RESOURCES] = graph.resources(project, DEFAULT_SCALE)
        if made:
            (folder / f"{kind}.yaml").write_text(yaml_text(made), encoding="utf-8")


def _write_rows(project: Path, world: WorldTree) -> None:
    """Writes the study's rows and reward models beside those that they are like."""
    models, stated_rows = world.spec.reward_models, world.rows
    made = {name: like_settings(project, world.study, name, model, MODELS) for name, model in models.items()}
    rows = {name: like_settings(project, world.study, name, row, ROWS) for name, row in stated_rows.items()}
    for row in rows.values():
        if row.get("reward_model") in models:
            row["reward_model"] = own_name(world.study, row["reward_model"])
    for kind, stated, entries_ in ((ROWS, stated_rows, rows), (MODELS, models, made)):
        pages: dict[str, dict[str, Any]] = {}
        for name, values in entries_.items():
            pages.setdefault(_paper(stated[name]), {})[own_name(world.study, name)] = values
        for paper, page in pages.items():
            file = world.tree / "params" / paper / f"{kind}_{world.study}.yaml"
            file.write_text(yaml_text(page), encoding="utf-8")


def like_settings(project: Path, study: str, name: str, stated: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns a study's row or reward model: what it states over the settings of the entry that it is like.

    Raises:
        RecipeError: no page has that entry.
    """
    paper, like = str(stated[LIKE]).split("/")
    known = entries(project, Path("params") / paper, kind) if paper in papers(project) else {}
    if like not in known:
        near = hint(like, sorted(known), more=3) if known else hint(paper, papers(project), more=3)
        raise RecipeError(f"study '{study}': {kind}.{name}: like is '{stated[LIKE]}', which no page has{near}")
    own = {field: value for field, value in stated.items() if field not in OF_STUDIES}
    return merge(read_settings(known[like].under(project)), own)
