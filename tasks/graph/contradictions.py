"""Refusals of settings that contradict others of their stage or of stages above it, by kind of stage."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path

from rlhf_core.aspects.aspect import SIGNALS, Density
from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.harness.choice import check_task
from rlhf_core.models.architecture import WIDTH, architecture_of, field, linear_layers, tied_target, unknown_targets
from rlhf_core.models.folders import check_given_reward_model
from rlhf_core.models.sampling import ENGINES
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.policy_optimisation.objectives import UNWEIGHTED
from rlhf_core.recipe import (
    SELECTED,
    ComponentRecipe,
    Recipe,
    check_signal,
    referenced_models,
    reward_models,
    stated_shaping,
)
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_class
from rlhf_core.shaping.choices import references_needed
from rlhf_core.signals import Tokens
from rlhf_core.supervised.recipes import PREFERENCE
from rlhf_core.typed import check_given, checked_arguments
from tasks.graph.items import Item
from tasks.graph.needs import check_amount, check_positions, match, model_provides, trained_spec
from tasks.graph.typed_settings import StageContext
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry
from tasks.params.data import RealSpec, rows_of
from tasks.params.parts import FACTS, FITTED, PAIRS, REFERENCES, SEGMENTS, TOKENS, TRUE_REWARDS, Need
from tasks.params.policy import PolicyScale, RewardTraining, reward_training
from tasks.params.questions import QuestionsSpec
from tasks.params.reward_model import GivenSpec, MergeSpec, ZeroShotScale, check_whole_responses

#: The highest rank of adapters where a model's width is not known before it is loaded.
MOST_RANK = 16384


def check_prepare(stage: StageContext) -> None:
    """Refuses a task that the harness does not have."""
    spec = stage.own("spec")
    for column, choice in spec.tasks.items() if isinstance(spec, RealSpec) else ():
        check_task(choice.task, f"{stage.where('spec')}.tasks.{column}")


def check_reward_model(stage: StageContext) -> None:
    """Refuses rows that are too long, and fewer pairs a microbatch than the loss compares."""
    spec, scale = stage.own("spec"), stage.own("scale")
    if isinstance(spec, MergeSpec | GivenSpec) or isinstance(scale, ZeroShotScale):
        return
    check_positions(stage)
    if scale.microbatch < (least := build_loss(spec.loss).minimum_pairs):
        raise RecipeError(
            f"{stage.where('scale')}: microbatch is {scale.microbatch}, but the loss of {stage.where('spec')} compares "
            f"the responses of one microbatch with each other; it needs at least {least} pairs"
        )


def check_normaliser(stage: StageContext) -> None:
    """Refuses a given folder that is no reward model."""
    if not stage.upstream("reward_model"):
        check_given_reward_model(stage.settings.root / stage.where("reward_model"))


def check_generative_reward_model(stage: StageContext) -> None:
    """Refuses training settings that a model changes wrongly, and rows that are too long."""
    scale, where = stage.own("scale"), stage.where("scale")
    scale.training_config(stage.own("spec"), f"{where}, {stage.where('spec')}")
    check_positions(stage, scale.limits.total, f"rows of {where}, by its limits.total,")


def check_best_of_n(stage: StageContext) -> None:
    """Refuses more responses than the pool has."""
    sizes, (pool,) = stage.own("scale").sizes, stage.upstream("pool")
    if max(sizes) > (drawn := pool.own("scale").samples):
        raise RecipeError(
            f"{stage.where('scale')}: sizes is {list(sizes)}; each must be at most the pool of {drawn} in "
            f"{pool.where('scale')}"
        )


# --- policies ----------------------------------------------------------------------------------------------------


def check_policy(stage: StageContext) -> None:
    """Refuses a row that its policy stage would refuse by its settings."""
    recipe, scale, row = stage.own("row"), stage.own("scale"), stage.where("row")
    where = f"{row} on {stage.where('scale')}"
    _check_adapters(stage, recipe)
    _check_evaluations(stage, scale)
    if recipe.kind == "supervised":
        _, learned = scale.supervised_config(recipe.optimiser, where)
        if PREFERENCE in learned.needs:
            of = f"the data ({stage.prepare.where('spec')})"
            match([Need(PAIRS, "optimiser", recipe.optimiser["kind"])], stage.data.provides, row, of)
        return
    training = reward_training(recipe, scale, where)
    optimiser, engine = training.optimiser, training.sampling.engine
    models = dict(zip(reward_models(recipe), stage.item.several("reward_model"), strict=True))
    if optimiser.critic == "reward_model":
        name, model = next(iter(models.items()))
        needs = [Need(TOKENS, "optimiser.critic", optimiser.critic)]
        match(needs, model_provides(model, stage), where, f"reward model '{name}'")
    if optimiser.fixed_samples != recipe.fixed_samples:
        raise RecipeError(
            f"{stage.where('scale')}: optimiser.source is '{optimiser.source}', but the optimiser of {row} learns from "
            "another source; state 'source' in the row"
        )
    if optimiser.importance_cap is not None and not optimiser.fixed_samples and not ENGINES[engine].rescored:
        raise RecipeError(
            f"{where}: optimiser.importance_cap is {optimiser.importance_cap:g} and sampling.engine '{engine}', but "
            f"{UNWEIGHTED}"
        )
    _check_measuring(stage, scale, training, where)
    _check_referenced(stage, recipe, scale)
    for part in recipe.components:
        at = f"{row}: component '{part.name}'"
        if part.aspect is not None:
            _check_aspect(stage, part, at)
            continue
        _check_pure_samples(stage, part, at)
        if part.function is not None:
            check_function(stage.settings.root, part.function, at)
        if part.reward_model is not None:
            _check_read(stage, part, models[part.reward_model], at)


def _check_adapters(stage: StageContext, recipe: Recipe) -> None:
    """Refuses adapters of a higher rank than the model's layers have, or of layers that it does not have or shares."""
    lora, where = recipe.lora, stage.where("row")
    for sft in stage.upstream("sft") if lora is not None else ():
        assert lora is not None
        spec, of = sft.own("spec"), f"the model of {sft.where('spec')}"
        sizes = architecture_of(spec.source, spec.architecture)
        width, layers = field(sizes, WIDTH) or MOST_RANK, linear_layers(sizes)
        if lora.rank > width:
            raise RecipeError(f"{where}: lora.rank is {lora.rank}; it must be at most {width}, the width of {of}")
        if layers and (unknown := unknown_targets(lora.targets, layers)):
            names = list(dict.fromkeys(layer.rpartition(".")[2] for layer in layers))
            raise RecipeError(
                f"{where}: lora.targets names '{unknown[0]}', which is no linear layer of {of}{hint(unknown[0], names)}"
            )
        if tied := tied_target(lora.targets, sizes):
            raise RecipeError(
                f"{where}: lora.targets names '{tied}', which has the embedding's weights in {of}; leave '{tied}' out, "
                "or set tie_word_embeddings: false where the backbone states its architecture"
            )


