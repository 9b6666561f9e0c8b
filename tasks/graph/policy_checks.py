"""Refusals of a policy stage that need its row beside reward models, selection, data and scale."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.aspects.aspect import Density
from rlhf_core.aspects.choices import ASPECTS, build_aspect
from rlhf_core.aspects.signals import SIGNALS
from rlhf_core.aspects.trained import TrainedAspect
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError, hint
from rlhf_core.models.architecture import WIDTH, architecture_of, field, linear_layers, tied_target, unknown_targets
from rlhf_core.models.classifier_folder import is_hub_classifier
from rlhf_core.models.sampling import ENGINES
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.policy_optimisation.config import OPTIMISERS, OptimiserConfig
from rlhf_core.policy_optimisation.objectives import UNWEIGHTED
from rlhf_core.policy_optimisation.origins import CRITICS
from rlhf_core.recipe import SELECTED, ComponentRecipe, Recipe, referenced_models, reward_models
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_needs
from rlhf_core.shaping.choices import build_shaping, references_needed
from rlhf_core.shaping.specification import SftUnits
from rlhf_core.signals import SignalType, Tokens
from rlhf_core.supervised.recipes import PREFERENCE
from rlhf_core.typed import checked_arguments
from tasks.graph.stage_checks import (
    Reached,
    benchmarks_of,
    check_answers,
    check_engine,
    check_evaluation,
    check_pairs,
    check_positions,
    check_segmenter,
    has_judge_or_world,
    prompt_limits,
    refuse_zero_shot,
    trained_spec,
)
from tasks.graph.typed_settings import TYPES
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry
from tasks.params.data import DrawnSpec, LongFormWorldSpec
from tasks.params.evaluation import EvaluationConfig
from tasks.params.policy import PolicyScale, RewardTraining, reward_training
from tasks.params.reward_model import ZeroShotScale, check_whole_responses

#: The highest rank of adapters where a model's width is not known before it is loaded.
MOST_RANK = 16384


def check_policy(reached: Reached) -> None:
    """Refuses a row that its policy stage would refuse by its settings.

    Raises:
        RecipeError: names the setting, and what would be right.
    """
    recipe, scale = reached.own("row"), reached.own("scale")
    where = f"{reached.where('row')} on {reached.where('scale')}"
    evaluation: EvaluationConfig = reached.own("evaluation")
    check_evaluation(reached)
    _check_adapters(reached, recipe)
    if recipe.kind == "supervised":
        _, learned = scale.supervised_config(recipe.optimiser, where)
        if PREFERENCE in learned.needs:
            check_pairs(reached, reached.where("row"), f"optimiser '{recipe.optimiser['kind']}'")
        return
    training = reward_training(recipe, scale, where)
    if CRITICS[training.optimiser.critic].of_reward_model:
        refuse_zero_shot(reached, f"critic '{training.optimiser.critic}'")
        name = next(iter(reward_models(recipe)), None)
        if name in classifiers(reached, recipe):
            raise RecipeError(
                f"{where}: optimiser.critic is '{training.optimiser.critic}', but reward model '{name}' is a Hugging "
                "Face classifier, which reads other tokens than the policy writes; set optimiser.critic: sft in the row"
            )
    _check_measuring(reached, scale, evaluation, training)
    _check_lengths(reached, scale, training)
    _check_sources(reached, recipe, training)
    _check_referenced(reached, recipe, scale)
    models = _models(reached, recipe)
    for part in recipe.components:
        _check_component(reached, recipe, part, models)


def _check_adapters(reached: Reached, recipe: Recipe) -> None:
    """Refuses adapters of a higher rank than the model's layers have, or of layers that it does not have or shares."""
    for sft in reached.upstream("sft"):
        spec = sft.own("spec")
        sizes = architecture_of(spec.source, spec.architecture)
        width = field(sizes, WIDTH) or MOST_RANK
        if recipe.lora is not None and recipe.lora.rank > width:
            raise RecipeError(
                f"{reached.where('row')}: lora.rank is {recipe.lora.rank}; it must be at most {width}, the width of "
                f"the model's layers ({sft.where('spec')})"
            )
        layers = [] if recipe.lora is None else linear_layers(sizes)
        if recipe.lora is not None and layers and (unknown := unknown_targets(recipe.lora.targets, layers)):
            names = list(dict.fromkeys(layer.rpartition(".")[2] for layer in layers))
            raise RecipeError(
                f"{reached.where('row')}: lora.targets names '{unknown[0]}', which is no linear layer of "
                f"{sizes['model_type']}, the model of {sft.where('spec')}{hint(unknown[0], names)}"
            )
        if recipe.lora is not None and (tied := tied_target(recipe.lora.targets, sizes)):
            raise RecipeError(
                f"{reached.where('row')}: lora.targets names '{tied}', which has the embedding's weights in the model "
                f"of {sft.where('spec')} (tie_word_embeddings): adapters of one cannot be added into both; leave "
                f"'{tied}' out, or set tie_word_embeddings: false where the backbone states its architecture"
            )


