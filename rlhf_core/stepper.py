"""A model, its optimiser and how a step is taken: in one process or data-parallel here, sharded in
`rlhf_core.deepspeed_stepper`.

A model whose weights are bf16 is trained with float32 copies, whoever trains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.models.forward import tf32_backward
from rlhf_core.models.loading import set_precision, trainable_parameters

if TYPE_CHECKING:
    from rlhf_core.deepspeed_stepper import DeepSpeedStepper

T = TypeVar("T")
#: One trained model.
Stepper: TypeAlias = "PlainStepper | DeepSpeedStepper"


def _in_half(parameter: nn.Parameter) -> bool:
    return parameter.dtype.itemsize < torch.float32.itemsize


def _add_up(master: nn.Parameter, parameter: Tensor) -> None:
    """Adds a gradient, as soon as it is whole, to its float32 sum."""
    assert parameter.grad is not None
    gradient, parameter.grad = parameter.grad.float(), None
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)


class PlainStepper:
    """The whole model on every rank; gradients are summed over ranks before they are clipped.

    Weights in bf16 have float32 copies: gradients are added up, clipped and applied in float32.

    Args:
        model: trained in place.
        make_optimiser: an optimiser of given parameters.
        max_grad_norm: of the summed gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        max_grad_norm: float,
    ) -> None:
        self.model, self.max_grad_norm = model, max_grad_norm
        own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: nn.Parameter(p.detach().float()) for name, p in own.items() if _in_half(p)}
        self.copied = [(own[name], master) for name, master in self.masters.items()]
        self.parameters = [self.masters.get(name, p) for name, p in own.items()]
        self.optimiser = make_optimiser(self.parameters)
        self.hooks = [p.register_post_accumulate_grad_hook(partial(_add_up, master)) for p, master in self.copied]

    def forward(self, compute: Callable[[], T]) -> T:
        """Returns the result of `compute`, which runs the model for a loss."""
        return compute()

    def backward(self, loss: Tensor) -> None:
        """Adds a loss's gradient. Losses are summed over ranks: each is divided by a count of the whole batch."""
        with tf32_backward(self.model):
            loss.backward()

    def zero_grad(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def step(self, check: Callable[[float], None]) -> float:
        """Clips and applies the gradient; returns its norm before clipping, after `check` has seen it."""
        distributed.sum_gradients(self.parameters)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        check(norm)
        self.optimiser.step()
        self._copy()
        return norm

    @torch.no_grad()
    def _copy(self) -> None:
        for parameter, master in self.copied:
            parameter.copy_(master)

    def gathered(self) -> AbstractContextManager[None]:
        """Returns a block in which every rank has the whole model: for generation, scoring and saving."""
        return nullcontext()

    def close(self) -> None:
        """Ends training: the model is whole on every rank from here on and takes no more steps."""
        for hook in self.hooks:
            hook.remove()

    def read(self, weights: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Returns weights as `weights` reads them from the whole model; rank 0 saves them."""
        return weights()

    def write(self, load: Callable[[], None]) -> None:
        """Lets `load` write into the whole model."""
        load()

    def optimiser_state(self) -> dict[str, Any]:
        """Returns the optimiser's moments, whole, and the float32 copies by name."""
        masters = {name: master.detach() for name, master in self.masters.items()}
        return {"optimiser": self.optimiser.state_dict(), "masters": masters}

    @torch.no_grad()
    def load_optimiser_state(self, state: Mapping[str, Any]) -> None:
        self.optimiser.load_state_dict(dict(state["optimiser"]))
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        self._copy()
        for parameter, values in self.optimiser.state.items():
            for name, value in values.items():
                if value.ndim and value.shape != parameter.shape:
                    raise ValueError(f"{name} is {list(value.shape)} for a parameter of {list(parameter.shape)}")


_OPTIMISERS: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
#: The DeepSpeed configuration of this process, None without DeepSpeed.
_deepspeed: Mapping[str, Any] | None = None


def use_deepspeed(config: Mapping[str, Any] | None) -> None:
    """Sets whether models of this process that are trained from here on are DeepSpeed's, and how."""
    global _deepspeed
    _deepspeed = config


def deepspeed_config() -> Mapping[str, Any] | None:
    """Returns the configuration that `use_deepspeed` set."""
    return _deepspeed


def deepspeed_in_bf16() -> bool:
    """Returns whether DeepSpeed turns models into bf16, whatever their weights are."""
    return _deepspeed is not None and bool(_deepspeed.get("bf16", {}).get("enabled"))


def freeze(model: nn.Module) -> None:
    """Stops training a model; it takes bf16 where trained models do, so that both compute alike."""
    model.requires_grad_(False)
    model.eval()
    if deepspeed_in_bf16():
        set_precision(model, torch.bfloat16)


def stepper_of(
    model: nn.Module, kind: str, *, rate: float, betas: tuple[float, float], max_grad_norm: float, **options: Any
) -> Stepper:
    """Returns the stepper of a model as this process trains; what does not require a gradient stays as it is.

    Args:
        model: trained in place.
        kind: 'adam' or 'adamw', with its `rate`, `betas` and further options.
        max_grad_norm: gradient clipping norm.
    """

    def optimiser(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return _OPTIMISERS[kind](parameters, lr=rate, betas=betas, fused=True, **options)  # type: ignore[call-arg]

    if _deepspeed is None:
        return PlainStepper(model, optimiser, max_grad_norm)
    trained = trainable_parameters(model)
    if any(map(_in_half, trained)) and not deepspeed_in_bf16():
        raise RecipeError("the backbone's precision is bf16: enable bf16 in the DeepSpeed configuration, too")
    from rlhf_core.deepspeed_stepper import DeepSpeedStepper

    return DeepSpeedStepper(model, optimiser(trained), max_grad_norm, _deepspeed)
