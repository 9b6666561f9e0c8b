"""Learning-rate schedules as shares of the peak rate; functions of the step alone, so there is nothing to store."""

from __future__ import annotations

import math

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError


def constant(progress: float, final_share: float) -> float:
    """Returns 1: the rate stays at its peak, whatever `final_share`."""
    return 1.0


def linear(progress: float, final_share: float) -> float:
    """Returns the share of the peak on a straight line from 1 to `final_share`; `progress` is in [0, 1]."""
    return final_share + (1 - final_share) * (1 - progress)


def cosine(progress: float, final_share: float) -> float:
    """Returns the share of the peak on half a cosine from 1 to `final_share`; `progress` is in [0, 1]."""
    return final_share + (1 - final_share) * (0.5 * (1 + math.cos(math.pi * progress)))


#: Decays of the rate after warming up.
SCHEDULES = Choices("schedule", {"constant": constant, "linear": linear, "cosine": cosine})


def check_final_share(schedule: str, final_share: float, schedule_field: str, share_field: str) -> None:
    """Refuses a share of the peak rate at which a rate that never decays would end.

    Args:
        schedule: a name in `SCHEDULES`.
        final_share: where the decay ends.
        schedule_field, share_field: their names, for the message.

    Raises:
        RecipeError: the schedule is 'constant' and the share is not 0.
    """
    if schedule == "constant" and final_share:
        raise RecipeError(
            f"{share_field} is {final_share}, but {schedule_field} is 'constant', which never decays; leave "
            f"{share_field} out, or set {schedule_field} to cosine or linear"
        )


def rate_share(step: int, steps: int, *, warmup: float, schedule: str, final_share: float = 0.0) -> float:
    """Returns the share of the peak learning rate at `step` (from 0) of `steps`.

    Args:
        step, steps: where in the run.
        warmup: share of the steps in which the rate rises from 0.
        schedule: the decay after that, a name in `SCHEDULES`.
        final_share: where the decay ends.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / max(1, steps - rising), final_share)