def _check_measuring(
    reached: Reached, scale: PolicyScale, evaluation: EvaluationConfig, training: RewardTraining
) -> None:
    """Refuses what compares answers where nothing judges them."""
    asked, known = scale.checkpoint_benchmark, benchmarks_of(reached.data)
    if asked not in known and asked != "alpaca":
        raise RecipeError(
            f"{reached.where('scale')}: checkpoint_benchmark is '{asked}', which the data does not have; set 'held_out'"
            f" of {reached.upstream('data')[0].where('spec')}, or leave checkpoint_benchmark out"
        )
    steps = training.optimiser.iterations
    evaluated = any(scale.evaluated(step, steps, last=True) for step in range(1, steps + 1))
    compared = has_judge_or_world(evaluation, reached)
    if training.alarm.on_hacking == "stop" and not (evaluated and compared):
        raise RecipeError(
            f"{reached.where('row')} on {reached.where('scale')}: alarm.on_hacking is 'stop', which keeps the weights "
            "with the best win rate, but the run has no evaluations to choose them by: set "
            "checkpoint_prompts and checkpoints, and a judge where the data has no true rewards"
        )
    if compared:
        return
    for name in ("peak", "measure_hacking"):
        if getattr(scale, name):
            raise RecipeError(
                f"{reached.where('scale')}: {name} is true, which compares answers, but {reached.where('evaluation')} "
                "has no judge, or judge_checkpoints is false, and the data has no true rewards; set a judge and "
                "judge_checkpoints, or leave it out"
            )


def _check_lengths(reached: Reached, scale: PolicyScale, training: RewardTraining) -> None:
    """Refuses rollouts beyond the limits of the data or the positions of the model."""
    limits = prompt_limits(scale.prompt_limit, reached, reached.where("scale"))
    if not training.optimiser.fixed_samples:
        check_engine(reached, training.sampling.engine, reached.where("scale"), "sampling.engine")
        cap = training.optimiser.importance_cap
        if cap is not None and not ENGINES[training.sampling.engine].rescored:
            raise RecipeError(
                f"{reached.where('row')} on {reached.where('scale')}: optimiser.importance_cap is {cap:g} and "
                f"sampling.engine '{training.sampling.engine}', but {UNWEIGHTED}"
            )
        longest = limits.prompt + training.sampling.max_new_tokens
        check_positions(reached, longest, f"prompts and rollouts of {reached.where('scale')}")


def _results(reached: Reached, recipe: Recipe) -> dict[str, str]:
    """Returns the results of reward models by the names that a recipe's components have for them."""
    results = reached.item.arguments.get("reward_model", ())
    return dict(zip(reward_models(recipe), results if isinstance(results, tuple) else (str(results),), strict=False))


def _models(reached: Reached, recipe: Recipe) -> dict[str, Reached]:
    """Returns the trained reward models by the names that a recipe's components have for them."""
    above = ((name, reached.stage_of(result)) for name, result in _results(reached, recipe).items())
    return {name: model for name, model in above if model is not None}


def classifiers(reached: Reached, recipe: Recipe) -> list[str]:
    """Returns the names of the recipe's reward models that are given as Hugging Face classifiers."""
    root = reached.settings.root
    return [name for name, result in _results(reached, recipe).items() if is_hub_classifier(root / result)]


