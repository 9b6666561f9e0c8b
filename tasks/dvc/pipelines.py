"""Requests: the rows and seeds that a run is asked for, and the pipeline files that have them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from rlhf_core.published import printed_tables
from tasks.dvc.internals import ROOT_FILE
from tasks.graph import dvc_files as graph
from tasks.graph.check import refuse_rows
from tasks.graph.items import SHARED, Graph
from tasks.graph.matrix import HEADLINE_ROWS, build, refuse_unknown_rows, suite_seeds
from tasks.graph.names import DEMO_ALL, SUITE
from tasks.graph.rows import row_addresses
from tasks.graph.stages import refuse_unknown_seeds
from tasks.params.pages import page_files
from tasks.params.scales import DEFAULT_SCALE, scale_names
from tasks.params.stages import RowsAndSeeds, RunSettings, run_settings
from tasks.running.locks import only_scheduler


@dataclass(frozen=True)
class Request:
    """Rows and seeds of a paper, of all headline rows (DEMO_ALL) or of the suite (SUITE), as a run is asked for them.

    Attributes:
        full: every row and seed; without it, at the testbed, those of the demo or of the headline rows, if any.
        rows, seeds: only these; empty for all.
        report, sync: whether the report and MLflow follow.
    """

    paper: str
    scale: str = DEFAULT_SCALE
    full: bool = False
    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    report: bool = False
    sync: bool = False

    @property
    def small(self) -> bool:
        """Returns whether the demo or the headline rows may be enough."""
        return self.scale == DEFAULT_SCALE and not self.full

    def papers(self, root: Path) -> tuple[str, ...]:
        """Returns the papers that it is about.

        The suite's are the demo's; in full or at another scale they are those of the five that have rows, of which some
        scales have none. Others run by name.

        Raises:
            RecipeError: headline rows in full or at another scale, or none.
        """
        if self.paper == SUITE:
            whole = (name for name in printed_tables.PAPERS if page_files(root / "params" / name, "rows"))
            return tuple(run_settings(root).demo if self.small else whole)
        if self.paper != DEMO_ALL:
            return (self.paper,)
        if not self.small:
            raise RecipeError(
                f"{DEMO_ALL} is the headline rows at scale {DEFAULT_SCALE}; for more, name a paper, or 'all'"
            )
        if not (found := tuple(run_settings(root).demo_all)):
            raise RecipeError(f"{DEMO_ALL} has no rows; list them under demo_all in params.yaml")
        return found

    def files(self, root: Path) -> list[str]:
        """Returns its dvc.yaml files, relative to the root.

        Of a paper these are the root's, that of the headline rows, and the matrix's if these are not enough. What the
        suite's papers share may hold others' stages, too. Files that differ from params/ are written again; so is a
        matrix that is asked for the first time.

        Raises:
            RecipeError: not a repository of this project, or no row at the scale.
        """
        self.refuse(root)
        testbed, folders = self.scale == DEFAULT_SCALE, list[Path]()
        if (root / "params.yaml").exists():
            settings, graphs = run_settings(root), None
            if self.paper == DEMO_ALL or self._within(settings.demo_all.get(self.paper)):
                folders = [HEADLINE_ROWS]
            elif self.paper == SUITE and not self.small:
                graphs = build(root, [Path("pipelines") / self.scale / SHARED])
                chosen = {SHARED, HEADLINE_ROWS.name, *self.papers(root)}
                here = [folder for folder in graphs if folder.parts[:2] == ("pipelines", self.scale)]
                folders = [folder for folder in here if folder.name in chosen]
            elif self.paper != SUITE and not self._within(settings.demo.get(self.paper)):
                if not (root / "params" / "scales" / self.scale).is_dir():
                    known = hint(self.scale, sorted(scale_names(root)), more=3)
                    raise RecipeError(f"unknown scale '{self.scale}'{known}")
                folders = list(graph.matrix_folders(self.scale, self.paper))
            _follow_params(root, folders, graphs)
        there = [folder for folder in folders if (root / folder / "dvc.yaml").exists()]
        files = [*([ROOT_FILE] if testbed else []), *(f"{folder}/dvc.yaml" for folder in there)]
        if testbed and not (root / ROOT_FILE).exists():
            raise RecipeError(f"{ROOT_FILE} does not exist. Run rewardsmith in the repository or in a project")
        if not files:
            raise RecipeError(f"no paper has a row whose backbone is at scale {self.scale}")
        return files

    def refuse(self, root: Path) -> None:
        """Refuses settings that a stage of it would refuse and seeds that no stage has, and warns of other rows.

        Raises:
            RecipeError: every problem, one a line.
        """
        if not (root / "params.yaml").exists() or not (root / "params" / "scales" / self.scale).is_dir():
            return
        settings, chosen, known = run_settings(root), dict[str, Collection[str]](), set[int]()
        for name in self.papers(root):
            parts = self._parts(settings, name)
            if parts:
                field = "demo" if name in settings.demo else "demo_all"
                refuse_unknown_rows(root, f"{field}.{name}", name, parts[0].rows)
            chosen[name] = self.rows or (parts[0].rows if parts else ())
            if parts and not self.rows:
                known |= {*parts[0].seeds}
                continue
            known |= {*suite_seeds(settings.suite, self.scale, name)}
            if self.scale == DEFAULT_SCALE:
                known |= {s for part in settings.parts(name) if {*self.rows} <= {*part.rows} for s in part.seeds}
        refuse_rows(root, self.scale, chosen)
        refuse_unknown_seeds(self.rows, self.seeds, known)

    def parts(self, root: Path) -> dict[str, RowsAndSeeds]:
        """Returns its rows and seeds by paper."""
        settings, found = run_settings(root), {}
        for name in self.papers(root):
            part = next((each for each in self._parts(settings, name) if self._within(each)), None)
            chosen = self.rows or (row_addresses(root, name) if part is None else part.rows)
            own = self.seeds or (suite_seeds(settings.suite, self.scale, name) if part is None else part.seeds)
            found[name] = RowsAndSeeds(tuple(chosen), tuple(own))
        return found

    def _parts(self, settings: RunSettings, paper: str) -> Sequence[RowsAndSeeds]:
        """Returns a paper's parts of the demo and of the headline rows, if it is about these."""
        return settings.parts(paper) if self.small else ()

    def _within(self, part: RowsAndSeeds | None) -> bool:
        """Returns whether a part of the demo is enough: it has the rows at the seeds."""
        if part is None or not self.small:
            return False
        return not self.rows or ({*self.rows} <= {*part.rows} and {*self.seeds} <= {*part.seeds})


def _follow_params(root: Path, folders: Collection[Path], graphs: Mapping[Path, Graph] | None = None) -> None:
    """Writes what params/ gives for the asked folders, and says so of files that git keeps; not under a run that reads
    them. Where a file that is there changes, all that are there follow: a stage may have moved from one to another.

    Args:
        graphs: of the folders' scale, where they are made already.

    Raises:
        RewardsmithError: a run is active here, and params/ gives other stages than it has.
    """
    texts = graph.render(root, folders, build(root, folders) if graphs is None else graphs)
    changed = graph.stale(root, texts, {folder.parts[1] for folder in folders if folder != HEADLINE_ROWS})
    if any((root / path).exists() for path in changed):
        texts = graph.render(root, folders)
        changed = graph.stale(root, texts)
    with only_scheduler(root) if any((root / path).exists() for path in changed) else nullcontext():
        graph.put(root, texts, changed)
    kept = [path.as_posix() for path in changed if path.parent == Path()]
    if kept:
        print(f"updated {' and '.join(kept)}: params/ changed", file=sys.stderr)
