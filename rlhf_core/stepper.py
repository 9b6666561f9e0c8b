"""A model, its optimiser and how a step is taken: in one process or data-parallel here, sharded in `rlhf_core.zero`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlhf_core import distributed
from rlhf_core.models.loading import trainable_parameters

T = TypeVar("T")


class Stepper(Protocol):
    """One trained model. Losses are summed over ranks: each is divided by a count of the whole batch."""

    def forward(self, compute: Callable[[], T]) -> T:
        """What `compute` gives, which passes something through the model for a loss."""

    def backward(self, loss: Tensor) -> None:
        """Adds a loss's gradient."""

    def zero_grad(self) -> None: ...

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate."""

    def step(self, check: Callable[[float], None]) -> float:
        """Clips and applies the gradient; returns its norm before clipping, after `check` has seen it."""

    def gathered(self) -> AbstractContextManager[None]:
        """A context in which every rank has the whole model: for generation, scoring and saving."""

    def close(self) -> None:
        """Ends training: the model is whole on every rank from here on and takes no more steps."""

    def read(self, weights: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Weights as `weights` reads them from the whole model; rank 0 saves them."""

    def write(self, load: Callable[[], None]) -> None:
        """Lets `load` write into the whole model."""

    def optimiser_state(self) -> dict[str, Any]:
        """The optimiser's moments, whole."""

    def load_optimiser_state(self, state: Mapping[str, Any]) -> None: ...


class PlainStepper:
    """The whole model on every rank; gradients are summed over ranks before they are clipped.

    Args:
        model: trained in place.
        optimiser: of its trainable parameters.
        max_grad_norm: of the summed gradient.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, max_grad_norm: float) -> None:
        self.model, self.optimiser, self.max_grad_norm = model, optimiser, max_grad_norm

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def zero_grad(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def step(self, check: Callable[[float], None]) -> float:
        parameters = trainable_parameters(self.model)
        distributed.sum_gradients(parameters)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm))
        check(norm)
        self.optimiser.step()
        return norm

    @contextmanager
    def gathered(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        pass

    def read(self, weights: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return weights()

    def write(self, load: Callable[[], None]) -> None:
        load()

    def optimiser_state(self) -> dict[str, Any]:
        return self.optimiser.state_dict()

    def load_optimiser_state(self, state: Mapping[str, Any]) -> None:
        self.optimiser.load_state_dict(dict(state))


_OPTIMISERS: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
#: The DeepSpeed configuration of this process, None without DeepSpeed.
_deepspeed: Mapping[str, Any] | None = None


def use_deepspeed(config: Mapping[str, Any] | None) -> None:
    """Sets whether models of this process that are trained from here on are DeepSpeed's, and how."""
    global _deepspeed
    _deepspeed = config


def deepspeed_config() -> Mapping[str, Any] | None:
    """What `use_deepspeed` set."""
    return _deepspeed


def freeze(model: nn.Module) -> None:
    """Stops training a model; it takes bf16 where trained models do, so that both say the same of the same weights."""
    model.requires_grad_(False)
    model.eval()
    if _deepspeed is not None and _deepspeed.get("bf16", {}).get("enabled"):
        model.to(torch.bfloat16)


def stepper_of(
    model: nn.Module, kind: str, *, rate: float, betas: tuple[float, float], max_grad_norm: float, **options: Any
) -> Stepper:
    """The stepper of a model as this process trains.

    Args:
        model: trained in place; what does not require a gradient stays as it is.
        kind: 'adam' or 'adamw'.
        rate: learning rate.
        betas: Adam's.
        max_grad_norm: gradient clipping norm.
        options: further settings of the optimiser.
    """
    optimiser = _OPTIMISERS[kind](trainable_parameters(model), lr=rate, betas=betas, fused=True, **options)  # type: ignore[call-arg]
    if _deepspeed is None:
        return PlainStepper(model, optimiser, max_grad_norm)
    from rlhf_core.zero import ZeroStepper

    return ZeroStepper(model, optimiser, max_grad_norm, _deepspeed)
