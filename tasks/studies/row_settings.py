"""Settings of the optimisers of a study's rows, as its worlds ran: compared rows may differ in some that nobody tuned.

They are made from the pages that the commit of the first world has, by this version of the code.
"""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.params.stages import RUNS
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.git_history import COMMITTED, git
from tasks.studies.training import POLICY, optimiser_of
from tasks.studies.tree import WorldTree, write_pages
from tasks.studies.world_seeds import TUNING

#: Settings of each row's optimiser, its `kind` included, by cell and row.
CellSettings = Mapping[str, Mapping[str, Mapping[str, Any]]]
#: Files and folders that have the settings of rows.
PAGES = ("params", RUNS)
UNREADABLE = "in which untuned settings rows differ is not known: this version cannot read the first world's pages"
#: Settings that change how much memory training takes, and no result.
OF_MEMORY = ("microbatch", "gradient_checkpointing", "padding_free")


def settings_at(root: Path, commit: str, study: str, spec: StudySpec) -> CellSettings | None:
    """Returns the settings of the optimisers of a study's rows at a commit; None where it has no pages that this
    version reads, which a caveat says (`other_settings`)."""
    if any(git(root, "cat-file", "-e", f"{commit}:{page}") is None for page in PAGES):
        return None
    with TemporaryDirectory() as folder:
        project, world = Path(folder) / "project", WorldTree(study, spec, TUNING.start, Path(folder) / "world")
        _write_project(root, commit, project)
        try:
            write_pages(project, world)
            return {cell: _of_cell(world, cell) for cell in spec.cells}
        except RewardsmithError:  # pages of another version
            return None


def _write_project(root: Path, commit: str, folder: Path) -> None:
    call = ["git", "-C", str(root), "archive", "--format=zip", commit, *PAGES]
    made = subprocess.run(call, check=True, capture_output=True, env={**os.environ, **COMMITTED})
    with zipfile.ZipFile(io.BytesIO(made.stdout)) as pages:
        pages.extractall(folder)


def _of_cell(world: WorldTree, cell: str) -> dict[str, dict[str, Any]]:
    return {row: optimiser_of(world.tree, item) for row, item in world.stages(cell).items() if item.module == POLICY}


def other_settings(
    spec: StudySpec, hypothesis: Hypothesis, tuning: Mapping[str, Any] | None, settings: CellSettings | None
) -> list[str]:
    """Returns in which settings two rows with one kind of optimiser differ that tuning did not choose for both, with
    both values, in words.

    Settings that a row's `fixed` kept out of its tuning count: that they are known does not make the rows alike.

    Args:
        spec: the study.
        hypothesis: one of its hypotheses.
        tuning: the record of the study's tuning.
        settings: of the rows, by cell; None where they cannot be read.
    """
    if settings is None:
        return [UNREADABLE]
    rows = hypothesis.row, hypothesis.than or spec.main
    made = {} if tuning is None else tuning["rows"]
    tuned = [{*(made[row].get("space") or {})} - {*spec.fixed(row)} if row in made else set() for row in rows]
    found: dict[str, list[str]] = {}
    for cell in spec.weighted_cells(hypothesis):
        one, other = (settings.get(cell, {}).get(row, {}) for row in rows)
        if not one or one["kind"] != (other or one)["kind"]:
            continue
        names = [name for name in one if name in other and name not in OF_MEMORY and one[name] != other[name]]
        names = [name for name in names if name not in tuned[0] & tuned[1]]
        said = [f"{name} {_text(one[name])} and {_text(other[name])}" for name in names]
        if said:
            found.setdefault(", ".join(said), []).append(cell)
    where = len(found) > 1 or any(len(cells) < len(spec.weighted_cells(hypothesis)) for cells in found.values())
    return [
        f"'{rows[0]}' and '{rows[1]}' differ in untuned settings: {said}"
        + (f" (in {', '.join(cells)})" if where else "")
        for said, cells in found.items()
    ]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
