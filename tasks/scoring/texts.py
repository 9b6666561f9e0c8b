"""Texts in place of samples: the batch of rollouts that rewards get of them, and a user's own reward tried on it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.errors import RecipeError
from rlhf_core.models.policy import pad_rows
from rlhf_core.rewards.function import checked_signal, values_of
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence as SequenceSignal
from rlhf_core.signals import Tokens
from rlhf_core.user_code import import_callable


@dataclass(frozen=True)
class TriedReward:
    """Rewards of some responses by a function.

    Attributes:
        gives: what the function gives, as recipes name it: sequence or tokens.
        totals: [batch] float32, each response's reward, of tokens their sum.
        lengths: [batch] float32, tokens of each response.
    """

    gives: str
    totals: Tensor
    lengths: Tensor


def text_batch(
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    sequences: Sequence[EncodedSequence] | None = None,
    groups: Sequence[Hashable] | None = None,
    device: torch.device | None = None,
) -> RolloutBatch:
    """Returns the batch of rollouts of texts, without log-probabilities.

    Args:
        encoder: of prompts and texts.
        rows: the data row behind each prompt.
        texts: one response for each row.
        sequences: their tokens, encoded and spelled here unless given.
        groups: equal for responses to the same prompt; by the prompt's text unless given.
        device: of the tensors.
    """
    encoded = sequences or [encoder.sequence(row, text) for row, text in zip(rows, texts, strict=True)]
    ids, mask = pad_rows([each.prompt for each in encoded], encoder.pad_id, "left")
    prompts = [str(row["prompt"]) for row in rows]
    places: dict[Hashable, int] = {}
    numbers = torch.tensor([places.setdefault(each, len(places)) for each in groups or prompts])
    made = encoder.responses(encoded, spelled=sequences is None)
    responses = replace(made, ids=made.ids.to(device), mask=made.mask.to(device), ended=made.ended.to(device))
    return RolloutBatch(
        prompt_ids=ids.to(device),
        prompt_mask=mask.to(device),
        responses=responses,
        prompts=prompts,
        texts=list(texts),
        records=[dict(row) for row in rows],
        groups=numbers.to(device),
    )


def try_reward(name: str, batch: RolloutBatch) -> TriedReward:
    """Applies a reward function to a batch once.

    Raises:
        RecipeError: no such function, one that raises an error, whose line it names, a wrong shape, or values that are
            not numbers.
        NumericsError: a value that is not finite.
    """
    function = import_callable(name, "reward function")
    values = values_of(function, batch, name)
    one_each, one_a_token = (len(batch),), tuple(batch.responses.mask.shape)
    if (shape := tuple(values.shape)) not in (one_each, one_a_token):
        raise RecipeError(
            f"reward function {name} returned shape {shape}; it must be {one_each}, a value for each response, or "
            f"{one_a_token}, a value for each token"
        )
    gives = SequenceSignal if shape == one_each else Tokens
    signal = checked_signal(values, batch, gives, name)
    totals = signal.values.sum(dim=1) if isinstance(signal, Tokens) else signal.values
    return TriedReward(gives.__name__.lower(), totals, batch.responses.lengths.float())
