"""A stage's output at a glance: the reason why the stage stopped, or its headline metrics.

A stage that stopped has one file in its result, with the reason, which later stages, tables and the scheduler read.
Headline metrics are at most six numbers of a result, in a file beside it, for DVC's `metrics diff` and `exp show`:
`metrics.json` in `result/` has every number, hundreds in a large study, and a table of them all says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from rlhf_core.errors import DataError
from tasks.params.yaml_files import read_mapping

#: The only file in the result of a stage that stopped.
STOPPED_FILE = "stopped.json"
#: File of a policy whose numbers diverged, in its output directory; such a policy has no result.
DIVERGED_FILE = "diverged.json"
HEADLINE_FILE = "headline.json"
MOST = 6
#: Names of metrics by stage, the most telling first; `*` stands for anything. The first six that a result has count.
HEADLINES: Mapping[str, tuple[str, ...]] = {
    "sft": ("validation_nll", "alpaca_wr", "arena_wr", "mtbench", "average", "true_reward", "seen", "unseen"),
    "policy": (
        "win_rate_vs_sft",
        "alpaca_wr",
        "arena_wr",
        "average",
        "seen",
        "unseen",
        "bleu",
        "true_reward",
        "mtbench",
        "peak_win_rate_vs_sft",
        "kl",
    ),
    "reward_model": ("accuracy", "loss", "ece", "share_of_ceiling", "fidelity_spearman", "quality_accuracy"),
    "reward_bench": ("average", "chat", "chat_hard", "safety", "reasoning"),
    "best_of_n": ("judge/*/32", "judge/*/16", "second/*/32", "reward/*/32"),
    "second_judge": ("second/*",),
    "tables": ("verdicts/*",),
}


def stopped(result: Path) -> str | None:
    """Returns the reason why the stage of a result stopped, None if it did not stop."""
    path = result / STOPPED_FILE
    if not path.exists():
        return None
    found = read_mapping(path)
    if "reason" not in found:
        raise DataError("is missing", file=str(path), field="reason", remedy="Re-run its stage")
    return str(found["reason"])


def headlines(stage: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the headline metrics of a stage's result, at most six, in the order of `HEADLINES`."""
    found: dict[str, float] = {}
    for pattern in HEADLINES[stage]:
        found |= {name: value for name, value in sorted(metrics.items()) if fnmatch(name, pattern)}
    return dict(list(found.items())[:MOST])


def write_headlines(stage: str, result: Path, path: Path) -> None:
    """Writes the headline metrics of a result; an empty file where it has no metrics, as of a stage that stopped."""
    metrics = result / "metrics.json"
    values = json.loads(metrics.read_text(encoding="utf-8")) if metrics.exists() else {}
    path.write_text(json.dumps(headlines(stage, values), indent=1) + "\n", encoding="utf-8")
