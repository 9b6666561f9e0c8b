"""The reward of a recipe, from the artifacts that earlier stages made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core.aspects.aspect import SIGNALS
from rlhf_core.credit import CREDITS
from rlhf_core.data.solutions import TokenRewards
from rlhf_core.data.tokenizers import require_offset_mapping
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.folders import is_hub_classifier
from rlhf_core.models.loading import load_tokenizer
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.normalisers import NORMALISERS, NoNormaliser, Normaliser, build_normaliser
from rlhf_core.reasoning.token_rewards import GivenTokenRewards
from rlhf_core.recipe import SELECTED, ComponentRecipe, ReadOut, Recipe, referenced_models
from rlhf_core.recipe import reward_models as reward_models_of
from rlhf_core.rewards.aggregation import build_aggregation
from rlhf_core.rewards.aspect_scorer import AspectScorer
from rlhf_core.rewards.composition import Combination, Component, Reward, Scorer
from rlhf_core.rewards.function import build_function_scorer
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.end_tokens import end_token_id
from rlhf_core.shaping.choices import Chain, build_shaping
from rlhf_core.stepper import freeze
from tasks.evaluating.aspects import aspect_normaliser, selected_aspects
from tasks.params.reward_model import check_whole_responses
from tasks.running.artifacts import read_json
from tasks.running.loading import load_segmenter
from tasks.running.machine import device
from tasks.running.result_rows import Metrics, Prompt
from tasks.scoring.classifiers import RolloutClassifier, ScalarScorer
from tasks.scoring.entropies import segmenter_with_cutoffs
from tasks.scoring.references import load_references
from tasks.scoring.zero_shot import ZeroShotScorer, is_zero_shot, load_zero_shot_model


@dataclass(frozen=True)
class RewardInputs:
    """Results of the stages that a reward is made of: arguments of the stage `policy`."""

    entropies: Annotated[Path | None, "result of `entropies`, for segmenters that read entropies"] = None
    reward_model: Annotated[
        tuple[Path, ...], "results of `reward_model`, in the order in which the components name the models"
    ] = ()
    normaliser: Annotated[tuple[Path, ...], "results of `normaliser`, in the same order"] = ()
    references: Annotated[
        tuple[Path, ...], "results of `references`, in the same order, for models whose shaping needs them"
    ] = ()
    sentences: Path | None = None
    selection: Annotated[
        Path | None, "result of `selection`, for aspects, the normaliser pure_samples and quantile thresholds"
    ] = None
    aspect_model: Annotated[tuple[Path, ...], "results of `aspect_model`, for aspects that are trained models"] = ()


def build_reward(
    recipe: Recipe,
    inputs: RewardInputs,
    microbatch: int,
    tokenizer: PreTrainedTokenizerBase,
    token_rewards: Mapping[str, TokenRewards] | None = None,
) -> Reward:
    """Returns the reward of a recipe from its trained artifacts.

    Args:
        recipe: a reward recipe.
        inputs: the artifacts.
        microbatch: rows per forward pass.
        tokenizer: of the policy.
        token_rewards: of fixed samples by their id, which a generative reward model's component pays.

    Raises:
        RecipeError: another number of reward models or references than the components name; or a normaliser fitted to
            the segments of another segmentation than the one that is read.
    """
    names, referenced = reward_models_of(recipe), referenced_models(recipe)
    reward_models, normalisers, references = inputs.reward_model, inputs.normaliser, inputs.references
    selection = inputs.selection
    if not len(names) == len(reward_models) == len(normalisers):
        raise RecipeError(
            f"the components read the reward models {names}, but {len(reward_models)} reward model(s) and "
            f"{len(normalisers)} normaliser(s) are given"
        )
    if len(referenced) != len(references):
        raise RecipeError(
            f"the shapings need reference rewards by the reward models {referenced}, but {len(references)} result(s) "
            "of the stage `references` are given: give --references"
        )
    if (recipe.selection is not None) != (selection is not None):
        raise RecipeError(f"the row's selection is '{recipe.selection}', but --selection is {selection}")
    selected = read_json(selection / "selection.json") if selection is not None else None
    components: list[Component] = []
    for part in recipe.components:
        if part.aspect is not None:
            chosen, gated = _needed(selected, part), recipe.combination.shapes_aspects
            components += _aspect_components(part, chosen, inputs.aspect_model, tokenizer, gated=gated)
            continue
        normaliser: Normaliser = NoNormaliser()
        if part.generative_reward_model is not None:
            given = {name: item.rewards for name, item in (token_rewards or {}).items()}
            scorer: Scorer = GivenTokenRewards(given)
        elif part.reward_model is None or part.readout is None:
            scorer = build_function_scorer(str(part.function), str(part.gives))
        else:
            place = names.index(part.reward_model)
            scorer = _reader(part, part.readout, reward_models[place], inputs, microbatch, tokenizer)
            normaliser = _normaliser(part, normalisers[place], selected)
        component = Component(part.name, scorer, CREDITS[str(part.credit)], normaliser, weight=part.weight)
        if part.needs_references and isinstance(scorer, RewardModelScorer | RolloutClassifier):
            folder = references[referenced.index(str(part.reward_model))]
            known = load_references(folder, scorer, normaliser, tokenizer)
            shaping = build_shaping(part.shaping or (), known.units)
            component = replace(component, shaping=shaping, references=known.rewards)
        elif part.shaping is not None:
            component = replace(component, shaping=build_shaping(part.shaping))
        components.append(component)
    return Reward(tuple(components), recipe.clamp, _combination(recipe, selected))


def _needed(selected: Mapping[str, Any] | None, part: ComponentRecipe) -> Mapping[str, Any]:
    """Returns the result of a selection.

    Raises:
        RecipeError: the row has none.
    """
    if selected is None:
        raise RecipeError(f"component '{part.name}' reads a selection of aspects: name it in the row's 'selection'")
    return selected


def _combination(recipe: Recipe, selected: Mapping[str, Any] | None) -> Combination:
    """Returns the combination of the components; a quantile threshold is taken of the selection's pure samples."""
    pure = torch.tensor(selected["holistic"]["pure"]) if selected is not None else None
    return recipe.combination.build({part.name: part.weight for part in recipe.components}, pure)


