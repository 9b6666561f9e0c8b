"""Rows of your own study side by side, for studies without a published table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.graph.rows import load_rows
from tasks.params.pages import read_settings
from tasks.report.outputs import ResultTree, mean_and_standard_error

#: Stages whose metrics a row of each kind is compared by.
STAGE_OF = {"reward": "policy", "supervised": "policy", "raw": "sft"}


@dataclass(frozen=True)
class StudyRow:
    """One row: its title and, of each metric that every row has, the values by seed."""

    name: str
    title: str
    values: Mapping[str, Mapping[int, float]]


def compared_rows(root: Path, scale: str, study: str) -> list[StudyRow]:
    """Returns the rows of a study that were run, with the metrics that all of them have; constant ones are left out.

    Raises:
        RecipeError: no row was run.
    """
    results = root / "results" / scale
    seeds = sorted({int(path.name) for path in results.glob("*/*/*/[0-9]*")})
    metrics: dict[str, dict[int, Mapping[str, float]]] = {}
    titles = {}
    for name, row in load_rows(root, study).items():
        stage = STAGE_OF.get(row.kind, row.kind)
        group, of = ("shared", row.backbone) if row.kind == "raw" else (study, name)
        found = ResultTree(results, tuple(seeds)).outputs(group, stage, of) if seeds else {}
        if found:
            metrics[name] = {seed: output.metrics for seed, output in found.items()}
            titles[name] = str(read_settings(row.path.under(root)).get("title", name))
    if not metrics:
        raise RecipeError(f"no row of {study} was run to its end at scale {scale}: rewardsmith run {study}")
    every = [set(measured) for runs in metrics.values() for measured in runs.values()]
    common = sorted(set.intersection(*every))
    several = len(metrics) > 1
    kept = [name for name in common if not several or len({m[name] for r in metrics.values() for m in r.values()}) > 1]
    return [
        StudyRow(row, titles[row], {name: {seed: values[name] for seed, values in runs.items()} for name in kept})
        for row, runs in metrics.items()
    ]


def print_comparison(root: Path, scale: str, study: str) -> None:
    """Prints the metrics of a study's rows, a column each: mean and, over several seeds, standard error."""
    from rich.console import Console
    from rich.table import Table

    rows = compared_rows(root, scale, study)
    table = Table(title=f"{study} ({scale})", box=None, pad_edge=False, title_justify="left")
    table.add_column("metric", no_wrap=True)
    for row in rows:
        table.add_column(row.title, justify="right")
    for metric in rows[0].values:
        cells = []
        for row in rows:
            mean, error = mean_and_standard_error(list(row.values[metric].values()))
            cells.append(f"{mean:.4g}" + (f" ± {error:.2g}" if error is not None else ""))
        table.add_row(metric, *cells)
    console = Console()
    console.print(table)
    missing = sorted(set(load_rows(root, study)) - {row.name for row in rows})
    if missing:
        console.print(f"not run, or stopped: {', '.join(missing)}", style="dim")
