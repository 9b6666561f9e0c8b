"""Refusals of stages that depend on several settings: what a stage needs, held against what its inputs provide.

Data, reward models and engines say what they provide; a setting that needs something else is refused by `require`.
Lengths and counts are compared with each other. `CHECKS` holds the checks of each stage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_core.data.truncation import Limits
from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.evaluation.harness.choice import check_task
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.models.architecture import POSITIONS, architecture_of, field
from rlhf_core.models.classifier_folder import check_given_reward_model
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_needs
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.teachers.choices import TEACHERS
from tasks.graph.typed_settings import StageContext
from tasks.params.backbone import BackboneSpec
from tasks.params.data import RealSpec, benchmarks_of
from tasks.params.evaluation import EvaluationConfig
from tasks.params.reward_model import GenerativeModelScale, GivenSpec, MergeSpec, RewardModelSpec, ZeroShotScale
from tasks.params.settings import (
    CLAUSES,
    DIALOGUES,
    LONG_FORM,
    PAIRS,
    QUESTIONS,
    TESTBED_QUESTIONS,
    TRUE_REWARDS,
    typed,
)

#: Parts that a reward model may provide.
TRAINED, TOKENS, SEGMENTS, FITTED, REFERENCES = (
    "trained weights", "values at the policy's tokens", "rewards of segments", "fitted normalisers", "reference rewards"
)  # fmt: skip


def require(needed: str, provided: Collection[str], where: str, stated: str, of: str, remedy: str) -> None:
    """Refuses a setting that needs what its input does not provide.

    Args:
        needed: one of the words for what is provided.
        provided: by the input.
        where: address of the setting.
        stated: the setting with its value, as in "judge.kind is 'gold'".
        of: the input, with its address.
        remedy: what to do.

    Raises:
        RecipeError: names all of these, and the nearest of what is provided.
    """
    if needed not in provided:
        near = hint(needed, provided)
        has = ", ".join(provided) or "none of what stages may need"
        end = near if "did you mean" in near else f"; {remedy}"
        raise RecipeError(f"{where}: {stated}, which needs {needed}, but {of} has {has}{end}")


def require_of_data(needed: str, stage: StageContext, where: str, stated: str, remedy: str) -> None:
    """Refuses a setting that needs what the stage's data does not have; sampled solutions have pairs."""
    of_samples = PAIRS if stage.upstream("data")[0].item.module == "solution_pairs" else ""
    data, at = stage.data, stage.prepare.where("spec")
    provided = [*data.provides, *filter(None, [of_samples])]
    require(needed, provided, where, stated, f"the data ({at}, source '{data.source}')", remedy)


def has_true_rewards(stage: StageContext) -> bool:
    """Returns whether true rewards are known of the stage's data."""
    return TRUE_REWARDS in stage.data.provides


def check_segmenter(segmenter: Mapping[str, Any], stage: StageContext, where: str) -> None:
    """Refuses an entropy cutoff that the scale does not have, and gold clauses of data that has none."""
    if segmenter.get("kind") == "gold":
        require_of_data(CLAUSES, stage, where, "segmenter.kind is 'gold'", "name another segmenter, such as entropy")
    stated = segmenter_needs(segmenter).cutoffs.items()
    for above in stage.upstream("entropies") if stated else ():
        cutoffs = above.own("spec").cutoffs
        for option, name in stated:
            of, remedy = above.where("spec"), "add it to its cutoffs"
            require(str(name), cutoffs, where, f"segmenter.{option} is '{name}'", of, remedy)


def check_judge(judge: Mapping[str, Any] | None, stage: StageContext, where: str) -> None:
    """Refuses a judge that knows true rewards where the data has none."""
    if judge is not None and JUDGES[kind := JUDGES.kind_of(judge)].needs_world:
        stated = f"judge.kind is '{kind}', which works on the testbed only"
        require_of_data(TRUE_REWARDS, stage, where, stated, "name an endpoint, or null for none")


