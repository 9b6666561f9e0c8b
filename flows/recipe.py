"""Trains one recipe from a form (deployment `try-a-recipe`): a new row that differs from a known row in a few choices.

It runs in a git worktree at the deployment's commit, `.work/recipes/<name>`, with this tree's DVC cache, so that no
tree gets dirty and no stage with a cached result runs again. `rewardsmith adopt <name>` makes it a row of the tree.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import deployment
from pydantic import Field

from flows.deployments import COMMIT
from flows.paper import run_request
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError, RewardsmithError, hint
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.recipe import OPTIMISER_KINDS, parse_recipe
from rlhf_core.rewards.reads import READS
from rlhf_core.shaping.choices import SHAPINGS
from tasks.dvc.pipelines import Request
from tasks.dvc.stale import cache_folder
from tasks.graph import dvc_files
from tasks.graph.rows import papers, row_addresses
from tasks.params.pages import NAME, read_settings
from tasks.params.yaml_files import page_text
from tasks.running.commit import commit_of, git
from tasks.running.locks import only_one

#: Value of the form that keeps the choice of the row that the recipe starts from.
KEEP = "as it is"


def choice_field(*names: str) -> Any:
    """Returns a field of the form with a list of names; the server refuses other values."""
    return Field(json_schema_extra={"enum": [KEEP, *names]})


Name = Annotated[
    str, Field(pattern=f"^{NAME.pattern}$", description="name of the new row", examples=["par-on-segment"])
]
Read = Annotated[str, choice_field(*sorted(READS))]
Normaliser = Annotated[str, choice_field(*sorted(NORMALISERS))]
Shaping = Annotated[str, choice_field("none", *sorted(SHAPINGS))]
Credit = Annotated[str, choice_field(*sorted(CREDITS))]
Optimiser = Annotated[str, choice_field(*sorted(OPTIMISER_KINDS))]


def changed_row(row: Mapping[str, Any], name: str, choices: Mapping[str, str], changes: dict[str, Any]) -> Any:
    """Returns a row's settings with the form's choices in place.

    Args:
        choices: of `reward_model`, `read`, `normaliser`, `shaping`, `credit` and `optimiser`; KEEP or an empty text
            keeps the row's.
        changes: any settings of a row, which replace theirs last.

    Raises:
        RecipeError: choices that do not fit together.
    """
    made = json.loads(json.dumps(row)) | {"title": name}  # a deep copy, without YAML's aliases
    chosen: dict[str, Any] = {field: value for field, value in choices.items() if value not in ("", KEEP)}
    if read := chosen.pop("read", None):
        made["readout"] = {**made.get("readout", {}), "read": read}
    for field in ("shaping", "optimiser"):
        if field in chosen:
            chosen[field] = {"kind": chosen[field]}
    made |= chosen
    if choices.get("shaping") == "none":
        del made["shaping"]
    made |= changes
    parse_recipe(made, f"recipe {name}")  # refuses choices that do not fit together
    return made


def worktree(root: Path, name: str, commit: str) -> Path:
    """Returns a recipe's git worktree at the commit, with this tree's DVC cache; makes it if it is missing.

    Raises:
        RewardsmithError: git refuses.
    """
    path = root / ".work" / "recipes" / name
    if not (path / ".git").exists():
        shutil.rmtree(path, ignore_errors=True)
        _git(root, "worktree", "prune")
        _git(root, "worktree", "add", "--detach", "--force", str(path), commit)
    elif commit_of(path) != commit:
        _git(path, "checkout", "--detach", "--force", commit)
    dvc_config = path / ".dvc" / "config.local"
    dvc_config.write_text(f"[cache]\n    dir = {cache_folder(root)}\n", encoding="utf-8")
    return path


def _git(root: Path, *arguments: str) -> None:
    if (done := git(root, *arguments)).returncode:
        raise RewardsmithError(f"git {arguments[0]} failed: {done.stderr.strip()}")


def _page(paper: str, name: str) -> Path:
    """Returns the page of a recipe's row, which has no other rows."""
    return Path("params") / paper / f"rows_{name}.yaml"


