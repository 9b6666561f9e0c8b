"""The deployments: one per paper, the suite, a single recipe as a form, and re-evaluation on a schedule.

    python -m flows.deployments     brings the server of PREFECT_API_URL in line with this tree

A paper that has rows in the tree has one. `rewardsmith up` does the same, for the server that it starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError, prints_errors
from tasks.graph.names import SUITE
from tasks.graph.rows import backbone_names, paper_folder, papers, row_addresses
from tasks.params.evaluation import ReevaluationSettings, read_reevaluation
from tasks.params.pages import entries
from tasks.params.scales import scale_names
from tasks.params.stages import run_settings
from tasks.params.yaml_files import folders_of
from tasks.running.commit import changed_since, commit_of, listed

#: Folders of params/ with a deployment, and their titles.
PAPER_TITLES = {
    "segment": "Segmenting Text and Learning Their Rewards",
    "sentence": "Sentence-level Reward Model",
    "par": "Reward Shaping to Mitigate Reward Hacking",
    "alarm": "ALARM",
    "rlmec": "Fine-grained RL with Minimum Editing Constraint",
    "hackability": "Hacking laboratory",
    "mixed": "Ideas of several papers in one recipe",
}
POOL = "rewardsmith"
#: Marks the schedule that this file declares among a deployment's others.
SLUG = "schedule"
#: The queue of what runs in the working tree itself: one run at a time.
TREE_QUEUE = "tree"
REEVALUATION_SETTINGS = Path("params") / "reevaluation.yaml"
#: A version that says at which commit a deployment was made.
COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Deployment:
    """One deployment.

    Attributes:
        flow: name of the flow, in the module `flows.paper` or in one of its own.
        limit: runs at once.
        overlapping: what becomes of a run beyond it: ENQUEUE or CANCEL_NEW.
        schedule: {cron, timezone}, or None.
        queue: of the work pool; TREE_QUEUE where runs share the working tree, one at a time.
    """

    name: str
    flow: str
    description: str
    tags: tuple[str, ...]
    limit: int = 1
    overlapping: str = "ENQUEUE"
    schedule: Mapping[str, str] | None = None
    queue: str = "default"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Returns the name by which a worker imports the flow."""
        return f"flows.{'paper' if self.flow in (*PAPER_TITLES, SUITE) else self.flow}.{self.flow}"


def reevaluation_settings(root: Path) -> ReevaluationSettings | None:
    """Returns the settings of re-evaluation; None for a tree without them.

    Raises:
        RecipeError: settings that are not valid, such as a schedule that never comes.
    """
    file = root / REEVALUATION_SETTINGS
    return read_reevaluation(file) if file.exists() else None


def deployments(root: Path) -> list[Deployment]:
    """Returns every deployment of this tree.

    Raises:
        RecipeError: settings of the re-evaluation that are not valid.
    """
    found = [
        Deployment(f"train-{paper}", paper, f"The rows of {paper}", ("paper", paper), queue=TREE_QUEUE)
        for paper in papers(root)
        if paper in PAPER_TITLES
    ]
    everything = "The five papers' matrix, shared work once, then the report"
    whole = {"full": True}
    found.append(Deployment("train-everything", SUITE, everything, (SUITE,), queue=TREE_QUEUE, parameters=whole))
    found.append(Deployment("try-a-recipe", "recipe", "One recipe in a worktree of its own", ("recipe",), limit=4))
    if (settings := reevaluation_settings(root)) is not None:
        what = "Models of the registry, again on their benchmarks, where something changed"
        made = {"timezone": settings.schedule.timezone, "cron": settings.schedule.cron}
        named = ("re-evaluate-models", "reevaluate", what, ("re-evaluation",))
        found.append(Deployment(*named, overlapping="CANCEL_NEW", schedule=made))
    return found


def refuse_edited_tree(root: Path) -> None:
    """Refuses a tree that was edited since the commit which the present run's deployment is pinned to, if it is.

    Raises:
        RewardsmithError: names the changed code or parameters.
    """
    from prefect.runtime import deployment

    commit = str(deployment.version or "") if deployment.id else ""
    if COMMIT.fullmatch(commit) and (changed := changed_since(root, commit)):
        raise RewardsmithError(
            f"this deployment is pinned to commit {commit[:10]}, and the tree differs in {listed(changed)}. Commit, "
            "then run `rewardsmith up`, which pins the new commit; or run `rewardsmith run` for the tree as it is"
        )


def apply(root: Path, client: Any) -> list[str]:
    """Creates or updates the deployments on a server, pinned to the tree's commit; returns those that it wrote."""
    from prefect.exceptions import ObjectNotFound
    from prefect.flows import Flow, load_flow_from_entrypoint

    written, settings = [], reevaluation_settings(root)
    watched = [f"{model.name}@{model.alias}" for model in settings.models] if settings else []
    for one in deployments(root):
        made: Flow[..., Any] = load_flow_from_entrypoint(one.module)
        before: Any = None
        with suppress(ObjectNotFound):
            before = client.read_deployment_by_name(f"{made.name}/{one.name}")
        schedules = _schedules(one, before.schedules if before else [])
        wanted = _wanted(one, root) | {"parameter_openapi_schema": form(root, made, watched)}
        same = before and all(getattr(before, key) == value for key, value in wanted.items())
        same = same and getattr(before.global_concurrency_limit, "limit", None) == one.limit
        if same and [s.schedule for s in before.schedules] == [s.schedule for s in schedules]:
            continue  # writing it again would drop runs that are due
        flow = client.create_flow_from_name(made.name)
        client.create_deployment(flow, name=one.name, schedules=schedules, concurrency_limit=one.limit, **wanted)
        written.append(f"{made.name}/{one.name}")
    return written