def check_pairs(stage: StageContext, where: str, stated: str) -> None:
    """Refuses what learns from preference pairs where the data has none."""
    remedy = "set pairs: samples, or take a backbone whose data has pairs"
    require_of_data(PAIRS, stage, where, stated, remedy)


def check_benchmark(name: str, stage: StageContext, where: str, stated: str) -> None:
    """Refuses a benchmark that the data does not have."""
    require(name, benchmarks_of(stage.data), where, stated, f"the data ({stage.prepare.where('spec')})", "leave it out")


def can_compare(evaluation: EvaluationConfig, stage: StageContext) -> bool:
    """Returns whether answers can be compared while a policy trains."""
    return (evaluation.judge is not None and evaluation.judge_checkpoints) or has_true_rewards(stage)


def prompt_limits(limit: int | None, stage: StageContext, where: str) -> Limits:
    """Returns the limits of prompts and responses, a prompt limit of the stage's own in place.

    Raises:
        RecipeError: the data's limits leave no token for a response.
    """
    limits = typed(Limits, stage.data.limits, where)
    if limit is None:
        return limits
    if limit >= limits.total:
        raise RecipeError(
            f"{where}: prompt_limit is {limit}; it must be below the data's total limit of {limits.total}"
        )
    return replace(limits, prompt=limit)


def check_positions(stage: StageContext, tokens: int, what: str) -> None:
    """Refuses sequences beyond the positions of a stage's backbone, where these are known."""
    for sft in _sft_stages(stage):
        spec: BackboneSpec = sft.own("spec")
        places = field(architecture_of(spec.source, spec.architecture), POSITIONS)
        if places is not None and tokens > places:
            raise RecipeError(
                f"{sft.where('spec')}: architecture.max_position_embeddings is {places}, but {what} have {tokens} "
                "tokens; shorten them, or take a model with more positions"
            )


def check_answers(stage: StageContext, tokens: int, where: str) -> None:
    """Refuses answers that, after the data's longest prompts, are beyond the positions of the backbone."""
    limits = typed(Limits, stage.data.limits, where)
    check_positions(stage, limits.prompt + tokens, f"prompts and answers of {where}")


def check_engine(stage: StageContext, engine: str, where: str, name: str = "engine") -> None:
    """Refuses an engine that cannot run the model of a stage's backbone, where that is known."""
    for sft in _sft_stages(stage):
        try:
            ENGINES[engine].check(_architecture(stage.settings.root, sft.own("spec")))
        except RecipeError as error:
            problem = f"{name} is '{engine}', but {error} ({sft.where('spec')}); use {DEFAULT_ENGINE}"
            raise RecipeError(f"{where}: {problem}") from None


def _sft_stages(stage: StageContext) -> list[StageContext]:
    return [stage] if stage.item.module == "sft" else stage.upstream("sft")


def _architecture(root: Path, spec: BackboneSpec) -> Mapping[str, Any]:
    """Returns the fields of a backbone's configuration, those of a local folder included; empty where not known."""
    config = root / str(spec.source) / "config.json"
    if spec.source is None or not config.is_file():
        return architecture_of(spec.source, spec.architecture)
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        found, problem = None, f"not valid JSON ({error})"
    else:
        problem = "not a configuration of a model"
    if not isinstance(found, dict):
        raise DataError(problem, file=str(config), remedy="Save the model again, with its config.json")
    return found


def check_data_length(stage: StageContext) -> None:
    """Refuses rows of the data that are beyond the positions of the backbone."""
    total = typed(Limits, stage.data.limits, "limits").total
    check_positions(stage, total, "rows of the data, by its limits.total,")


def check_evaluation(stage: StageContext) -> None:
    """Refuses an evaluation whose answers are too long, or whose judge knows what the data does not have."""
    evaluation, where = stage.own("evaluation"), stage.where("evaluation")
    check_judge(evaluation.judge, stage, where)
    check_engine(stage, evaluation.engine, where)
    check_answers(stage, max(evaluation.max_new_tokens, evaluation.task_tokens), where)


# --- reward models -----------------------------------------------------------------------------------------------


