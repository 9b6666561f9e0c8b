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
from rlhf_core.data.solutions import Row
from rlhf_core.data.tokenizers import require_offset_mapping
from rlhf_core.errors import RecipeError
from rlhf_core.models.loading import load_tokenizer
from rlhf_core.normalisers import NORMALISERS, NoNormaliser, Normaliser, build_normaliser
from rlhf_core.reasoning.token_rewards import GivenTokenRewards
from rlhf_core.recipe import SELECTED, ComponentRecipe, ReadOut, Recipe, referenced_models
from rlhf_core.recipe import reward_models as reward_models_of
from rlhf_core.rewards.aspect_scorer import AspectScorer
from rlhf_core.rewards.composition import Component, Reward, Scorer
from rlhf_core.rewards.function import build_function_scorer
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.shaping.choices import Chain, build_shaping
from rlhf_core.stepper import freeze
from tasks.evaluating.aspects import aspect_normaliser, selected_aspects
from tasks.params.reward_model import check_whole_responses
from tasks.running.artifacts import read_json
from tasks.running.loading import load_segmenter
from tasks.running.result_rows import Metrics
from tasks.scoring.classifiers import RolloutTexts, ScalarScorer, load_text_rewards
from tasks.scoring.references import load_references
from tasks.scoring.reward_models import TrainedModel
from tasks.scoring.segmenting import segmenter_with_cutoffs


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
    token_rewards: Mapping[str, Row] | None = None,
) -> Reward:
    """Returns the reward of a recipe from its trained artifacts.

    Args:
        recipe: a reward recipe.
        inputs: the artifacts, which the graph gives in the order in which the components name the reward models.
        microbatch: longest rows per forward pass.
        tokenizer: of the policy.
        token_rewards: of fixed samples by their id, which a generative reward model's component pays.

    Raises:
        RecipeError: a normaliser that was fitted to other values than the ones that are read.
    """
    selected = read_json(inputs.selection / "selection.json") if inputs.selection is not None else {}
    models = dict(zip(reward_models_of(recipe), inputs.reward_model, strict=True))
    fits = dict(zip(models, inputs.normaliser, strict=False))
    references = dict(zip(referenced_models(recipe), inputs.references, strict=False))
    components: list[Component] = []
    for part in recipe.components:
        if part.aspect is not None:
            gated = recipe.combination.shapes_aspects
            components += _aspect_components(part, selected, inputs.aspect_model, tokenizer, gated=gated)
            continue
        scorer: Scorer
        normaliser: Normaliser = NoNormaliser()
        if part.generative_reward_model is not None:
            scorer = GivenTokenRewards({name: row["rewards"] for name, row in (token_rewards or {}).items()})
        elif part.reward_model is None or part.readout is None:
            scorer = build_function_scorer(str(part.function), str(part.gives))
        else:
            scorer = _reader(part, part.readout, models[part.reward_model], inputs, microbatch, tokenizer)
            normaliser = _normaliser(part, fits.get(part.reward_model), selected)
        component = Component(part.name, scorer, CREDITS[str(part.credit)], normaliser, weight=part.weight)
        if part.needs_references and isinstance(scorer, RewardModelScorer | RolloutTexts):
            known = load_references(references[str(part.reward_model)], scorer, normaliser, tokenizer)
            shaping = build_shaping(part.shaping or (), known.units)
            component = replace(component, shaping=shaping, references=known.rewards)
        elif part.shaping is not None:
            component = replace(component, shaping=build_shaping(part.shaping))
        components.append(component)
    # a quantile threshold is taken of the selection's pure samples
    pure = torch.tensor(selected["holistic"]["pure"]) if selected else None
    combination = recipe.combination.build({part.name: part.weight for part in recipe.components}, pure)
    return Reward(tuple(components), recipe.clamp, combination)


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


def _normaliser(part: ComponentRecipe, fit: Path | None, selected: Mapping[str, Any]) -> Normaliser:
    """Returns the normaliser of a reward model's component, from its fit or from the selection's pure samples."""
    choice = NORMALISERS[part.normaliser]
    if not choice.of_selection:
        if fit is None:
            raise RecipeError(f"component '{part.name}': no result of `normaliser` is given: give --normaliser")
        return build_normaliser(part.normaliser, read_json(fit / "normaliser.json"), part.estimator)
    holistic = selected["holistic"]
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
) -> RewardModelScorer | RolloutTexts:
    """Returns what reads a reward model: one that was trained, a Hugging Face classifier, or one that is asked."""
    if (rewards := load_text_rewards(reward_model)) is not None:
        if isinstance(rewards, ScalarScorer):
            check_whole_responses(readout, f"component '{part.name}'", str(part.reward_model))
        return RolloutTexts(rewards, policy_tokenizer, microbatch)
    trained = TrainedModel.load(reward_model / "model")
    freeze(trained.model)
    resolved = segmenter_with_cutoffs(readout.segmenter, inputs.entropies)
    segmenter = load_segmenter(resolved, inputs.sentences)
    cut = trained.settings["segmenter"]
    if NORMALISERS[part.normaliser].of_segments and cut != resolved:
        raise RecipeError(
            f"component '{part.name}': normaliser '{part.normaliser}' was fitted to segments of the reward model "
            f"'{part.reward_model}', cut by {cut}, but the read-out cuts by {resolved}; state the model's segmenter "
            "in 'readout', or use the normaliser 'sequence' or 'none'"
        )
    if readout.head not in trained.model.heads or (part.normaliser != "none" and readout.head != trained.head):
        raise RecipeError(
            f"component '{part.name}': the readout reads the head '{readout.head}'; the reward model "
            f"'{part.reward_model}' has {', '.join(trained.model.heads)}, and normalisers are fitted to "
            f"'{trained.head}'; state 'head' of the readout, and normaliser 'none' with another than that"
        )
    tokenizer = load_tokenizer(reward_model / "model") if segmenter.needs_spelling else None
    if tokenizer is not None:
        require_offset_mapping(tokenizer)
    return RewardModelScorer(
        trained.model,
        segmenter,
        readout.read,
        head=readout.head,
        microbatch=microbatch,
        aggregation=trained.aggregation,
        base=readout.base,
        tokenizer=tokenizer,
        end_token=None if tokenizer is None else trained.end_token(tokenizer),
    )


def shaping_constants(reward: Reward) -> Metrics:
    """Returns the resolved constants of the shapings for the metrics: `shaping/<component>/<kind>_<constant>`."""
    return {
        f"shaping/{component.name}/{name}": value
        for component in reward.components
        if isinstance(component.shaping, Chain)
        for name, value in component.shaping.resolved().items()
    }
