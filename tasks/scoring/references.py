"""Reference rewards: the SFT model's responses as a component reads and normalises them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.normalisers import Normaliser
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.rollout import Responses
from rlhf_core.shaping.steps import SftUnits
from rlhf_core.signals import Segments, Sequence
from tasks.running.artifacts import read_json, read_tensors
from tasks.scoring.classifiers import RolloutClassifier

#: Name of the rewards of whole responses, which are kept where the reward model reads no tokens of the policy.
REWARDS = "rewards"


@dataclass(frozen=True)
class References:
    """Reward statistics of the SFT model's own responses for one component.

    Attributes:
        rewards: [M] float32 reference rewards by prompt id.
        units: their mean and population deviation, the responses' mean length.
    """

    rewards: dict[str, Tensor]
    units: SftUnits


def _responses(stored: Mapping[str, Tensor], head: str, tokenizer: PreTrainedTokenizerBase) -> tuple[Responses, Tensor]:
    """Returns (responses, head values [n, response_len]) as padded tensors."""
    lengths = stored["lengths"].tolist()
    ids, entropies, values = (
        pad_sequence(list(stored[name].split(lengths)), batch_first=True)
        for name in ("ids", "entropies", f"values.{head}")
    )
    mask = torch.arange(ids.shape[1])[None] < stored["lengths"][:, None]
    vocabulary = {i: str(tokenizer.decode([i])) for i in stored["ids"].unique().tolist()}
    pieces = [[vocabulary[i] for i in row.tolist()] for row in stored["ids"].split(lengths)]
    return Responses(ids.long(), mask, stored["ended"], pieces, entropies), values


def _signal(
    stored: Mapping[str, Tensor],
    scorer: RewardModelScorer | RolloutClassifier,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
) -> Segments | Sequence:
    """Returns what a scorer says of the stored responses.

    Raises:
        DataError: responses that were scored by another reward model.
    """
    head = None if isinstance(scorer, RolloutClassifier) else scorer.head
    if (REWARDS if head is None else f"values.{head}") not in stored:
        said = "rewards of whole responses" if head is None else f"values of head '{head}'"
        raise DataError(f"no {said}", file=str(folder), remedy="Re-run the stage for this reward model")
    if isinstance(scorer, RolloutClassifier):
        return Sequence(stored[REWARDS])
    responses, values = _responses(stored, scorer.head, tokenizer)
    return scorer.read_out(values, responses)


def load_references(
    folder: Path,
    scorer: RewardModelScorer | RolloutClassifier,
    normaliser: Normaliser,
    tokenizer: PreTrainedTokenizerBase,
) -> References:
    """Returns the reference rewards as a component reads and normalises them.

    Args:
        folder: result of the stage.
        scorer: how the reward model is read: segmenter, read-out and head.
        normaliser: the component's; its counters stay as they are.
        tokenizer: of the policy.

    Raises:
        NumericsError: a reference reward that is not finite.
    """
    facts = read_json(folder / "references.json")
    stored = read_tensors(folder / "references.safetensors", ["lengths"])
    signal = copy.copy(normaliser)(_signal(stored, scorer, folder, tokenizer))
    rewards = signal.masked_mean() if isinstance(signal, Segments) else signal.values
    if not torch.isfinite(rewards).all():
        bad = int(torch.nonzero(~torch.isfinite(rewards))[0]) // int(facts["responses"])
        raise NumericsError(f"{folder}: a reference reward of prompt '{facts['prompts'][bad]}' is not finite")
    units = SftUnits(
        mean=float(rewards.double().mean()),
        deviation=float(rewards.double().std(correction=0)),
        length=float(stored["lengths"].double().mean()),
        constants=facts["constants"],
    )
    by_prompt = rewards.float().reshape(len(facts["prompts"]), -1)
    return References(dict(zip(facts["prompts"], by_prompt, strict=True)), units)
