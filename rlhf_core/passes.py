"""Forward passes: which rows are computed together, by their tokens.

A pass computes the prompt of several responses once, so rows of a prompt stay together. It takes as many tokens as
`size` of the longest rows have, prompts included: that is what memory must hold, and shorter rows go in by more. What
is computed depends on none of this but for last bits.
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
    """

    def __init__(
        self, own: Sequence[int], prompts: Sequence[int] | None = None, groups: Sequence[Hashable] | None = None
    ) -> None:
        self.own, self.prompts = own, prompts or [0] * len(own)
        self.groups: Sequence[Hashable] = groups or range(len(own))
        self.longest = max((sum(pair) for pair in zip(self.own, self.prompts, strict=True)), default=1)

    @classmethod
    def of_sequences(cls, sequences: Sequence[EncodedSequence]) -> RowTokens:
        prompts = [tuple(sequence.prompt) for sequence in sequences]
        return cls([len(sequence.response) for sequence in sequences], [len(prompt) for prompt in prompts], prompts)

    @classmethod
    def of_batch(cls, inputs: Inputs) -> RowTokens:
        """Returns the tokens of padded prompts and responses."""
        prompt_ids, prompt_mask, _, mask = inputs
        _, groups = distinct_prompts(prompt_ids, prompt_mask)
        return cls(mask.sum(dim=1).tolist(), prompt_mask.sum(dim=1).tolist(), groups.tolist())

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
        cut = [self._cut(clusters[rank::world], budget) for rank in range(world)]
        own, most = cut[distributed.rank()], max(map(len, cut))
        # the least budget of some that makes no more passes: they are then of similar size
        smaller = (self._cut(clusters[distributed.rank() :: world], budget * part // 8) for part in range(1, 8))
        even = next((passes for passes in smaller if len(passes) == len(own)), own)
        return [(rows, True) for rows in even] + [(list(units[0]), False) for _ in range(most - len(own))]

    def own_passes(self, size: int) -> list[list[int]]:
        """Returns this rank's rows of all in passes, the shortest first."""
        return [rows for rows, counts in self.shares(self.sort([[i] for i in range(len(self.own))]), size) if counts]

    def _cut(self, clusters: Sequence[Sequence[Unit]], budget: int) -> list[list[int]]:
        """Returns the rows of clusters in passes of at most a budget, or of a single unit."""
        passes: list[list[int]] = []
        free = -1
        for cluster in clusters:
            prompt = self.prompts[cluster[0][0]]
            sizes = [sum(self.own[i] for i in unit) for unit in cluster]
            if prompt + sum(sizes) > free:
                passes.append([])
                free = budget
            free -= prompt
            for unit, tokens in zip(cluster, sizes, strict=True):
                if tokens > free and passes[-1]:
                    passes.append([])
                    free = budget - prompt
                passes[-1] += unit
                free -= tokens
        return passes


def microbatches(inputs: Inputs, size: int) -> Iterator[tuple[torch.Tensor, Inputs]]:
    """Yields this rank's rows in passes of `size` of the longest, with their inputs trimmed."""
    for rows in RowTokens.of_batch(inputs).own_passes(size):
        chosen = torch.tensor(rows, device=inputs[0].device)
        yield chosen, trimmed(chosen, *inputs)
