"""Aspects and holistic rewards of whole responses, as the stages `selection` and `policy` ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_core.aspects import Aspect, Density, Scored, checked_scores, rate
from rlhf_core.aspects.aspect import SIGNALS
from rlhf_core.aspects.choices import build_aspect
from rlhf_core.data.encoding import Encoder
from rlhf_core.data.tokenizers import response_offsets
from rlhf_core.errors import RecipeError
from rlhf_core.normalisers import NoNormaliser, Normaliser, Scalar
from rlhf_core.rewards.preference_training import score_all
from rlhf_core.segmentation.segmenters import build_segmenter
from rlhf_core.signals import Tokens
from rlhf_core.typed import typed
from tasks.params.aspects import ASPECT_NORMALISERS, AspectSpec
from tasks.params.pages import Address, read_settings
from tasks.running.artifacts import read_json, write_jsonl
from tasks.running.machine import device
from tasks.scoring.classifiers import load_text_rewards
from tasks.scoring.reward_models import TrainedModel
from tasks.scoring.segmenting import Reading


@dataclass(frozen=True)
class LoadedAspect:
    """An aspect with its settings."""

    name: str
    spec: AspectSpec
    aspect: Aspect

    def score(self, rows: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return checked_scores(self.aspect, rows, responses)

    def rates(self, scored: Sequence[Scored]) -> list[float]:
        """Returns one number per response, by which responses are compared; token aspects' error rates in percent."""
        unit = 100.0 if self.aspect.density is Density.TOKEN else 1.0
        return [unit * rate(self.aspect, one) for one in scored]

    def recorded(self) -> dict[str, Any]:
        """Returns the settings from which a policy stage builds the same aspect, for selection.json."""
        aspect = self.aspect
        return {
            "spec": asdict(self.spec),
            "density": aspect.density.value,
            "higher_is_better": aspect.higher_is_better,
        }


def load_aspect(
    name: str, spec: AspectSpec, models: Mapping[str, Path], tokenizer: PreTrainedTokenizerBase
) -> LoadedAspect:
    """Returns an aspect of a file, on the trained model that it names.

    Args:
        models: results of the aspect models by name.
        tokenizer: the policy's, whose tokens token aspects and lengths count.

    Raises:
        RecipeError: a normaliser that the aspect's density has no use for.
    """
    options = dict(spec.aspect)
    if spec.model is not None:
        options |= {"folder": str(models[spec.model] / "model"), "device": str(device())}
    aspect = build_aspect(options, offsets=partial(response_offsets, tokenizer))
    if ASPECT_NORMALISERS[spec.normaliser].std is not None and SIGNALS[aspect.density][0] is Tokens:
        raise RecipeError(
            f"aspect '{name}' is of density '{aspect.density.value}', and its values are not normalised; use 'none'"
        )
    return LoadedAspect(name, spec, aspect)


def read_aspects(
    files: Sequence[Address | Path], models: Sequence[Path], tokenizer: PreTrainedTokenizerBase
) -> list[LoadedAspect]:
    """Returns the aspects at some addresses, in order, each under its entry's name."""
    known = models_by_name(models)
    specs = {Address(one).name: typed(AspectSpec, read_settings(one), str(one)) for one in files}
    return [load_aspect(name, spec, known, tokenizer) for name, spec in specs.items()]


def models_by_name(results: Sequence[Path]) -> dict[str, Path]:
    """Returns results of aspect models by the model's name:
    `results/<scale>/<paper>/aspect_model/<name>/<seed>/result`."""
    return {path.parts[-3]: path for path in results}


def selected_aspects(
    selection: Mapping[str, Any], names: Sequence[str], models: Sequence[Path], tokenizer: PreTrainedTokenizerBase
) -> dict[str, LoadedAspect]:
    """Returns aspects that a selection compared, by name, chosen or not."""
    known, compared = models_by_name(models), selection["aspects"]
    return {name: load_aspect(name, AspectSpec(**compared[name]["spec"]), known, tokenizer) for name in names}


def aspect_normaliser(aspect: LoadedAspect, facts: Mapping[str, Any]) -> Normaliser:
    """Returns the normaliser of an aspect's rewards, from the statistics that the selection recorded.

    Raises:
        RecipeError: a constant aspect, which has no deviation to divide by.
    """
    choice = ASPECT_NORMALISERS[aspect.spec.normaliser]
    if choice.std is None:
        return NoNormaliser()
    mean, std = 0.0 if choice.mean is None else facts[choice.mean], facts[choice.std]
    if not std > 0:
        raise RecipeError(f"aspect '{aspect.name}' is {choice.refusal}: it has nothing to normalise by; leave it out")
    return Scalar(float(mean), float(std))


def holistic_values(
    reward_model: Path,
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[tuple[str, int]],
    longest: int,
) -> list[float]:
    """Returns the reward of each whole answer by a reward model, raw, read where training reads it.

    Args:
        answers: (text, tokens as drawn) of each row.
        longest: the limit under which they were drawn; an answer that it cut has no EOS.

    Raises:
        RecipeError: a reward model whose segments need entropies or sentences.
    """
    texts = [text for text, _ in answers]
    if (rewards := load_text_rewards(reward_model)) is not None:
        return rewards(rows, texts, ended=[drawn < longest for _, drawn in answers])
    trained = TrainedModel.load(reward_model / "model")
    segmenter = build_segmenter(trained.settings["segmenter"])
    if segmenter.needs_entropies or segmenter.needs_spelling:
        raise RecipeError(
            f"{reward_model}: a holistic reward model is read at the response's end; train it as 'bandit'"
        )
    asked = zip(rows, answers, strict=True)
    sequences = [encoder.sampled(row, text, drawn, longest) for row, (text, drawn) in asked]
    cut, _ = Reading(encoder, segmenter).cut(sequences, None)
    values, _ = score_all(trained.model, cut, encoder.pad_id, trained.aggregation)
    return [float(value) for value in values]


def write_scores(
    result: Path,
    answers: Sequence[Mapping[str, Any]],
    longest: int,
    encoder: Encoder,
    selection: Path,
    holistic: Path,
    models: Sequence[Path],
) -> dict[str, float]:
    """Writes scores.jsonl: each answer, drawn under the limit `longest`, by the normalised holistic reward and by every
    aspect of the selection.

    Returns:
        Their means as `score/<name>`.
    """
    chosen = read_json(selection / "selection.json")
    mean, std = chosen["holistic"]["mean"], chosen["holistic"]["std"]
    texts = [str(row["response"]) for row in answers]
    drawn = [(str(row["response"]), int(row["n_tokens"])) for row in answers]
    raw = holistic_values(holistic, encoder, answers, drawn, longest)
    columns = {"holistic": [(value - mean) / std for value in raw]}
    for name, aspect in selected_aspects(chosen, list(chosen["aspects"]), models, encoder.tokenizer).items():
        columns[name] = aspect.rates(aspect.score(answers, texts))
    rows = [{"id": row["id"], **{name: values[i] for name, values in columns.items()}} for i, row in enumerate(answers)]
    write_jsonl(result / "scores.jsonl", rows)
    return {f"score/{name}": sum(values) / max(1, len(values)) for name, values in columns.items()}


def lower_is_better(selection: Path) -> list[str]:
    """Returns the aspects of a selection of which less is better."""
    aspects = read_json(selection / "selection.json")["aspects"]
    return [name for name, facts in aspects.items() if not facts["higher_is_better"]]
