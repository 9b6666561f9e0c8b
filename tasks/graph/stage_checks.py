"""Refusals of stages that depend on several settings: a microbatch and its loss, a judge and its data.

`CHECKS` holds them for each stage; a stage is given its items by `tasks.graph.check`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core.data.truncation import Limits
from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.evaluation.harness.choice import check_task
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.models.architecture import POSITIONS, architecture_of, field
from rlhf_core.models.classifier_folder import check_given_reward_model
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES, Sampling
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_needs
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.teachers.choices import TEACHERS
from tasks.graph.items import Argument, Item, result_of
from tasks.graph.typed_settings import TYPES, Make, TypedSettings
from tasks.params.aspects import AspectModelSpec
from tasks.params.backbone import BackboneSpec, SegmenterSpec
from tasks.params.data import LongFormDirectorySpec, LongFormWorldSpec, RealSpec, WorldSpec
from tasks.params.evaluation import BestOfNSpec, EvaluationConfig, SecondJudgeSpec
from tasks.params.questions import QuestionsSpec
from tasks.params.reward_model import (
    GenerativeModelScale,
    GivenSpec,
    MergeSpec,
    ReferencesSpec,
    RewardModelSpec,
    ZeroShotScale,
)
from tasks.params.settings import typed


@dataclass(frozen=True)
class Reached:
    """A stage with what it reads from.

    Attributes:
        item: the stage.
        above: every stage above it, by its result.
        settings: of this root.
    """

    item: Item
    above: Mapping[str, Item]
    settings: TypedSettings

    def own(self, argument: str) -> Any:
        """Returns the typed settings of one of the stage's own arguments."""
        return self.settings.get(TYPES[self.item.module, argument], str(self.item.arguments[argument]))

    def where(self, argument: str) -> str:
        """Returns the address of one of the stage's own settings."""
        return str(self.item.arguments[argument])

    def upstream(self, argument: str) -> list[Reached]:
        """Returns the stages whose results are given as an argument; a given reward model has none."""
        value: Argument = self.item.arguments.get(argument, ())
        results = value if isinstance(value, tuple) else (str(value),)
        return [stage for one in results if (stage := self.stage_of(one)) is not None]

    def stage_of(self, result: str) -> Reached | None:
        """Returns the stage that makes a result; None for what is given."""
        return Reached(self.above[result], self.above, self.settings) if result in self.above else None

    @property
    def data(self) -> Any:
        """Returns the typed data spec of the stage's data."""
        reached = self.upstream("data")[0]
        while reached.item.module != "prepare":
            reached = reached.upstream("data")[0]
        return reached.own("spec")

    @property
    def has_pairs(self) -> bool:
        """Returns whether the stage's data has preference pairs: of the data set, or of sampled solutions."""
        return self.upstream("data")[0].item.module != "prepare" or not isinstance(self.data, QuestionsSpec)

    @property
    def has_world(self) -> bool:
        """Returns whether true rewards are known of the stage's data."""
        data = self.data
        return str(data.source).startswith("testbed") and not isinstance(data, QuestionsSpec)


def stated_settings(item: Item) -> Iterator[tuple[Make, str]]:
    """Yields the type and the address of each of a stage's settings."""
    for name, value in item.arguments.items():
        if (item.module, name) in TYPES:
            for address in value if isinstance(value, tuple) else (str(value),):
                yield TYPES[item.module, name], address


def by_result(items: list[Item]) -> dict[str, Item]:
    """Returns stages by their results."""
    return {result_of(item): item for item in items}


# --- what contradicts --------------------------------------------------------------------------------------------


def _refuse(where: str, problem: str) -> RecipeError:
    return RecipeError(f"{where}: {problem}")


#: Sources of data whose responses are written in the testbed's language of clauses.
GRAMMATICAL = ("testbed", "testbed-longform")


def check_segmenter(segmenter: Mapping[str, Any], reached: Reached, where: str) -> None:
    """Refuses an entropy cutoff that the scale does not have, and gold clauses of data that has none."""
    if segmenter.get("kind") == "gold" and not (reached.has_world and reached.data.source in GRAMMATICAL):
        raise _refuse(
            where,
            f"segmenter.kind is 'gold', which reads the clauses of {' and '.join(GRAMMATICAL)} data, but the data's "
            f"source is '{reached.data.source}'; name another segmenter, such as entropy",
        )
    stated = segmenter_needs(segmenter).cutoffs.items()
    for above in reached.upstream("entropies") if stated else ():
        cutoffs = above.own("spec").cutoffs
        for option, name in stated:
            if str(name) not in cutoffs:
                near = f"which {above.where('spec')} does not have{hint(str(name), cutoffs)}"
                raise _refuse(where, f"segmenter.{option} is '{name}', {near}")