def _aspect_components(
    part: ComponentRecipe,
    selected: Mapping[str, Any],
    models: Sequence[Path],
    tokenizer: PreTrainedTokenizerBase,
    *,
    gated: bool,
) -> list[Component]:
    """Returns the components of an aspect, or of the aspects that the selection chose.

    Behind a gate an aspect that is not positive is shaped by a sigmoid. Source: ALARM, §2.3 and §3.3.

    Raises:
        RecipeError: an aspect that the selection does not know, a selection that chose none, or a credit that does not
            take what the aspect's density gives.
    """
    names = list(selected["chosen"]) if part.aspect == SELECTED else [str(part.aspect)]
    if not names:
        raise RecipeError("the selection chose no aspect; raise its rule's cutoff, or name an aspect in the row")
    components = []
    for name, found in selected_aspects(selected, names, models, tokenizer).items():
        shaping = part.shaping
        if shaping is None and gated and not found.spec.positive:
            shaping = {"kind": "sigmoid"}
        components.append(
            Component(
                name=part.name if part.name not in ("", SELECTED) else name,
                scorer=AspectScorer(found.aspect, tokenizer),
                credit=CREDITS[part.credit or SIGNALS[found.aspect.density][1]],
                normaliser=aspect_normaliser(found, selected["aspects"][name]),
                shaping=None if shaping is None else build_shaping(shaping),
                weight=part.weight,
            )
        )
    return components


def _normaliser(part: ComponentRecipe, normaliser: Path, selected: Mapping[str, Any] | None) -> Normaliser:
    """Returns the normaliser of a reward model's component, from its fit or from the selection's pure samples."""
    choice = NORMALISERS[part.normaliser]
    if not choice.of_selection:
        return build_normaliser(part.normaliser, read_json(normaliser / "normaliser.json"), part.estimator)
    holistic = _needed(selected, part)["holistic"]
    if holistic["reward_model"] != part.reward_model:
        raise RecipeError(
            f"component '{part.name}' reads the reward model '{part.reward_model}', but the selection's pure samples "
            f"are scored by '{holistic['reward_model']}'"
        )
    return choice.build({"mean": float(holistic["mean"]), "std": float(holistic["std"])}, part.estimator)


