"""Numbers of prompts, rows and updates above the number that exists.

A stage takes everything that exists where its settings ask for more, so the setting would say something else than the
result. A number of which a score depends is refused; one that changes no score is a warning. What exists is known of
generated data, whose settings state it, and of real data where they state the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.graph.stage_checks import Reached
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


def _rows(reached: Reached, name: str) -> tuple[int | None, str]:
    """Returns the most rows that a set of the stage's data has, None if unknown, and where that is stated."""
    data: Any = reached.data
    stated = _data_settings(reached)
    if isinstance(data, DrawnSpec):
        return data.rows.get(name), f"({stated}, rows.{name})"
    if isinstance(data, QuestionsSpec):
        return getattr(data.rows, name, None), f"({stated}, rows.{name})"
    if name == "benchmark" and isinstance(data, ReadSpec):
        return data.benchmark_rows, f"({stated}, benchmark_rows)"
    return None, ""


def _data_settings(reached: Reached) -> str:
    """Returns the address of the settings of a stage's data."""
    above = reached.upstream("data")[0]
    while above.item.module != "prepare":
        above = above.upstream("data")[0]
    return above.where("spec")


def _benchmark(reached: Reached, name: str) -> tuple[int | None, str]:
    """Returns the most prompts of a benchmark, None if unknown, and where that is stated."""
    data: Any = reached.data
    if name == HELD_OUT and isinstance(data, RealSpec):
        return data.held_out, f"prompts in the benchmark '{name}' ({_data_settings(reached)}, {HELD_OUT})"
    most, where = _rows(reached, "benchmark")
    return most, f"prompts in the benchmark '{name}' {where}"


def _policy(reached: Reached) -> Iterator[Amount]:
    scale: PolicyScale = reached.own("scale")
    recipe, where = reached.own("row"), reached.where("scale")
    if isinstance(reached.data, QuestionsSpec):
        most, stated = _rows(reached, "questions")
        yield Amount(where, "checkpoint_prompts", scale.checkpoint_prompts, most, f"training questions {stated}")
    else:
        most, of = _benchmark(reached, scale.checkpoint_benchmark)
        yield Amount(where, "checkpoint_prompts", scale.checkpoint_prompts, most, of)
        evaluation: EvaluationConfig = reached.own("evaluation")
        of = f"items of each benchmark ({reached.where('evaluation')}, rows)"
        yield Amount(where, "checkpoint_prompts", scale.checkpoint_prompts, evaluation.rows, of)
    if recipe.kind == "supervised":
        return
    training = reward_training(recipe, scale, where).optimiser
    if not training.fixed_samples:
        most, stated = _rows(reached, "prompts")
        yield Amount(where, "prompts", scale.prompts, most, f"training prompts {stated}")
    if scale.checkpoint_prompts:
        of = f"iterations (optimiser.iterations of {reached.where('row')} on {where})"
        yield Amount(where, "checkpoint_every", scale.checkpoint_every, training.iterations, of)
        yield Amount(where, "checkpoints", scale.checkpoints, training.iterations, of)
    of = f"rollouts in an iteration (optimiser.rollout_batch of {reached.where('row')} on {where})"
    yield Amount(where, "rollout_samples", scale.rollout_samples, training.rollout_batch, of, scores=False)


def _sft(reached: Reached) -> Iterator[Amount]:
    most, stated = _rows(reached, "sft")
    tasks, _ = _rows(reached, "tasks")
    examples = None if most is None else most + (tasks or 0)
    of = f"training examples {stated}"
    yield Amount(reached.where("spec"), "examples", reached.own("spec").examples, examples, of)
    yield from _evaluation(reached)


def _evaluation(reached: Reached) -> Iterator[Amount]:
    """Yields the numbers of an evaluation: a benchmark may have fewer items than `rows`, the largest one not."""
    evaluation: EvaluationConfig = reached.own("evaluation")
    where = reached.where("evaluation")
    if isinstance(reached.data, DrawnSpec):
        sizes = ("benchmark", "choices", "arithmetic", "functions")
        most = max(reached.data.rows.get(name, 0) for name in sizes)
        of = f"items in the largest benchmark ({_data_settings(reached)})"
        yield Amount(where, "rows", evaluation.rows, most, of)
    most_items, of = _benchmark(reached, "alpaca")
    yield Amount(where, "pair_rows", evaluation.pair_rows, most_items, of)


def _prompts(reached: Reached) -> Iterator[Amount]:
    most, stated = _rows(reached, "prompts")
    yield Amount(reached.where("scale"), "prompts", reached.own("scale").prompts, most, f"training prompts {stated}")


def _pool(reached: Reached) -> Iterator[Amount]:
    scale = reached.own("scale")
    for name in scale.benchmarks:
        yield Amount(reached.where("scale"), "prompts", scale.prompts, *_benchmark(reached, name))


def _normaliser(reached: Reached) -> Iterator[Amount]:
    most, stated = _rows(reached, "preference_train")
    yield Amount(reached.where("scale"), "pairs", reached.own("scale").pairs, most, f"training pairs {stated}")


#: The numbers that the settings of each kind of stage ask for.
AMOUNTS: Mapping[str, Callable[[Reached], Iterator[Amount]]] = {
    "sft": _sft,
    "policy": _policy,
    "references": _prompts,
    "selection": _prompts,
    "pool": _pool,
    "normaliser": _normaliser,
}


def too_many(reached: Reached) -> list[Amount]:
    """Returns the numbers of a stage's settings that are above what exists."""
    asked = AMOUNTS.get(reached.item.module)
    return [] if asked is None else [amount for amount in asked(reached) if amount.too_many]