def _check_sources(reached: Reached, recipe: Recipe, training: RewardTraining) -> None:
    """Refuses a scale that lets an optimiser learn from other responses than its row says."""
    if training.optimiser.fixed_samples != recipe.fixed_samples:
        said = OPTIMISERS[str(recipe.optimiser["kind"])].get("source", OptimiserConfig.source)
        raise RecipeError(
            f"{reached.where('scale')}: optimiser.source is '{training.optimiser.source}', but the optimiser of "
            f"{reached.where('row')} learns from '{recipe.optimiser.get('source', said)}'; state 'source' in the row"
        )


def _check_referenced(reached: Reached, recipe: Recipe, scale: PolicyScale) -> None:
    """Refuses more training prompts than have reference rewards, and more reference rewards than a prompt has."""
    drawn = dict(zip(referenced_models(recipe), reached.upstream("references"), strict=False))
    for part in recipe.components:
        if part.reward_model in drawn and part.shaping is not None:
            stage = drawn[part.reward_model]
            asked, made = references_needed(part.shaping), stage.own("scale").responses
            if asked > made:
                raise RecipeError(
                    f"{reached.where('row')}: component '{part.name}': shaping is {part.shaping}, which compares with "
                    f"{asked} reference rewards of each prompt, but {stage.where('scale')} draws {made}; set the "
                    f"shaping's 'references' to at most {made}, or raise 'responses' there"
                )
    data = reached.data
    known = data.rows["prompts"] if isinstance(data, DrawnSpec) else None
    used = min((n for n in (scale.prompts, known) if n is not None), default=None)
    for references in reached.upstream("references"):
        cached = references.own("scale").prompts
        if cached is not None and used is not None and used > cached:
            raise RecipeError(
                f"{reached.where('scale')}: prompts is {scale.prompts}, but {references.where('scale')} caches "
                f"reference rewards of {cached} prompts; let 'prompts' of both agree"
            )


def _check_component(reached: Reached, recipe: Recipe, part: ComponentRecipe, models: dict[str, Reached]) -> None:
    where = f"{reached.where('row')}: component '{part.name}'"
    if part.aspect is not None:
        _check_aspect(reached, recipe, part, where)
        return
    _check_pure_samples(reached, part, where)
    if part.function is not None:
        check_function(reached.settings.root, part.function, where)
    if part.readout is None or part.reward_model is None:
        return
    check_segmenter(part.readout.segmenter, reached, where)
    if part.reward_model in classifiers(reached, recipe):
        check_whole_responses(part.readout, where, part.reward_model)
        _check_fitted(reached, part, where)
        return
    model = models.get(part.reward_model)
    spec = None if model is None else trained_spec(model)
    if model is None or spec is None:
        return
    if isinstance(model.own("scale"), ZeroShotScale):
        _check_zero_shot(part, model, where)
        return
    _check_fitted(reached, part, where)
    heads = build_loss(spec.loss).heads
    if part.readout.head not in heads:
        raise RecipeError(
            f"{where}: readout.head is '{part.readout.head}', but reward model '{part.reward_model}' has "
            f"{', '.join(heads)}{hint(part.readout.head, heads)}"
        )
    if part.normaliser != "none" and part.readout.head != heads[0]:
        raise RecipeError(
            f"{where}: normaliser is '{part.normaliser}', which is fitted to the head '{heads[0]}', but the readout "
            f"reads '{part.readout.head}'; use normaliser 'none'"
        )
    if NORMALISERS[part.normaliser].of_segments and dict(spec.segmenter) != dict(part.readout.segmenter):
        raise RecipeError(
            f"{where}: normaliser '{part.normaliser}' is fitted to segments of the reward model "
            f"'{part.reward_model}', cut by {dict(spec.segmenter)}, but the read-out cuts by "
            f"{dict(part.readout.segmenter)}; state the model's segmenter in 'readout', or use the normaliser "
            "'sequence' or 'none'"
        )


def _check_zero_shot(part: ComponentRecipe, model: Reached, where: str) -> None:
    """Refuses what needs more of a zero-shot model than one reward for each response."""
    asked = f"reward model '{part.reward_model}' is zero_shot ({model.where('scale')})"
    if part.normaliser != "none" and not NORMALISERS[part.normaliser].of_selection:
        raise RecipeError(f"{where}: normaliser is '{part.normaliser}', but {asked}; use 'pure_samples' or 'none'")
    if part.readout is not None and part.readout.read != "aggregate":
        raise RecipeError(
            f"{where}: readout.read is '{part.readout.read}', but {asked}: it rewards whole responses; use 'aggregate'"
        )
    if part.needs_references:
        raise RecipeError(f"{where}: shaping is {part.shaping}, which compares with reference rewards, but {asked}")


