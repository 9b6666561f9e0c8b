"""The truth about a solution of the testbed: its first wrong step, the least edit that corrects it, a teacher.

A question's meta lists the lines that are right at each step; several wordings of a step are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from rapidfuzz.distance import Levenshtein

from rlhf_core.errors import DataError
from rlhf_core.reasoning.rewriting import Correction, WrongSolution
from rlhf_core.reasoning.steps import locating_target, split_steps
from rlhf_core.typed import Checked, Seed, between

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


PROSE = "I cannot find a mistake in this."


@dataclass(frozen=True)
class OracleTeacher(Checked):
    """Teacher that knows the true first wrong step and the true minimal edit, and errs as often as it is told to.

    Args:
        noise: probability that a correction is spoiled: the step is named wrongly and the rewrite is, in equal parts,
            the prediction as it was, prose, nothing, or one with another number or answer.
        seed: of the noise.
    """

    noise: Annotated[float, between(0, 1)] = 0.0
    seed: Seed = 0
    name: str = "oracle"

    def correct(self, wrong: Sequence[WrongSolution]) -> list[Correction]:
        """Returns one correction for each.

        Raises:
            DataError: a question whose right steps are not known.
        """
        return [self._correct(each) for each in wrong]

    def _correct(self, wrong: WrongSolution) -> Correction:
        steps = wrong.question.get("meta", {}).get("steps")
        if not steps:
            raise DataError(
                f"question '{wrong.question['id']}' does not list its right steps, which the oracle needs",
                field="meta",
                remedy="The oracle works on the testbed only; name a teacher of kind endpoint or local",
            )
        step, rewrite = first_error(steps, wrong.prediction), minimal_edit(steps, wrong.prediction)
        rng = random.Random(f"oracle|{self.seed}|{wrong.id}")
        if rng.random() < self.noise:
            step = rng.choice([number for number in range(len(steps)) if number != step] or [0])
            spoiled = re.sub(r"\w+(?=\.$)", lambda found: found[0][::-1] + "1", rewrite)
            rewrite = rng.choice((wrong.prediction, PROSE, "", spoiled))
        return Correction(locating_target(step), rewrite)

    def costs(self) -> dict[str, float]:
        return {}
