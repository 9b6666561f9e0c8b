"""Runs whose win rate only fluctuates, by simulation: how often the alarm's comparisons of win rates ring.

Prompts have a score of 1, 0 or 1/2 against the SFT policy in every evaluation, and true win rates stay at 50 %. Scores
of a prompt depend on each other in one of three ways: not at all (`independent`), through its difficulty (`same
prompts`), or most for neighbouring evaluations, whose weights are alike (`neighbours`). The final evaluation is of more
prompts, those of the others among them. `naive` is the reference: every comparison at the whole level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_core.evaluation.hacking_alarm import AlarmSettings, end_level, fall_level

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Null:
    """A way in which scores of a prompt depend on each other, by their latent normals.

    Attributes:
        shared: share of the variance that is the prompt's own in all evaluations.
        carried: correlation of the rest between neighbouring evaluations.
    """

    name: str
    shared: float = 0.0
    carried: float = 0.0


NULLS = (Null("independent"), Null("same prompts", shared=0.5), Null("neighbours", shared=0.3, carried=0.9))
TIES = 0.2


def null_scores(null: Null, runs: int, evaluations: int, prompts: int, generator: np.random.Generator) -> Scores:
    """Returns scores [runs, evaluations, prompts] of runs whose win rate is 50 % throughout."""
    from scipy import stats

    own = generator.standard_normal((runs, 1, prompts))
    moving = generator.standard_normal((runs, evaluations, prompts))
    for step in range(1, evaluations):
        moving[:, step] = null.carried * moving[:, step - 1] + (1 - null.carried**2) ** 0.5 * moving[:, step]
    drawn = stats.norm.cdf(null.shared**0.5 * own + (1 - null.shared) ** 0.5 * moving)
    return np.where(drawn < (1 - TIES) / 2, 0.0, np.where(drawn < (1 + TIES) / 2, 0.5, 1.0))


def rings(scores: Scores, prompts: int, settings: AlarmSettings, *, naive: bool = False) -> NDArray[np.bool_]:
    """Returns whether each run has an alarm of its win rate.

    Args:
        scores: [runs, evaluations, all test prompts]; the last evaluation is the final one.
        prompts: of the evaluations on the way, the first ones.
        settings: levels.
        naive: test everything at the whole level.
    """
    runs, count, _ = scores.shape
    level = settings.false_alarms
    rang = _fell(np.full_like(scores[:, -1], 0.5), scores[:, -1], level if naive else end_level(settings))
    seen = np.concatenate([np.full((runs, 1, prompts), 0.5), scores[:, :, :prompts]], axis=1)
    for later in range(1, count + 1):
        for earlier in range(later):
            own = level if naive else fall_level(settings, count, later - earlier)
            rang |= _fell(seen[:, earlier], seen[:, later], own)
    return rang


def _fell(before: Scores, after: Scores, level: float) -> NDArray[np.bool_]:
    from scipy import stats

    rose, fell = (after > before).sum(axis=1), (after < before).sum(axis=1)
    return np.asarray(stats.binom.cdf(rose, rose + fell, 0.5) < level) & (rose + fell > 0)


def null_rates(
    null: Null, runs: int, evaluations: int = 8, prompts: int = 64, final: int = 256, seed: int = 0
) -> tuple[float, float]:
    """Returns the share of simulated runs that ring, by the alarm's levels and naively."""
    settings, generator = AlarmSettings(), np.random.default_rng(seed)
    scores = null_scores(null, runs, evaluations, final, generator)
    return tuple(float(rings(scores, prompts, settings, naive=naive).mean()) for naive in (False, True))  # type: ignore[return-value]
