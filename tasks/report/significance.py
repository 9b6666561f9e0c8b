"""Significance of a measured difference.

Each row is compared with its table's main row twice: over seeds (paired t-test of the seeds' differences) and
over prompts (paired t-test of each prompt's difference, seeds averaged first, so that a prompt counts once).
The test over prompts decides; where a metric has no prompts of its own, the one over seeds. Its p-value is
corrected for the number of compared cells of the table (Holm), and a difference counts when the corrected one is
below .05 and every seed's difference has the same sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.evaluation.statistics import holm, paired_t_test
from tasks.report.measurements import BySeed

ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """A row against its main row in one column.

    Attributes:
        difference: mean of (row - main) over the shared seeds, in the column's unit.
        p_seeds: two-sided p over seeds; None with fewer than two shared seeds.
        p_prompts: two-sided p over prompts; None where the metric has no prompts of its own.
        same_sign: whether every shared seed's difference has the sign of the mean.
    """

    difference: float
    p_seeds: float | None
    p_prompts: float | None
    same_sign: bool
    seeds: int = 1

    @property
    def p(self) -> float | None:
        """Returns the p-value that decides: over prompts where there are any, else over seeds."""
        return self.p_prompts if self.p_prompts is not None else self.p_seeds

    def significant(self, corrected: float | None) -> bool:
        """Tells whether a corrected p is significant; it takes two seeds on the same side."""
        return self.seeds >= 2 and corrected is not None and corrected < ALPHA and self.same_sign


def _p(first: Sequence[float], second: Sequence[float]) -> float | None:
    return paired_t_test(first, second).p_value if len(first) >= 2 else None


def _prompt_means(measurements: BySeed, seeds: Sequence[int]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for seed in seeds:
        for prompt, value in measurements[seed].prompts.items():
            values.setdefault(prompt, []).append(value)
    return {prompt: sum(of_prompt) / len(of_prompt) for prompt, of_prompt in values.items()}


def compare(row: BySeed, main: BySeed) -> Comparison | None:
    """Returns a row against the main row over the seeds that both have; None without one."""
    seeds = sorted(row.keys() & main.keys())
    if not seeds:
        return None
    own, other = [row[seed].value for seed in seeds], [main[seed].value for seed in seeds]
    differences = [a - b for a, b in zip(own, other, strict=True)]
    mean = sum(differences) / len(differences)
    own_prompts, other_prompts = _prompt_means(row, seeds), _prompt_means(main, seeds)
    shared = sorted(own_prompts.keys() & other_prompts.keys())
    return Comparison(
        difference=mean,
        p_seeds=_p(own, other),
        p_prompts=_p([own_prompts[p] for p in shared], [other_prompts[p] for p in shared]),
        same_sign=mean != 0 and all(difference * mean > 0 for difference in differences),
        seeds=len(seeds),
    )


def corrected_p(comparisons: Sequence[Comparison]) -> list[float | None]:
    """Returns the deciding p of each comparison, corrected for the number of those that have one; None where there is
    none."""
    tested = iter(holm([found.p for found in comparisons if found.p is not None]))
    return [None if found.p is None else next(tested) for found in comparisons]
