"""Length-bucketed batches that are the same for the same seed and can be resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_core.errors import DataError, RecipeError

_SHUFFLE_STREAM = 7019  # keeps batch order apart from other draws with the same seed


@dataclass(frozen=True)
class Position:
    """Position of an iteration: `index` batches of `epoch` have been handed out."""

    epoch: int = 0
    index: int = 0


class LengthBucketedBatches:
    """Batches of row indices in which rows have similar lengths.

    Each epoch shuffles the rows, sorts them by length within pools of `pool_batches` batches, cuts the pools
    into batches and shuffles these; so every row comes exactly once an epoch, and order depends on
    (lengths, seed, epoch) only.

    Args:
        lengths: tokens of each row (for a pair, of the longer of its two sequences).
        seed: the seed of the order.
        rows_per_batch: rows in a batch; the last batch of an epoch may be smaller.
        tokens_per_batch: instead, the most tokens in a batch, padding included.
        pool_batches: pool size in batches; larger means less padding and less shuffling.
        position: where to continue.

    Raises:
        RecipeError: not exactly one of the two batch sizes, or one below 1.
        DataError: no rows, or a row longer than `tokens_per_batch`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        seed: int,
        rows_per_batch: int | None = None,
        tokens_per_batch: int | None = None,
        pool_batches: int = 16,
        position: Position | None = None,
    ) -> None:
        size = rows_per_batch if rows_per_batch is not None else tokens_per_batch
        if (rows_per_batch is None) == (tokens_per_batch is None) or size is None or size < 1 or pool_batches < 1:
            raise RecipeError(
                f"rows_per_batch={rows_per_batch}, tokens_per_batch={tokens_per_batch}, "
                f"pool_batches={pool_batches}: give exactly one batch size, each at least 1"
            )
        if not lengths:
            raise DataError("no rows to make batches of")
        longest = int(np.argmax(lengths))
        if tokens_per_batch is not None and lengths[longest] > tokens_per_batch:
            raise DataError(
                f"{lengths[longest]} tokens do not fit a batch of {tokens_per_batch}",
                row=longest + 1,
                remedy="Raise tokens_per_batch or lower the length limits",
            )
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.seed, self.rows_per_batch, self.tokens_per_batch = seed, rows_per_batch, tokens_per_batch
        self.pool_batches = pool_batches
        self.position = position or Position()

    def epoch(self, number: int) -> list[list[int]]:
        """Returns all batches of epoch `number` in order."""
        rng = np.random.default_rng([_SHUFFLE_STREAM, self.seed, number])
        order = rng.permutation(len(self.lengths))
        pool_rows = self._pool_rows()
        batches: list[list[int]] = []
        for start in range(0, len(order), pool_rows):
            pool = order[start : start + pool_rows]
            batches += self._cut(pool[np.argsort(self.lengths[pool], kind="stable")])
        return [batches[index] for index in rng.permutation(len(batches))]

    def __iter__(self) -> Iterator[list[int]]:
        """Batches from `position` on, epoch after epoch without end; `position` always names the next one."""
        while True:
            batches = self.epoch(self.position.epoch)
            if self.position.index > len(batches):
                raise DataError(
                    f"cannot resume at batch {self.position.index}: the epoch has {len(batches)}",
                    remedy="The data or the batch size changed since the position was saved; start afresh",
                )
            while self.position.index < len(batches):
                batch = batches[self.position.index]
                self.position = Position(self.position.epoch, self.position.index + 1)
                yield batch
            self.position = Position(self.position.epoch + 1, 0)

    def state_dict(self) -> dict[str, int]:
        """Returns the position of the iteration: the number of the next batch."""
        return {"epoch": self.position.epoch, "index": self.position.index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues from a `state_dict`; takes effect for iterators made afterwards."""
        self.position = Position(state["epoch"], state["index"])

    def padding_waste(self, epoch: int = 0) -> float:
        """Returns the share of an epoch's batch cells that are padding."""
        return padding_waste(self.lengths.tolist(), self.epoch(epoch))

    def _pool_rows(self) -> int:
        if self.rows_per_batch is not None:
            return self.rows_per_batch * self.pool_batches
        assert self.tokens_per_batch is not None
        mean = max(1.0, float(self.lengths.mean()))
        return max(1, int(self.pool_batches * self.tokens_per_batch / mean))

    def _cut(self, rows: np.ndarray) -> list[list[int]]:
        """Returns the consecutive batches of rows sorted by rising length."""
        if self.rows_per_batch is not None:
            step = self.rows_per_batch
            return [rows[start : start + step].tolist() for start in range(0, len(rows), step)]
        assert self.tokens_per_batch is not None
        batches: list[list[int]] = [[]]
        for row in rows.tolist():
            if batches[-1] and (len(batches[-1]) + 1) * self.lengths[row] > self.tokens_per_batch:
                batches.append([])
            batches[-1].append(row)
        return batches


def padding_waste(lengths: Sequence[int], batches: Iterable[Sequence[int]]) -> float:
    """Returns the share of batch cells (rows x longest row) that are padding; 0 without cells."""
    cells = real = 0
    for batch in batches:
        sizes = [lengths[row] for row in batch]
        cells += max(sizes, default=0) * len(sizes)
        real += sum(sizes)
    return 1 - real / cells if cells else 0.0
