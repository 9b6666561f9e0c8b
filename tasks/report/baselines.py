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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.graph.results import DIVERGED_FILE, stopped
from tasks.graph.rows import backbone_names, papers, row_addresses, row_named
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


@dataclass(frozen=True)
class StageFailure:
    """A failed stage.

    Attributes:
        message: of its error, in the stage's own words.
        log: its log file, below the repository.
    """

    message: str
    log: str


@dataclass(frozen=True)
class RowGroup:
    """Rows with the same baseline and metric.

    Attributes:
        baseline: `<paper>/<row>`.
        compared: the baseline first, where it is compared by the same metric.
    """

    baseline: str
    compared: RowsCompared

    @property
    def has_baseline(self) -> bool:
        return self.compared.first.address == self.baseline


@dataclass(frozen=True)
class RunEnd:
    """Content of the summary at the end of a run.

    Attributes:
        groups: rows with a metric to compare.
        without: reason why a row has no result, or none to compare, by `<paper>/<row>`.
        failed: for each row of `without` that a failed stage kept from a result, that stage's failure.
        beside: a row with results that the first row may be compared with, where no row has another beside it; else
            None.
    """

    groups: tuple[RowGroup, ...]
    without: Mapping[str, str]
    failed: Mapping[str, StageFailure] = field(default_factory=dict)
    beside: str | None = None


def run_end(root: Path, scale: str, asked: Mapping[str, RowsAndSeeds], *, began: float = math.inf) -> RunEnd:
    """Returns rows beside their baselines, over the seeds asked for.

    Args:
        root: the repository.
        scale: whose results are read.
        asked: rows and seeds by paper. SFT models are left out where other rows are asked for, too: the others' win
            rates are over them.
        began: time of the run, in seconds since the epoch; only stages that have failed since then are failed.
    """
    groups: list[RowGroup] = []
    without: dict[str, str] = {}
    failed: dict[str, StageFailure] = {}
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
                failed[row.address], without[row.address] = failure, f"failed: {failure.message}"
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
            groups.append(RowGroup(first.address, beside_first([*first_if_measured, *others], metric)))
    lone = groups[0] if groups and all(len(group.compared.rows) == 1 for group in groups) else None
    beside = _row_beside(root, scale, lone.compared.first, lone.compared.metric) if lone is not None else None
    return RunEnd(tuple(groups), without, failed, beside)


def _row_beside(root: Path, scale: str, row: RowRuns, metric: str) -> str | None:
    """Returns another row that starts from the same SFT model and has the same metric at one of a row's seeds: of the
    row's own paper, else of any other. None where there is none."""
    own_paper, name = row.paper, row.name
    backbone, seeds = row_named(root, own_paper, name).backbone, tuple(row.runs)
    for paper in dict.fromkeys([own_paper, *papers(root)]):
        # trained rows of every kind have their results in "policy", supervised ones too
        trained = {path.name for path in (root / "results" / scale / paper / "policy").glob("*")}
        for other, address in row_addresses(root, paper).items():
            if (paper, other) == (own_paper, name) or other not in trained:
                continue
            if read_settings(address.under(root)).get("backbone") == backbone:
                found = row_runs(root, scale, paper, other, seeds)
                if found.values(metric).keys() & row.values(metric).keys():  # a seed that both have
                    return found.address
    return None


def _failed_above(
    root: Path, scale: str, row: RowRuns, seeds: Sequence[int], failures: Mapping[str, StageFailure]
) -> StageFailure | None:
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


def failures_since(tree: Path, began: float) -> dict[str, StageFailure]:
    """Returns the stages that have failed since a time, in seconds since the epoch, by output directory."""
    notes = map(read_private, sorted((tree / FAILURES).glob("*.json")))
    # a note's time is in whole seconds, so that of a failure may be before `began` by less than one
    return {str(note.get("out")): _failure(note) for note in notes if _seconds(note.get("time")) + 1 > began}


def _failure(note: Mapping[str, Any]) -> StageFailure:
    message = STAGE_FAILED.sub("", str(note.get("message", "its note has no message")))
    return StageFailure(message, str(note.get("log", ".work/logs/")))


def _seconds(written: Any) -> float:
    """Returns the seconds since the epoch of a note's time, long ago for anything else."""
    try:
        return calendar.timegm(time.strptime(str(written), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return -math.inf