def form(root: Path, flow: Any, examples: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the schema of a flow's parameters as a form of a tree: the server refuses what is not in a list.

    Args:
        root: the tree, whose rows, models, scales and seeds are the choices.
        flow: the deployment's.
        examples: of `models`, the registered models of a re-evaluation; the registry may have others.
    """
    from prefect.utilities.callables import parameter_schema

    schema: dict[str, Any] = parameter_schema(flow).model_dump_for_openapi()
    hidden = {"root", "rows"} if flow.name == SUITE else {"root"}
    fields = {name: field for name, field in schema["properties"].items() if name not in hidden}
    lists = {name: ("enum", known) for name, known in _choices(root, flow.name).items()}
    for name, (kind, known) in (lists | ({"models": ("examples", [*examples])} if examples else {})).items():
        if name in fields:
            value = fields[name].get("anyOf", [fields[name]])[0]  # a list that may be left out
            value.get("items", value)[kind] = known
    return {**schema, "properties": fields}


def _choices(root: Path, flow: str) -> dict[str, list[Any]]:
    """Returns the values that a field of a flow's form may have."""
    known = papers(root)
    rows = {paper: sorted(row_addresses(root, paper)) for paper in known}
    settings = run_settings(root)
    parts = (*settings.demo.values(), *settings.demo_all.values())
    seeds = {*settings.suite.seeds, *(seed for some in settings.suite.scale_seeds.values() for seed in some)}
    seeds |= {seed for part in parts for seed in part.seeds}
    folders = [path.name for path in folders_of(root / "params")]
    models = {name: entries(root, paper_folder(name), "reward_models") for name in folders}
    return {
        "rows": sorted({*rows.get(flow, ()), *backbone_names(root)}),
        "seeds": sorted(seeds),
        "scale": sorted(scale_names(root)),
        "start": [f"{paper}/{row}" for paper in known for row in rows[paper]],
        "reward_model": ["", *(f"{paper}/{name}" for paper, found in models.items() for name in sorted(found))],
    }


def _wanted(one: Deployment, root: Path) -> dict[str, Any]:
    """Returns a deployment of the tree's commit as a server holds it, without limit, schedules and schema."""
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions

    from flows.flow_runs import BEATING

    commit, project = commit_of(root), str(Path(__file__).resolve().parents[1])
    strategy = ConcurrencyLimitStrategy(one.overlapping)
    return {
        "version": commit or None,
        "concurrency_options": ConcurrencyOptions(collision_strategy=strategy, grace_period_seconds=300),
        "parameters": {**one.parameters, "root": str(root)},
        "description": f"{one.description}. Commit {commit[:10]}.",
        "work_pool_name": POOL,
        "work_queue_name": one.queue,
        "tags": [*one.tags, f"commit:{commit[:10]}"],
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": project}}],
        "entrypoint": one.module,
        "enforce_parameter_schema": True,
        "job_variables": {"working_dir": project, "env": BEATING},
    }


def _schedules(one: Deployment, before: Sequence[Any]) -> list[Any]:
    """Returns the schedules that a deployment has, people's own among them, with ours as declared; a paused one stays
    so."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    kept = [
        DeploymentScheduleCreate(
            schedule=old.schedule, active=old.active, parameters=old.parameters, slug=old.slug or None
        )
        for old in before
        if old.slug != SLUG
    ]
    if one.schedule is None:
        return kept
    active = all(old.active for old in before if old.slug == SLUG)
    cron = CronSchedule(cron=one.schedule["cron"], timezone=one.schedule["timezone"])
    return [*kept, DeploymentScheduleCreate(schedule=cron, active=active, slug=SLUG)]


def make_pool(client: Any) -> None:
    """Makes the work pool, and its queue of the runs that share the working tree: one at a time, the others wait."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    try:
        client.create_work_queue(name=TREE_QUEUE, work_pool_name=POOL, concurrency_limit=1)
    except ObjectAlreadyExists:
        known = client.read_work_queue_by_name(TREE_QUEUE, work_pool_name=POOL)
        if known.concurrency_limit != 1:
            client.update_work_queue(known.id, concurrency_limit=1)


@prints_errors
def main() -> int:
    """Makes pool, deployments and, under the name REWARDSMITH_SLOTS, the limits of this machine."""
    from prefect.client.orchestration import get_client

    from flows.slots import make_limits
    from flows.worker import require_prefect_server

    require_prefect_server()
    with get_client(sync_client=True) as client:
        make_pool(client)
        if name := os.environ.get("REWARDSMITH_SLOTS"):
            make_limits(client, name)
        for name in apply(Path.cwd().resolve(), client):
            print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
