"""Refusals of a policy stage that need its row beside reward models, selection, data and scale."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from rlhf_core.aspects.aspect import SIGNALS, Density
from rlhf_core.aspects.choices import ASPECTS, build_aspect
from rlhf_core.aspects.trained import TrainedAspect
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError, hint
from rlhf_core.models.architecture import WIDTH, architecture_of, field, linear_layers, tied_target, unknown_targets
from rlhf_core.models.folders import is_hub_classifier
from rlhf_core.models.sampling import ENGINES
from rlhf_core.normalisers import NORMALISERS
from rlhf_core.policy_optimisation.objectives import UNWEIGHTED
from rlhf_core.policy_optimisation.sources import CRITICS
from rlhf_core.recipe import SELECTED, ComponentRecipe, Recipe, referenced_models, reward_models, stated_shaping
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.segmentation.segmenters import segmenter_class
from rlhf_core.shaping.choices import references_needed
from rlhf_core.signals import Tokens
from rlhf_core.supervised.recipes import PREFERENCE
from rlhf_core.typed import checked_arguments
from tasks.graph.stage_checks import (
    FITTED,
    REFERENCES,
    SEGMENTS,
    TOKENS,
    check_amount,
    model_provides,
    require,
    require_benchmark,
    require_of_data,
    require_of_models,
    require_pairs,
    trained_spec,
)
from tasks.graph.typed_settings import TYPES, StageContext
from tasks.params.aspects import AspectModelSpec, AspectSpec, SelectionEntry
from tasks.params.data import rows_of
from tasks.params.evaluation import EvaluationConfig
from tasks.params.policy import PolicyScale, RewardTraining, reward_training
from tasks.params.questions import QuestionsSpec
from tasks.params.reward_model import check_whole_responses
from tasks.params.settings import FACTS, TRUE_REWARDS

#: The highest rank of adapters where a model's width is not known before it is loaded.
MOST_RANK = 16384


def check_policy(stage: StageContext) -> None:
    """Refuses a row that its policy stage would refuse by its settings.

    Raises:
        RecipeError: names the setting, and what would be right.
    """
    recipe, scale = stage.own("row"), stage.own("scale")
    row = stage.where("row")
    where = f"{row} on {stage.where('scale')}"
    _check_adapters(stage, recipe)
    _check_evaluations(stage, scale)
    if recipe.kind == "supervised":
        _, learned = scale.supervised_config(recipe.optimiser, where)
        if PREFERENCE in learned.needs:
            require_pairs(stage, row, f"optimiser is '{recipe.optimiser['kind']}'")
        return
    training = reward_training(recipe, scale, where)
    optimiser, engine = training.optimiser, training.sampling.engine
    provided = _provided(stage, recipe)
    if CRITICS[optimiser.critic].of_reward_model:
        name, stated = next(iter(reward_models(recipe))), f"optimiser.critic is '{optimiser.critic}'"
        require_of_models(stage, TOKENS, stated)
        require(TOKENS, provided[name], where, stated, f"reward model '{name}'", "set optimiser.critic: sft in the row")
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
        _check_component(stage, part, provided)


def _check_adapters(stage: StageContext, recipe: Recipe) -> None:
    """Refuses adapters of a higher rank than the model's layers have, or of layers that it does not have or shares."""
    lora, where = recipe.lora, stage.where("row")
    if lora is None:
        return
    for sft in stage.upstream("sft"):
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
    """Refuses evaluations while training on prompts that the data, or the evaluation, does not have."""
    where, data, asked = stage.where("scale"), stage.data, scale.checkpoint_prompts
    if isinstance(data, QuestionsSpec):
        of = f"training questions ({stage.prepare.where('spec')}, rows.questions)"
        check_amount(asked, rows_of(data, "questions"), where, "checkpoint_prompts", of)
        return
    name = scale.checkpoint_benchmark
    if name != "alpaca":
        require_benchmark(name, stage, where, f"checkpoint_benchmark is '{name}'")
    exist = data.held_out if name == "held_out" else rows_of(data, "benchmark")
    of = f"prompts in the benchmark '{name}' ({stage.prepare.where('spec')})"
    check_amount(asked, exist, where, "checkpoint_prompts", of)
    of = f"items of each benchmark ({stage.where('evaluation')}, rows)"
    check_amount(asked, stage.own("evaluation").rows, where, "checkpoint_prompts", of)