def _check_fitted(reached: Reached, part: ComponentRecipe, where: str) -> None:
    """Refuses a normaliser of the user's own that the normaliser stage is not told to fit."""
    if part.normaliser in NORMALISERS or NORMALISERS[part.normaliser].fit is None:
        return
    for stage in reached.upstream("normaliser"):
        if part.normaliser not in stage.own("scale").own:
            raise RecipeError(
                f"{where}: normaliser is '{part.normaliser}', which {stage.where('scale')} does not fit; add it there: "
                f"own: ['{part.normaliser}']"
            )


def check_function(root: Path, name: str, where: str) -> None:
    """Refuses a function of a module that is not there, or of a module of the repository without that name.

    The module is not imported: it may need what only a stage has.
    """
    module, _, attribute = name.partition(":")
    place = root.joinpath(*module.split("."))
    file = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
    if file is None:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise RecipeError(f"{where}: function is '{name}', but there is no module '{module}' here or installed")
        return
    body = ast.parse(file.read_text(encoding="utf-8")).body
    named = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)]
    others = any(isinstance(node, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom | ast.If) for node in body)
    if attribute not in named and not (others and attribute in file.read_text(encoding="utf-8")):
        raise RecipeError(
            f"{where}: function is '{name}', but {file.name} has no '{attribute}'{hint(attribute, named)}"
        )


def _check_pure_samples(reached: Reached, part: ComponentRecipe, where: str) -> None:
    """Refuses pure samples that another reward model scored."""
    for selection in reached.upstream("selection") if NORMALISERS[part.normaliser].of_selection else ():
        chosen: SelectionEntry = selection.own("spec")
        if chosen.holistic != part.reward_model:
            raise RecipeError(
                f"{where}: reward_model is '{part.reward_model}', but the pure samples of {selection.where('spec')} "
                f"are scored by '{chosen.holistic}'; name the same reward model in both"
            )


def _check_aspect(reached: Reached, recipe: Recipe, part: ComponentRecipe, where: str) -> None:
    """Refuses an aspect that the selection does not compare, or a credit or shaping that does not take its signal."""
    for selection in reached.upstream("selection"):
        chosen: SelectionEntry = selection.own("spec")
        if part.aspect != SELECTED and part.aspect not in chosen.aspects:
            raise RecipeError(
                f"{where}: aspect is '{part.aspect}', which {selection.where('spec')} does not compare"
                f"{hint(part.aspect, chosen.aspects)}"
            )
        for name, density in aspect_densities(selection).items():
            if part.aspect not in (SELECTED, name):
                continue
            signal, usual = SIGNALS[density]
            takes = CREDITS[part.credit or usual].takes
            if takes is not signal:
                raise RecipeError(
                    f"{where}: credit '{part.credit}' takes {takes.__name__}, but aspect '{name}' gives "
                    f"{signal.__name__}; leave 'credit' out"
                )
            _check_shaping(part, signal, f"{where}: aspect '{name}'")


def _check_shaping(part: ComponentRecipe, signal: SignalType, where: str) -> None:
    if part.shaping is None:
        return
    takes = build_shaping(part.shaping, SftUnits(0.0, 1.0, 1.0)).takes
    if signal not in takes:
        expected = " or ".join(kind.__name__ for kind in takes)
        raise RecipeError(f"{where}: the shaping takes {expected}, but the aspect gives {signal.__name__}")


# --- selections --------------------------------------------------------------------------------------------------


def aspect_densities(selection: Reached) -> dict[str, Density]:
    """Returns the density of each aspect of a selection by name; a trained model states the density of its aspect.

    Raises:
        RecipeError: an aspect that cannot be built.
    """
    spec: SelectionEntry = selection.own("spec")
    models = {one.item.name: one for one in selection.upstream("aspect_model")}
    given = selection.item.arguments["aspect"]
    addresses = given if isinstance(given, tuple) else (str(given),)
    found: dict[str, Density] = {}
    for name, address in zip(spec.aspects, addresses, strict=True):
        aspect: AspectSpec = selection.settings.get(TYPES["selection", "aspect"], address)
        found[name] = aspect_density(aspect, models, address)
        if aspect.model is None and _needs_facts(aspect) and not isinstance(selection.data, LongFormWorldSpec):
            raise RecipeError(
                f"{selection.where('spec')}: aspects names '{name}', of kind '{aspect.aspect['kind']}' ({address}), "
                "which reads the facts of the testbed's long-form questions, but the data's source is "
                f"'{selection.data.source}'; name another aspect"
            )
    return found


