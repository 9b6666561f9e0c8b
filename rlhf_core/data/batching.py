"""Length-bucketed batches that are the same for the same seed and can be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlhf_core.errors import DataError

_SHUFFLE_STREAM = 7019  # keeps batch order apart from other draws with the same seed
#: Batches of a pool: more of them mean less padding and less shuffling.
_POOL = 16


class LengthBucketedBatches:
    """Batches of row indices in which rows have similar lengths.

    Each epoch shuffles the rows, sorts them by length within pools of 16 batches, cuts the pools into batches and
    shuffles these; so every row comes exactly once an epoch, and order depends on (lengths, seed, epoch) only.

    Args:
        lengths: tokens that each row costs a forward pass.
        seed: the seed of the order.
        rows_per_batch: rows in a batch; the last batch of an epoch may be smaller.

    Raises:
        DataError: no rows.
    """

    def __init__(self, lengths: Sequence[int], *, seed: int, rows_per_batch: int) -> None:
        if not lengths:
            raise DataError("no rows to make batches of")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.seed, self.rows_per_batch = seed, rows_per_batch
        self._epoch = self._index = 0

    def epoch(self, number: int) -> list[list[int]]:
        """Returns all batches of epoch `number` in order."""
        rng = np.random.default_rng([_SHUFFLE_STREAM, self.seed, number])
        order, size = rng.permutation(len(self.lengths)), self.rows_per_batch
        batches: list[list[int]] = []
        for start in range(0, len(order), size * _POOL):
            pool = order[start : start + size * _POOL]
            rows = pool[np.argsort(self.lengths[pool], kind="stable")].tolist()
            batches += [rows[first : first + size] for first in range(0, len(rows), size)]
        return [batches[index] for index in rng.permutation(len(batches))]

    def __iter__(self) -> Iterator[list[int]]:
        """Batches from the present position on, epoch after epoch without end."""
        while True:
            batches = self.epoch(self._epoch)
            while self._index < len(batches):
                self._index += 1
                yield batches[self._index - 1]
            self._epoch, self._index = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Returns the position of the iteration: the number of the next batch."""
        return {"epoch": self._epoch, "index": self._index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a `state_dict`; takes effect for iterators made afterwards."""
        self._epoch, self._index = state["epoch"], state["index"]


def rows_by_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Returns all rows in batches of similar length, the shortest first."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[start : start + size] for start in range(0, len(order), size)]
