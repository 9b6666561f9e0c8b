"""Rows whose numbers diverge: a divergence is an outcome of a row, and no failure of its world.

A policy whose training diverges leaves its evaluations so far beside its result (`tasks.policy_run.run`). In a
study the row scores what it scored at the last of them. A row that diverged before its first evaluation, or whose
reward or SFT model diverged, has no score.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.graph.stopping import DIVERGED_FILE
from tasks.running.artifacts import read_json
from tasks.running.failures import STAGE_FAILED

#: Pattern of a failure's message about numbers that are not finite; an error of a user's function may quote any words.
DIVERGED = re.compile(
    r"^(?!.*reward function \S+ (?:failed|returned)).*"
    r"(?:not finite|gradient norm is (?:nan|inf)|loss \S+, gradient norm \S+)"
)


@dataclass(frozen=True)
class Divergence:
    """A stage without a result.

    Attributes:
        reason: which numbers are not finite, and in which stage where it is one above.
        seconds: wall seconds that it took.
    """

    reason: str
    seconds: float


def divergence_reasons(failed: Mapping[str, str], skipped: Mapping[str, str]) -> dict[str, str]:
    """Returns the stages without a result since numbers diverged, in them or above, by address, each with the reason.

    Args:
        failed: messages of failed stages by address.
        skipped: for each skipped stage the failed one that it reads from, in words.
    """
    own = {address: STAGE_FAILED.sub("", said) for address, said in failed.items() if DIVERGED.search(said)}
    found = dict(own)
    for address, why in skipped.items():
        for above, reason in own.items():
            if why.startswith(f"reads from {above},"):
                found[address] = f"{above.rpartition(':')[2]} diverged: {reason}"
    return found


def diverged_stages(
    failed: Mapping[str, str], skipped: Mapping[str, str], seconds: Mapping[str, float]
) -> dict[str, Divergence]:
    """Returns the stages of `divergence_reasons` with the wall seconds that each took, from `seconds` of failed stages
    by address; a skipped stage took none."""
    reasons = divergence_reasons(failed, skipped)
    return {address: Divergence(reason, seconds.get(address, 0.0)) for address, reason in reasons.items()}


def last_evaluation(out: Path) -> dict[str, Any] | None:
    """Returns the last evaluation of a policy that diverged, with its step; None where it had none.

    Args:
        out: the stage's output directory.
    """
    file = out / DIVERGED_FILE
    evaluations = read_json(file)["evaluations"] if file.exists() else []
    return dict(evaluations[-1]) if evaluations else None