def check_judge_world(judge: Mapping[str, Any] | None, reached: Reached, where: str) -> None:
    """Refuses a judge that knows true rewards where the data has none."""
    if judge is None or reached.has_world:
        return
    kind = JUDGES.kind_of(judge)
    if JUDGES[kind].needs_world:
        raise _refuse(
            where,
            f"judge.kind is '{kind}', which works on the testbed only, but the data's source is "
            f"'{reached.data.source}'; name an endpoint, or null for none",
        )


def check_pairs(reached: Reached, where: str, what: str) -> None:
    """Refuses what learns from preference pairs where the data has none."""
    if not reached.has_pairs:
        at = reached.upstream("data")[0].where("spec")
        raise _refuse(
            where,
            f"{what} learns from preference pairs, but {at} has questions and no pairs; set pairs: samples, or take a "
            "backbone whose data has pairs",
        )


def has_judge_or_world(evaluation: EvaluationConfig, reached: Reached) -> bool:
    """Returns whether answers can be compared while a policy trains."""
    return (evaluation.judge is not None and evaluation.judge_checkpoints) or reached.has_world


def prompt_limits(limit: int | None, reached: Reached, where: str) -> Limits:
    """Returns the limits of prompts and responses, a prompt limit of the stage's own in place.

    Raises:
        RecipeError: the data's limits leave no token for a response.
    """
    limits = typed(Limits, reached.data.limits, where)
    if limit is None:
        return limits
    if limit >= limits.total:
        raise _refuse(where, f"prompt_limit is {limit}; it must be below the data's total limit of {limits.total}")
    return replace(limits, prompt=limit)


def check_positions(reached: Reached, tokens: int, what: str) -> None:
    """Refuses sequences beyond the positions of a stage's backbone, where these are known."""
    for sft in [reached] if reached.item.module == "sft" else reached.upstream("sft"):
        spec: BackboneSpec = sft.own("spec")
        places = field(architecture_of(spec.source, spec.architecture), POSITIONS)
        if places is not None and tokens > places:
            raise _refuse(
                sft.where("spec"),
                f"architecture.max_position_embeddings is {places}, but {what} have {tokens} tokens; shorten them, or "
                "take a model with more positions",
            )


def check_answers(reached: Reached, tokens: int, where: str) -> None:
    """Refuses answers that, after the data's longest prompts, are beyond the positions of the backbone."""
    limits = typed(Limits, reached.data.limits, where)
    check_positions(reached, limits.prompt + tokens, f"prompts and answers of {where}")


def check_engine(reached: Reached, engine: str, where: str, name: str = "engine") -> None:
    """Refuses an engine that cannot run the model of a stage's backbone, where that is known."""
    for sft in [reached] if reached.item.module == "sft" else reached.upstream("sft"):
        spec: BackboneSpec = sft.own("spec")
        try:
            ENGINES[engine].check(_architecture(reached.settings.root, spec))
        except RecipeError as error:
            problem = f"{name} is '{engine}', but {error} ({sft.where('spec')}); use {DEFAULT_ENGINE}"
            raise _refuse(where, problem) from None


def _architecture(root: Path, spec: BackboneSpec) -> Mapping[str, Any]:
    """Returns the fields of a backbone's configuration, those of a local folder included; empty where not known."""
    config = root / str(spec.source) / "config.json"
    if spec.source is not None and config.is_file():
        remedy = "Save the model again, with its config.json"
        try:
            found = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error})", file=str(config), remedy=remedy) from None
        if not isinstance(found, dict):
            raise DataError("not a configuration of a model", file=str(config), remedy=remedy)
        return found
    return architecture_of(spec.source, spec.architecture)


def check_data_length(reached: Reached) -> None:
    """Refuses rows of the data that are beyond the positions of the backbone."""
    data = reached.data
    total = typed(Limits, data.limits, "limits").total
    check_positions(reached, total, "rows of the data, by its limits.total,")


def check_evaluation(reached: Reached) -> None:
    """Refuses an evaluation whose answers are too long, or whose judge knows what the data does not have."""
    evaluation, where = reached.own("evaluation"), reached.where("evaluation")
    check_judge_world(evaluation.judge, reached, where)
    check_engine(reached, evaluation.engine, where)
    check_answers(reached, max(evaluation.max_new_tokens, evaluation.task_tokens), where)


def _sft(reached: Reached) -> None:
    check_data_length(reached)
    check_evaluation(reached)


