"""Reward models: a transformer and named bias-free heads, read wherever a read-out asks.

A reward model is not its read-out: training reads the head at the ends of one segmentation, policy training may
read it elsewhere. Source: Segment, §2.2, appendix D.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from rlhf_core.errors import DataError
from rlhf_core.models.loading import backbone_of
from rlhf_core.models.policy import response_states

HEADS_FILE = "heads.safetensors"
CONFIG_FILE = "reward_model.json"


class ScalarModel(nn.Module):
    """A transformer with named scalar heads; reward models and critics are both this.

    Args:
        backbone: a transformer without output projection, decoder-only or encoder-decoder.
        heads: names of the bias-free linear heads.
        seed: of the heads' initial weights.
        bias: True for a critic.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        heads: Sequence[str] = ("reward",),
        *,
        seed: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        hidden = int(backbone.config.hidden_size)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.heads = nn.ModuleDict({name: nn.Linear(hidden, 1, bias=bias) for name in heads})
            for head in self.heads.values():
                nn.init.normal_(head.weight, std=1.0 / (hidden + 1) ** 0.5)  # type: ignore[arg-type]

    @classmethod
    def from_language_model(cls, model: PreTrainedModel, **options: Any) -> ScalarModel:
        """Starts from a language model's transformer; the output projection is left behind."""
        backbone = backbone_of(model)
        assert isinstance(backbone, PreTrainedModel)
        return cls(backbone, **options)

    def as_critic(self, head: str = "reward") -> ScalarModel:
        """A critic that starts as a copy of this reward model: its head 'value' is `head`, with a bias of 0.

        Source: PAR, Algorithm 1, line 3.
        """
        critic = ScalarModel(copy.deepcopy(self.backbone), ("value",), bias=True)
        with torch.no_grad():
            critic.heads["value"].weight.copy_(self.heads[head].weight)  # type: ignore[union-attr,operator,arg-type]
            bias = self.heads[head].bias
            critic.heads["value"].bias.copy_(torch.zeros(1) if bias is None else bias)  # type: ignore[union-attr,operator,arg-type]
        return critic.requires_grad_(True)

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
        """[batch, response_len] float32: the head's value at every response token, 0 on padding.

        Args:
            prompt_ids, prompt_mask: [batch, prompt_len], left-padded.
            response_ids, response_mask: [batch, response_len], right-padded.
            head: which head.
            shift: 0 reads at the token itself (a reward of what was said), 1 at the position before it
                (a critic's value of the state in which it is chosen).
        """
        states = response_states(self.backbone, prompt_ids, prompt_mask, response_ids, response_mask)
        read = states[:, 1 - shift : 1 - shift + response_ids.shape[1]]
        values = self.heads[head](read).squeeze(-1).float()
        return torch.where(response_mask, values, 0.0)

    def save(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Weights as safetensors, heads beside them, and what the model was trained on."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backbone.save_pretrained(folder, safe_serialization=True)
        save_file({k: v.cpu().contiguous() for k, v in self.heads.state_dict().items()}, folder / HEADS_FILE)
        biased = any(head.bias is not None for head in self.heads.values())
        stored = {"heads": list(self.heads), "bias": biased, **config}
        (folder / CONFIG_FILE).write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> tuple[ScalarModel, dict[str, Any]]:
        """A saved model and what it was trained on."""
        if not (folder / CONFIG_FILE).is_file():
            raise DataError(
                f"no {CONFIG_FILE}: this is not a saved reward model",
                file=str(folder),
                remedy="Give the `result/model` folder of a reward-model stage",
            )
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        backbone = AutoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
        model = cls(backbone, config["heads"], bias=config.get("bias", False))
        model.heads.load_state_dict(load_file(folder / HEADS_FILE))
        return model, config
