"""Numbers of prompts, rows and updates above the number that exists.

A stage takes everything that exists where its settings ask for more, so the setting would say something else than the
result. A number of which a score depends is refused; one that changes no score is a warning. What exists is known of
generated data, whose settings state it, and of real data where they state the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.graph.typed_settings import StageContext
from tasks.params.data import DrawnSpec, ReadSpec, RealSpec
from tasks.params.evaluation import EvaluationConfig
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.questions import QuestionsSpec

#: Benchmark whose prompts have a number of their own in settings of real data.
HELD_OUT = "held_out"


@dataclass(frozen=True)
class Amount:
    """A number that a setting asks for, beside the number that exists.

    Args:
        where: address of the settings.
        field: of these settings.
        asked: its value, None for all.
        exists: at most so many, None where that is not known.
        of: noun and place of what exists.
        scores: whether a score depends on it.
    """

    where: str
    field: str
    asked: int | None
    exists: int | None
    of: str
    scores: bool = True

    @property
    def too_many(self) -> bool:
        return self.asked is not None and self.exists is not None and self.asked > self.exists

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.field} is {self.asked}, but there are {self.exists} {self.of}; set {self.field} to "
            f"at most {self.exists}, or raise the other"
        )


def _rows(stage: StageContext, name: str) -> tuple[int | None, str]:
    """Returns the most rows that a set of the stage's data has, None if unknown, and where that is stated."""
    data: Any = stage.data
    stated = _data_settings(stage)
    if isinstance(data, DrawnSpec):
        return data.rows.get(name), f"({stated}, rows.{name})"
    if isinstance(data, QuestionsSpec):
        return getattr(data.rows, name, None), f"({stated}, rows.{name})"
    if name == "benchmark" and isinstance(data, ReadSpec):
        return data.benchmark_rows, f"({stated}, benchmark_rows)"
    return None, ""


def _data_settings(stage: StageContext) -> str:
    """Returns the address of the settings of a stage's data."""
    above = stage.upstream("data")[0]
    while above.item.module != "prepare":
        above = above.upstream("data")[0]
    return above.where("spec")


def _benchmark(stage: StageContext, name: str) -> tuple[int | None, str]:
    """Returns the most prompts of a benchmark, None if unknown, and where that is stated."""
    data: Any = stage.data
    if name == HELD_OUT and isinstance(data, RealSpec):
        return data.held_out, f"prompts in the benchmark '{name}' ({_data_settings(stage)}, {HELD_OUT})"
    most, where = _rows(stage, "benchmark")
    return most, f"prompts in the benchmark '{name}' {where}"


def _policy(stage: StageContext) -> Iterator[Amount]:
    scale: PolicyScale = stage.own("scale")
    recipe, where = stage.own("row"), stage.where("scale")
    if isinstance(stage.data, QuestionsSpec):
        most, stated = _rows(stage, "questions")
        yield Amount(where, "checkpoint_prompts", scale.checkpoint_prompts, most, f"training questions {stated}")
    else:
        most, of = _benchmark(stage, scale.checkpoint_benchmark)
        yield Amount(where, "checkpoint_prompts", scale.checkpoint_prompts, most, of)
        evaluation: EvaluationConfig = stage.own("evaluation")
        of = f"items of each benchmark ({stage.where('evaluation')}, rows)"
        yield Amount(where, "checkpoint_prompts", scale.checkpoint_prompts, evaluation.rows, of)
    if recipe.kind == "supervised":
        return
    training = reward_training(recipe, scale, where).optimiser
    if not training.fixed_samples:
        most, stated = _rows(stage, "prompts")
        yield Amount(where, "prompts", scale.prompts, most, f"training prompts {stated}")
    if scale.checkpoint_prompts:
        of = f"iterations (optimiser.iterations of {stage.where('row')} on {where})"
        yield Amount(where, "checkpoint_every", scale.checkpoint_every, training.iterations, of)
        yield Amount(where, "checkpoints", scale.checkpoints, training.iterations, of)
    of = f"rollouts in an iteration (optimiser.rollout_batch of {stage.where('row')} on {where})"
    yield Amount(where, "rollout_samples", scale.rollout_samples, training.rollout_batch, of, scores=False)


def _sft(stage: StageContext) -> Iterator[Amount]:
    most, stated = _rows(stage, "sft")
    tasks, _ = _rows(stage, "tasks")
    examples = None if most is None else most + (tasks or 0)
    of = f"training examples {stated}"
    yield Amount(stage.where("spec"), "examples", stage.own("spec").examples, examples, of)
    yield from _evaluation(stage)


def _evaluation(stage: StageContext) -> Iterator[Amount]:
    """Yields the numbers of an evaluation: a benchmark may have fewer items than `rows`, the largest one not."""
    evaluation: EvaluationConfig = stage.own("evaluation")
    where = stage.where("evaluation")
    if isinstance(stage.data, DrawnSpec):
        sizes = ("benchmark", "choices", "arithmetic", "functions")
        most = max(stage.data.rows.get(name, 0) for name in sizes)
        of = f"items in the largest benchmark ({_data_settings(stage)})"
        yield Amount(where, "rows", evaluation.rows, most, of)
    most_items, of = _benchmark(stage, "alpaca")
    yield Amount(where, "pair_rows", evaluation.pair_rows, most_items, of)


def _prompts(stage: StageContext) -> Iterator[Amount]:
    most, stated = _rows(stage, "prompts")
    yield Amount(stage.where("scale"), "prompts", stage.own("scale").prompts, most, f"training prompts {stated}")


def _pool(stage: StageContext) -> Iterator[Amount]:
    scale = stage.own("scale")
    for name in scale.benchmarks:
        yield Amount(stage.where("scale"), "prompts", scale.prompts, *_benchmark(stage, name))


def _normaliser(stage: StageContext) -> Iterator[Amount]:
    most, stated = _rows(stage, "preference_train")
    yield Amount(stage.where("scale"), "pairs", stage.own("scale").pairs, most, f"training pairs {stated}")


#: The numbers that the settings of each kind of stage ask for.
AMOUNTS: Mapping[str, Callable[[StageContext], Iterator[Amount]]] = {
    "sft": _sft,
    "policy": _policy,
    "references": _prompts,
    "selection": _prompts,
    "pool": _pool,
    "normaliser": _normaliser,
}


def too_many(stage: StageContext) -> list[Amount]:
    """Returns the numbers of a stage's settings that are above what exists."""
    asked = AMOUNTS.get(stage.item.module)
    return [] if asked is None else [amount for amount in asked(stage) if amount.too_many]