def _segmenter(reached: Reached) -> None:
    spec: SegmenterSpec = reached.own("spec")
    if spec.gold == "clauses" and not reached.has_world:
        raise _refuse(
            reached.where("spec"),
            f"gold is 'clauses', which the testbed's data has, but the data's source is '{reached.data.source}'; name "
            "a set with sentence spans",
        )


def _questions(reached: Reached) -> None:
    if not isinstance(reached.data, QuestionsSpec):
        raise _refuse(
            reached.where("spec"),
            f"solutions need questions, but the data's source is '{reached.data.source}'; take a backbone whose data "
            "has a 'task'",
        )


def _samples(reached: Reached) -> None:
    _questions(reached)
    sampling: Sampling = reached.own("spec").sampling
    check_engine(reached, sampling.engine, reached.where("spec"), "sampling.engine")
    check_answers(reached, sampling.max_new_tokens, reached.where("spec"))


def _teacher(reached: Reached) -> None:
    _questions(reached)
    kind = reached.own("spec").kind
    if TEACHERS[kind].needs_testbed and reached.data.source != "testbed":
        raise _refuse(reached.where("spec"), f"kind is '{kind}', but the {kind} knows only the testbed's questions")


def _generative_reward_model(reached: Reached) -> None:
    scale: GenerativeModelScale = reached.own("scale")
    where = reached.where("scale")
    scale.training_config(reached.own("spec"), f"{where}, {reached.where('spec')}")
    check_positions(reached, scale.limits.total, f"rows of {where}, by its limits.total,")
    check_positions(reached, scale.limits.prompt + scale.max_new_tokens, f"prompts and rewrites of {where}")


def trained_spec(reached: Reached) -> RewardModelSpec | None:
    """Returns the settings that a reward model was trained with; for an average, the settings of its first member."""
    spec = reached.own("spec")
    if isinstance(spec, MergeSpec):
        return trained_spec(reached.upstream("reward_model")[0])
    return None if isinstance(spec, GivenSpec) else spec


def _reward_model(reached: Reached) -> None:
    spec, where = reached.own("spec"), reached.where("spec")
    config: TrainingConfig | ZeroShotScale = reached.own("scale")
    if isinstance(config, ZeroShotScale):
        if isinstance(spec, MergeSpec):
            raise _refuse(where, f"merge averages weights, but {reached.where('scale')} trains none: it is zero_shot")
        check_pairs(reached, where, "the accuracy of a zero-shot reward model")
        return
    if isinstance(spec, MergeSpec):
        _merge(reached, where)
        return
    check_pairs(reached, where, f"pairs is '{spec.pairs}': a reward model")
    check_data_length(reached)
    loss = build_loss(spec.loss)
    if config.microbatch < loss.minimum_pairs:
        raise _refuse(
            reached.where("scale"),
            f"microbatch is {config.microbatch}, but the loss of {where} compares the responses of one microbatch with "
            f"each other; it needs at least {loss.minimum_pairs} pairs",
        )
    check_segmenter(spec.segmenter, reached, where)


def refuse_zero_shot(reached: Reached, reader: str) -> None:
    """Refuses to read weights or values of tokens of a reward model that is not trained at this scale."""
    for model in reached.upstream("reward_model"):
        if isinstance(model.own("scale"), ZeroShotScale):
            raise _refuse(
                reached.where("scale"),
                f"{reader} reads a trained reward model, but {model.where('scale')} asks a zero_shot model instead of "
                f"training '{model.item.name}'; set training settings there",
            )


def _normaliser(reached: Reached) -> None:
    """Refuses a given folder that is no reward model, and to calibrate one on data without pairs; a model that is
    trained here says so itself."""
    if not reached.upstream("reward_model"):
        check_given_reward_model(reached.settings.root / str(reached.item.arguments["reward_model"]))
        check_pairs(reached, reached.where("scale"), "the normaliser of a given reward model")


def _merge(reached: Reached, where: str) -> None:
    """Refuses to average reward models of different segmentations or heads."""
    members = [(one, trained_spec(one)) for one in reached.upstream("reward_model")]
    (first, of_first), *others = members
    for one, spec in others:
        if spec is None or of_first is None:
            continue
        for name in ("segmenter", "aggregation", "end_token"):
            if getattr(spec, name) != getattr(of_first, name):
                raise _refuse(
                    where,
                    f"merge: '{one.item.name}' has {name} {getattr(spec, name)} and '{first.item.name}' has "
                    f"{getattr(of_first, name)}; merge reward models of the same segmenter, aggregation, heads and end "
                    "token",
                )
        if build_loss(spec.loss).heads != build_loss(of_first.loss).heads:
            raise _refuse(where, f"merge: '{one.item.name}' and '{first.item.name}' have losses of different heads")


