"""Checks of a study before anything runs: every row and setting, in a tree that is thrown away."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rlhf_core.errors import RecipeError, hint
from tasks.graph.stage_checks import Reached, by_result
from tasks.graph.typed_settings import TypedSettings
from tasks.params.metric_names import is_metric, needed_parts
from tasks.params.questions import QuestionsSpec
from tasks.params.studies import StudySpec
from tasks.studies.caveats import compared
from tasks.studies.shared_sft import SharedSft, shared_sft
from tasks.studies.tree import WorldTree, write_tree
from tasks.studies.trials import trained_kinds
from tasks.studies.world_seeds import TUNING


@dataclass(frozen=True)
class PlannedStages:
    """The stages of a world of a study.

    Attributes:
        counts: of each kind.
        shared: SFT models that several cells share.
    """

    counts: Counter[str]
    shared: list[SharedSft]


def check_study(root: Path, name: str, spec: StudySpec) -> PlannedStages:
    """Returns the stages that a world of a study has.

    Raises:
        RecipeError: a row, reward model or setting that a run or tuning would refuse, a hypothesis that compares a
            row that trains a policy with one that does not, a metric to show of a stage that the study has not, or an
            evaluation that leaves out what the metric is measured on.
    """
    kinds = trained_kinds(root, name, spec)
    for hypothesis_name, hypothesis in spec.hypotheses.items():
        rows = sorted(compared(spec, hypothesis), key=lambda row: row not in kinds)
        if (rows[0] in kinds) != (rows[1] in kinds):
            raise RecipeError(
                f"study '{name}': hypotheses.{hypothesis_name} compares '{rows[0]}', which trains a policy, with "
                f"'{rows[1]}', which does not; they have no metric in common"
            )
    with TemporaryDirectory() as folder:
        world = WorldTree(name, spec, TUNING.start, Path(folder))
        write_tree(root, world)
        items = {item.out: item for cell in spec.cells for item in world.items(cell)}
        for cell in spec.cells:
            _check_measured(world, cell)
        shared = shared_sft(world)
    stages = sorted({f"{item.module}/{item.name}" for item in items.values()})
    for metric in spec.shows:
        if not is_metric(metric) and not any(metric.startswith(f"{stage}/") for stage in stages):
            asked = "/".join(metric.split("/")[:2])
            raise RecipeError(f"study '{name}': shows names '{metric}' of a stage that it has not{hint(asked, stages)}")
    return PlannedStages(Counter(item.module for item in items.values() if item.module != "check"), shared)


def _check_measured(world: WorldTree, cell: str) -> None:
    """Refuses evaluations of a cell's rows that leave out, by `only`, what the study's metric is measured on."""
    assert isinstance(world.spec, StudySpec)
    above, settings = by_result(world.items(cell)), TypedSettings(world.tree)
    for row, item in world.stages(cell).items():
        reached = Reached(item, above, settings)
        if "evaluation" not in item.arguments or isinstance(reached.data, QuestionsSpec):
            continue
        config = reached.own("evaluation")
        for parts in needed_parts(world.spec.metric):
            if not any(map(config.has, parts)):
                raise RecipeError(
                    f"study '{world.study}': the metric is '{world.spec.metric}', but {reached.where('evaluation')} of "
                    f"row '{row}' has only {list(config.only)}; add '{parts[0]}' to 'only'"
                )