def _check_evaluations(stage: StageContext, scale: PolicyScale) -> None:
    """Refuses evaluations while training on more prompts than the data, or the evaluation, has."""
    where, data, asked, name = stage.where("scale"), stage.data, scale.checkpoint_prompts, scale.checkpoint_benchmark
    spec = stage.prepare.where("spec")
    if isinstance(data, QuestionsSpec):
        of = f"training questions ({spec}, rows.questions)"
        check_amount(asked, rows_of(data, "questions"), where, "checkpoint_prompts", of)
        return
    exist = data.held_out if name == "held_out" else rows_of(data, "benchmark")
    check_amount(asked, exist, where, "checkpoint_prompts", f"prompts in the benchmark '{name}' ({spec})")
    of = f"items of each benchmark ({stage.where('evaluation')}, rows)"
    check_amount(asked, stage.own("evaluation").rows, where, "checkpoint_prompts", of)


def _check_measuring(stage: StageContext, scale: PolicyScale, training: RewardTraining, where: str) -> None:
    """Refuses more evaluations than iterations, and what compares answers where nothing judges them."""
    evaluation, own, steps = stage.own("evaluation"), stage.where("scale"), training.optimiser.iterations
    for name in ("checkpoint_every", "checkpoints") if scale.checkpoint_prompts else ():
        of = f"iterations (optimiser.iterations of {where})"
        check_amount(getattr(scale, name) or 1, steps, own, name, of)
    compared = TRUE_REWARDS in stage.data.provides or (evaluation.judge is not None and evaluation.judge_checkpoints)
    evaluated = any(scale.evaluated(step, steps, last=True) for step in range(1, steps + 1))
    if training.alarm.on_hacking == "stop" and not (evaluated and compared):
        raise RecipeError(
            f"{where}: alarm.on_hacking is 'stop', which keeps the weights with the best win rate, but the run has no "
            "evaluations to choose them by: set checkpoint_prompts and checkpoints, and a judge where the data has no "
            "true rewards"
        )
    for name in ("peak", "measure_hacking"):
        if getattr(scale, name) and not compared:
            raise RecipeError(
                f"{own}: {name} is true, which compares answers, but {stage.where('evaluation')} has no judge, or "
                "judge_checkpoints is false, and the data has no true rewards; set both, or leave it out"
            )


