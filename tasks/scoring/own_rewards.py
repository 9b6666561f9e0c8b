"""A reward function of the user's own, tried on texts before anything is trained with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_core.data.encoding import Encoder
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


def text_batch(encoder: Encoder, rows: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> RolloutBatch:
    """Returns a batch of rollouts, as rewards get it, of texts instead of samples; without log-probabilities."""
    encoded = [encoder.sequence(row, text) for row, text in zip(rows, responses, strict=True)]
    prompt_ids, prompt_mask = pad_rows([each.prompt for each in encoded], encoder.pad_id, "left")
    groups: dict[str, int] = {}
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        responses=encoder.responses(encoded, spelled=True),
        prompts=[str(row["prompt"]) for row in rows],
        texts=list(responses),
        records=[dict(row) for row in rows],
        groups=torch.tensor([groups.setdefault(str(row["prompt"]), len(groups)) for row in rows]),
    )


def try_reward(name: str, batch: RolloutBatch) -> TriedReward:
    """Applies a reward function to a batch once.

    Args:
        name: `package.module:name`.
        batch: of at least one response.

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
