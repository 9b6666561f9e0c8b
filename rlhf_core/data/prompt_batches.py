"""Batches of prompts without end that can be resumed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from rlhf_core.errors import DataError, RecipeError

Item = TypeVar("Item")


class PromptBatches(Generic[Item]):
    """Batches of `size` items; every item comes once before any comes again.

    Args:
        items: what is drawn from.
        size: items in a batch.
        seed: the seed of the order.

    Raises:
        DataError: no items.
        RecipeError: a size below 1.
    """

    def __init__(self, items: Sequence[Item], size: int, seed: int) -> None:
        if not items:
            raise DataError("no prompts to make batches of")
        if size < 1:
            raise RecipeError(f"a batch of {size} prompts; it must be at least 1")
        self.items, self.size = items, size
        self._rng = random.Random(f"prompts-{seed}")
        self._pending: list[int] = []

    def __iter__(self) -> Iterator[list[Item]]:
        return self

    def __next__(self) -> list[Item]:
        while len(self._pending) < self.size:
            self._pending += self._rng.sample(range(len(self.items)), len(self.items))
        batch, self._pending = self._pending[: self.size], self._pending[self.size :]
        return [self.items[index] for index in batch]

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands."""
        return {"items": len(self.items), "pending": list(self._pending), "rng": self._rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken.

        Raises:
            DataError: another number of items.
        """
        if state["items"] != len(self.items):
            raise DataError(
                f"cannot resume: the position is among {state['items']} prompts, there are {len(self.items)}",
                remedy="Start afresh",
            )
        self._pending = list(state["pending"])
        self._rng.setstate(state["rng"])
