"""The truth about a solution of the testbed: its first wrong step, and the least edit that corrects it.

A question's meta lists the lines that are right at each step; several wordings of a step are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from rapidfuzz.distance import Levenshtein

from rlhf_core.reasoning.steps import split_steps

Steps = Sequence[Sequence[str]]
"""For each step of the solution the lines that are right there."""

_WORD = re.compile(r"\d|\w+|[^\w\s]")


def first_error(steps: Steps, prediction: str) -> int | None:
    """Returns the first step of the prediction that is wrong; its number of steps where only what should follow is
    missing.

    None where every step is right and none is missing.
    """
    lines = split_steps(prediction)
    for number, line in enumerate(lines):
        if number >= len(steps) or line not in steps[number]:
            return number
    return None if len(lines) == len(steps) else len(lines)


def kept_errors(steps: Steps, prediction: str, rewrite: str) -> list[str]:
    """Steps of a rewrite that are wrong where they stand and that the prediction has too."""
    before = set(split_steps(prediction))
    wrong = [
        line for number, line in enumerate(split_steps(rewrite)) if number >= len(steps) or line not in steps[number]
    ]
    return [line for line in wrong if line in before]


@lru_cache(maxsize=65536)
def _words(line: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(line))


def minimal_edit(steps: Steps, prediction: str) -> str:
    """Returns the right solution that differs least from the prediction, counted in words and digits.

    Lines of the prediction are matched with steps in order; a step that no line matches takes the wording listed
    first.
    """
    lines = split_steps(prediction)
    best: list[list[tuple[int, str]]] = []
    for step in steps:
        options = [[(Levenshtein.distance(_words(line), _words(right)), right) for right in step] for line in lines]
        best.append([min(choices, key=lambda choice: choice[0]) for choices in options])
    columns = len(lines) + 1
    deleted = [0, *(len(_words(line)) for line in lines)]
    # cost[j]: of making the steps so far out of the first j lines; path[j]: the lines chosen.
    cost = [float(sum(deleted[: j + 1])) for j in range(columns)]
    path: list[tuple[str, ...]] = [() for _ in range(columns)]
    for i, step in enumerate(steps):
        added = min(step, key=lambda line: len(_words(line)))
        after: list[float] = []
        chosen: list[tuple[str, ...]] = []
        for j in range(columns):
            ways = [(cost[j] + len(_words(added)), (*path[j], added))]
            if j:
                change, line = best[i][j - 1]
                ways.insert(0, (cost[j - 1] + change, (*path[j - 1], line)))
                ways.append((after[j - 1] + deleted[j], chosen[j - 1]))
            price, kept = min(ways, key=lambda way: way[0])
            after.append(price)
            chosen.append(kept)
        cost, path = after, chosen
    return "\n".join(path[-1])
