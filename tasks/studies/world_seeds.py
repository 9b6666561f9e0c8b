"""Seeds of worlds: those that a study draws from its name and file, and what other seeds are for."""

from __future__ import annotations

import hashlib

from rlhf_core.errors import RecipeError

#: Seeds of registered worlds: from the first number on, below the second.
FIRST_REGISTERED, END_REGISTERED = 10**6, 2**31 - 10**6
#: Seeds of tuning and pilots.
TUNING = range(100, 200)
#: Seeds of a row compared with itself: of its worlds, and, this much above them, of its second runs.
TWINS, TWIN_APART = range(200, 300), 50
#: Seeds whose results were looked at while the world and its settings were made.
SPENT: tuple[range, ...] = (range(10), range(1000, 1101))


def world_seed(study: str, digest: str, index: int) -> int:
    """Returns the seed of a study's world: everything in the world follows from it.

    Args:
        study: its name, so that two studies with one text have different worlds.
        digest: SHA-256 of the study's file.
        index: of the world, from 0 on.
    """
    drawn = hashlib.sha256(f"{study} {digest} world {index}".encode()).digest()
    return FIRST_REGISTERED + int.from_bytes(drawn[:8], "big") % (END_REGISTERED - FIRST_REGISTERED)


def check_world_seed(seed: int, *, pilot: bool, twins: bool = False) -> None:
    """Refuses a seed that does not fit its use.

    Raises:
        RecipeError: a spent seed, a pilot with a seed that is not of tuning, or twins with one that is not theirs.
    """
    if any(seed in spent for spent in SPENT):
        raise RecipeError(f"seed {seed} is spent: results of it were seen while the world and its settings were made")
    if pilot and seed not in TUNING:
        raise RecipeError(f"seed {seed} is not of tuning; pilots have seeds {TUNING.start} to {TUNING.stop - 1}")
    if not pilot and twins and seed not in TWINS:
        raise RecipeError(f"seed {seed} is not of twins; they have seeds {TWINS.start} to {TWINS.stop - 1}")
    if not pilot and not twins and not FIRST_REGISTERED <= seed < END_REGISTERED:
        raise RecipeError(
            f"seed {seed} is not one that a study draws; registered worlds have seeds from {FIRST_REGISTERED:,}"
        )