def trained_spec(stage: StageContext) -> RewardModelSpec | None:
    """Returns the settings that a reward model was trained with; for an average, the settings of its first member."""
    spec = stage.own("spec")
    if isinstance(spec, MergeSpec):
        return trained_spec(stage.upstream("reward_model")[0])
    return None if isinstance(spec, GivenSpec) else spec


def model_provides(model: StageContext) -> list[str]:
    """Returns what a reward model of this scale provides; one that is asked instead of trained rewards responses
    alone."""
    if isinstance(model.own("scale"), ZeroShotScale):
        return []
    spec = trained_spec(model)
    at_tokens = [] if spec is not None and spec.end_token else [REFERENCES]
    return [TRAINED, TOKENS, SEGMENTS, FITTED, *at_tokens]


def require_of_models(stage: StageContext, needed: str, stated: str) -> None:
    """Refuses a reader of reward models that provide less than it reads."""
    for model in stage.upstream("reward_model"):
        asked = isinstance(model.own("scale"), ZeroShotScale)
        at, kind = model.where("scale" if asked else "spec"), "zero_shot reward model" if asked else "reward model"
        remedy = "set training settings there" if asked else "set end_token: false"
        require(needed, model_provides(model), at, stated, f"{kind} '{model.item.name}'", remedy)


def _reward_model(stage: StageContext) -> None:
    spec, where = stage.own("spec"), stage.where("spec")
    config: TrainingConfig | ZeroShotScale = stage.own("scale")
    if isinstance(spec, MergeSpec):
        require_of_models(stage, TRAINED, f"merge of {where} averages weights")
        _check_merge(stage, where)
        return
    if isinstance(config, ZeroShotScale):
        check_pairs(stage, where, "the accuracy of a zero_shot reward model is measured")
        return
    check_pairs(stage, where, f"pairs is '{spec.pairs}'")
    check_data_length(stage)
    loss = build_loss(spec.loss)
    if config.microbatch < loss.minimum_pairs:
        raise RecipeError(
            f"{stage.where('scale')}: microbatch is {config.microbatch}, but the loss of {where} compares the "
            f"responses of one microbatch with each other; it needs at least {loss.minimum_pairs} pairs"
        )
    check_segmenter(spec.segmenter, stage, where)


def _check_merge(stage: StageContext, where: str) -> None:
    """Refuses to average reward models that are read in different ways."""

    def read(spec: RewardModelSpec) -> dict[str, Any]:
        own = {name: getattr(spec, name) for name in ("segmenter", "aggregation", "end_token")}
        return {**own, "heads": build_loss(spec.loss).heads}

    members = [(one.item.name, spec) for one in stage.upstream("reward_model") if (spec := trained_spec(one))]
    for name, spec in members[1:]:
        first, own = read(members[0][1]), read(spec)
        differing = [part for part in own if own[part] != first[part]]
        if differing:
            part = differing[0]
            raise RecipeError(
                f"{where}: merge: '{name}' has {part} {own[part]} and '{members[0][0]}' has {first[part]}; merge "
                "reward models of the same segmenter, aggregation, heads and end token"
            )


def _normaliser(stage: StageContext) -> None:
    """Refuses a given folder that is no reward model, and to calibrate one on data without pairs; a model that is
    trained here says so itself."""
    if not stage.upstream("reward_model"):
        check_given_reward_model(stage.settings.root / stage.where("reward_model"))
        check_pairs(stage, stage.where("scale"), "the normaliser of a given reward model is fitted")


def _references(stage: StageContext) -> None:
    require_of_models(stage, TRAINED, "stage 'references' reads a reward model")
    require_of_models(stage, REFERENCES, "end_token is true, and a shaping reads reference rewards")
    spec, where = stage.own("scale"), stage.where("scale")
    check_engine(stage, spec.sampling.engine, where, "sampling.engine")
    limits = prompt_limits(spec.prompt_limit, stage, where)
    check_positions(stage, limits.prompt + spec.sampling.max_new_tokens, f"prompts and responses of {where}")


