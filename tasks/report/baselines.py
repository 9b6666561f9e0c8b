"""The rows that a run was asked for, each beside its baseline.

A row's baseline is the main row of the first published table that has the row; an SFT model is its own. Of other rows
it is the first variant under the same prefix on a settings page of variants, and the first row of the same kind and
backbone on another page.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.graph.results import DIVERGED_FILE, stopped
from tasks.graph.rows import backbone_names, row_addresses, row_named
from tasks.graph.scale import Scale
from tasks.params.pages import read_page, read_settings
from tasks.params.stages import RowsAndSeeds
from tasks.report.comparison import RowRuns, RowsCompared, beside_first, metric_of, row_runs, stage_of
from tasks.running.platform_state import read_private
from tasks.studies.world_record import STAGE_FAILED

#: Settings in which a row and the first row of its page agree.
ALIKE = ("kind", "backbone")
#: Folder of the notes that failed stages leave until they succeed.
FAILURES = Path(".work") / "failures"


def run_end(
    root: Path, scale: str, asked: Mapping[str, RowsAndSeeds], *, began: float = math.inf
) -> tuple[list[RowsCompared], dict[str, str]]:
    """Returns rows beside their baselines over the seeds asked for, and why other rows have no result to compare, by
    `<paper>/<row>`.

    Args:
        root: the repository.
        scale: whose results are read.
        asked: rows and seeds by paper. SFT models are left out where other rows are asked for, too: the others' win
            rates are over them.
        began: time of the run, in seconds since the epoch; only stages that have failed since then are failed.
    """
    groups: list[RowsCompared] = []
    without: dict[str, str] = {}
    failures, backbones = failures_since(root, began), backbone_names(root)
    for paper, part in asked.items():
        by_baseline: dict[tuple[str, str], list[RowRuns]] = {}
        for name in [name for name in part.rows if name not in backbones] or part.rows:
            row = row_runs(root, scale, paper, name, part.seeds)
            if metric := metric_of(row):
                by_baseline.setdefault((baseline(root, paper, name), metric), []).append(row)
            elif row.runs:
                without[row.address] = "its runs have no win rate, score, average of benchmarks or accuracy in common"
            else:
                without[row.address] = _why_no_result(root, scale, row, part, failures)
        for (main, metric), rows in by_baseline.items():
            first = row_runs(root, scale, paper, main, part.seeds)
            others = [row for row in rows if row.address != first.address]
            groups.append(beside_first([*([first] if metric_of(first) == metric else []), *others], metric))
    return groups, without


def baseline(root: Path, paper: str, name: str) -> str:
    """Returns the row of the same paper that a row is compared with; the row itself where it is the baseline."""
    addresses = row_addresses(root, paper)
    if name not in addresses:  # the SFT model, named by its backbone, which no page of rows has
        return name
    for table in printed_tables.paper(paper).tables if paper in printed_tables.PAPERS else ():
        if main := next((row.main for row in mapped_rows(table) if row.recipe and row.recipe.name == name), None):
            return main
    page = read_page(root / addresses[name].file)
    # a row of a page of variants is called <prefix>-<variant>
    if prefix := next((prefix for prefix in page.each if name.startswith(f"{prefix}-")), None):
        return f"{prefix}-{next(iter(page.entries))}"
    settings = {row: read_settings(addresses[row].under(root)) for row in page.names}
    alike = (row for row in page.names if all(settings[row].get(key) == settings[name].get(key) for key in ALIKE))
    return next(alike)


def _why_no_result(root: Path, scale: str, row: RowRuns, part: RowsAndSeeds, failures: Mapping[str, str]) -> str:
    """Returns why a row has no result at any of some seeds: it stopped, diverged, or a stage that it needs failed."""
    spec = row_named(root, row.paper, row.name)
    folder = (root / "results" / scale).joinpath(*stage_of(spec))
    for seed in part.seeds:
        if reason := stopped(folder / str(seed) / "result"):
            return f"stopped: {reason}"
        if (folder / str(seed) / DIVERGED_FILE).exists():
            return "diverged"
        needed = reversed(Scale(root, scale).row(spec, seed)) if failures else ()
        if failed := next((failures[item.out] for item in needed if item.out in failures), None):
            return f"failed: {failed}"
    return "not run"


def failures_since(tree: Path, began: float) -> dict[str, str]:
    """Returns the messages of stages that have failed since a time, in seconds since the epoch, by output directory."""
    if not math.isfinite(began):
        return {}
    found, since = {}, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    for note in map(read_private, sorted((tree / FAILURES).glob("*.json"))):
        if str(note.get("time")) >= since:
            message = STAGE_FAILED.sub("", str(note.get("message")))
            found[str(note.get("out"))] = f"{message} (log: {note.get('log', '.work/logs/')})"
    return found
