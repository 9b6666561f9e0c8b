"""Marks of numbers that the published benchmark did not make: fewer items, other examples, another task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_core.evaluation.benchmark_names import OFFICIAL_QUESTIONS
from rlhf_core.evaluation.harness.choice import LEADERBOARD
from tasks.report.outputs import StageOutput

#: Metrics that are means over tasks or test sets.
AVERAGES = ("average", "seen", "unseen")


def partial_text(metric: str, outputs: Iterable[StageOutput]) -> str | None:
    """Returns how a metric's benchmark differs from the published one, such as '722 of 805'; None if it does not.

    Args:
        metric: of a column; its benchmark is the one that its name begins with, AlpacaEval of win rates over the SFT
            model, and of means every task and test set.
        outputs: of the runs behind the cell.
    """
    found = dict.fromkeys(text for output in outputs for text in _texts(metric, output.benchmarks))
    return "; ".join(found) or None


def _texts(metric: str, benchmarks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if metric in AVERAGES:
        named = [name for name in benchmarks if name in {*LEADERBOARD, *OFFICIAL_QUESTIONS}]
        return [f"{name}: {text}" for name in named if (text := _text(name, benchmarks[name]))]
    named = sorted((name for name in benchmarks if f"{metric}_".startswith(f"{name}_")), key=len)
    if not named and "win_rate_vs_sft" in metric and "alpaca" in benchmarks:
        named = ["alpaca"]
    text = _text(named[-1], benchmarks[named[-1]]) if named else ""
    return [text] if text else []


def _text(name: str, facts: Mapping[str, Any]) -> str:
    rows, of = int(facts["rows"]), facts.get("of")
    parts = [] if rows == of else [f"{rows:,} of {of:,}" if of else f"{rows:,} {facts.get('set', 'local rows')}"]
    official = LEADERBOARD.get(name)
    if official is not None and "task" in facts:
        parts += [facts["task"]] if facts["task"] != official.task else []
        parts += [f"{facts['shots']}-shot"] if facts["shots"] != official.shots else []
        parts += ["in a chat template"] if facts["chat_template"] else []
    if facts.get("window"):
        parts.append(f"from {facts['window'][0] or 'the first'} to {facts['window'][1] or 'the last'}")
    if facts.get("cut"):
        parts.append(f"{facts['cut']:,} requests cut")
    return ", ".join(parts)
