"""Numbers of a policy that follow from its own rows: a result whose metrics say something else was mixed up.

Single numbers vary so much between re-runs that their tolerances cannot tell one row's win rate from another's. But the
rows beside them determine them, to the last digit on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.evaluation.protocols import true_tally
from rlhf_core.evaluation.win_rates import win_rate
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.checked_results import read_stage_record
from tasks.running.recorded import is_there

#: Benchmarks whose win rates over the SFT model are those of true rewards, with the names of the metrics.
OVER_SFT = {"alpaca": "win_rate_vs_sft", "ood": "ood_win_rate_vs_sft"}
#: Relative difference from which on two numbers are not the same sum in another order.
ROUNDING = 1e-6
Rows = Sequence[Mapping[str, Any]]


def disagreements(out: Path, root: Path) -> list[str]:
    """Returns metrics of a policy's result that do not follow from its rows and its SFT model's, in words.

    Args:
        out: the stage's output directory.
        root: of the repository, in which inputs are found.
    """
    record = read_stage_record(out)
    result = out / "result"
    if record["stage"] != "policy" or not is_there(result / "metrics.json"):
        return []
    sft = next((root / name for name in record["inputs"] if "/sft/" in name and name.endswith("/result")), None)
    metrics, found = read_object(result / "metrics.json"), []
    answers = _rows(result / "generations.jsonl")
    of_sft = [] if sft is None else _rows(sft / "generations.jsonl")
    for name, value in _of_rows(answers, of_sft, _rows(result / "judgements.jsonl")):
        stated = metrics.get(name)
        if isinstance(stated, int | float) and not math.isclose(stated, value, rel_tol=ROUNDING, abs_tol=ROUNDING):
            found.append(f"metrics.json has {name} {stated:.6g}, but the rows beside it give {value:.6g}")
    return found


def _rows(file: Path) -> Rows:
    return read_jsonl(file) if is_there(file) else []


def _of_rows(answers: Rows, of_sft: Rows, judgements: Rows) -> Iterator[tuple[str, float]]:
    """Yields the metrics that answers, the SFT model's answers and judgements determine, by name."""
    for benchmark, name in OVER_SFT.items():
        own = _true_rewards(answers, benchmark)
        tally = true_tally(own, _true_rewards(of_sft, benchmark))
        if tally.scores:
            yield from tally.metrics(name, judged=False).items()
        if own and benchmark == "alpaca":
            yield "true_reward", math.fsum(own.values()) / len(own)
        judged = [
            float(row["preference"]) if row["valid"] else math.nan
            for row in judgements
            if (row.get("benchmark"), row.get("template")) == (benchmark, "alpaca_eval")
            and not {"reference", "opponent"} & row.keys()
        ]
        if not all(math.isnan(preference) for preference in judged):
            yield f"{benchmark}_wr", win_rate(judged)["win_rate"]


def _true_rewards(answers: Rows, benchmark: str) -> dict[str, float]:
    """Returns the true rewards of a benchmark's answers by prompt id, where they are known."""
    of_benchmark = (row for row in answers if row.get("benchmark") == benchmark)
    return {row["id"]: row["true_reward"] for row in of_benchmark if row.get("true_reward") is not None}
