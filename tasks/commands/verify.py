"""The demo's results against the committed reference, within stated tolerances.

    python -m tasks.commands.verify                       compares results/testbed with reference/demo.json
    python -m tasks.commands.verify --write-reference     makes the reference from these results

Another CPU rounds differently, and training amplifies that: a metric agrees when |measured - reference| is at
most its absolute tolerance, which `tolerances` in the reference names by pattern (the first that fits counts).
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.params.settings import ROOT_SCALE
from tasks.params.yaml_files import read_mapping
from tasks.report.measurements import JOINT_METRICS
from tasks.running.artifacts import read_json, write_json

REFERENCE = Path("reference/demo.json")
#: Absolute tolerance by metric-name pattern, in the metric's unit; the first that fits counts.
TOLERANCES: Mapping[str, float] = {
    "*_se": 10.0,
    "accuracy": 0.05,
    "bayes_ceiling": 0.02,
    "fidelity_*": 0.15,
    "ece": 0.1,
    "loss": 0.1,
    "validation_nll": 0.1,
    "win_rate_vs_sft": 15.0,
    "ood_win_rate_vs_sft": 15.0,
    "alpaca_wr": 15.0,
    "arena_wr*": 15.0,
    "mtbench": 1.0,
    "mtbench_turn*": 1.0,
    "entropy*": 0.15,
    "table-*lc*": 15.0,
}
#: Kinds of stages whose metrics the reference keeps; of the tables, the metrics that no single run has.
KINDS = ("sft", "reward_model", "aspect_model", "selection", "policy", "tables-demo")


@dataclass(frozen=True)
class CheckedMetric:
    """One metric of one stage beside its reference; `measured` is None where it is missing."""

    stage: str
    metric: str
    reference: float
    measured: float | None
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.measured is not None and abs(self.measured - self.reference) <= self.tolerance


def demo_outputs(root: Path) -> dict[str, Path]:
    """Directories of the demo's trained models and tables by path below results/testbed."""
    outs = [str(Path(stage["outs"][0]).parent) for stage in read_mapping(root / "dvc.yaml")["stages"].values()]
    base = Path("results") / ROOT_SCALE
    return {str(Path(o).relative_to(base)): root / o for o in sorted(outs) if Path(o).parts[3] in KINDS}


def own_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns a stage's metrics without those that tables repeat from their runs: 'table-1/segment/0/alpaca_lc'
    stays."""

    def repeated(name: str) -> bool:
        parts = name.split("/")
        return name.startswith(("table-", "verdicts/")) and not (len(parts) == 4 and parts[3] in JOINT_METRICS)

    return {name: value for name, value in metrics.items() if not repeated(name)}


def tolerance(metric: str, tolerances: Mapping[str, float]) -> float | None:
    """Returns the metric's absolute tolerance, or None when no pattern names it (then it is not compared)."""
    return next((value for pattern, value in tolerances.items() if fnmatch(metric, pattern)), None)


def compare(reference: Mapping[str, Any], outputs: Mapping[str, Path]) -> list[CheckedMetric]:
    """Returns every metric of the reference that has a tolerance, beside what was measured."""
    found = []
    for stage, metrics in reference["stages"].items():
        path = outputs.get(stage, Path("missing")) / "result" / "metrics.json"
        measured = read_json(path) if path.exists() else {}
        for name, value in metrics.items():
            allowed = tolerance(name, reference["tolerances"])
            if allowed is not None:
                found.append(CheckedMetric(stage, name, value, measured.get(name), allowed))
    return found


def make_reference(root: Path) -> dict[str, Any]:
    """Returns the reference from the results that lie here.

    Raises:
        DataError: a stage of the demo has no result.
    """
    stages = {}
    for name, out in demo_outputs(root).items():
        metrics = own_metrics(read_json(out / "result" / "metrics.json"))
        known = {key: value for key, value in metrics.items() if tolerance(key, TOLERANCES) is not None}
        stages[name] = dict(sorted(known.items()))
    machine = {"python": platform.python_version(), "system": platform.platform(), "cpu": platform.machine()}
    return {"made_on": machine, "tolerances": dict(TOLERANCES), "stages": stages}


def _print(comparisons: Iterable[CheckedMetric]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Demo against the committed reference", caption="largest deviation of each metric")
    for column in ("metric", "values", "agree", "largest deviation", "tolerance", "where"):
        table.add_column(column, justify="left" if column in ("metric", "where") else "right", overflow="fold")
    by_metric: dict[str, list[CheckedMetric]] = {}
    for comparison in comparisons:
        by_metric.setdefault(comparison.metric.rpartition("/")[2], []).append(comparison)
    for metric, members in sorted(by_metric.items()):
        worst = max(members, key=lambda c: float("inf") if c.measured is None else abs(c.measured - c.reference))
        gap = "missing" if worst.measured is None else f"{worst.measured - worst.reference:+.4f}"
        agree = sum(c.agrees for c in members)
        style = None if agree == len(members) else "red"
        where = " ".join(filter(None, [worst.stage, worst.metric.rpartition("/")[0]]))
        table.add_row(metric, str(len(members)), str(agree), gap, f"{worst.tolerance:g}", where, style=style)
    Console().print(table)


def verify(root: Path) -> list[CheckedMetric]:
    """Prints the comparison and returns the deviations.

    Raises:
        DataError: there is no reference.
    """
    if not (root / REFERENCE).exists():
        raise DataError(
            "there is no reference", file=str(REFERENCE), remedy="Make one: rewardsmith verify --write-reference"
        )
    comparisons = compare(read_json(root / REFERENCE), demo_outputs(root))
    _print(comparisons)
    return [c for c in comparisons if not c.agrees]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.commands.verify", description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    parser.add_argument("--write-reference", action="store_true", help="make the reference from these results")
    options = parser.parse_args(arguments)
    try:
        if options.write_reference:
            (options.root / REFERENCE).parent.mkdir(exist_ok=True)
            write_json(options.root / REFERENCE, make_reference(options.root))
            print(f"wrote {options.root / REFERENCE}")
            return 0
        deviations = verify(options.root)
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for c in deviations:
        measured = "missing" if c.measured is None else f"{c.measured:.4f}"
        print(f"{c.stage}: {c.metric} is {measured}, reference {c.reference:.4f} ± {c.tolerance:g}")
    print(f"{len(deviations)} deviation(s)" if deviations else "the demo agrees with the reference")
    return 1 if deviations else 0


if __name__ == "__main__":
    sys.exit(main())