def adopt(name: str) -> str:
    """Copies the page of a recipe that ran into the tree and brings the dvc.yaml files up to date; returns a line.

    Raises:
        RecipeError: no recipe of that name ran here, or the tree has such a row.
    """
    root = Path.cwd()
    known = {path.parent.name: read_settings(path) for path in (root / ".work" / "recipes").glob("*/recipe.yaml")}
    if name not in known:
        raise RecipeError(
            f"no recipe '{name}' ran here{hint(name, sorted(known), more=3) if known else '; none has run yet'}"
        )
    paper = str(known[name]["paper"])
    source = _page(paper, name)
    if (root / source).exists() or name in row_addresses(root, paper):
        raise RecipeError(f"{paper} has a row '{name}' already; give the recipe another name")
    shutil.copyfile(root / ".work" / "recipes" / name / source, root / source)
    dvc_files.write(root)
    return f"wrote {source}; commit it"


@flow(
    name="recipe",
    description="One recipe in a worktree of its own.",
    flow_run_name="{name}, from {start}",
    persist_result=False,
)
def recipe(
    name: Name,
    start: str = "segment/segment",
    reward_model: str = "",
    read: Read = KEEP,
    normaliser: Normaliser = KEEP,
    shaping: Shaping = KEEP,
    credit: Credit = KEEP,
    optimiser: Optimiser = KEEP,
    changes: dict[str, Any] | None = None,
    seeds: list[int] | None = None,
    sync: bool = True,
    root: str = ".",
) -> Any:  # returns a State; Prefect gives the caller its data, the text
    """Trains and evaluates a recipe.

    Args:
        name: name of the new row.
        start: the row to start from, as paper/row.
        reward_model: another reward model, as paper/name; empty keeps the row's.
        read: the value that is read from the reward model.
        normaliser: the normaliser of the values that are read.
        shaping: the shaping of the normalised values.
        credit: the rule that pays the values to tokens.
        optimiser: the algorithm that learns from the reward.
        changes: any other settings of a row, put over it last, as JSON.
        seeds: which of params.yaml's suite.seeds to run; seed 0 when left out.
        sync: write the result into MLflow.
        root: the repository.
    """
    tree = Path(root).resolve()
    paper, _, start_row = start.partition("/")
    known = {f"{folder}/{row}" for folder in papers(tree) for row in row_addresses(tree, folder)}
    if start not in known:
        raise RecipeError(f"unknown row '{start}'{hint(start, sorted(known), more=3)}")
    if f"{paper}/{name}" in known:
        raise RecipeError(f"{paper} has a row '{name}' already; choose another name")
    version = str(deployment.version or "")
    commit = version if COMMIT.fullmatch(version) else commit_of(tree)  # `prefect deploy` makes versions of its own
    lock, busy = tree / ".work" / "recipes" / f"{name}.lock", f"another run of the recipe '{name}' is active"
    with only_one(lock, busy, "Wait for it, or choose another name"):
        path = worktree(tree, name, commit)
        choices = {"reward_model": reward_model, "read": read, "normaliser": normaliser, "shaping": shaping}
        choices |= {"credit": credit, "optimiser": optimiser}
        before = read_settings(row_addresses(path, paper)[start_row].under(path))
        text = page_text({name: changed_row(before, name, choices, changes or {})})
        create_markdown_artifact(key="recipe", markdown=f"```yaml\n{text}```\ncommit {commit}", description=name)
        (path / _page(paper, name)).write_text(text, encoding="utf-8")
        # `adopt` reads it
        (path / "recipe.yaml").write_text(yaml.safe_dump({"paper": paper, "row": name, "commit": commit}))
        if sync:
            os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{tree / 'mlflow.db'}")
        asked = Request(paper, full=True, rows=(name,), seeds=tuple(seeds or [0]), sync=sync)
        return run_request(path, asked, mirrored=[name])
