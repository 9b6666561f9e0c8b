"""Reward models as transformers' sequence classifiers, whose one output is the reward of a whole response."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from rlhf_core.errors import RecipeError
from rlhf_core.models.loading import refuse_random
from rlhf_core.models.reward_model import ScalarModel, SegmentStates
from rlhf_core.rewards.aggregation import Aggregation


def check_one_read(segmenter: str, aggregation: Aggregation, where: str) -> None:
    """Refuses a reward model whose reward of a response is not its head's value at the last token.

    Args:
        segmenter: the kind of the segmenter that it was trained on.
        aggregation: of the segments' values.
        where: names the model.
    """
    if segmenter != "bandit":
        raise RecipeError(
            f"{where}: the model is read at the end of each segment ('{segmenter}'), and a sequence classifier of "
            "transformers is read once, at the last token; export a model whose segmenter is 'bandit'"
        )
    values, hidden = torch.tensor([[1.25], [-0.5]]), torch.zeros(2, 1, 4)
    heads = {name: nn.Linear(4, outputs, bias=False) for name, outputs in aggregation.projections.items()}
    base, mask = torch.tensor([0.75, 2.0]), torch.ones(2, 1, dtype=torch.bool)
    if not torch.equal(aggregation(SegmentStates(values, mask, base, hidden, heads)).total, values[:, 0]):
        raise RecipeError(
            f"{where}: aggregation '{aggregation.kind}' does not give the head's value at the last token (it also "
            "reads the prompt's end, say), which is all that a sequence classifier of transformers reads; export a "
            "model of aggregation 'mean'"
        )


def as_classifier(model: ScalarModel, head: str, pad_id: int, where: str) -> PreTrainedModel:
    """Returns a sequence classifier on a reward model's own transformer and one of its heads, in float32.

    Raises:
        RecipeError: an architecture of which transformers has no classifier with one bias-free linear head; `where`
            names the model.
    """
    backbone, config = model.backbone.float(), copy.deepcopy(model.backbone.config)
    config.num_labels, config.pad_token_id, config.dtype = 1, pad_id, torch.float32
    config.__dict__.pop("attn_implementation", None)
    if config.is_encoder_decoder:
        raise RecipeError(
            f"{where}: the model is an encoder-decoder ({config.model_type}), whose classifiers in transformers have a "
            "head of two layers and read another token; models of decoders alone can be exported"
        )
    try:
        with torch.device("meta"):
            made: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    except ValueError:
        raise RecipeError(
            f"{where}: transformers has no sequence classifier of architecture '{config.model_type}'"
        ) from None
    score, given = getattr(made, "score", None), model.heads[head]
    if type(made.base_model) is not type(backbone) or not isinstance(score, nn.Linear) or score.bias is not None:
        raise RecipeError(
            f"{where}: transformers' {type(made).__name__} has another body or head than the reward model, a "
            f"{type(backbone).__name__} with one bias-free linear layer"
        )
    setattr(made, made.base_model_prefix, backbone)
    made.score = nn.Linear(score.in_features, 1, bias=False)
    with torch.no_grad():
        made.score.weight.copy_(given.weight.float())  # type: ignore[operator,arg-type,union-attr]
    return made.eval()


def load_classifier(folder: Path) -> PreTrainedModel:
    """Returns an exported classifier as anybody loads it, with all of its weights."""
    made, loading_info = AutoModelForSequenceClassification.from_pretrained(str(folder), output_loading_info=True)
    refuse_random(loading_info, folder)
    loaded: PreTrainedModel = made.eval()
    return loaded