def _check_referenced(stage: StageContext, recipe: Recipe, scale: PolicyScale) -> None:
    """Refuses more training prompts than have reference rewards, and more reference rewards than a prompt has."""
    drawn = dict(zip(referenced_models(recipe), stage.upstream("references"), strict=True))
    for part in recipe.components:
        if part.reward_model in drawn and part.shaping is not None:
            references = drawn[part.reward_model]
            asked, made = references_needed(part.shaping), references.own("scale").responses
            if asked > made:
                raise RecipeError(
                    f"{stage.where('row')}: component '{part.name}': shaping is {part.shaping}, which compares with "
                    f"{asked} reference rewards of each prompt, but {references.where('scale')} draws {made}; set the "
                    f"shaping's 'references' to at most {made}, or raise 'responses' there"
                )
    used = min((n for n in (scale.prompts, rows_of(stage.data, "prompts")) if n is not None), default=None)
    for references in drawn.values():
        cached = references.own("scale").prompts
        if cached is not None and used is not None and used > cached:
            raise RecipeError(
                f"{stage.where('scale')}: prompts is {scale.prompts}, but {references.where('scale')} caches "
                f"reference rewards of {cached} prompts; let 'prompts' of both agree"
            )


def _check_read(stage: StageContext, part: ComponentRecipe, model: Item | str | int, where: str) -> None:
    """Refuses to read of a reward model what it does not provide, or what its normaliser is not fitted to."""
    readout, normaliser = part.readout, NORMALISERS[part.normaliser]
    assert readout is not None
    provided, of = model_provides(model, stage), f"reward model '{part.reward_model}'"
    if not isinstance(model, Item) and SEGMENTS not in provided:
        check_whole_responses(readout, where, str(part.reward_model))
    fitted = part.normaliser != "none" and not normaliser.of_selection
    needs = [Need(REFERENCES, "shaping", part.shaping)] if part.needs_references else []
    needs += [Need(FITTED, "normaliser", part.normaliser)] if fitted else []
    needs += [Need(SEGMENTS, "readout.read", readout.read)] if readout.read != "aggregate" else []
    spec = (
        trained_spec(StageContext(model, stage.settings)) if isinstance(model, Item) and SEGMENTS in provided else None
    )
    needs += [Need(f"head '{readout.head}'", "readout.head", readout.head)] if spec is not None else []
    match(needs, provided, where, of)
    if fitted and part.normaliser not in NORMALISERS and normaliser.fit is not None:
        for fitting in stage.upstream("normaliser"):
            own, at = [str(one) for one in fitting.own("scale").own], f"'own' of {fitting.where('scale')}"
            match([Need(part.normaliser, "normaliser", part.normaliser)], own, where, at)
    if spec is None:
        return
    if part.normaliser != "none" and readout.head != (first := build_loss(spec.loss).heads[0]):
        raise RecipeError(
            f"{where}: normaliser is '{part.normaliser}', which is fitted to the head '{first}', but the readout "
            f"reads '{readout.head}'; use normaliser 'none'"
        )
    if normaliser.of_segments and dict(spec.segmenter) != dict(readout.segmenter):
        raise RecipeError(
            f"{where}: normaliser is '{part.normaliser}', which is fitted to segments of {of}, cut by "
            f"{dict(spec.segmenter)}, but the read-out cuts by {dict(readout.segmenter)}; state the model's segmenter "
            "in 'readout', or use the normaliser 'sequence' or 'none'"
        )


