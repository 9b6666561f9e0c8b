"""Models sharded by DeepSpeed: ZeRO 0 to 3, with optional offload to the CPU's memory.

The engine averages gradients over ranks where losses here are divided by counts of the whole batch, so each loss is
multiplied by the number of ranks. Checkpoints hold weights in float32 and Adam's moments whole, by parameter, so
they do not depend on the ZeRO stage. Under ZeRO 3 a model is gathered for rollouts, scoring and evaluation.
Source: Rajbhandari et al. 2020.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlhf_core import distributed
from rlhf_core.errors import RecipeError

T = TypeVar("T")
MOMENTS = ("exp_avg", "exp_avg_sq")


class _Entry(nn.Module):
    """One way into a model for the engine: whatever the computation calls of it, the engine sees a forward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


class DeepSpeedStepper:
    """A model whose optimiser state, gradients and parameters DeepSpeed shards, with the methods of `PlainStepper`.

    Args:
        model: trained in place; under bf16 its parameters become bf16, with float32 copies in the optimiser.
        optimiser: fused Adam or AdamW of its trainable parameters, which also takes offloaded ones.
        max_grad_norm: of the gradient over all ranks.
        config: DeepSpeed's configuration.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, max_grad_norm: float, config: Mapping[str, Any]
    ) -> None:
        deepspeed = import_deepspeed()
        self.model = model
        self.zero = config["zero_optimization"]
        settings = completed(config, max_grad_norm)
        self.engine = deepspeed.initialize(model=_Entry(model), optimizer=optimiser, config=settings)[0]

    @property
    def sharded(self) -> bool:
        """Returns whether parameters are sharded."""
        return bool(self.zero["stage"] == 3)

    def forward(self, compute: Callable[[], T]) -> T:
        result: T = self.engine(compute)
        return result

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * distributed.world_size(), scale_wrt_gas=False)

    def zero_grad(self) -> None:
        self.engine.zero_grad()

    def set_rate(self, rate: float) -> None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate

    def step(self, check: Callable[[float], None]) -> float:
        # without sharding and in float32 the engine tells no norm, and averages gradients only in its step
        own = [] if self.zero["stage"] else [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        total = distributed.summed({"gradient": torch.cat(own)})["gradient"] if own else torch.zeros(1)
        self.engine.step()
        told = self.engine.get_global_grad_norm()
        norm = float(total.norm()) / distributed.world_size() if told is None else float(told)
        check(norm)
        return norm

    def gathered(self) -> AbstractContextManager[None]:
        return self._whole() if self.sharded else nullcontext()

    @contextmanager
    def _whole(self, modifier: int | None = None) -> Iterator[None]:
        """Yields parameters gathered, and the hooks that would shard them again after a forward pass put aside."""
        from deepspeed.runtime.zero import GatheredParameters

        hooks = _take_hooks(self.model)
        try:
            with GatheredParameters(list(self.model.parameters()), modifier_rank=modifier):
                yield
        finally:
            _put_hooks(hooks)

    def close(self) -> None:
        if self.sharded:
            with self._whole():
                whole = [(parameter, parameter.data.clone()) for parameter in self.model.parameters()]
            _take_hooks(self.model)
            for parameter, data in whole:
                parameter.data = data

    def read(self, weights: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        with self.gathered():
            return {name: value.detach().cpu().clone() for name, value in weights().items()}

    def write(self, load: Callable[[], None]) -> None:
        with self._whole(modifier=0) if self.sharded else nullcontext():
            load()

    def optimiser_state(self) -> dict[str, Any]:
        if isinstance(self.engine.optimizer, torch.optim.Optimizer):
            return self.engine.optimizer.state_dict()
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        self._first_moments()
        moments: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self._trained():
            found = {"master": safe_get_full_fp32_param(parameter)}
            found |= {key: safe_get_full_optimizer_state(parameter, key) for key in MOMENTS}
            if not distributed.rank():
                moments[name] = {key: value.detach().cpu().clone() for key, value in found.items()}
        return {"moments": moments, "steps": self._steps()}

    def load_optimiser_state(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.engine.optimizer, torch.optim.Optimizer):
            self.engine.optimizer.load_state_dict(dict(state))
            return
        self._first_moments()
        for name, parameter in self._trained():
            for key, value in state["moments"][name].items():
                _set_full(parameter, value, None if key == "master" else key)
        self._steps(int(state["steps"]))

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def _first_moments(self) -> None:
        """Gives this rank's shard the moments that Adam makes at its first step, if there are none."""
        optimiser = self.engine.optimizer
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition"):
            for shard in getattr(optimiser, name, []):
                if "exp_avg" not in optimiser.optimizer.state[shard]:
                    plain = isinstance(optimiser.optimizer, torch.optim.Adam)
                    optimiser.optimizer.state[shard] |= {
                        "step": torch.zeros((), dtype=torch.float32, device=shard.device) if plain else 0,
                        **{key: torch.zeros_like(shard.data) for key in MOMENTS},
                    }
        if hasattr(optimiser, "_lazy_init_hp_params_optimizer_state"):
            optimiser._lazy_init_hp_params_optimizer_state()

    def _steps(self, value: int | None = None) -> int:
        """Returns adam's step count; sets it where a value is given."""
        found = 0
        for state in self.engine.optimizer.optimizer.state.values():
            if value is not None and "step" in state:
                state["step"] = torch.full_like(state["step"], value) if torch.is_tensor(state["step"]) else value
            found = int(state.get("step", 0))
        return found


def completed(config: Mapping[str, Any], max_grad_norm: float) -> dict[str, Any]:
    """Returns a DeepSpeed configuration with what this project decides: the loop accumulates gradients, the recipe
    clips."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,
        "zero_allow_untested_optimizer": True,
        **config,
        "zero_force_ds_cpu_optimizer": False,  # torch's fused Adam needs no compilation
        "gradient_clipping": max_grad_norm,
    }


def _set_full(parameter: nn.Parameter, value: Tensor, key: str | None) -> None:
    """Sets this rank's shard of a parameter's float32 copy, or of one of its moments, from the whole."""
    from deepspeed import utils

    if not hasattr(parameter, "ds_tensor"):
        value = value.to(parameter.device)
        if key is None:
            utils.safe_set_full_fp32_param(parameter, value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, key)
        return
    width = parameter.ds_tensor.numel()
    padded = torch.nn.functional.pad(value.flatten(), (0, width * distributed.world_size() - value.numel()))
    shard = padded[distributed.rank() * width :][:width]
    if key is None:
        utils.safe_set_local_fp32_param(parameter, shard)
    else:
        utils.safe_set_local_optimizer_state(parameter, shard, key)


def _take_hooks(model: nn.Module) -> list[tuple[dict[int, Any], dict[int, Any]]]:
    """Removes DeepSpeed's hooks from every module; returns what `_put_hooks` needs."""
    taken = []
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            taken.append((hooks, dict(hooks)))
            for key, hook in list(hooks.items()):
                if getattr(hook, "__module__", "").startswith("deepspeed"):
                    del hooks[key]
    return taken


def _put_hooks(taken: list[tuple[dict[int, Any], dict[int, Any]]]) -> None:
    for hooks, before in taken:
        hooks.clear()
        hooks.update(before)


def import_deepspeed() -> Any:
    """Returns the module, set so that it compiles nothing."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError:
        raise RecipeError("DeepSpeed is not installed; install it, or unset REWARDSMITH_DEEPSPEED") from None
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo does it on CPUs, without a compiler
    return deepspeed
