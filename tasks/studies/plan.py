"""Plan of a study before anything runs: every row and setting checked in a tree that is thrown away, and its design in
words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.graph.typed_settings import StageContext, TypedSettings
from tasks.params.metric_names import is_metric, needed_parts
from tasks.params.pages import read_settings
from tasks.params.questions import QuestionsSpec
from tasks.params.studies import Hypothesis, StudySpec
from tasks.params.tuning import tuning_spec
from tasks.studies.equal_kl import has_kl
from tasks.studies.frame import compared
from tasks.studies.registration import TUNING
from tasks.studies.training import POLICY, WORDS, optimiser_of
from tasks.studies.tree import WorldTree, write_tree
from tasks.studies.tuned import OPTIMISER
from tasks.studies.tuning import trained_kinds

#: Settings that change how much memory training takes, and no result.
OF_MEMORY = ("microbatch", "gradient_checkpointing", "padding_free")


@dataclass(frozen=True)
class PlannedStages:
    """The stages of a world of a study.

    Attributes:
        counts: of each kind.
        notes: in which settings that tuning does not choose compared rows differ, and rows that cannot be read at the
            study's KL targets.
    """

    counts: Counter[str]
    notes: list[str] = field(default_factory=list)


def check_study(root: Path, name: str, spec: StudySpec) -> PlannedStages:
    """Returns the stages that a world of a study has.

    Raises:
        RecipeError: a row, reward model or setting that a run or tuning would refuse, a hypothesis that compares a
            row that trains a policy with one that does not or with a row that has the same settings, a metric to show
            of a stage that the study has not, or an evaluation that leaves out what the metric is measured on.
    """
    kinds = trained_kinds(root, name, spec)
    for hypothesis_name, hypothesis in spec.hypotheses.items():
        rows = sorted(compared(spec, hypothesis), key=lambda row: row not in kinds)
        if (rows[0] in kinds) != (rows[1] in kinds):
            raise RecipeError(
                f"study '{name}': hypotheses.{hypothesis_name} compares '{rows[0]}', which trains a policy, with "
                f"'{rows[1]}', which does not; they have no metric in common"
            )
    notes: dict[str, None] = {}
    with TemporaryDirectory() as folder:
        world = WorldTree(name, spec, TUNING.start, Path(folder))
        write_tree(root, world)
        items = {item.out: item for cell in spec.cells for item in world.items(cell)}
        for cell in spec.cells:
            _check_different(world, spec, cell)
            notes |= dict.fromkeys(
                [*_check_measured(world, spec, cell), *_untuned_differences(root, world, spec, cell)]
            )
    stages = sorted({f"{item.module}/{item.name}" for item in items.values()})
    for metric in spec.shows:
        if not is_metric(metric) and not any(metric.startswith(f"{stage}/") for stage in stages):
            asked = "/".join(metric.split("/")[:2])
            raise RecipeError(f"study '{name}': shows names '{metric}' of a stage that it has not{hint(asked, stages)}")
    return PlannedStages(Counter(item.module for item in items.values() if item.module != "check"), [*notes])


def _check_measured(world: WorldTree, spec: StudySpec, cell: str) -> list[str]:
    """Refuses evaluations of a cell's rows that leave out, by `only`, what the study's metric is measured on, or that
    do not sample at temperature 1 where a hypothesis compares rows at a KL; returns notes on other such rows."""
    settings, found = TypedSettings(world.tree), []
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
        if not spec.kl_targets or has_kl(config.temperature, config.top_p, config.top_k):
            continue
        for name, hypothesis in spec.hypotheses.items():
            if (
                hypothesis.kl is not None
                and cell in spec.weighted_cells(hypothesis)
                and row in compared(spec, hypothesis)
            ):
                raise RecipeError(
                    f"study '{world.study}': hypotheses.{name} compares rows at {hypothesis.kl:g} nats, but {where} "
                    f"samples at temperature {config.temperature:g}; set temperature: 1, top_p: 1 and top_k: 0 in "
                    "'settings', evaluation"
                )
        found.append(f"{row} ({cell}) is blank at kl_targets: it is not sampled at temperature 1")
    return found


def _check_different(world: WorldTree, spec: StudySpec, cell: str) -> None:
    """Refuses a hypothesis that compares rows of the same settings: both would have one result, and no difference."""
    found: dict[str, list[str]] = {}
    for row, item in world.stages(cell).items():
        read = [read_settings(address.under(world.tree)) for address in item.addresses]
        own = [{name: value for name, value in one.items() if name not in WORDS} for one in read]
        inputs = {name: str(value) for name, value in item.arguments.items() if name != "row"}
        found[row] = [item.module, str(item.seed), json.dumps([own, inputs], sort_keys=True, default=str)]
    for name, hypothesis in spec.hypotheses.items():
        row, other = compared(spec, hypothesis)
        if row in found and other in found and found[row] == found[other]:
            raise RecipeError(
                f"study '{world.study}': hypotheses.{name} compares '{row}' with '{other}', which has the same "
                f"settings in cell '{cell}'; let them differ, or set 'twin: true' for one"
            )


def _untuned_differences(root: Path, world: WorldTree, spec: StudySpec, cell: str) -> list[str]:
    """Returns in which settings of one kind of optimiser compared rows differ that tuning does not choose for both."""
    items = {row: item for row, item in world.stages(cell).items() if item.module == POLICY}
    settings = {row: optimiser_of(world.tree, item) for row, item in items.items()}
    spaces, found = tuning_spec(root).spaces, []
    for row, other in dict.fromkeys(compared(spec, hypothesis) for hypothesis in spec.hypotheses.values()):
        one, two = settings.get(row, {}), settings.get(other, {})
        if not one or one["kind"] != two.get("kind"):
            continue
        tuned = {*spaces.get(one["kind"], ())} - {*spec.fixed(row), *spec.fixed(other)}
        names = [name for name in one if name in two and one[name] != two[name] and name not in {*tuned, *OF_MEMORY}]
        said = ", ".join(f"{name} {_shown(one[name])} and {_shown(two[name])}" for name in names)
        found += [f"'{row}' and '{other}' differ in untuned settings: {said}"] if said else []
    return found


@dataclass(frozen=True)
class DesignPart:
    """A part of a study's design.

    Attributes:
        name: such as 'dial length'.
        lines: by name, such as a level and what it sets.
    """

    name: str
    lines: Mapping[str, str]


def design_of(spec: StudySpec) -> list[DesignPart]:
    """Returns the design of a study in words: what each level of a dial sets, what rows fix, and the weights of the
    cells of each hypothesis."""
    parts = [DesignPart("settings of every cell", {"all": _set(spec.settings)})] if spec.settings else []
    parts += [
        DesignPart(f"dial {dial}", {level: _set(laid) for level, laid in levels.items()})
        for dial, levels in spec.dials.items()
    ]
    fixed = {row: {name: spec.rows[row][OPTIMISER][name] for name in spec.fixed(row)} for row in spec.rows}
    stated = {row: _set(own) for row, own in fixed.items() if own}
    parts += [DesignPart("not tuned", stated)] if stated else []
    parts += [DesignPart("tuned in", {"cells": ", ".join(spec.tuned_at)})] if spec.tuned_at else []
    return [*parts, DesignPart("hypotheses", {name: _weights(spec, one) for name, one in spec.hypotheses.items()})]


def _set(overlay: Mapping[str, Any]) -> str:
    """Returns what is laid over the scale's pages, by whole names."""

    def flat(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
        found = []
        for name, value in settings.items():
            inner = isinstance(value, Mapping) and value
            found += flat(value, f"{prefix}{name}.") if inner else [f"{prefix}{name} {_shown(value)}"]
        return found

    return "; ".join(flat(overlay)) or "nothing: the scale's settings"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "removed" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _weights(spec: StudySpec, hypothesis: Hypothesis) -> str:
    """Returns the rows of a hypothesis and the weight of their difference in each cell."""
    weights = spec.weighted_cells(hypothesis)
    cells = "; ".join(f"{weight:+.3g}".replace("-", "−") + f" {cell}" for cell, weight in weights.items())
    kl = "" if hypothesis.kl is None else f" at {hypothesis.kl:g} nats"
    return f"{' less '.join(compared(spec, hypothesis))}{kl}, {hypothesis.side} 0: {cells}"