def _reader(
    part: ComponentRecipe,
    readout: ReadOut,
    reward_model: Path,
    inputs: RewardInputs,
    microbatch: int,
    policy_tokenizer: PreTrainedTokenizerBase,
) -> RewardModelScorer | RolloutClassifier | ZeroShotScorer:
    """Returns what reads a reward model: one that was trained, a Hugging Face classifier, or one that is asked.

    Raises:
        RecipeError: a read-out or normaliser that the reward model does not have.
    """
    if is_zero_shot(reward_model):
        if part.normaliser != "none" and not NORMALISERS[part.normaliser].of_selection:
            raise RecipeError(
                f"component '{part.name}': normaliser '{part.normaliser}' is fitted to a trained reward model, but "
                f"'{part.reward_model}' is zero-shot at this scale; use 'pure_samples' or 'none'"
            )
        return ZeroShotScorer(load_zero_shot_model(reward_model), policy_tokenizer)
    if is_hub_classifier(reward_model):
        check_whole_responses(readout, f"component '{part.name}'", str(part.reward_model))
        classifier = RolloutClassifier(ScalarScorer.load(reward_model), policy_tokenizer, microbatch)
        freeze(classifier.scorer.model)
        return classifier
    model, trained = ScalarModel.load(reward_model / "model")
    resolved = segmenter_with_cutoffs(readout.segmenter, inputs.entropies)
    segmenter = load_segmenter(resolved, inputs.sentences)
    if NORMALISERS[part.normaliser].of_segments and trained["segmenter"] != resolved:
        raise RecipeError(
            f"component '{part.name}': normaliser '{part.normaliser}' was fitted to segments of the reward model "
            f"'{part.reward_model}', cut by {trained['segmenter']}, but the read-out cuts by {resolved}; state the "
            "model's segmenter in 'readout', or use the normaliser 'sequence' or 'none'"
        )
    if readout.head not in model.heads:
        raise RecipeError(
            f"component '{part.name}': reward model '{part.reward_model}' has no head '{readout.head}'; state 'head' "
            f"of the readout as one of {', '.join(model.heads)}"
        )
    if part.normaliser != "none" and readout.head != trained["heads"][0]:
        raise RecipeError(
            f"component '{part.name}': normalisers are fitted to the head '{trained['heads'][0]}', but the readout "
            f"reads '{readout.head}'; use normaliser 'none'"
        )
    model.to(device())
    freeze(model)
    tokenizer = load_tokenizer(reward_model / "model") if segmenter.needs_spelling else None
    if tokenizer is not None:
        require_offset_mapping(tokenizer)
    return RewardModelScorer(
        model,
        segmenter,
        readout.read,
        head=readout.head,
        microbatch=microbatch,
        aggregation=build_aggregation(trained["aggregation"]),
        base=readout.base,
        tokenizer=tokenizer,
        # the special token <END> behind every sentence, where the model was trained with it
        end_token=end_token_id(tokenizer) if tokenizer is not None and trained.get("end_token") else None,
    )


def shaping_constants(reward: Reward) -> Metrics:
    """Returns the resolved constants of the shapings for the metrics: `shaping/<component>/<kind>_<constant>`."""
    return {
        f"shaping/{component.name}/{name}": value
        for component in reward.components
        if isinstance(component.shaping, Chain)
        for name, value in component.shaping.resolved().items()
    }


def check_referenced(reward: Reward, prompts: Sequence[Prompt], file: Path) -> None:
    """Refuses training prompts without reference rewards before anything is trained.

    Raises:
        DataError: names the first such prompt, and what to change.
    """
    for component in reward.components:
        known = component.references
        for number, row in enumerate(prompts if known else (), start=1):
            name = str(row.get("id", ""))
            if name not in known:
                raise DataError(
                    f"prompt '{name}' has no reference rewards; they are cached for {len(known)} prompt(s)",
                    file=str(file),
                    row=number,
                    remedy="Set `prompts` in the policy's settings to at most `prompts` in references.yaml",
                )
