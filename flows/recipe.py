"""One recipe of a person's own, from a form: a row that starts from a known one and differs in a few choices.

It runs in a git worktree at the deployment's commit, `.work/recipes/<name>`, with this tree's DVC cache, so that no
tree gets dirty and nothing known is trained again. `rewardsmith adopt <name>` makes it a row of the tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import yaml
from prefect import flow, get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import deployment
from pydantic import Field

from flows.deployments import COMMIT
from flows.follow_ups import follow_ups
from flows.paper import link_page_and_report
from flows.run_notes import note_running_process
from flows.scheduler import RunFailed, completed_state, run_stale
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError, RewardsmithError, hint, prints_errors
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.recipe import KINDS, parse_recipe
from rlhf_core.rewards.reads import READS
from rlhf_core.shaping.choices import SHAPINGS
from tasks.dvc import stale
from tasks.dvc.plan import ROOT_FILE
from tasks.graph import dvc_files as graph
from tasks.graph.check import refuse_rows
from tasks.graph.items import SHARED
from tasks.graph.rows import papers, row_addresses
from tasks.graph.stopping import stopped
from tasks.params.page_text import page_text
from tasks.params.pages import NAME, read_settings
from tasks.running.commit import commit_of
from tasks.running.exclusive import only_one

#: A choice that stays as in the row it starts from.
KEEP = "as it is"


def one_of(*names: str) -> Any:
    """Returns a field of the form with a list to choose from; the server refuses other values."""
    return Field(json_schema_extra={"enum": [KEEP, *names]})


Name = Annotated[
    str, Field(pattern=f"^{NAME.pattern}$", description="name of the new row", examples=["par-on-segment"])
]
Read = Annotated[str, one_of(*sorted(READS))]
Normaliser = Annotated[str, one_of(*sorted(NORMALISERS))]
Shaping = Annotated[str, one_of("none", *sorted(SHAPINGS))]
Credit = Annotated[str, one_of(*sorted(CREDITS))]
Optimiser = Annotated[str, one_of(*sorted(KINDS))]


def changed_row(
    row: dict[str, Any],
    *,
    name: str,
    reward_model: str,
    read: str,
    normaliser: str,
    shaping: str,
    credit: str,
    optimiser: str,
    changes: dict[str, Any],
) -> dict[str, Any]:
    """Returns a row's settings with the chosen ones in place; `changes` come last and may hold anything a row may.

    Raises:
        RecipeError: choices that do not fit together.
    """
    made = json.loads(json.dumps(row)) | {"title": name}
    for field, value in (("reward_model", reward_model), ("normaliser", normaliser), ("credit", credit)):
        if value not in ("", KEEP):
            made[field] = value
    if read != KEEP:
        made["readout"] = {**made.get("readout", {}), "read": read}
    if shaping == "none":
        made.pop("shaping", None)
    elif shaping != KEEP:
        made["shaping"] = {"kind": shaping}
    if optimiser != KEEP:
        made["optimiser"] = {"kind": optimiser}
    made |= changes
    parse_recipe(made, f"recipe {name}")
    return made


def worktree(root: Path, name: str, commit: str) -> Path:
    """Returns a git worktree at the commit with this tree's DVC cache; one that is there is brought to the commit.

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
    own = path / ".dvc" / "config.local"
    own.write_text(f"[cache]\n    dir = {stale.cache_folder(root)}\n", encoding="utf-8")
    return path


def _git(root: Path, *arguments: str) -> None:
    call = ["git", "-C", str(root), *arguments]
    done = subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RewardsmithError(f"git {arguments[0]} failed: {done.stderr.strip()}")


def only_run(root: Path, name: str) -> AbstractContextManager[None]:
    """Holds a recipe's worktree for one run: a second one would rewrite the row under the first.

    Raises:
        RewardsmithError: another run has it.
    """
    lock = root / ".work" / "recipes" / f"{name}.lock"
    return only_one(lock, f"another run of the recipe '{name}' is active", "Wait for it, or choose another name")


