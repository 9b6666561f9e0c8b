"""LoRA: low-rank adapters on a policy; the reference is the same weights with the adapters switched off."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch
from rlhf_core.typed import Checked, above, between

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from rlhf_core.models.policy import Policy


@dataclass(frozen=True)
class LoraSettings(Checked):
    """Settings of LoRA adapters.

    Args:
        rank: of the update's two factors.
        alpha: the update is scaled by alpha / rank.
        dropout: on the adapter's input, in training mode only.
        targets: names of the adapted linear layers; 'all-linear' is every one but the output projection.

    Source: Hu et al. 2021. ALARM: rank 16, alpha 32, dropout .05.
    """

    rank: Annotated[int, between(1, 65536)] = 16
    alpha: Annotated[float, above(0)] = 32.0
    dropout: Annotated[float, between(0, 1, open_high=True)] = 0.05
    targets: str | tuple[str, ...] = "all-linear"

    def _check_together(self) -> None:
        if not self.targets:
            raise RecipeError("targets is empty; name layers, or 'all-linear'")


class Adapter:
    """The low-rank adapters of a model, put into it in place; only they require gradients.

    Raises:
        RecipeError: peft is not installed, no layer has a target's name, or a target shares its weights with another
            layer.
    """

    def __init__(self, model: PreTrainedModel, settings: LoraSettings, seed: int = 0) -> None:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise RecipeError("LoRA needs the package peft; install it, or leave the LoRA settings out") from None
        targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
        kind = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # type: ignore[arg-type]
            lora_dropout=settings.dropout,
            target_modules=targets,
            task_type=kind,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                self._peft: PeftModel = get_peft_model(model, config)  # type: ignore[assignment]
            except ValueError as error:
                raise RecipeError(f"LoRA targets {settings.targets} do not fit: {str(error).splitlines()[0]}") from None
        _check_shared(model)
        self._peft.train(model.training)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Yields the base model, on the same weights."""
        with self._peft.disable_adapter():
            yield

    def reference(self, policy: Policy) -> Policy:
        """Returns the policy as it was before training: on the same model, with the adapters switched off."""
        reference = copy.copy(policy)
        reference.applied = self.off
        return reference

    def save(self, folder: Path) -> None:
        """Saves the adapters alone, as safetensors."""
        self._peft.save_pretrained(str(folder), safe_serialization=True)

    def merged(self) -> PreTrainedModel:
        """Returns the model with the adapters added into its weights; the adapters are gone afterwards."""
        merged: PreTrainedModel = self._peft.merge_and_unload()  # type: ignore[operator]
        return merged


def _check_shared(model: PreTrainedModel) -> None:
    """Refuses adapters of a layer that shares its weights: added in, they would change the other layer, too.

    Merging and the weights of an engine would be another model than the one trained.
    """
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name.rpartition(".")[0])
    for names in places.values():
        adapted = [name.removesuffix(".base_layer") for name in names if name.endswith(".base_layer")]
        if len(names) > 1 and adapted:
            others = ", ".join(name for name in names if name != f"{adapted[0]}.base_layer")
            raise RecipeError(
                f"LoRA targets {adapted[0]}, which shares its weights with {others}: adapters of one cannot be added "
                f"into both; leave {adapted[0].rpartition('.')[2]} out of lora.targets"
            )
