"""Rows of all papers and studies side by side: what each gained over the SFT model that it started from.

Published tables compare rows of one paper. Here one table compares rows of all papers, because one judge, which
knows the true rewards, judged all of them, in each world on the same prompts. The table has a part for each SFT model.
It leaves out the rows of `hackability`, whose annotators are biased on purpose and which are shown apart, and those of
the demo, unless a row of the user's own starts from its SFT model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.graph.items import sft_name
from tasks.graph.names import DEMO_PAPER
from tasks.graph.rows import row_addresses
from tasks.params.pages import read_settings
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error
from tasks.report.records import run_anchor, stage_record

LEFT_OUT = "hackability"
#: Metric -> heading, decimals.
COLUMNS = {
    "win_rate_vs_sft": ("win rate over SFT", 1),
    "ood_win_rate_vs_sft": ("out of distribution", 1),
    "true_reward": ("true reward", 2),
    "kl": ("KL", 2),
    "alpaca_tokens": ("tokens per answer", 0),
}
#: Rows are sorted by this metric, the best first.
SORT_METRIC = "win_rate_vs_sft"


@dataclass(frozen=True)
class RowOverWorlds:
    """A row of one paper or study, with its metrics over its worlds (a world is all that is drawn from one seed).

    Attributes:
        group: the paper or study.
        name, title: of the row.
        sft_model: name of the SFT model that the row started from.
        cells: mean and, over several worlds, standard error of each of `COLUMNS`; None where it was not measured.
        runs: folder of the `policy` stage by seed.
    """

    group: str
    name: str
    title: str
    sft_model: str
    cells: dict[str, tuple[float, float | None] | None]
    runs: dict[str, str]

    @property
    def anchor(self) -> str:
        """Returns the id of the row's first run on the page, which its cells link to."""
        return run_anchor(self.group, "policy", self.name, next(iter(self.runs)))


def rows_by_sft_model(results: Path) -> dict[str, list[RowOverWorlds]]:
    """Returns the rows whose win rate over the SFT model is measured in every world, by SFT model, the best first."""
    found: dict[str, list[RowOverWorlds]] = {}
    for folder in sorted(results.glob("*/policy/*")):
        group, name = folder.parts[-3], folder.parts[-1]
        seeds = tuple(sorted(int(path.name) for path in folder.glob("[0-9]*")))
        if group == LEFT_OUT or not seeds:
            continue
        runs = ResultTree(results, seeds).outputs(group, "policy", name)
        if not runs or any(SORT_METRIC not in run.metrics for run in runs.values()):
            continue
        sft_model = sft_model_of(next(iter(runs.values())))
        if sft_model is not None:
            cells = _measured(runs)
            paths = {str(seed): relative_path(run.path, results) for seed, run in runs.items()}
            row = RowOverWorlds(group, name, _title(results, group, name), sft_model, cells, paths)
            found.setdefault(sft_model, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: -(row.cells[SORT_METRIC] or (0.0, None))[0])
    return {model: rows for model, rows in sorted(found.items()) if any(row.group != DEMO_PAPER for row in rows)}


def sft_model_of(run: StageOutput) -> str | None:
    """Returns the name of the SFT model that a policy started from, from its record's inputs; None without a record."""
    inputs = stage_record(run.path).get("inputs", {})
    return next((sft_name(Path(name)) for name in inputs if "/shared/sft/" in name), None)


def _measured(runs: dict[int, StageOutput]) -> dict[str, tuple[float, float | None] | None]:
    cells: dict[str, tuple[float, float | None] | None] = {}
    for metric in COLUMNS:
        values = [run.metrics[metric] for run in runs.values() if metric in run.metrics]
        cells[metric] = mean_and_standard_error(values) if len(values) == len(runs) else None
    return cells


def relative_path(path: Path, results: Path) -> str:
    """Returns a path below results/<scale>/ relative to the root of the tree, as in tables."""
    return path.resolve().relative_to(results.resolve().parents[1]).as_posix()


def _title(results: Path, group: str, name: str) -> str:
    """Returns the row's title in its settings page, below params/ of the tree that holds the results; else its name."""
    root = results.parent.parent
    address = row_addresses(root, group).get(name)
    return name if address is None else str(read_settings(address.under(root)).get("title", name))
