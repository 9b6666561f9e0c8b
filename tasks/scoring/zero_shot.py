"""Zero-shot reward models: a result that holds settings in place of trained weights, and the scorer that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core import distributed
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.evaluation.reward_models import calibration, pairwise_accuracy
from rlhf_core.rewards.zero_shot import ZeroShot, ZeroShotSettings, load_zero_shot
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence as SequenceSignal
from rlhf_core.signals import SignalType
from tasks.params.settings import typed
from tasks.running.artifacts import read_json, write_json
from tasks.running.machine import device
from tasks.running.result_rows import PreferencePair

FILE = "zero_shot.json"


@dataclass(frozen=True)
class ZeroShotModel:
    """A zero-shot model with the words that say the task where prompts alone do not (translation)."""

    model: ZeroShot
    instruction: str

    def rewards(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Returns one reward for each answer."""
        return self.model.rewards([self.instruction + prompt for prompt in prompts], answers)

    def pair_metrics(self, rows: Sequence[PreferencePair]) -> dict[str, float]:
        """Returns how often the chosen answers of pairs have the higher reward, and how well that is calibrated."""
        prompts = [str(row["prompt"]) for row in rows]
        chosen = torch.tensor(self.rewards(prompts, [str(row["chosen"]) for row in rows]))
        rejected = torch.tensor(self.rewards(prompts, [str(row["rejected"]) for row in rows]))
        accuracy, calibrated = pairwise_accuracy(chosen, rejected), calibration(chosen, rejected)
        return {
            "accuracy": float(accuracy["accuracy"]),
            "accuracy_lower": float(accuracy["lower"]),
            "accuracy_upper": float(accuracy["upper"]),
            "ece": float(calibrated["ece"]),  # type: ignore[arg-type]
        }


def write_zero_shot_settings(result: Path, settings: ZeroShotSettings, data: Path) -> None:
    """Writes the settings of a zero-shot model, and the words before each prompt."""
    facts = read_json(data / "data.json")
    write_json(result / FILE, {"settings": asdict(settings), "instruction": str(facts.get("instruction", ""))})


def is_zero_shot(reward_model: Path) -> bool:
    """Returns whether a reward model's result holds a zero-shot model."""
    return (reward_model / FILE).exists()


def load_zero_shot_model(reward_model: Path) -> ZeroShotModel:
    """Returns the zero-shot model of a reward model's result."""
    found: Mapping[str, Any] = read_json(reward_model / FILE)
    settings = typed(ZeroShotSettings, found["settings"], str(reward_model / FILE))
    return ZeroShotModel(load_zero_shot(settings, str(device())), str(found["instruction"]))


@dataclass(frozen=True)
class ZeroShotScorer:
    """Scores rollouts by a zero-shot model.

    Args:
        model: gives the rewards.
        tokenizer: of the policy, whose tokens are spelled out.
    """

    model: ZeroShotModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def gives(self) -> SignalType:
        return SequenceSignal

    def score(self, batch: RolloutBatch) -> SequenceSignal:
        """Returns [batch] rewards; padding and the other rows do not change them."""
        mask = batch.responses.mask
        rows = zip(batch.responses.ids.cpu(), mask.cpu(), strict=True)
        texts = [token_spans(self.tokenizer, ids[real].tolist())[0] for ids, real in rows]
        found = distributed.on_main(lambda: self.model.rewards(list(batch.prompts), texts))
        return SequenceSignal(torch.tensor(found, device=mask.device))