def _check_measuring(stage: StageContext, scale: PolicyScale, training: RewardTraining, where: str) -> None:
    """Refuses more evaluations than iterations, and what compares answers where nothing judges them."""
    evaluation: EvaluationConfig = stage.own("evaluation")
    own, steps = stage.where("scale"), training.optimiser.iterations
    of = f"iterations (optimiser.iterations of {where})"
    for name in ("checkpoint_every", "checkpoints") if scale.checkpoint_prompts else ():
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


def _provided(stage: StageContext, recipe: Recipe) -> dict[str, list[str]]:
    """Returns what the reward models of a recipe provide, by their names there.

    A Hugging Face classifier rewards responses, and reads other tokens than the policy writes.
    """
    found = {}
    for name, result in _results(stage, recipe).items():
        model = stage.stage_of(result)
        given = [FITTED, REFERENCES]
        if not is_hub_classifier(stage.settings.root / result):
            given += [TOKENS, SEGMENTS]
        found[name] = given if model is None else model_provides(model)
    return found


def _results(stage: StageContext, recipe: Recipe) -> dict[str, str]:
    """Returns the results of reward models by the names that a recipe's components have for them."""
    results = stage.item.arguments.get("reward_model", ())
    return dict(zip(reward_models(recipe), results if isinstance(results, tuple) else (str(results),), strict=False))


def _check_referenced(stage: StageContext, recipe: Recipe, scale: PolicyScale) -> None:
    """Refuses more training prompts than have reference rewards, and more reference rewards than a prompt has."""
    drawn = dict(zip(referenced_models(recipe), stage.upstream("references"), strict=False))
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
    for references in stage.upstream("references"):
        cached = references.own("scale").prompts
        if cached is not None and used is not None and used > cached:
            raise RecipeError(
                f"{stage.where('scale')}: prompts is {scale.prompts}, but {references.where('scale')} caches "
                f"reference rewards of {cached} prompts; let 'prompts' of both agree"
            )


def _check_component(stage: StageContext, part: ComponentRecipe, provided: Mapping[str, list[str]]) -> None:
    where = f"{stage.where('row')}: component '{part.name}'"
    if part.aspect is not None:
        _check_aspect(stage, part, where)
        return
    _check_pure_samples(stage, part, where)
    if part.function is not None:
        check_function(stage.settings.root, part.function, where)
    if part.readout is None or part.reward_model is None:
        return
    readout, normaliser = part.readout, NORMALISERS[part.normaliser]
    has, of = provided[part.reward_model], f"reward model '{part.reward_model}'"
    model = stage.stage_of(_results(stage, stage.own("row"))[part.reward_model])
    if model is None and SEGMENTS not in has:
        check_whole_responses(readout, where, part.reward_model)
    elif model is not None and SEGMENTS not in has:
        of += f", which is zero_shot ({model.where('scale')}),"
    fitted, stated = part.normaliser != "none" and not normaliser.of_selection, f"normaliser is '{part.normaliser}'"
    if part.needs_references:
        require(REFERENCES, has, where, f"shaping is {part.shaping}", of, "use another shaping")
    if fitted:
        require(FITTED, has, where, stated, of, "use 'pure_samples' or 'none'")
        _check_fitted(stage, part, where)
    if readout.read != "aggregate" and model is not None:
        require(SEGMENTS, has, where, f"readout.read is '{readout.read}'", of, "use 'aggregate'")
    spec = None if model is None or SEGMENTS not in has else trained_spec(model)
    if spec is None:
        return
    heads = build_loss(spec.loss).heads
    if readout.head not in heads:
        raise RecipeError(
            f"{where}: readout.head is '{readout.head}', but {of} has {', '.join(heads)}{hint(readout.head, heads)}"
        )
    if part.normaliser != "none" and readout.head != heads[0]:
        raise RecipeError(
            f"{where}: {stated}, which is fitted to the head '{heads[0]}', but the readout "
            f"reads '{readout.head}'; use normaliser 'none'"
        )
    if normaliser.of_segments and dict(spec.segmenter) != dict(readout.segmenter):
        raise RecipeError(
            f"{where}: {stated}, which is fitted to segments of {of}, cut by "
            f"{dict(spec.segmenter)}, but the read-out cuts by {dict(readout.segmenter)}; state the model's segmenter "
            "in 'readout', or use the normaliser 'sequence' or 'none'"
        )


