"""The pipeline files of what a run is asked for: a paper's rows and seeds, or the suite's."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
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
from tasks.params.scales import scale_names
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.stages import RowsAndSeeds, run_settings
from tasks.running.exclusive import only_scheduler


def asked_files(
    root: Path,
    paper: str,
    *,
    scale: str = DEFAULT_SCALE,
    full: bool = False,
    rows: Collection[str] = (),
    seeds: Collection[int] = (),
) -> list[str]:
    """Returns the dvc.yaml files of a run: of a paper, all headline rows (DEMO_ALL), or the suite (SUITE).

    Of a paper these are the root's, that of the headline rows, and the matrix's if these are not enough: the matrix is
    asked for in full, at other scales than the testbed, and for rows or seeds that neither the demo nor the headline
    rows have. What the suite's papers share may hold others' stages, too.

    Files that differ from params/ are written again; so is a matrix that is asked for the first time.

    Raises:
        RecipeError: not a repository of this project, or no row at the scale.
    """
    refuse_asked(root, paper, rows, seeds, scale=scale, full=full)
    testbed, folders = scale == DEFAULT_SCALE, list[Path]()
    if (root / "params.yaml").exists():
        settings, graphs = run_settings(root), None
        small = testbed and not full
        if paper == DEMO_ALL or (small and _within(settings.demo_all.get(paper), rows, seeds)):
            folders = [HEADLINE_ROWS]
        elif paper == SUITE and not small:
            graphs = build(root, [Path("pipelines") / scale / SHARED])
            chosen = {SHARED, HEADLINE_ROWS.name, *asked_papers(root, SUITE, scale=scale, full=full)}
            here = [folder for folder in graphs if folder.parts[:2] == ("pipelines", scale)]
            folders = [folder for folder in here if folder.name in chosen]
        elif paper != SUITE and not (small and _within(settings.demo.get(paper), rows, seeds)):
            if not (root / "params" / "scales" / scale).is_dir():
                raise RecipeError(f"unknown scale '{scale}'{hint(scale, sorted(scale_names(root)), more=3)}")
            folders = list(graph.matrix_folders(scale, paper))
        _follow_params(root, folders, graphs)
    there = [folder for folder in folders if (root / folder / "dvc.yaml").exists()]
    files = [*([ROOT_FILE] if testbed else []), *(f"{folder}/dvc.yaml" for folder in there)]
    if testbed and not (root / ROOT_FILE).exists():
        raise RecipeError(f"{ROOT_FILE} does not exist. Run rewardsmith in the repository or in a project")
    if not files:
        raise RecipeError(f"no paper has a row whose backbone is at scale {scale}")
    return files


def refuse_asked(
    root: Path, paper: str, rows: Collection[str], seeds: Collection[int], *, scale: str, full: bool
) -> None:
    """Refuses what a run is asked for where a stage would refuse a setting of it or no stage has a seed, and warns of
    other rows.

    Raises:
        RecipeError: every problem, one a line.
    """
    if not (root / "params.yaml").exists() or not (root / "params" / "scales" / scale).is_dir():
        return
    settings, chosen, known = run_settings(root), dict[str, Collection[str]](), set[int]()
    for name in asked_papers(root, paper, scale=scale, full=full):
        parts = _parts(root, name, scale=scale, full=full)
        if parts:
            field = "demo" if name in settings.demo else "demo_all"
            refuse_unknown_rows(root, f"{field}.{name}", name, parts[0].rows)
        chosen[name] = rows or (parts[0].rows if parts else ())
        if parts and not rows:
            known |= {*parts[0].seeds}
            continue
        known |= {*suite_seeds(settings.suite, scale, name)}
        if scale == DEFAULT_SCALE:
            known |= {seed for part in settings.parts(name) if {*rows} <= {*part.rows} for seed in part.seeds}
    refuse_rows(root, scale, chosen)
    refuse_unknown_seeds(rows, seeds, known)


def _parts(root: Path, paper: str, *, scale: str, full: bool) -> Sequence[RowsAndSeeds]:
    """Returns a paper's parts of the demo and of demo-all, if a run is about these."""
    return () if full or scale != DEFAULT_SCALE else run_settings(root).parts(paper)


def asked_papers(root: Path, paper: str, *, scale: str, full: bool) -> tuple[str, ...]:
    """Returns the papers that a run is about: of one, of all headline rows (DEMO_ALL), or of the suite (SUITE).

    The suite's are the demo's; in full or at another scale they are those of the five that have rows, of which some
    scales have none. Others run by name.

    Raises:
        RecipeError: headline rows in full or at another scale, or none.
    """
    small = scale == DEFAULT_SCALE and not full
    if paper == SUITE:
        whole = (name for name in printed_tables.PAPERS if page_files(root / "params" / name, "rows"))
        return tuple(run_settings(root).demo if small else whole)
    if paper != DEMO_ALL:
        return (paper,)
    if not small:
        raise RecipeError(f"{DEMO_ALL} is the headline rows at scale {DEFAULT_SCALE}; for more, name a paper, or 'all'")
    if not (found := tuple(run_settings(root).demo_all)):
        raise RecipeError(f"{DEMO_ALL} has no rows; list them under demo_all in params.yaml")
    return found


def asked_parts(
    root: Path, paper: str, rows: Collection[str], seeds: Collection[int], *, scale: str, full: bool
) -> dict[str, RowsAndSeeds]:
    """Returns the rows and seeds that a run is about, by paper."""
    settings, found = run_settings(root), {}
    for name in asked_papers(root, paper, scale=scale, full=full):
        small = _parts(root, name, scale=scale, full=full)
        part = next((each for each in small if _within(each, rows, seeds)), None)
        chosen = rows or (row_addresses(root, name) if part is None else part.rows)
        own = seeds or (suite_seeds(settings.suite, scale, name) if part is None else part.seeds)
        found[name] = RowsAndSeeds(tuple(chosen), tuple(own))
    return found


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


def _within(demo: RowsAndSeeds | None, rows: Collection[str], seeds: Collection[int]) -> bool:
    """Returns whether a paper's part of the demo has the chosen rows at the chosen seeds."""
    return demo is not None and (not rows or (set(rows) <= set(demo.rows) and set(seeds) <= set(demo.seeds)))