# --- other stages ------------------------------------------------------------------------------------------------


def _prepare(stage: StageContext) -> None:
    spec = stage.own("spec")
    for column, choice in spec.tasks.items() if isinstance(spec, RealSpec) else ():
        check_task(choice.task, f"{stage.where('spec')}.tasks.{column}")


def _sft(stage: StageContext) -> None:
    check_data_length(stage)
    check_evaluation(stage)


def _segmenter(stage: StageContext) -> None:
    if stage.own("spec").gold == "clauses":
        require_of_data(TRUE_REWARDS, stage, stage.where("spec"), "gold is 'clauses'", "name a set with sentence spans")


def _questions(stage: StageContext) -> None:
    remedy = "take a backbone whose data has a 'task'"
    require_of_data(QUESTIONS, stage, stage.where("spec"), "solutions are sampled", remedy)


def _samples(stage: StageContext) -> None:
    _questions(stage)
    sampling, where = stage.own("spec").sampling, stage.where("spec")
    check_engine(stage, sampling.engine, where, "sampling.engine")
    check_answers(stage, sampling.max_new_tokens, where)


def _teacher(stage: StageContext) -> None:
    _questions(stage)
    if TEACHERS[kind := stage.own("spec").kind].needs_testbed:
        require_of_data(TESTBED_QUESTIONS, stage, stage.where("spec"), f"kind is '{kind}'", "name another teacher")


def _generative_reward_model(stage: StageContext) -> None:
    scale: GenerativeModelScale = stage.own("scale")
    where = stage.where("scale")
    scale.training_config(stage.own("spec"), f"{where}, {stage.where('spec')}")
    check_positions(stage, scale.limits.total, f"rows of {where}, by its limits.total,")
    check_positions(stage, scale.limits.prompt + scale.max_new_tokens, f"prompts and rewrites of {where}")


def _aspect_model(stage: StageContext) -> None:
    spec, where = stage.own("spec"), stage.where("spec")
    require_of_data(LONG_FORM, stage, where, f"aspect is '{spec.aspect}'", "take a backbone with long-form questions")
    known = ("completeness",) if spec.density == "sequence" else ("relevance", "factuality")
    stated, of = f"aspect is '{spec.aspect}'", f"the data, of density '{spec.density}',"
    require(spec.aspect, known, where, stated, of, "name one of these, or another density")


def _pool(stage: StageContext) -> None:
    spec, where = stage.own("scale"), stage.where("scale")
    check_engine(stage, spec.sampling.engine, where, "sampling.engine")
    check_answers(stage, spec.sampling.max_new_tokens, where)
    for name in spec.benchmarks:
        check_benchmark(name, stage, where, f"benchmarks names '{name}'")


def _best_of_n(stage: StageContext) -> None:
    require_of_models(stage, TRAINED, "stage 'best_of_n' reads a reward model")
    spec, (pool,) = stage.own("scale"), stage.upstream("pool")
    drawn = pool.own("scale").samples
    if max(spec.sizes) > drawn:
        raise RecipeError(
            f"{stage.where('scale')}: sizes is {list(spec.sizes)}; each must be at most the pool of {drawn} in "
            f"{pool.where('scale')}"
        )
    for judge in spec.judges.values():
        check_judge(judge, stage, stage.where("scale"))


def _reward_bench(stage: StageContext) -> None:
    require_of_models(stage, TRAINED, "stage 'reward_bench' reads a reward model")
    if stage.own("scale").source == "testbed":
        require_of_data(DIALOGUES, stage, stage.where("scale"), "source is 'testbed'", "use source 'huggingface'")


def _second_judge(stage: StageContext) -> None:
    spec, where = stage.own("scale"), stage.where("scale")
    check_judge(spec.judge, stage, where)
    check_benchmark(spec.benchmark, stage, where, f"benchmark is '{spec.benchmark}'")


#: Refusals that depend on several settings, by the stage that would make them.
CHECKS: Mapping[str, Callable[[StageContext], None]] = {
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
