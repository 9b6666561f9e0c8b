"""State of a model in a training loop between two steps: everything that training can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.errors import DataError

#: Nested mappings and lists of tensors, arrays and plain values.
State = dict[str, Any]
#: Sees a step that ended and how to get the loop's state; whoever does not want it pays nothing.
OnCheckpoint = Callable[[int, Callable[[], State]], None]


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}


def trainable_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns the model's own trained parameters and buffers; frozen ones come from where it was loaded."""
    frozen = _frozen(model)
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


@contextmanager
def restoring() -> Iterator[None]:
    """Refuses a saved state that does not fit the training that the block puts it back into.

    Raises:
        DataError: the state lacks a part, or has one of another shape or type, such as another version's.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"the saved state is not one of this training ({type(error).__name__}: {reason:.200})",
            remedy="Remove the checkpoint to start afresh",
        ) from error


@torch.no_grad()
def load_trainable_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Puts a `trainable_state` back into a model; refuses one with other parameters."""
    names = set(model.state_dict())  # torch makes a missing count of batches up
    strange = sorted((state.keys() - names) | (names - _frozen(model) - state.keys()))
    if strange:
        raise DataError(
            f"the saved state is of another model: {len(strange)} parameters differ, first '{strange[0]}'",
            remedy="Remove the checkpoint to start afresh",
        )
    model.load_state_dict(dict(state), strict=False)
