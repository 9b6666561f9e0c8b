"""Zero-shot reward models: a result that holds settings in place of trained weights, and what reads rewards by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_core import distributed
from rlhf_core.rewards.zero_shot import ZeroShot, ZeroShotSettings, load_zero_shot
from tasks.params.settings import typed
from tasks.running.artifacts import read_json, write_json
from tasks.running.machine import device
from tasks.scoring.classifiers import Rows

FILE = "zero_shot.json"


@dataclass(frozen=True)
class ZeroShotModel:
    """A zero-shot model with the words that say the task where prompts alone do not (translation); `TextRewards`."""

    model: ZeroShot
    instruction: str

    def __call__(
        self, rows: Rows, responses: Sequence[str], batch: int | None = None, *, ended: Sequence[bool] | None = None
    ) -> list[float]:
        prompts = [self.instruction + str(row["prompt"]) for row in rows]
        return distributed.on_main(lambda: self.model.rewards(prompts, responses))


def write_zero_shot_settings(result: Path, settings: ZeroShotSettings, data: Path) -> None:
    """Writes the settings of a zero-shot model, and the words before each prompt."""
    facts = read_json(data / "data.json")
    write_json(result / FILE, {"settings": asdict(settings), "instruction": str(facts.get("instruction", ""))})


def is_zero_shot(reward_model: Path) -> bool:
    """Returns whether a reward model's result holds a zero-shot model."""
    return (reward_model / FILE).exists()


def load_zero_shot_model(reward_model: Path) -> ZeroShotModel:
    """Returns the zero-shot model of a reward model's result."""
    found = read_json(reward_model / FILE)
    settings = typed(ZeroShotSettings, found["settings"], str(reward_model / FILE))
    return ZeroShotModel(load_zero_shot(settings, str(device())), str(found["instruction"]))
