"""Learning-rate schedules as shares of the peak rate; functions of the step alone, so there is nothing to store."""

from __future__ import annotations

import math

SCHEDULES = ("constant", "linear", "cosine")


def rate_share(step: int, steps: int, *, warmup: float, schedule: str, final_share: float = 0.0) -> float:
    """Share of the peak learning rate at `step` (from 0) of `steps`.

    Args:
        step, steps: where in the run.
        warmup: share of the steps in which the rate rises from 0.
        schedule: 'constant', 'linear' or 'cosine' decay after that.
        final_share: where the decay ends.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    if schedule == "constant":
        return 1.0
    progress = (step - rising) / max(1, steps - rising)
    decay = 1 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return final_share + (1 - final_share) * decay
