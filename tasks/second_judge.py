"""Stage `second_judge`: one policy's answers against other policies' answers, by a judge of its own.

Writes metrics.json (`second/<opponent>`: win rate of the first policy in percent, ties half, both orders; with its
standard error and the number of unparsable verdicts) and judgements.jsonl. Source: Sentence, appendix C.1, Figure 8.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.judges.games import JudgedPair
from tasks.evaluating.policies import both_orders
from tasks.params.evaluation import SecondJudgeSpec
from tasks.params.pages import Address, read_settings
from tasks.running.artifacts import read_jsonl, write_json, write_jsonl
from tasks.running.loading import load_judge, load_world
from tasks.running.result_rows import Generation
from tasks.running.stage import PageEntry, stage

VERSION = 2


def judge_policies(
    row_path: Annotated[Address, "row file (YAML)"],
    scale: Annotated[SecondJudgeSpec, PageEntry("judge settings (YAML)")],
    data: Path,
    policies: Annotated[tuple[Path, ...], "results of `policy`: the one that is judged, then its opponents"],
    result: Path,
) -> None:
    """Compares the first policy with each of the others."""
    judge = load_judge(scale.judge, load_world(data))
    if judge is None:
        raise RecipeError("'judge' is empty, and there is nothing to do without one")
    own = answers_of(policies[0], scale.benchmark)
    metrics: dict[str, float] = {}
    judgements: list[dict[str, Any]] = []
    for name, folder in zip(read_settings(row_path)["against"], policies[1:], strict=True):
        others = answers_of(folder, scale.benchmark)
        pairs = [
            JudgedPair(key, mine["prompt"], mine["response"], others[key]["response"], {"prompt": mine["meta"]})
            for key, mine in own.items()
            if key in others
        ]
        if not pairs:
            raise DataError(
                f"no prompt is answered by '{name}' and by the first policy",
                file=str(data),
                remedy="Compare policies that were evaluated on the same data",
            )
        rates, games = both_orders(judge, pairs, scale.template)
        metrics |= {f"second{kind}/{name}": value for kind, value in rates.items()}
        judgements += [
            {"opponent": name, "id": game.id, "first": game.first, "raw": game.raw, "valid": game.verdict is not None}
            for game in games
        ]
    write_jsonl(result / "judgements.jsonl", judgements)
    write_json(result / "metrics.json", {k: float(v) for k, v in metrics.items() if math.isfinite(v)})


def answers_of(policy: Path, benchmark: str) -> dict[str, Generation]:
    """Returns a policy's first-turn answers by prompt id.

    Raises:
        DataError: it answered no prompt of the benchmark.
    """
    file = policy / "generations.jsonl"
    rows = {str(r["id"]): r for r in read_jsonl(file) if r["benchmark"] == benchmark and r["turn"] == 1}
    if not rows:
        raise DataError(f"no answer to a prompt of '{benchmark}'", file=str(file), remedy="Change 'benchmark'")
    return rows


main = stage(judge_policies)
