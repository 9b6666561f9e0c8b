"""Refusal of scores that are not finite: NaN is neither above nor below, so it would count as wrong or tied."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rlhf_core.errors import NumericsError


def require_finite(scores: Iterable[tuple[str, float]], what: str) -> None:
    """Refuses a score that is not finite.

    Args:
        scores: (whose, score).
        what: the noun of a score in the message.

    Raises:
        NumericsError: names the first such score.
    """
    for name, score in scores:
        if not math.isfinite(score):
            raise NumericsError(f"{what} of {name} is {score}, which compares with nothing; look at what gave it")
