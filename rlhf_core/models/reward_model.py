"""Reward models: a transformer and named bias-free heads, read wherever a read-out asks.

Besides scalar heads a model may have projections (queries and keys of an aggregation), saved with them.

A reward model is not its read-out: training reads the head at the ends of one segmentation, policy training may
read it elsewhere. Source: Segment, §2.2, appendix D.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.loading import backbone_of, naming_damage, save_model, stored_model
from rlhf_core.models.packing import packs
from rlhf_core.models.response_states import response_states

HEADS_FILE = "heads.safetensors"
CONFIG_FILE = "reward_model.json"


@dataclass(frozen=True)
class SegmentStates:
    """Values and hidden states of a reward model at segment ends.

    Attributes:
        values: [batch, max_segments] float32, the head at each end, 0 beyond each row's count.
        mask: [batch, max_segments] bool, True on real segments.
        base: [batch] float32, the head at the prompt's last token.
        hidden: [batch, max_segments, hidden] states at the ends.
        heads: projections by name.
    """

    values: Tensor
    mask: Tensor
    base: Tensor
    hidden: Tensor
    heads: Mapping[str, nn.Module]

    def project(self, name: str) -> Tensor:
        """Returns [batch, max_segments, dim] float32: a projection of the states."""
        return read_head(self.heads[name], self.hidden)


def read_head(head: nn.Module, states: Tensor) -> Tensor:
    """Returns a head's values of states in float32; a head in float32 also reads states of fewer bits."""
    said: Tensor = head(states.to(head.weight.dtype))  # type: ignore[arg-type]
    return said.float()


class Projection(nn.Linear):
    """A bias-free head of several outputs, its weights stored sqrt(outputs) times as large as they act.

    A step of Adam moves every weight by the learning rate, whatever its size, and a dot product of two projections adds
    all of those up; stored larger, the weights move it by less than its own size.
    """

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__(hidden, outputs, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states) * self.out_features**-0.5


#: Remedy for a damaged reward model.
REMEDY = "Re-run its stage, or copy its folder again"