def write_row(path: Path, paper: str, name: str, row: dict[str, Any]) -> list[str]:
    """Writes the row into a worktree with the paper's matrix; returns the dvc.yaml files that hold it.

    Raises:
        RecipeError: a setting that a stage of the row would refuse.
    """
    (path / _page(paper, name)).write_text(page_text({name: row}), encoding="utf-8")
    refuse_rows(path, "testbed", {paper: [name]})
    folders = graph.matrix_folders("testbed", paper)
    graph.write(path, folders)
    return [ROOT_FILE, *(f"{folder}/dvc.yaml" for folder in folders if (path / folder / "dvc.yaml").exists())]


def _page(paper: str, name: str) -> Path:
    """Returns the page of a recipe's row, which has it alone."""
    return Path("params") / paper / f"rows_{name}.yaml"


def adopt(root: Path, name: str) -> Path:
    """Copies the page of a recipe that ran into the tree and brings the graph files up to date; returns the page.

    Raises:
        RecipeError: no recipe of that name ran here, or the tree has such a row.
    """
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
    graph.write(root)
    return source


def report_result(path: Path, scale: str, paper: str, name: str, seeds: list[int]) -> None:
    """Reports the results as an artifact of the run."""
    rows = []
    for seed in seeds:
        metrics = path / "results" / scale / paper / "policy" / name / str(seed) / "result" / "metrics.json"
        if (reason := stopped(metrics.parent)) is not None:
            rows.append({"seed": seed, "stopped": reason})
        if metrics.exists():
            values = json.loads(metrics.read_text(encoding="utf-8"))
            rows.append({"seed": seed, **{key: round(value, 4) for key, value in sorted(values.items())}})
    if rows:
        create_table_artifact(key=f"recipe-{name}".replace(".", "-").replace("_", "-"), table=rows, description=name)


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
) -> Any:  # Prefect hands on the text of the state
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
        seeds: seeds of the suite; seed 0 when left out.
        sync: mirror the result into MLflow.
        root: the repository.
    """
    log, tree = get_run_logger(), Path(root).resolve()
    paper, _, base = start.partition("/")
    known = {f"{of}/{row}" for of in papers(tree) for row in row_addresses(tree, of)}
    if start not in known:
        raise RecipeError(f"unknown row '{start}'{hint(start, sorted(known), more=3)}")
    if start.split("/")[0] == SHARED or f"{paper}/{name}" in known:
        raise RecipeError(f"{paper} has a row '{name}' already; choose another name")
    version = str(deployment.version or "")
    commit = version if COMMIT.fullmatch(version) else commit_of(tree)  # `prefect deploy` makes versions of its own
    with note_running_process(tree), only_run(tree, name):
        path = worktree(tree, name, commit)
        row = changed_row(
            read_settings(row_addresses(path, paper)[base].under(path)),
            name=name,
            reward_model=reward_model,
            read=read,
            normaliser=normaliser,
            shaping=shaping,
            credit=credit,
            optimiser=optimiser,
            changes=changes or {},
        )
        text = yaml.safe_dump(row, sort_keys=False)
        create_markdown_artifact(key="recipe", markdown=f"```yaml\n{text}```\ncommit {commit}", description=name)
        link_page_and_report(create_link_artifact)
        log.info("recipe %s at commit %s in %s", name, commit[:10], path)
        (path / "recipe.yaml").write_text(yaml.safe_dump({"paper": paper, "row": name, "commit": commit}))
        files = write_row(path, paper, name, row)
        chosen = seeds or [0]
        summary = run_stale(path, files, papers=[paper], rows=[name], seeds=chosen)
        if summary.failed:
            raise RunFailed(f"{summary.line()}. " + "; ".join(summary.failed.values()))
        if sync:
            os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{tree / 'mlflow.db'}")
            if problems := follow_ups(path, ("tasks.tracking.mirror", ["--paper", paper, "--rows", name])):
                raise RunFailed("; ".join(problems))
        report_result(path, "testbed", paper, name, chosen)
    return completed_state(summary)


@prints_errors
def main() -> int:
    """Adopts a recipe: `python -m flows.recipe NAME`."""
    print(f"wrote {adopt(Path.cwd(), sys.argv[1])}; commit it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
