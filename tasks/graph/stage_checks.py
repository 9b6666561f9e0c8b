"""Refusals of stages that depend on several settings: what a stage needs, held against what its inputs provide.

Data, reward models and engines say what they provide; a setting that needs something else is refused by `require`.
`check_shared` matches what every stage may state (a judge, an engine, a segmenter, lengths, numbers of rows), `CHECKS`
has what one kind of stage needs beside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.evaluation.harness.choice import check_task
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.models.architecture import POSITIONS, architecture_of, field
from rlhf_core.models.folders import check_given_reward_model
from rlhf_core.models.sampling import DEFAULT_ENGINE, ENGINES
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import cutoff_names
from rlhf_core.teachers.choices import TEACHERS
from tasks.graph.typed_settings import StageContext
from tasks.params.backbone import BackboneSpec
from tasks.params.data import RealSpec, benchmarks_of, rows_of
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


# --- the matcher -------------------------------------------------------------------------------------------------


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
    sampled = stage.upstream("data")[0].item.module == "solution_pairs"
    provided = [*stage.data.provides, *([PAIRS] if sampled else [])]
    of = f"the data ({stage.prepare.where('spec')}, source '{stage.data.source}')"
    require(needed, provided, where, stated, of, remedy)


def require_pairs(stage: StageContext, where: str, stated: str) -> None:
    """Refuses what learns from preference pairs where the data has none."""
    require_of_data(PAIRS, stage, where, stated, "set pairs: samples, or take a backbone whose data has pairs")


def require_benchmark(name: str, stage: StageContext, where: str, stated: str) -> None:
    """Refuses a benchmark that the data does not have."""
    at = stage.prepare.where("spec")
    remedy = f"set 'held_out' of {at}, or name another" if name == "held_out" else "leave it out"
    require(name, benchmarks_of(stage.data), where, stated, f"the data ({at})", remedy)


def require_of_models(stage: StageContext, needed: str, stated: str) -> None:
    """Refuses a reader of reward models that provide less than it reads."""
    for model in stage.upstream("reward_model"):
        asked = isinstance(model.own("scale"), ZeroShotScale)
        at, kind = model.where("scale" if asked else "spec"), "zero_shot reward model" if asked else "reward model"
        remedy = "set training settings there" if asked else "set end_token: false"
        require(needed, model_provides(model), at, stated, f"{kind} '{model.item.name}'", remedy)


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


# --- what every stage may state ----------------------------------------------------------------------------------

#: Sets that settings ask rows of, by stage, argument and field, in words: at most as many as generated data has.
ROWS = {
    ("sft", "spec", "examples"): (("sft", "tasks"), "training examples"),
    ("sft", "evaluation", "pair_rows"): (("benchmark",), "prompts in the benchmark 'alpaca'"),
    ("policy", "scale", "prompts"): (("prompts",), "training prompts"),
    ("references", "scale", "prompts"): (("prompts",), "training prompts"),
    ("selection", "scale", "prompts"): (("prompts",), "training prompts"),
    ("pool", "scale", "prompts"): (("benchmark",), "prompts in each benchmark"),
    ("normaliser", "scale", "pairs"): (("preference_train",), "training pairs"),
}


def check_shared(stage: StageContext) -> None:
    """Refuses judges, engines, segmenters, lengths and numbers of rows that a stage's inputs do not provide for."""
    for where, settings in stage.settings_by_address():
        judges = [*named(settings, "judge"), *_of_mappings(settings, "judges")]
        for place, judge in judges:
            if JUDGES[kind := JUDGES.kind_of(judge)].needs_world:
                stated = f"{place}.kind is '{kind}', which works on the testbed only"
                require_of_data(TRUE_REWARDS, stage, where, stated, "name an endpoint, or null for none")
        for place, engine in named(settings, "engine"):
            _check_engine(stage, engine, where, place)
        for place, segmenter in named(settings, "segmenter"):
            _check_segmenter(stage, segmenter, where, place)
        _check_lengths(stage, settings, where)
    for (module, argument, name), (sets, words) in ROWS.items():
        if stage.item.module == module and (asked := getattr(stage.own(argument), name)) is not None:
            exist = [count for one in sets if (count := rows_of(stage.data, one)) is not None]
            of = f"{words} ({stage.prepare.where('spec')}, {' and '.join(f'rows.{one}' for one in sets)})"
            check_amount(asked, sum(exist) if exist else None, stage.where(argument), name, of)