def _references(reached: Reached) -> None:
    refuse_zero_shot(reached, "stage 'references'")
    spec: ReferencesSpec = reached.own("scale")
    where = reached.where("scale")
    check_engine(reached, spec.sampling.engine, where, "sampling.engine")
    limits = prompt_limits(spec.prompt_limit, reached, where)
    check_positions(reached, limits.prompt + spec.sampling.max_new_tokens, f"prompts and responses of {where}")
    for model in reached.upstream("reward_model"):
        trained = trained_spec(model)
        if trained is not None and trained.end_token:
            raise _refuse(
                model.where("spec"),
                "end_token is true, but reference rewards are kept as values at the response's own tokens; a shaping "
                "that needs them takes a reward model with end_token: false",
            )


def _aspect_model(reached: Reached) -> None:
    spec: AspectModelSpec = reached.own("spec")
    if not isinstance(reached.data, LongFormWorldSpec | LongFormDirectorySpec):
        raise _refuse(
            reached.where("spec"),
            f"labelled answers need long-form questions, but the data's source is '{reached.data.source}'",
        )
    known = ("completeness",) if spec.density == "sequence" else ("relevance", "factuality")
    if spec.aspect not in known:
        raise _refuse(
            reached.where("spec"),
            f"aspect is '{spec.aspect}', of which the data has no labels of density '{spec.density}'"
            f"{hint(spec.aspect, known)}",
        )


def benchmarks_of(data: Any) -> tuple[str, ...]:
    """Returns the dialogue benchmarks that data has."""
    if isinstance(data, WorldSpec):
        return ("alpaca", "arena", "ood", "mtbench")
    if isinstance(data, QuestionsSpec):
        return ()
    if not isinstance(data, RealSpec):
        return ("alpaca",)
    return (tuple(data.benchmarks) or ("alpaca",)) + (("held_out",) if data.held_out else ())


def _pool(reached: Reached) -> None:
    known = benchmarks_of(reached.data)
    sampling: Sampling = reached.own("scale").sampling
    check_engine(reached, sampling.engine, reached.where("scale"), "sampling.engine")
    check_answers(reached, sampling.max_new_tokens, reached.where("scale"))
    for name in reached.own("scale").benchmarks:
        if name not in known:
            raise _refuse(
                reached.where("scale"), f"benchmarks names '{name}', which the data does not have{hint(name, known)}"
            )


def _best_of_n(reached: Reached) -> None:
    refuse_zero_shot(reached, "stage 'best_of_n'")
    spec: BestOfNSpec = reached.own("scale")
    (pool,) = reached.upstream("pool")
    drawn = pool.own("scale").samples
    if max(spec.sizes) > drawn:
        raise _refuse(
            reached.where("scale"),
            f"sizes is {list(spec.sizes)}; each must be at most the pool of {drawn} in {pool.where('scale')}",
        )
    for judge in spec.judges.values():
        check_judge_world(judge, reached, reached.where("scale"))


def _reward_bench(reached: Reached) -> None:
    refuse_zero_shot(reached, "stage 'reward_bench'")
    if reached.own("scale").source == "testbed" and not isinstance(reached.data, WorldSpec):
        raise _refuse(
            reached.where("scale"),
            f"source is 'testbed', which needs the testbed's dialogues, but the data's source is "
            f"'{reached.data.source}'; use source 'huggingface'",
        )


def _second_judge(reached: Reached) -> None:
    spec: SecondJudgeSpec = reached.own("scale")
    check_judge_world(spec.judge, reached, reached.where("scale"))
    known = benchmarks_of(reached.data)
    if spec.benchmark not in known:
        raise _refuse(
            reached.where("scale"),
            f"benchmark is '{spec.benchmark}', which the data does not have{hint(spec.benchmark, known)}",
        )


def _prepare(reached: Reached) -> None:
    spec = reached.own("spec")
    for column, choice in spec.tasks.items() if isinstance(spec, RealSpec) else ():
        check_task(choice.task, f"{reached.where('spec')}.tasks.{column}")


#: Refusals that depend on several settings, by the stage that would make them.
CHECKS: Mapping[str, Callable[[Reached], None]] = {
    "prepare": _prepare,
    "sft": _sft,
    "segmenter": _segmenter,
    "samples": _samples,
    "teacher": _teacher,
    "generative_reward_model": _generative_reward_model,
    "reward_model": _reward_model,
    "normaliser": _normaliser,
    "references": _references,
    "aspect_model": _aspect_model,
    "pool": _pool,
    "best_of_n": _best_of_n,
    "reward_bench": _reward_bench,
    "second_judge": _second_judge,
}
