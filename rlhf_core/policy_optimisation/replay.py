"""Replay buffer: each new rollout batch is swapped for a random stored one.

Source: PAR, Algorithm 3. Deviation: the printed branch is inverted (it would draw from an empty pool); here the
first `size` batches only fill the buffer.
"""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.policy_optimisation.experience import Experience


class ReplayBuffer:
    """A pool of rollout batches.

    Args:
        size: batches that it holds; 0 hands every batch straight through.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pool: list[dict[str, Any]] = []

    def substitute(self, experience: Experience, generator: torch.Generator) -> Experience | None:
        """Returns the batch to train on in place of the new one, or None while the buffer fills."""
        if not self.size:
            return experience
        if len(self.pool) < self.size:
            self.pool.append(experience.packed())
            return None
        chosen = int(torch.randint(self.size, (), generator=generator))
        stored = self.pool[chosen]
        self.pool[chosen] = experience.packed()
        return Experience.unpacked(stored)

    def state_dict(self) -> dict[str, Any]:
        return {"pool": list(self.pool)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool = list(state["pool"])
