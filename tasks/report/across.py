"""Rows of all papers and studies side by side: what each gained over the SFT model that it started from.

Published tables compare rows of one paper; here the same gold judge measured everything on the same world, so rows of
different papers are in one table, one part for each SFT model. Rows of the hacking laboratory, whose annotators are
wrong on purpose, have a page of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.graph.rows import row_addresses
from tasks.params.pages import read_settings
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error
from tasks.report.records import record_of, run_anchor

LEFT_OUT = ("hackability",)
#: Metric -> heading, decimals.
COLUMNS = {
    "win_rate_vs_sft": ("win rate over SFT", 1),
    "ood_win_rate_vs_sft": ("out of distribution", 1),
    "true_reward": ("true reward", 2),
    "kl": ("KL", 2),
    "alpaca_tokens": ("tokens", 0),
}
FIRST = next(iter(COLUMNS))


@dataclass(frozen=True)
class RowOverWorlds:
    """A row over its worlds; a run's seed is its world.

    Attributes:
        cells: mean and, over several worlds, standard error of each of `COLUMNS`; None where it was not measured.
        runs: folder of the stage by seed.
    """

    group: str
    name: str
    title: str
    backbone: str
    cells: dict[str, tuple[float, float | None] | None]
    runs: dict[str, str]

    @property
    def anchor(self) -> str:
        return run_anchor(self.group, "policy", self.name, next(iter(self.runs)))


def across(results: Path) -> dict[str, list[RowOverWorlds]]:
    """Returns every policy whose true win rate was measured, by SFT model, the best first."""
    found: dict[str, list[RowOverWorlds]] = {}
    for folder in sorted(results.glob("*/policy/*")):
        group, name = folder.parts[-3], folder.parts[-1]
        seeds = tuple(sorted(int(path.name) for path in folder.glob("[0-9]*")))
        if group in LEFT_OUT or not seeds:
            continue
        runs = ResultTree(results, seeds).outputs(group, "policy", name)
        if not runs or any(FIRST not in run.metrics for run in runs.values()):
            continue
        backbone = backbone_of(next(iter(runs.values())))
        if backbone is not None:
            cells = _measured(runs)
            paths = {str(seed): relative_path(run.path, results) for seed, run in runs.items()}
            row = RowOverWorlds(group, name, _title(results, group, name), backbone, cells, paths)
            found.setdefault(backbone, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: -(row.cells[FIRST] or (0.0, None))[0])
    return dict(sorted(found.items()))


def backbone_of(run: StageOutput) -> str | None:
    """Returns the SFT model that a policy started from, as its record says; None without a record."""
    inputs = record_of(run.path).get("inputs", {})
    return next((Path(name).parts[-3] for name in inputs if "/shared/sft/" in name), None)


def _measured(runs: dict[int, StageOutput]) -> dict[str, tuple[float, float | None] | None]:
    cells: dict[str, tuple[float, float | None] | None] = {}
    for metric in COLUMNS:
        values = [run.metrics[metric] for run in runs.values() if metric in run.metrics]
        cells[metric] = mean_and_standard_error(values) if len(values) == len(runs) else None
    return cells


def relative_path(path: Path, results: Path) -> str:
    """Returns a path below results/<scale>/ as tables name it: from the root of the tree."""
    return path.resolve().relative_to(results.resolve().parents[1]).as_posix()


def _title(results: Path, group: str, name: str) -> str:
    """Returns the row's title, by its page in the tree that holds the results."""
    root = results.parent.parent
    address = row_addresses(root, group).get(name)
    return name if address is None else str(read_settings(address.under(root)).get("title", name))
