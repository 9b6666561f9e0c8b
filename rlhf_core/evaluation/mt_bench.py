"""MT-Bench scoring: per-turn means and the mean over all judged turns.

Parsing is `judges.replies.parse_mt_bench`. FastChat averages over all scores that are not missing; PAR
averages the two turns' means. They agree when no score is missing; both are given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def mt_bench_scores(rows: Sequence[tuple[int, float | None]]) -> dict[str, float]:
    """Returns means per turn and overall.

    Args:
        rows: (turn 1 or 2, score 1 to 10) per judged answer; None, NaN and -1 (FastChat's mark) are missing.

    Returns:
        {mtbench: mean over all scores (FastChat), mtbench_turn1, mtbench_turn2, mtbench_turn_mean:
        (T1 + T2) / 2 (PAR), n, n_missing}; NaN where there is no score.
    """
    by_turn: dict[int, list[float]] = {1: [], 2: []}
    missing = 0
    for turn, score in rows:
        if turn not in by_turn:
            raise ValueError(f"turn must be 1 or 2, not {turn}")
        if score is None or math.isnan(score) or score == -1:
            missing += 1
        else:
            by_turn[turn].append(float(score))
    first, second = (_mean(by_turn[turn]) for turn in (1, 2))
    return {
        "mtbench": _mean(by_turn[1] + by_turn[2]),
        "mtbench_turn1": first,
        "mtbench_turn2": second,
        "mtbench_turn_mean": (first + second) / 2,
        "n": len(by_turn[1]) + len(by_turn[2]),
        "n_missing": missing,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
