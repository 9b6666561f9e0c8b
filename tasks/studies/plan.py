"""Check of a study before anything runs: every row and setting, in a tree that is thrown away."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from rlhf_core.errors import RecipeError, hint
from tasks.graph.typed_settings import StageContext, TypedSettings
from tasks.params.evaluation import is_metric, needed_parts
from tasks.params.pages import read_settings
from tasks.params.questions import QuestionsSpec
from tasks.params.studies import StudySpec
from tasks.studies.registration import TUNING
from tasks.studies.tree import WorldTree, write_pages
from tasks.studies.trials import trained_kinds
from tasks.studies.world_record import WORDS


def check_study(root: Path, name: str, spec: StudySpec) -> Counter[str]:
    """Returns the number of stages of each kind that a world of a study has.

    Raises:
        RecipeError: a row, reward model or setting that a run or tuning would refuse, a hypothesis that compares a
            row that trains a policy with one that does not or with a row that has the same settings, a metric to show
            of a stage that the study has not, or an evaluation that leaves out what the metric is measured on.
    """
    kinds = trained_kinds(root, name, spec)
    for hypothesis_name, hypothesis in spec.hypotheses.items():
        rows = sorted(spec.compared(hypothesis), key=lambda row: row not in kinds)
        if (rows[0] in kinds) != (rows[1] in kinds):
            raise RecipeError(
                f"study '{name}': hypotheses.{hypothesis_name} compares '{rows[0]}', which trains a policy, with "
                f"'{rows[1]}', which does not; they have no metric in common"
            )
    with TemporaryDirectory() as folder:
        world = WorldTree(name, spec, TUNING.start, Path(folder))
        write_pages(root, world)
        items = {item.out: item for cell in spec.cells for item in world.items(cell)}
        for cell in spec.cells:
            _check_different(world, cell)
            _check_measured(world, cell)
    stages = sorted({f"{item.module}/{item.name}" for item in items.values()})
    for metric in spec.shows:
        if not is_metric(metric) and not any(metric.startswith(f"{stage}/") for stage in stages):
            asked = "/".join(metric.split("/")[:2])
            raise RecipeError(f"study '{name}': shows names '{metric}' of a stage that it has not{hint(asked, stages)}")
    return Counter(item.module for item in items.values() if item.module != "check")


def _check_measured(world: WorldTree, cell: str) -> None:
    """Refuses evaluations of a cell's rows that leave out, by `only`, what the study's metric is measured on."""
    spec, settings = world.spec, TypedSettings(world.tree)
    for row, item in world.stages(cell).items():
        stage = StageContext(item, settings)
        if "evaluation" not in item.arguments:
            continue
        config, where = stage.own("evaluation"), f"{stage.where('evaluation')} of row '{row}'"
        for parts in () if isinstance(stage.data, QuestionsSpec) else needed_parts(spec.metric):
            if not any(map(config.has, parts)):
                raise RecipeError(
                    f"study '{world.study}': the metric is '{spec.metric}', but {where} has only {list(config.only)}; "
                    f"add '{parts[0]}' to 'only'"
                )


def _check_different(world: WorldTree, cell: str) -> None:
    """Refuses a hypothesis that compares rows of the same settings: both would have one result, and no difference."""
    found: dict[str, list[str]] = {}
    for row, item in world.stages(cell).items():
        read = [read_settings(address.under(world.tree)) for address in item.addresses]
        own = [{name: value for name, value in one.items() if name not in WORDS} for one in read]
        inputs = {name: str(value) for name, value in item.arguments.items() if name != "row"}
        found[row] = [item.module, str(item.seed), json.dumps([own, inputs], sort_keys=True, default=str)]
    for name, hypothesis in world.spec.hypotheses.items():
        row, other = world.spec.compared(hypothesis)
        if row in found and other in found and found[row] == found[other]:
            raise RecipeError(
                f"study '{world.study}': hypotheses.{name} compares '{row}' with '{other}', which has the same "
                f"settings in cell '{cell}'; let them differ, or set 'twin: true' for one"
            )
