"""Programs that a policy answered, by the protocol of their benchmark: EvalPlus', LiveCodeBench's or the testbed's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.evaluation import livecodebench
from rlhf_core.evaluation.code import extract_code, judge_samples
from rlhf_core.evaluation.evalplus import LIMITS, program_of
from rlhf_core.evaluation.sandbox import ProgramResult


def program_text(item: Mapping[str, Any], response: str) -> str:
    """Returns the program of an answer: EvalPlus' reading of it where its row opens the answer, LiveCodeBench's last
    block, or the testbed's first block."""
    if item.get("protocol") == livecodebench.PROTOCOL:
        return livecodebench.program_of(response)
    return program_of(response, item["entry_point"]) if "opening" in item else extract_code(response)


def judged_answers(items: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[ProgramResult]:
    """Returns the result of the program in each answer to the items of one benchmark."""
    programs = [program_text(item, response) for item, response in zip(items, responses, strict=True)]
    if items and items[0].get("protocol") == livecodebench.PROTOCOL:
        return list(livecodebench.judged(items, programs))
    results = judge_samples(
        [[text] for text in programs],
        [item["tests"] for item in items],
        setups=[item.get("setup", "") for item in items],
        entry_points=[item.get("entry_point", "") for item in items],
        limits=LIMITS if items and "opening" in items[0] else None,
    )
    return [result for (result,) in results]
