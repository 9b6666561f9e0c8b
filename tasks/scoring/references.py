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

from rlhf_core.errors import NumericsError
from rlhf_core.normalisers import Normaliser
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.rollout import Responses
from rlhf_core.shaping.steps import SftUnits
from rlhf_core.signals import Segments, Sequence, Signal
from tasks.running.artifacts import read_json, read_tensors
from tasks.scoring.classifiers import RolloutTexts

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


def _responses(stored: Mapping[str, Tensor], head: str, tokenizer: PreTrainedTokenizerBase) -> tuple[Tensor, Responses]:
    """Returns (head values [n, response_len], responses) as padded tensors."""
    lengths = stored["lengths"].tolist()
    ids, entropies, values = (
        pad_sequence(list(stored[name].split(lengths)), batch_first=True)
        for name in ("ids", "entropies", f"values.{head}")
    )
    mask = torch.arange(ids.shape[1])[None] < stored["lengths"][:, None]
    vocabulary = {i: str(tokenizer.decode([i])) for i in stored["ids"].unique().tolist()}
    pieces = [[vocabulary[i] for i in row.tolist()] for row in stored["ids"].split(lengths)]
    return values, Responses(ids.long(), mask, stored["ended"], pieces, entropies)


def load_references(
    folder: Path,
    scorer: RewardModelScorer | RolloutTexts,
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
    raw: Signal
    if isinstance(scorer, RolloutTexts):
        raw = Sequence(stored[REWARDS])
    else:
        raw = scorer.read_out(*_responses(stored, scorer.head, tokenizer))
    signal = copy.copy(normaliser)(raw)
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
