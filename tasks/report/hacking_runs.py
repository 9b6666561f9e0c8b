"""Runs with measures of hacking, and rows of them over worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rlhf_core.errors import DataError
from rlhf_core.evaluation.overoptimisation import ClauseUse, inflated
from tasks.report.outputs import mean_and_standard_error
from tasks.report.records import record_of
from tasks.running.checked_results import read_checked, read_metrics
from tasks.running.recorded import exists_as_recorded
from tasks.running.result_rows import HackingPoint

#: Measures of a run, each with its metric of metrics.json; `rlhf_core/evaluation/overoptimisation.py` defines them.
MEASURES = {
    "final": "win_rate_vs_sft",
    "final_se": "win_rate_vs_sft_se",
    "p": "win_rate_vs_sft_p",
    "peak": "hacking/peak_win_rate",
    "peak_step": "hacking/peak_step",
    "loss_after_peak": "hacking/loss_after_peak",
    "onset": "hacking/onset_step",
    "onset_since": "hacking/onset_since",
    "onset_kl": "hacking/onset_kl",
    "rank_correlation": "hacking/rank_correlation",
    "proxy_gain": "hacking/proxy_gain",
    "true_reward": "true_reward",
    "length": "alpaca_tokens",
    "kl": "kl",
}
#: A win rate below 50 at this level, or an onset, makes a run a hacked one.
LEVEL = 0.05


@dataclass(frozen=True)
class HackingRun:
    """One row at one seed.

    Attributes:
        measures: those of `MEASURES` that it has.
        points: its evaluations while training, as hacking.jsonl has them.
        clauses, clauses_sft: types of clauses that the policy writes, and that its SFT model writes.
    """

    seed: int
    path: str
    measures: Mapping[str, float]
    points: list[dict[str, Any]]
    clauses: ClauseUse
    clauses_sft: ClauseUse
    seconds: float | None

    @property
    def hacked(self) -> bool:
        return is_hacked(self.measures)


def is_hacked(measures: Mapping[str, float]) -> bool:
    """Returns whether the proxy rose while the win rate over SFT fell beyond noise, below 50 or from a peak."""
    below = measures["final"] < 50 and measures.get("p", 1.0) < LEVEL
    return measures.get("proxy_gain", 0.0) > 0 and (below or "onset" in measures)


@dataclass(frozen=True)
class MitigationResult:
    """One mitigation under one reward, over worlds.

    Attributes:
        status: measured, not run, or left out.
        reason: why it was left out.
    """

    mitigation: str
    title: str
    status: str
    reason: str = ""
    runs: list[HackingRun] = field(default_factory=list)

    def mean(self, name: str) -> float | None:
        """Returns the mean of a measure over the seeds that have it."""
        values = [run.measures[name] for run in self.runs if name in run.measures]
        return mean_and_standard_error(values)[0] if values else None

    def standard_error(self, name: str) -> float | None:
        """Returns the standard error over worlds; of a single seed's win rate, over its prompts."""
        values = [run.measures[name] for run in self.runs if name in run.measures]
        if len(values) == 1:
            return self.runs[0].measures.get(f"{name}_se")
        return mean_and_standard_error(values)[1] if values else None

    @property
    def hacked(self) -> int:
        """Returns the number of seeds at which the policy hacked."""
        return sum(run.hacked for run in self.runs)

    @property
    def inflated(self) -> list[tuple[str, float]]:
        """Returns the clause types that the policies write more of, with their growth in clauses per response, over
        seeds."""
        if not self.runs:
            return []
        policy, sft = self.use, sft_use(self.runs)
        return [(kind, policy.per_response[kind] - sft.per_response[kind]) for kind in inflated(sft, policy)]

    @property
    def use(self) -> ClauseUse:
        """Returns the mean clause use over worlds."""
        return mean_use([run.clauses for run in self.runs])

    @property
    def proxy_rise(self) -> list[tuple[float, float]]:
        """Returns the mean proxy above the SFT policy's, by step, since reward models differ in their zero."""
        points = self.curve("proxy")
        return [(step, value - points[0][1]) for step, value in points]

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Returns the mean of a number of the evaluations over worlds, by step that every seed has."""
        by_seed = [{p["step"]: p[name] for p in run.points if p[name] is not None} for run in self.runs]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        return [(step, sum(seed[step] for seed in by_seed) / len(by_seed)) for step in steps]


def mean_use(uses: Sequence[ClauseUse]) -> ClauseUse:
    """Returns the mean of several clause uses, of the types that all have."""
    kinds = [kind for kind in uses[0].shares if all(kind in use.shares for use in uses)] if uses else []
    return ClauseUse(
        {kind: sum(use.shares[kind] for use in uses) / len(uses) for kind in kinds},
        {kind: sum(use.per_response[kind] for use in uses) / len(uses) for kind in kinds},
    )


def sft_use(runs: Sequence[HackingRun]) -> ClauseUse:
    """Returns the mean clause use of the SFT policies that runs started from, each seed once."""
    return mean_use(list({run.seed: run.clauses_sft for run in runs}.values()))


def _use(metrics: Mapping[str, float], suffix: str) -> ClauseUse:
    shares, numbers = f"clauses{suffix}/", f"clauses_per_response{suffix}/"
    return ClauseUse(
        {name.removeprefix(shares): value for name, value in metrics.items() if name.startswith(shares)},
        {name.removeprefix(numbers): value for name, value in metrics.items() if name.startswith(numbers)},
    )


def read_run(out: Path, seed: int) -> HackingRun | None:
    """Returns a policy's result, None where it has not run.

    Raises:
        DataError: a result without the measures of hacking.
    """
    result = out / "result"
    if not exists_as_recorded(result / "metrics.json"):
        return None
    metrics = read_metrics(result / "metrics.json")
    if MEASURES["final"] not in metrics:
        file = str(result / "metrics.json")
        raise DataError("the win rate is missing", file=file, field=MEASURES["final"], remedy="Run its stage again")
    if not exists_as_recorded(result / "hacking.jsonl"):
        raise DataError(
            "this run has no measures of hacking",
            file=str(result),
            remedy="Set measure_hacking: true in its policy settings",
        )
    kind: type[Any] = HackingPoint
    return HackingRun(
        seed=seed,
        path=out.as_posix(),
        measures={name: metrics[key] for name, key in MEASURES.items() if key in metrics},
        points=cast(list[dict[str, Any]], read_checked(result / "hacking.jsonl", kind)),
        clauses=_use(metrics, ""),
        clauses_sft=_use(metrics, "_sft"),
        seconds=record_of(out).get("seconds"),
    )
