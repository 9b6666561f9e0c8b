"""Right selections of aspects: does consistency with the holistic reward choose the aspect that the truth would choose?

The stage `selection` compares aspects with the holistic reward on two answers to each prompt. The testbed's world knows
the true reward of both answers, so the same comparison is made with it: the useful aspect is the one that orders the
fewest pairs otherwise than the true reward does, as the aspect scores them, wrong labels of its training included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.running.artifacts import read_json, read_jsonl

#: Of a selection's metrics in a record: 1 for a right choice, 0 for another; the mean over worlds is the share.
RIGHT, TRUE_INCONSISTENCY = "right", "true_inconsistency"


def right_selection(selection: Path, data: Path) -> dict[str, float]:
    """Returns an aspect selection's inconsistencies with the true reward, and 1 or 0 for a right or wrong choice.

    Empty without a world, and where the true reward prefers no answer to another.

    Args:
        selection: result of the stage `selection`.
        data: result of the stage `prepare` that its prompts are of.
    """
    from rlhf_core.evaluation.consistency import Pairs, SelectionRule, inconsistency
    from tasks.running.loading import load_world

    world = load_world(data)
    if world is None:
        return {}
    made, answers = read_json(selection / "selection.json"), read_jsonl(selection / "answers.jsonl")
    metas = {row["id"]: row["meta"] for row in read_jsonl(data / "prompts.jsonl")}

    def pairs(name: str, better: bool) -> Pairs:
        return Pairs.of([row["greedy"][name] for row in answers], [row["sampled"][name] for row in answers], better)

    greedy = [world.true_reward(metas[row["id"]], row["greedy"]["text"]) for row in answers]
    sampled = [world.true_reward(metas[row["id"]], row["sampled"]["text"]) for row in answers]
    truth, aspects = Pairs.of(greedy, sampled), made["aspects"]
    if truth.never_prefers:
        return {}
    found = {name: inconsistency(truth, pairs(name, facts["higher_is_better"])) for name, facts in aspects.items()}
    return {f"{TRUE_INCONSISTENCY}/{name}": value for name, value in found.items()} | {
        RIGHT: _right(SelectionRule(**made["rule"]), made["chosen"], found, aspects)
    }


def _right(rule: Any, chosen: list[str], found: dict[str, float], aspects: dict[str, Any]) -> float:
    """Returns 1 where the rule would choose as useful aspects by the truth: equally useful ones count as one."""
    constant = [name for name, facts in aspects.items() if facts["constant"]]
    useful = rule.choose(found, constant)
    return float(sorted(found[name] for name in chosen) == sorted(found[name] for name in useful))
