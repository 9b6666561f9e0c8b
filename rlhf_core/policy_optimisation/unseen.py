"""Shapings that an optimiser never sees: what it makes of rewards is the same with and without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from rlhf_core.policy_optimisation.advantages import ADVANTAGES
from rlhf_core.policy_optimisation.config import OPTIMISERS, OptimiserConfig
from rlhf_core.policy_optimisation.objectives import OBJECTIVES
from rlhf_core.shaping.choices import Chain
from rlhf_core.shaping.steps import Elementwise


def useless_combination(shaping: Chain | None, optimiser: str | Mapping[str, Any]) -> str | None:
    """Returns the reason why a shaping, or its last steps, change nothing for an optimiser; None if they matter.

    GRPO normalises a reward of one value per response within its group; online DPO orders its pairs by the raw proxy,
    so that no step of any shaping reaches it. Source: PAR, §5 and §11.

    Args:
        shaping: of the only component.
        optimiser: a recipe's `optimiser`, or its kind.
    """
    given = {"kind": optimiser} if isinstance(optimiser, str) else optimiser
    made = {**OPTIMISERS.get(str(given["kind"]), {}), **given}
    objective = OBJECTIVES[made.get("objective", OptimiserConfig.objective)]
    estimator = ADVANTAGES[made.get("advantage", OptimiserConfig.advantage)]
    if shaping is None or str(given["kind"]) not in OPTIMISERS:
        return None
    unseen: Callable[[Elementwise], bool]
    if objective.ignores_size is not None:
        why, unseen = objective.ignores_size, lambda step: True
    elif estimator.cancels is not None and made.get("group_std") != "none":
        why, unseen = estimator.cancels, lambda step: step.affine
    else:
        return None
    last = list(takewhile(lambda step: unseen(step[1]), reversed(shaping.steps)))
    if not last:
        return None
    names = ", ".join(kind for kind, _ in reversed(last))
    return f"shaping '{names}' {why}: training is the same without it"