class ScalarModel(nn.Module):
    """A transformer with named scalar heads; reward models and critics are both this.

    Heads are float32 whatever the transformer's precision.

    Args:
        backbone: a transformer without output projection, decoder-only or encoder-decoder.
        heads: names of the bias-free linear heads.
        seed: of the heads' initial weights.
        bias: True for a critic.
        projections: bias-free heads of several outputs, name -> outputs; the first one starts at 0.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        heads: Sequence[str] = ("reward",),
        *,
        seed: int = 0,
        bias: bool = False,
        projections: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        hidden = int(backbone.config.hidden_size)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.heads = nn.ModuleDict({name: nn.Linear(hidden, 1, bias=bias) for name in heads})
            for head in self.heads.values():
                nn.init.normal_(head.weight, std=1.0 / (hidden + 1) ** 0.5)  # type: ignore[arg-type]
            self.projections = nn.ModuleDict(
                {name: Projection(hidden, outputs) for name, outputs in (projections or {}).items()}
            )
            for place, (name, outputs) in enumerate((projections or {}).items()):
                # Dot products with the first one, the query, start at 0: every softmax over them starts uniform.
                std = (outputs**0.5 / hidden) ** 0.5 if place else 0.0
                nn.init.normal_(self.projections[name].weight, std=std)  # type: ignore[arg-type]

    @classmethod
    def from_language_model(cls, model: PreTrainedModel, **options: Any) -> ScalarModel:
        """Starts from a language model's transformer; the output projection is left behind."""
        backbone = backbone_of(model)
        assert isinstance(backbone, PreTrainedModel)
        return cls(backbone, **options)

    def as_critic(self, head: str = "reward") -> ScalarModel:
        """Returns a critic that starts as a copy of this reward model: its head 'value' is `head`, with a bias of 0.

        Source: PAR, Algorithm 1, line 3.
        """
        critic = ScalarModel(copy.deepcopy(self.backbone), ("value",), bias=True)
        with torch.no_grad():
            critic.heads["value"].weight.copy_(self.heads[head].weight)  # type: ignore[union-attr,operator,arg-type]
            bias = self.heads[head].bias
            critic.heads["value"].bias.copy_(torch.zeros(1) if bias is None else bias)  # type: ignore[union-attr,operator,arg-type]
        return critic.requires_grad_(True)

    @property
    def packs(self) -> bool:
        """Returns whether its passes compute each prompt once and no padding."""
        return packs(self.backbone)

    def forward(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        response_ids: Tensor,
        response_mask: Tensor,
        *,
        head: str = "reward",
        shift: int = 0,
    ) -> Tensor:
        """Returns [batch, response_len] float32: the head's value at every response token, 0 on padding.

        Args:
            prompt_ids, prompt_mask, response_ids, response_mask: see `response_states`.
            head: which head.
            shift: 0 reads at the token itself (a reward of what was said), 1 at the position before it
                (a critic's value of the state in which it is chosen).
        """
        states = response_states(self.backbone, prompt_ids, prompt_mask, response_ids, response_mask)
        before = states[:, 1 - shift : 1 - shift + response_ids.shape[1]]
        values = read_head(self.heads[head], before).squeeze(-1)
        return torch.where(response_mask, values, 0.0)

    def at_ends(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        response_ids: Tensor,
        response_mask: Tensor,
        ends: Tensor,
        *,
        head: str = "reward",
    ) -> SegmentStates:
        """Returns a head's values at segment ends and at the prompt's last token; see `read_ends`."""
        states = response_states(self.backbone, prompt_ids, prompt_mask, response_ids, response_mask)
        return self.read_ends(states, ends, head)

    def read_ends(self, states: Tensor, ends: Tensor, head: str = "reward") -> SegmentStates:
        """Returns a head's values at segment ends and at the prompt's last token.

        Args:
            states: [batch, response_len + 1, hidden]; see `response_states`.
            ends: [batch, max_segments] int64, response token indices, -1 beyond each row's count.
            head: which head.
        """
        values = read_head(self.heads[head], states[:, 1:]).squeeze(-1)
        mask = ends >= 0
        places = (ends.clamp(min=0) + 1)[..., None].expand(-1, -1, states.shape[-1])
        return SegmentStates(
            values=torch.where(mask, values.gather(1, ends.clamp(min=0)), 0.0),
            mask=mask,
            base=read_head(self.heads[head], states[:, 0]).squeeze(-1),
            hidden=states.gather(1, places),
            heads=dict(self.projections.items()),
        )

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Saves weights as safetensors, heads beside them, and the settings that the model was trained with."""
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.backbone, folder)
        weights = {**self.heads.state_dict(), **self.projections.state_dict()}
        save_file({k: v.cpu().contiguous() for k, v in weights.items()}, folder / HEADS_FILE)
        biased = any(head.bias is not None for head in self.heads.values())
        stored = {"heads": list(self.heads), "bias": biased, **config}
        if self.projections:
            stored["projections"] = {name: int(p.out_features) for name, p in self.projections.items()}  # type: ignore[arg-type]
        (folder / CONFIG_FILE).write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @staticmethod
    def training_settings(folder: Path) -> dict[str, Any]:
        """Returns the settings that a saved model was trained with, and its heads."""
        if not (folder / CONFIG_FILE).is_file():
            raise DataError(
                f"no {CONFIG_FILE}: this is not a saved reward model",
                file=str(folder),
                remedy="Give the `result/model` folder of a reward-model stage",
            )
        with naming_damage(folder, "the reward model", REMEDY):
            config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            if not config["heads"] or isinstance(config["heads"], str):
                raise ValueError(f"{CONFIG_FILE} does not name the heads")
        return config

    @classmethod
    def load(cls, folder: Path) -> tuple[ScalarModel, dict[str, Any]]:
        """Returns a saved model and the settings that it was trained with."""
        config = cls.training_settings(folder)
        backbone = stored_model(AutoModel, folder, what="the reward model", remedy=REMEDY)
        with naming_damage(folder, "the reward model", REMEDY):
            weights = load_file(folder / HEADS_FILE)
            projections = config.get("projections", {})
            model = cls(backbone, config["heads"], bias=config.get("bias", False), projections=projections)
            for heads in (model.heads, model.projections):
                heads.load_state_dict({k: v for k, v in weights.items() if k.partition(".")[0] in heads})
        return model, config


@torch.no_grad()
def average_weights(models: Sequence[ScalarModel]) -> ScalarModel:
    """Returns the uniform average of the weights of reward models of one architecture, in the first one's place.

    Sums are float64, so that the average does not depend on the order beyond one rounding. Source: WARM (Ramé et al.,
    2024), as in PAR §4.1.

    Raises:
        RecipeError: fewer than two, or models whose weights differ in name or shape.
    """
    if len(models) < 2:
        raise RecipeError(f"a merge averages reward models, and {len(models)} is given; name at least 2")
    states = [model.state_dict() for model in models]
    shapes = [{name: tuple(value.shape) for name, value in state.items()} for state in states]
    for number, found in enumerate(shapes[1:], start=2):
        if found != shapes[0]:
            odd = sorted(
                name for name in {*found, *shapes[0]} if found.get(name) != shapes[0].get(name)
            )[0]  # fmt: skip
            raise RecipeError(
                f"reward models 1 and {number} of a merge differ in '{odd}': {shapes[0].get(odd)} and "
                f"{found.get(odd)}; average models of one backbone with the same heads"
            )
    merged = {
        name: (sum(state[name].double() for state in states) / len(states)).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }
    models[0].load_state_dict(merged)
    return models[0]