def check_function(root: Path, name: str, where: str) -> None:
    """Refuses a function of a module that is not there, or of a module of the repository without that name.

    The module is not imported: it may need what only a stage has.
    """
    module, _, attribute = name.partition(":")
    place = root.joinpath(*module.split("."))
    file = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
    if file is None and importlib.util.find_spec(module.partition(".")[0]) is None:
        raise RecipeError(f"{where}: function is '{name}', but there is no module '{module}' here or installed")
    if file is not None and attribute not in (text := file.read_text(encoding="utf-8")):
        defined = [one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
        raise RecipeError(
            f"{where}: function is '{name}', but {file.name} has no '{attribute}'{hint(attribute, defined)}"
        )


def _check_pure_samples(stage: StageContext, part: ComponentRecipe, where: str) -> None:
    """Refuses pure samples that another reward model scored."""
    for selection in stage.upstream("selection") if NORMALISERS[part.normaliser].of_selection else ():
        scored = selection.own("spec").holistic
        if scored != part.reward_model:
            raise RecipeError(
                f"{where}: reward_model is '{part.reward_model}', but the pure samples of {selection.where('spec')} "
                f"are scored by '{scored}'; name the same reward model in both"
            )


# --- aspects -----------------------------------------------------------------------------------------------------


def _check_aspect(stage: StageContext, part: ComponentRecipe, where: str) -> None:
    """Refuses an aspect that the selection does not compare, or a credit or shaping that does not take its signal."""
    for selection in stage.upstream("selection"):
        densities = _densities(selection)
        if part.aspect != SELECTED and part.aspect not in densities:
            raise RecipeError(
                f"{where}: aspect is '{part.aspect}', which {selection.where('spec')} does not compare"
                f"{hint(part.aspect, densities)}"
            )
        shaping = stated_shaping(part.shaping)
        for name in densities if part.aspect == SELECTED else [str(part.aspect)]:
            signal, usual = SIGNALS[densities[name]]
            try:
                check_signal(signal, part.credit or usual, shaping, f"aspect '{name}'")
            except RecipeError as error:
                raise RecipeError(f"{where}: {error}") from None


def check_selection(stage: StageContext) -> None:
    """Refuses aspects that cannot be built, and a holistic reward model that is not read at the response's end."""
    _densities(stage)
    for model in stage.upstream("reward_model"):
        if (spec := trained_spec(model)) is None:
            continue
        found = segmenter_class(spec.segmenter)
        if found.needs_entropies or found.needs_spelling:
            raise RecipeError(
                f"{stage.where('spec')}: holistic is '{model.item.name}', whose segmenter is "
                f"'{spec.segmenter['kind']}'; a holistic reward model is read at the response's end: "
                "train it as 'bandit'"
            )


def _densities(selection: StageContext) -> dict[str, Density]:
    """Returns the density of each aspect of a selection by name; a trained model states the density of its aspect."""
    spec: SelectionEntry = selection.own("spec")
    models = {one.item.name: one.own("spec") for one in selection.upstream("aspect_model")}
    found: dict[str, Density] = {}
    for name, address in zip(spec.aspects, selection.item.several("aspect"), strict=True):
        aspect: AspectSpec = selection.settings.get(str(address))
        try:
            density, needs_facts = _aspect(aspect, None if aspect.model is None else models[aspect.model])
        except RecipeError as error:
            raise RecipeError(f"{address}: {error}") from None
        if aspect.normaliser != "none" and SIGNALS[density][0] is Tokens:
            raise RecipeError(
                f"{address}: normaliser is '{aspect.normaliser}', but the aspect is of density '{density.value}' and "
                "its values are not normalised; use 'none'"
            )
        needs = [Need(FACTS, f"aspects ({address}, of kind '{aspect.aspect['kind']}')", name)] if needs_facts else []
        of = f"the data ({selection.prepare.where('spec')})"
        match(needs, selection.data.provides, selection.where("spec"), of)
        found[name] = density
    return found


def _aspect(aspect: AspectSpec, model: AspectModelSpec | None) -> tuple[Density, bool]:
    """Returns the density of an aspect, and whether it reads the facts behind a question, which the testbed's long-form
    data alone has. A class that declares its density is not made, which may load a model or start a tool."""
    from rlhf_core.aspects.choices import ASPECTS, build_aspect
    from rlhf_core.aspects.trained import TrainedAspect

    kind = ASPECTS.kind_of(aspect.aspect)
    target = ASPECTS.named(kind)
    if (target is TrainedAspect) != (model is not None):
        raise RecipeError(
            "'model' is missing: an aspect of kind 'trained' names its model"
            if model is None
            else f"model is '{aspect.model}', which an aspect of kind '{kind}' does not read"
        )
    declared = getattr(target, "density", None)
    if model is None and (not isinstance(declared, Density) or "density" in ASPECTS.options(kind)):
        made = build_aspect(aspect.aspect, offsets=lambda _: [])
        return made.density, bool(getattr(made, "needs_facts", False))
    stated = ASPECTS.stated_options(aspect.aspect, without=("folder", "device"))
    if isinstance(target, type) and is_dataclass(target):
        check_given(target, stated, f"aspect '{kind}': ")
    else:
        stated = checked_arguments(target, stated, f"aspect '{kind}'")
    if model is None:
        assert isinstance(declared, Density)
        return declared, bool(getattr(target, "needs_facts", False))
    TrainedAspect.check(**stated)
    return Density(model.density), False


#: Refusals of one kind of stage.
CHECKS: Mapping[str, Callable[[StageContext], None]] = {
    "prepare": check_prepare,
    "sft": check_positions,
    "generative_reward_model": check_generative_reward_model,
    "reward_model": check_reward_model,
    "normaliser": check_normaliser,
    "selection": check_selection,
    "policy": check_policy,
    "best_of_n": check_best_of_n,
}
