"""The working tree of a rehearsal: the project's rows, and the pages of a scale made small.

A tree is a project of its own, as a study's world is: `params/`, a dvc.yaml for each paper, DVC's cache, MLflow's
database. The papers' flow runs it as it runs any other; it may be deleted at any time.

    <tree>/params/<paper>/                             the project's pages
    <tree>/params/scales/rehearsal-<scale>/*.yaml      the scale's entries, made small (`tasks.rehearsal.settings`)
    <tree>/hub/, data/, hub_rows/                      stand-ins for models, and rows of the data sets
    <tree>/report/, mlflow.db                          what the flow makes of them
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import RecipeError
from rlhf_core.policy_optimisation.config import OPTIMISERS
from tasks.graph.rows import PAGES, papers, read_rows
from tasks.graph.scale import Scale
from tasks.params.pages import page_files, read_settings
from tasks.params.row_parser import TRAINING
from tasks.params.scales import (
    KINDS,
    REHEARSAL,
    RESOURCES,
    STAGES,
    is_rehearsal,
    scale_entries,
    scale_names,
    scale_pages,
)
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.stages import RUNS
from tasks.params.yaml_files import yaml_text
from tasks.rehearsal.rows import SmallRows
from tasks.rehearsal.settings import NEEDS, SMALL, Settings, Shrinking, with_tokenizer
from tasks.rehearsal.stand_ins import HUB, StandIns

#: Folder of the trees.
WORK = Path(".work") / "rehearsal"
SEED = 0
#: File of a tree with the digest of what it is made of.
MADE_OF = "made_of.txt"


@dataclass(frozen=True)
class Rehearsal:
    """A rehearsal's tree.

    Attributes:
        project: the repository.
        scale: that is rehearsed.
        tree: the folder.
        origins: of the rows of each data set.
        models: by model: the stand-in's folder, and whose tokenizer it has.
        replaced: settings and tools that something else plays.
    """

    project: Path
    scale: str
    tree: Path
    origins: dict[str, str] = field(default_factory=dict)
    models: dict[str, tuple[str, str]] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Returns the name of the scale in the tree."""
        return f"{REHEARSAL}{self.scale}"


def write_tree(project: Path, scale: str, given: Path | None, replies: Path | None = None) -> Rehearsal:
    """Writes a rehearsal's tree; what it has of results stays.

    Args:
        given: folder of real rows, None for made-up rows alone.
        replies: file of the judges' replies, None for drawn verdicts.

    Raises:
        RecipeError: the testbed, which needs no rehearsal, or a setting or model that cannot be made small.
        DataError: no such folder, or rows that cannot be read.
    """
    if scale == DEFAULT_SCALE or is_rehearsal(scale):
        raise RecipeError(f"scale is '{scale}', which runs in minutes as it is; rehearse small or paper")
    tree = project / WORK / scale
    tree.mkdir(parents=True, exist_ok=True)
    begin_anew_if_changed(project, scale, tree, given, replies)
    for folder in ("params", "data", "hub_rows"):
        shutil.rmtree(tree / folder, ignore_errors=True)
    for paper in papers(project):
        for page in (file for kind in PAGES for file in page_files(project / "params" / paper, kind)):
            (tree / "params" / paper).mkdir(parents=True, exist_ok=True)
            shutil.copy(page, tree / "params" / paper / page.name)
    for name in scale_names(project):  # rows name backbones of all scales, and tables of settings show paper's
        for page in scale_pages(project, name):
            (tree / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(project / page, tree / page)
    suite = {"seeds": [SEED], "scale_seeds": {"default": [SEED]}}
    (tree / RUNS).write_text(yaml_text({"suite": suite}), encoding="utf-8")
    rows = SmallRows(tree, None if given is None else DirectorySource(given))
    made = Shrinking(rows, StandIns(tree, rows.texts), response_groups(project, scale))
    found = Rehearsal(project, scale, tree, rows.origins, made.stand_ins.made, made.replaced)
    _write_scale(found, made)
    if not (tree / ".dvc").is_dir():
        subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=tree, check=True)
    return found


def begin_anew_if_changed(
    project: Path, scale: str, tree: Path, given: Path | None, replies: Path | None = None
) -> None:
    """Removes stand-ins and results that were made of other rows, replies or settings of the scale: DVC sees neither
    the rows, the replies nor the stand-ins as inputs."""
    pages = [(str(page), (project / page).read_text(encoding="utf-8")) for page in scale_pages(project, scale)]
    files = [] if given is None else [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(given.iterdir())]
    said = [] if replies is None else [sha256(replies.read_bytes()).hexdigest()]
    made_of = sha256(json.dumps([str(given), files, pages, *said]).encode()).hexdigest()
    note = tree / MADE_OF
    if not note.exists() or note.read_text(encoding="utf-8") != made_of:
        for folder in (HUB, "results", "pipelines", "report", ".dvc", ".work", ".judge-cache", ".datasets"):
            shutil.rmtree(tree / folder, ignore_errors=True)
        (tree / "mlflow.db").unlink(missing_ok=True)
        note.write_text(made_of, encoding="utf-8")


def _write_scale(rehearsal: Rehearsal, made: Shrinking) -> None:
    """Writes the pages of the scale, made small."""
    folder = rehearsal.tree / "params" / "scales" / rehearsal.name
    folder.mkdir(parents=True, exist_ok=True)
    pages: dict[str, dict[str, Settings]] = {}
    for kind, small in SMALL.items():
        known = scale_entries(rehearsal.project, rehearsal.scale, kind)
        values = {name: read_settings(address.under(rehearsal.project)) for name, address in known.items()}
        pages[kind] = {name: small(made, name, own) for name, own in values.items() if name != RESOURCES}
    pages["data"] = {name: with_tokenizer(made, values) for name, values in pages["data"].items()}
    pages[STAGES][RESOURCES] = dict.fromkeys(_stages(), NEEDS)
    for kind in KINDS:
        if pages[kind]:
            (folder / f"{kind}.yaml").write_text(yaml_text(pages[kind]), encoding="utf-8")


def _stages() -> Collection[str]:
    from tasks.graph.dvc_files import STAGES as EVERY

    return EVERY


def response_groups(project: Path, scale: str) -> dict[str, int]:
    """Returns, by entry of a scale's `policy`, the responses to a prompt of the rows that read it."""
    here, groups = Scale(project, scale), dict[str, int]()
    for paper in papers(project):
        for row in read_rows(project, paper)[0].values():
            if row.kind not in TRAINING or not here.has(row):
                continue
            optimiser: dict[str, Any] = read_settings(row.path.under(project)).get("optimiser", {})
            kind = str(optimiser.get("kind"))
            own = optimiser.get("group_size", OPTIMISERS[kind].get("group_size", 1) if kind in OPTIMISERS else 1)
            data = here.backbone(row.backbone, SEED, row.path)[0].name
            entry = here.policy_settings(row, data).name
            groups[entry] = max(groups.get(entry, 1), int(own))
    return groups


def environment(tree: Path, served: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a rehearsal's flow: its own servers and data, no network, no server of others."""
    outside = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "REWARDSMITH_PAGE")
    several = ("REWARDSMITH_PROCESSES", "REWARDSMITH_DEEPSPEED", "ACCELERATE_DEEPSPEED_CONFIG_FILE")
    kept = {name: value for name, value in os.environ.items() if name not in (*outside, *several)}
    own = {"REWARDSMITH_DATA": str(tree / "data"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    own["HF_DATASETS_CACHE"] = str(tree / ".datasets")
    return {**kept, **served, **own, "CUDA_VISIBLE_DEVICES": ""}
