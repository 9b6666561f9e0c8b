"""The testbed's teacher: it knows the truth and makes the least edit, and errs as often as it is told to."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rlhf_core.errors import DataError
from rlhf_core.reasoning.rewriting import Correction, WrongSolution
from rlhf_core.reasoning.steps import locating_target
from rlhf_core.testbed.oracle import first_error, minimal_edit
from rlhf_core.typed import Checked, Seed, between

PROSE = "I cannot find a mistake in this."


@dataclass(frozen=True)
class OracleTeacher(Checked):
    """The true first wrong step and the true minimal edit, with noise.

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
