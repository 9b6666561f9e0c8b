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
    """Refuses a share of the peak rate at which a rate that never decays would end; fields are named as given."""
    if schedule == "constant" and final_share:
        raise RecipeError(
            f"{share_field} is {final_share}, but {schedule_field} is 'constant', which never decays; leave "
            f"{share_field} out, or set {schedule_field} to cosine or linear"
        )


def rate_share(step: int, steps: int, *, warmup: float, schedule: str, final_share: float = 0.0) -> float:
    """Returns the share of the peak learning rate at `step` (from 0) of `steps`.

    It rises from 0 over a share `warmup` of the steps, and then follows a schedule of `SCHEDULES` to `final_share`.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / max(1, steps - rising), final_share)