def _check_fitted(stage: StageContext, part: ComponentRecipe, where: str) -> None:
    """Refuses a normaliser of the user's own that the normaliser stage is not told to fit."""
    if part.normaliser not in NORMALISERS and NORMALISERS[part.normaliser].fit is not None:
        for fitting in stage.upstream("normaliser"):
            at, stated = fitting.where("scale"), f"normaliser is '{part.normaliser}'"
            fitted = fitting.own("scale").own
            require(
                part.normaliser, fitted, where, stated, f"'own' of {at}", f"add it there: own: ['{part.normaliser}']"
            )


def check_function(root: Path, name: str, where: str) -> None:
    """Refuses a function of a module that is not there, or of a module of the repository without that name.

    The module is not imported: it may need what only a stage has.
    """
    module, _, attribute = name.partition(":")
    place = root.joinpath(*module.split("."))
    file = next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)
    text = "" if file is None else file.read_text(encoding="utf-8")
    if file is None and importlib.util.find_spec(module.partition(".")[0]) is None:
        raise RecipeError(f"{where}: function is '{name}', but there is no module '{module}' here or installed")
    if file is not None and attribute not in text:
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


def _check_aspect(stage: StageContext, part: ComponentRecipe, where: str) -> None:
    """Refuses an aspect that the selection does not compare, or a credit or shaping that does not take its signal."""
    for selection in stage.upstream("selection"):
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
            shaping = stated_shaping(part.shaping)
            if shaping is not None and signal not in shaping.takes:
                expected = " or ".join(kind.__name__ for kind in shaping.takes)
                raise RecipeError(
                    f"{where}: aspect '{name}': the shaping takes {expected}, but the aspect gives {signal.__name__}"
                )


# --- selections --------------------------------------------------------------------------------------------------


def aspect_densities(selection: StageContext) -> dict[str, Density]:
    """Returns the density of each aspect of a selection by name; a trained model states the density of its aspect.

    Raises:
        RecipeError: an aspect that cannot be built, whose normaliser its density has no use for, or that reads facts
            which the data does not have.
    """
    spec: SelectionEntry = selection.own("spec")
    models = {one.item.name: one.own("spec") for one in selection.upstream("aspect_model")}
    given = selection.item.arguments["aspect"]
    found: dict[str, Density] = {}
    for name, address in zip(spec.aspects, given if isinstance(given, tuple) else (str(given),), strict=True):
        aspect: AspectSpec = selection.settings.get(TYPES["selection", "aspect"], address)
        try:
            density, needs_facts = _aspect(aspect, None if aspect.model is None else models[aspect.model])
        except RecipeError as error:
            raise RecipeError(f"{address}: {error}") from None
        if aspect.normaliser != "none" and SIGNALS[density][0] is Tokens:
            raise RecipeError(
                f"{address}: normaliser is '{aspect.normaliser}', but the aspect is of density '{density.value}' and "
                "its values are not normalised; use 'none'"
            )
        if needs_facts:
            stated = f"aspects names '{name}', of kind '{aspect.aspect['kind']}' ({address})"
            require_of_data(FACTS, selection, selection.where("spec"), stated, "name another aspect")
        found[name] = density
    return found


def _aspect(aspect: AspectSpec, model: AspectModelSpec | None) -> tuple[Density, bool]:
    """Returns the density of an aspect, and whether it reads the facts behind a question, which the testbed's long-form
    data alone has. A class that declares its density is not made, which may load a model or start a tool."""
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
    options = checked_arguments(target, stated, f"aspect '{kind}'")
    if model is None:
        assert isinstance(declared, Density)
        return declared, bool(getattr(target, "needs_facts", False))
    TrainedAspect.check(**options)
    return Density(model.density), False


def check_selection(stage: StageContext) -> None:
    """Refuses aspects that cannot be built, and a holistic reward model that is not read at the response's end."""
    aspect_densities(stage)
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
