"""The result of a finished stage in a few words, for the line that a run prints about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from tasks.graph.stages import Stage
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import exists_or_raise_if_lost

Metrics = Mapping[str, float]


def result_in_words(root: Path, stage: Stage) -> str:
    """Returns what a stage's result says; empty for other kinds of stages, and where it has no metrics."""
    if stage.kind == "prepare":
        return _quarantine(root, Path(stage.out) / "result")
    metrics = root / stage.out / "result" / "metrics.json"
    if stage.kind not in WORDS or not exists_or_raise_if_lost(metrics):
        return ""
    return WORDS[stage.kind](root, stage, read_object(metrics))


def _quarantine(root: Path, result: Path) -> str:
    """Returns how many rows of a data set are in quarantine, and where; empty if none is."""
    path = root / result / "data.json"
    facts = read_object(path).get("quarantine", []) if exists_or_raise_if_lost(path) else []
    bad, total = sum(file["quarantined"] for file in facts), sum(file["total"] for file in facts)
    return f"{bad:,} of {total:,} rows in quarantine: {result}/quarantine/" if bad else ""


def _reward_model(root: Path, stage: Stage, metrics: Metrics) -> str:
    if "accuracy" not in metrics:
        return ""
    text = f"right about {100 * metrics['accuracy']:.0f} % of held-out labels"
    true = true_labels(root / dict(pairwise(stage.command.split())).get("--data", ""))
    return text if true is None else f"{text}, of which {100 * true:.0f} % prefer the better answer"


def true_labels(data: Path) -> float | None:
    """Returns the share of a data set's held-out labels that prefer the answer with the higher true reward, of equal
    answers half; None where true rewards are not known."""
    path = data / "preference.validation.jsonl"
    metas = [row.get("meta") or {} for row in read_jsonl(path)] if exists_or_raise_if_lost(path) else []
    if not metas or any("true_chosen" not in meta or "true_rejected" not in meta for meta in metas):
        return None
    leads = [meta["true_chosen"] - meta["true_rejected"] for meta in metas]
    return sum(1.0 if ahead > 0 else 0.5 * (ahead == 0) for ahead in leads) / len(leads)


def _policy(root: Path, stage: Stage, metrics: Metrics) -> str:
    if "win_rate_vs_sft" not in metrics:
        return ""
    kl = f", KL {metrics['kl']:.1f}" if "kl" in metrics else ""
    return f"win rate over SFT {metrics['win_rate_vs_sft']:.0f} %{kl}"


#: Kind of stage -> words about its metrics.
WORDS: Mapping[str, Callable[[Path, Stage, Metrics], str]] = {"reward_model": _reward_model, "policy": _policy}