def check_amount(asked: int, exist: int | None, where: str, name: str, of: str) -> None:
    """Refuses a number above what exists: the stage would take less, and its settings say something else.

    Args:
        asked: value of the setting.
        exist: at most so many; None where that is not known before data is read.
        where: address of the settings.
        name: of the setting.
        of: noun and place of what exists.
    """
    if exist is not None and asked > exist:
        raise RecipeError(
            f"{where}: {name} is {asked}, but there are {exist} {of}; set {name} to at most {exist}, or raise the other"
        )


def named(settings: Any, name: str, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the place and value of each field of a name anywhere in typed settings, where it is stated."""
    if isinstance(settings, tuple):
        for number, each in enumerate(settings):
            yield from named(each, name, f"{place}[{number}]")
    elif is_dataclass(settings):
        for one in fields(settings):
            at, value = f"{place}.{one.name}" if place else one.name, getattr(settings, one.name)
            if one.name == name and value is not None:
                yield at, value
            yield from named(value, name, at)


def _of_mappings(settings: Any, name: str) -> Iterator[tuple[str, Any]]:
    for place, values in named(settings, name):
        yield from ((f"{place}.{key}", value) for key, value in values.items())


def _check_engine(stage: StageContext, engine: str, where: str, place: str) -> None:
    """Refuses an engine that cannot run the model of a stage's backbone, where that is known."""
    for sft in _sft_stages(stage):
        try:
            ENGINES[engine].check(_architecture(stage.settings.root, sft.own("spec")))
        except RecipeError as error:
            problem = f"{place} is '{engine}', but {error} ({sft.where('spec')}); use {DEFAULT_ENGINE}"
            raise RecipeError(f"{where}: {problem}") from None


def _check_segmenter(stage: StageContext, segmenter: Mapping[str, Any], where: str, place: str) -> None:
    """Refuses an entropy cutoff that the scale does not have, and gold clauses of data that has none."""
    if segmenter.get("kind") == "gold":
        require_of_data(CLAUSES, stage, where, f"{place}.kind is 'gold'", "name another segmenter, such as entropy")
    for above in stage.upstream("entropies"):
        for option, name in cutoff_names(segmenter).items():
            stated, of = f"{place}.{option} is '{name}'", above.where("spec")
            require(str(name), above.own("spec").cutoffs, where, stated, of, "add it to its cutoffs")


def _check_lengths(stage: StageContext, settings: Any, where: str) -> None:
    """Refuses answers that, after the longest prompts, are beyond the positions of the backbone."""
    limit = getattr(settings, "prompt_limit", None)
    tokens = [length for name in ("max_new_tokens", "task_tokens") for _, length in named(settings, name)]
    if limit is None and not tokens:
        return
    own = getattr(settings, "limits", None)
    limits = own if isinstance(own, Limits) else typed(Limits, stage.data.limits, where)
    if limit is not None and limit >= limits.total:
        raise RecipeError(
            f"{where}: prompt_limit is {limit}; it must be below the data's total limit of {limits.total}"
        )
    if tokens:
        prompt = limits.prompt if limit is None else limit
        check_positions(stage, prompt + max(tokens), f"prompts and answers of {where}")


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


def _check_data_length(stage: StageContext) -> None:
    total = typed(Limits, stage.data.limits, "limits").total
    check_positions(stage, total, "rows of the data, by its limits.total,")


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


# --- what one kind of stage needs beside -------------------------------------------------------------------------


def _reward_model(stage: StageContext) -> None:
    spec, scale, where = stage.own("spec"), stage.own("scale"), stage.where("spec")
    if isinstance(spec, MergeSpec):
        require_of_models(stage, TRAINED, f"merge of {where} averages weights")
        _check_merge(stage, where)
        return
    if isinstance(scale, ZeroShotScale):
        require_pairs(stage, where, "the accuracy of a zero_shot reward model is measured")
        return
    require_pairs(stage, where, f"pairs is '{spec.pairs}'")
    _check_data_length(stage)
    if scale.microbatch < (least := build_loss(spec.loss).minimum_pairs):
        raise RecipeError(
            f"{stage.where('scale')}: microbatch is {scale.microbatch}, but the loss of {where} compares the responses "
            f"of one microbatch with each other; it needs at least {least} pairs"
        )


def _check_merge(stage: StageContext, where: str) -> None:
    """Refuses to average reward models that are read in different ways."""

    def read(spec: RewardModelSpec) -> dict[str, Any]:
        own = {name: getattr(spec, name) for name in ("segmenter", "aggregation", "end_token")}
        return {**own, "heads": build_loss(spec.loss).heads}

    members = [(one.item.name, read(spec)) for one in stage.upstream("reward_model") if (spec := trained_spec(one))]
    (first_name, first), *others = members
    for name, own in others:
        for part in own:
            if own[part] != first[part]:
                raise RecipeError(
                    f"{where}: merge: '{name}' has {part} {own[part]} and '{first_name}' has {first[part]}; merge "
                    "reward models of the same segmenter, aggregation, heads and end token"
                )


def _normaliser(stage: StageContext) -> None:
    """Refuses a given folder that is no reward model, and to calibrate one on data without pairs; a model that is
    trained here says so itself."""
    if not stage.upstream("reward_model"):
        check_given_reward_model(stage.settings.root / stage.where("reward_model"))
        require_pairs(stage, stage.where("scale"), "the normaliser of a given reward model is fitted")


def _references(stage: StageContext) -> None:
    require_of_models(stage, TRAINED, "stage 'references' reads a reward model")
    require_of_models(stage, REFERENCES, "end_token is true, and a shaping reads reference rewards")


def _prepare(stage: StageContext) -> None:
    spec = stage.own("spec")
    for column, choice in spec.tasks.items() if isinstance(spec, RealSpec) else ():
        check_task(choice.task, f"{stage.where('spec')}.tasks.{column}")


def _segmenter(stage: StageContext) -> None:
    if stage.own("spec").gold == "clauses":
        require_of_data(TRUE_REWARDS, stage, stage.where("spec"), "gold is 'clauses'", "name a set with sentence spans")


def _samples(stage: StageContext) -> None:
    remedy = "take a backbone whose data has a 'task'"
    require_of_data(QUESTIONS, stage, stage.where("spec"), "solutions are sampled", remedy)


def _teacher(stage: StageContext) -> None:
    _samples(stage)
    if TEACHERS[kind := stage.own("spec").kind].needs_testbed:
        require_of_data(TESTBED_QUESTIONS, stage, stage.where("spec"), f"kind is '{kind}'", "name another teacher")


def _generative_reward_model(stage: StageContext) -> None:
    scale: GenerativeModelScale = stage.own("scale")
    where = stage.where("scale")
    scale.training_config(stage.own("spec"), f"{where}, {stage.where('spec')}")
    check_positions(stage, scale.limits.total, f"rows of {where}, by its limits.total,")


def _aspect_model(stage: StageContext) -> None:
    spec, where = stage.own("spec"), stage.where("spec")
    stated = f"aspect is '{spec.aspect}'"
    require_of_data(LONG_FORM, stage, where, stated, "take a backbone with long-form questions")
    known = ("completeness",) if spec.density == "sequence" else ("relevance", "factuality")
    of = f"the data, of density '{spec.density}',"
    require(spec.aspect, known, where, stated, of, "name one of these, or another density")


def _pool(stage: StageContext) -> None:
    for name in stage.own("scale").benchmarks:
        require_benchmark(name, stage, stage.where("scale"), f"benchmarks names '{name}'")


def _best_of_n(stage: StageContext) -> None:
    require_of_models(stage, TRAINED, "stage 'best_of_n' reads a reward model")
    sizes, (pool,) = stage.own("scale").sizes, stage.upstream("pool")
    if max(sizes) > (drawn := pool.own("scale").samples):
        raise RecipeError(
            f"{stage.where('scale')}: sizes is {list(sizes)}; each must be at most the pool of {drawn} in "
            f"{pool.where('scale')}"
        )


def _reward_bench(stage: StageContext) -> None:
    require_of_models(stage, TRAINED, "stage 'reward_bench' reads a reward model")
    if stage.own("scale").source == "testbed":
        require_of_data(DIALOGUES, stage, stage.where("scale"), "source is 'testbed'", "use source 'huggingface'")


def _second_judge(stage: StageContext) -> None:
    name = stage.own("scale").benchmark
    require_benchmark(name, stage, stage.where("scale"), f"benchmark is '{name}'")


#: Refusals of one kind of stage.
CHECKS: Mapping[str, Callable[[StageContext], None]] = {
    "prepare": _prepare,
    "sft": _check_data_length,
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