def aspect_density(aspect: AspectSpec, models: Mapping[str, Reached], where: str) -> Density:
    """Returns the density of an aspect.

    Raises:
        RecipeError: an aspect that cannot be built, or a normaliser that its density has no use for.
    """
    model: AspectModelSpec | None = None if aspect.model is None else models[aspect.model].own("spec")
    try:
        density = _own_density(aspect) if model is None else _trained_density(aspect, model)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None
    if aspect.normaliser != "none" and SIGNALS[density][0] is Tokens:
        raise RecipeError(
            f"{where}: normaliser is '{aspect.normaliser}', but the aspect is of density '{density.value}' and "
            "its values are not normalised; use 'none'"
        )
    return density


def _own_density(aspect: AspectSpec) -> Density:
    """Returns the density of an aspect without a model; one that declares it is not built, which may start a tool."""
    kind = ASPECTS.kind_of(aspect.aspect)
    target = ASPECTS.named(kind)
    if target is TrainedAspect:
        raise RecipeError("'model' is missing: an aspect of kind 'trained' names its model")
    declared = getattr(target, "density", None)
    if not isinstance(declared, Density) or "density" in ASPECTS.options(kind):
        return build_aspect(aspect.aspect, offsets=lambda _: []).density
    _check_options(aspect, ())
    return declared


def _needs_facts(aspect: AspectSpec) -> bool:
    """Returns whether an aspect reads the facts behind a question, which the testbed's long-form data alone has."""
    target = ASPECTS.named(ASPECTS.kind_of(aspect.aspect))
    declares = target if isinstance(target, type) else build_aspect(aspect.aspect, offsets=lambda _: [])
    return bool(getattr(declares, "needs_facts", False))


def _check_options(aspect: AspectSpec, provided: tuple[str, ...]) -> dict[str, Any]:
    """Returns the options of an aspect, each known and of the right type.

    Args:
        aspect: as its entry states it.
        provided: options that its stage gives.
    """
    kind = ASPECTS.kind_of(aspect.aspect)
    options = {name: value for name, value in aspect.aspect.items() if name != "kind"}
    known = [name for name in ASPECTS.options(kind) if name not in provided]
    for name in options:
        if name not in known:
            raise RecipeError(f"aspect '{kind}': unknown option '{name}'{hint(name, known)}")
    return checked_arguments(ASPECTS.named(kind), options, f"aspect '{kind}'")


def _trained_density(aspect: AspectSpec, model: AspectModelSpec) -> Density:
    """Returns the density that a trained model is of, after checking the aspect's own options."""
    kind = ASPECTS.kind_of(aspect.aspect)
    if ASPECTS.named(kind) is not TrainedAspect:
        raise RecipeError(f"model is '{aspect.model}', which an aspect of kind '{kind}' does not read")
    options = _check_options(aspect, ("folder", "device"))
    parameters = inspect.signature(TrainedAspect).parameters
    right, wrong = (options.get(name, parameters[name].default) for name in ("right", "wrong"))
    if not right > wrong:
        raise RecipeError(f"aspect 'trained': right is {right} and wrong {wrong}; right must be above wrong")
    return Density(model.density)


def check_selection(reached: Reached) -> None:
    """Refuses aspects that cannot be built, and a holistic reward model that is not read at the response's end."""
    aspect_densities(reached)
    check_answers(reached, reached.own("scale").max_new_tokens, reached.where("scale"))
    check_engine(reached, reached.own("scale").engine, reached.where("scale"))
    for model in reached.upstream("reward_model"):
        spec = trained_spec(model)
        needs = None if spec is None else segmenter_needs(spec.segmenter)
        if spec is not None and needs is not None and (needs.entropies or needs.spelling):
            raise RecipeError(
                f"{reached.where('spec')}: holistic is '{model.item.name}', whose segmenter is "
                f"'{spec.segmenter['kind']}'; a holistic reward model is read at the response's end: "
                "train it as 'bandit'"
            )
