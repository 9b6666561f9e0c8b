"""The rows that a run was asked for, each beside its baseline.

Most published tables have a main row, with which their other rows are compared: their baseline. An SFT model is its
own baseline. For any other row it is, on a settings page of variants, the first variant under the same prefix. On
another page, of the rows of the same kind and backbone, it is the first, or the main row of a table that has one of
them. Of several, it is one that was asked for and has results, else the first with results at any seed, else the first.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.graph.results import DIVERGED_FILE, stopped
from tasks.graph.rows import backbone_names, row_addresses, row_named
from tasks.graph.scale import Scale
from tasks.params.pages import read_page, read_settings
from tasks.params.stages import RowsAndSeeds
from tasks.report.rows_compared import RowRuns, RowsCompared, beside_first, metric_of, row_runs, stage_of
from tasks.running.platform_state import read_private
from tasks.studies.world_record import STAGE_FAILED

NOT_RUN = "not run"
#: A row that no published table has is compared with rows of its page that have the same values of these settings,
#: unless the page is one of variants.
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
    failures = failures_since(root, began)
    backbones = backbone_names(root)
    for paper, part in asked.items():
        trained = [name for name in part.rows if name not in backbones] or part.rows
        runs = {name: row_runs(root, scale, paper, name, part.seeds) for name in trained}
        measured = {name for name, row in runs.items() if row.runs}
        lacking = [row for row in runs.values() if not row.runs]
        without |= {row.address: _reason(root, scale, row, part.seeds) for row in lacking}
        for row in lacking if failures else ():
            if without[row.address] == NOT_RUN and (failure := _failed_above(root, scale, row, part.seeds, failures)):
                without[row.address] = f"failed: {failure}"
        by_baseline: dict[tuple[str, str], list[RowRuns]] = {}
        for name, row in runs.items():
            if metric := metric_of(row):
                possible = baselines(root, paper, name)
                asked_for = next((other for other in possible if other in measured), None)
                baseline = asked_for or _with_results(root, scale, paper, possible) or possible[0]
                by_baseline.setdefault((baseline, metric), []).append(row)
            elif row.runs:
                without[row.address] = "its runs have no win rate, score, average of benchmarks or accuracy in common"
        for (baseline, metric), rows in by_baseline.items():
            first = row_runs(root, scale, paper, baseline, part.seeds)
            others = [row for row in rows if row.address != first.address]
            first_if_measured = [first] if metric_of(first) == metric else []
            groups.append(beside_first([*first_if_measured, *others], metric))
    return groups, without


def _failed_above(
    root: Path, scale: str, row: RowRuns, seeds: Sequence[int], failures: Mapping[str, str]
) -> str | None:
    """Returns the failure of a row's stage at any of some seeds, or of a stage above it."""
    # a row's own stage is the last of its stages
    stages = [item for seed in seeds for item in Scale(root, scale).row(row_named(root, row.paper, row.name), seed)]
    return next((failures[item.out] for item in reversed(stages) if item.out in failures), None)


def _with_results(root: Path, scale: str, paper: str, names: Sequence[str]) -> str | None:
    return next((name for name in names if row_runs(root, scale, paper, name).runs), None)


def baselines(root: Path, paper: str, name: str) -> tuple[str, ...]:
    """Returns the rows of the same paper that a row may be compared with; the row itself where it is the baseline."""
    addresses, mains_of = row_addresses(root, paper), _main_rows(paper)
    if name not in addresses:  # the SFT model, named by its backbone, which no page of rows has
        return (name,)
    if name in mains_of:
        return mains_of[name]
    own = read_settings(addresses[name].under(root))
    page = read_page(root / addresses[name].file)
    # a row of a page of variants is called <prefix>-<variant>
    if prefix := next((prefix for prefix in page.each if name.startswith(f"{prefix}-")), None):
        return (f"{prefix}-{next(iter(page.entries))}",)
    settings = {row: read_settings(addresses[row].under(root)) for row in page.names}
    alike = [row for row, other in settings.items() if all(other.get(key) == own.get(key) for key in ALIKE)]
    mains = [main for row in alike for main in mains_of.get(row, ())]
    return tuple(dict.fromkeys([alike[0], *mains]))


def _main_rows(paper: str) -> dict[str, tuple[str, ...]]:
    """Returns, for each row in a published table, the main rows that it is compared with; empty for a folder that is
    none of the five papers'."""
    if paper not in printed_tables.PAPERS:
        return {}
    found: dict[str, dict[str, None]] = {}
    for table in printed_tables.paper(paper).tables:
        for printed in mapped_rows(table):
            if printed.recipe is not None and printed.main:  # the row that reproduces the printed one, and its main row
                found.setdefault(printed.recipe.name, {})[printed.main] = None
    return {name: tuple(mains) for name, mains in found.items()}


def _reason(root: Path, scale: str, row: RowRuns, seeds: Sequence[int]) -> str:
    """Returns why a row has no result at any of some seeds."""
    folder = (root / "results" / scale).joinpath(*stage_of(row_named(root, row.paper, row.name)))
    for seed in seeds:
        if reason := stopped(folder / str(seed) / "result"):
            return f"stopped: {reason}"
        if (folder / str(seed) / DIVERGED_FILE).exists():
            return "diverged"
    return NOT_RUN


def failures_since(tree: Path, began: float) -> dict[str, str]:
    """Returns the messages of stages that have failed since a time, in seconds since the epoch, by output directory."""
    notes = map(read_private, sorted((tree / FAILURES).glob("*.json")))
    # a note's time is in whole seconds, so that of a failure may be before `began` by less than one
    return {str(note.get("out")): _failure(note) for note in notes if _seconds(note.get("time")) + 1 > began}


def _failure(note: Mapping[str, Any]) -> str:
    message = STAGE_FAILED.sub("", str(note.get("message", "its note has no message")))
    return f"{message} (log: {note.get('log', '.work/logs/')})"


def _seconds(written: Any) -> float:
    """Returns the seconds since the epoch of a note's time, long ago for anything else."""
    try:
        return calendar.timegm(time.strptime(str(written), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return -math.inf
