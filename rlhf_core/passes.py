"""Forward passes: which rows are computed together, by their tokens.

A pass computes the prompt of several responses once, so rows of a prompt stay together. What it allocates is counted as
padded: its prompts by the longest one, its responses by the longest one. That is at most what `size` of the longest
rows have; shorter rows go in by more. Sums over rows depend on none of this but for last bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.lazy import torch
from rlhf_core.rollout import Inputs, distinct_prompts, trimmed

#: Rows that are computed in the same pass.
Unit = Sequence[int]


class RowTokens:
    """Tokens of rows: of their prompts, which all rows of a group share, and of their own.

    Args:
        own: tokens of each row besides its prompt.
        prompts: tokens of each row's prompt; none if left out.
        groups: equal for rows with the same prompt; every row has a prompt of its own if left out.
        packed: whether a pass computes a prompt once for its rows.
    """

    def __init__(
        self,
        own: Sequence[int],
        prompts: Sequence[int] | None = None,
        groups: Sequence[Hashable] | None = None,
        *,
        packed: bool = True,
    ) -> None:
        self.own, self.prompts, self.packed = own, prompts or [0] * len(own), packed
        self.groups: Sequence[Hashable] = groups or range(len(own))
        self.longest = max((sum(pair) for pair in zip(self.own, self.prompts, strict=True)), default=1)

    @classmethod
    def of_sequences(cls, sequences: Sequence[EncodedSequence], *, packed: bool) -> RowTokens:
        prompts = [tuple(sequence.prompt) for sequence in sequences]
        own = [len(sequence.response) for sequence in sequences]
        return cls(own, [len(prompt) for prompt in prompts], prompts, packed=packed)

    @classmethod
    def of_batch(cls, inputs: Inputs, *, packed: bool) -> RowTokens:
        """Returns the tokens of padded prompts and responses."""
        prompt_ids, prompt_mask, _, mask = inputs
        _, groups = distinct_prompts(prompt_ids, prompt_mask)
        return cls(mask.sum(dim=1).tolist(), prompt_mask.sum(dim=1).tolist(), groups.tolist(), packed=packed)

    def sort(self, units: Sequence[Unit]) -> list[Unit]:
        """Returns units with those of a prompt side by side, and prompts and units of similar length, too."""
        lengths = [max(self.prompts[i] + self.own[i] for i in unit) for unit in units]
        longest: dict[Hashable, int] = {}
        for unit, length in zip(units, lengths, strict=True):
            longest[self.groups[unit[0]]] = max(length, longest.get(self.groups[unit[0]], 0))
        places = {group: place for place, group in enumerate(longest)}

        def key(n: int) -> tuple[int, int, int]:
            group = self.groups[units[n][0]]
            return longest[group], places[group], lengths[n]

        return [units[n] for n in sorted(range(len(units)), key=key)]

    def shares(self, units: Sequence[Unit], size: int) -> list[tuple[list[int], bool]]:
        """Returns this rank's rows in passes, and whether they count; as many passes on every rank.

        Units of a prompt that follow each other go to one rank, and into one pass where they fit. A rank with fewer
        passes than another repeats rows that do not count, since sharded models compute together.
        """
        budget, world = size * self.longest, distributed.world_size()
        clusters = [list(of) for _, of in groupby(units, key=lambda unit: self.groups[unit[0]])]
        if len(clusters) < world:
            clusters = [[unit] for unit in units]
        cut = [self._cut(clusters[rank::world], budget) for rank in range(world)]
        own, most = cut[distributed.rank()], max(map(len, cut))
        # the least budget of some that makes no more passes: they are then of similar size
        smaller = (self._cut(clusters[distributed.rank() :: world], budget * part // 8) for part in range(1, 8))
        even = next((passes for passes in smaller if len(passes) == len(own)), own)
        return [(rows, True) for rows in even] + [(list(units[0]), False) for _ in range(most - len(own))]

    def own_passes(self, size: int) -> list[list[int]]:
        """Returns this rank's rows of all in passes, the shortest first, for models that are whole on every rank."""
        return [rows for rows, counts in self.shares(self.sort([[i] for i in range(len(self.own))]), size) if counts]

    def allocated(self, rows: Sequence[int]) -> int:
        """Returns the tokens that a pass of these rows allocates, padding included."""
        prompt, own = max(self.prompts[i] for i in rows), max(self.own[i] for i in rows)
        return self._allocated(len(rows), len({self.groups[i] for i in rows}), prompt, own)

    def _allocated(self, rows: int, groups: int, prompt: int, own: int) -> int:
        if not self.packed:
            return rows * (prompt + own)
        # keys of a prompt that several rows read are an eighth of what a computed token allocates, or less
        return groups * prompt + rows * own + (rows - groups) * prompt // 8

    def _cut(self, clusters: Sequence[Sequence[Unit]], budget: int) -> list[list[int]]:
        """Returns the rows of clusters in passes of at most a budget, or of a single unit."""
        passes: list[list[int]] = []
        groups, prompt, own = set[Hashable](), 0, 0
        for cluster in clusters:
            whole = [i for unit in cluster for i in unit]
            fits = self.allocated(whole) <= budget
            for place, part in enumerate([whole] if fits else cluster):
                group, longest = self.groups[part[0]], max(self.own[i] for i in part)
                rows = len(passes[-1]) + len(part) if passes else 0
                grown = self._allocated(
                    rows, len(groups) + (group not in groups), max(prompt, self.prompts[part[0]]), max(own, longest)
                )
                if not passes or grown > budget or not (fits or place):  # what does not fit begins a pass
                    passes.append([])
                    groups, prompt, own = set(), 0, 0
                passes[-1] += part
                groups.add(group)
                prompt, own = max(prompt, self.prompts[part[0]]), max(own, longest)
        return passes


def pair_tokens(chosen: Sequence[EncodedSequence], rejected: Sequence[EncodedSequence], *, packed: bool) -> list[int]:
    """Returns the tokens that each pair of responses allocates in a pass."""
    pairs = zip(chosen, rejected, strict=True)
    return [len(a) + len(b.response) if packed else 2 * max(len(a), len(b)) for a, b in pairs]


def microbatches(inputs: Inputs, size: int, *, packed: bool) -> Iterator[tuple[torch.Tensor, Inputs]]:
    """Yields this rank's rows in passes of `size` of the longest, with their inputs trimmed."""
    for rows in RowTokens.of_batch(inputs, packed=packed).own_passes(size):
        chosen = torch.tensor(rows, device=inputs[0].device)
        yield chosen, trimmed(chosen, *inputs)
