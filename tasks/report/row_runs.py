"""Rows with their finished runs, each beside the first of some rows, or beside its baseline where a run ends.

A row's seed is its world (`tasks.report.worlds`). What makes rows unlike beside their recipes, such as other data,
another SFT model or judge, is said with the numbers.

A row's baseline is the main row of the first published table that has the row; an SFT model is its own. Of other rows
it is the first variant under the same prefix on a settings page of variants, and the first row of the same kind and
backbone on another page.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.graph.names import demo_elsewhere, find_rows, run_options
from tasks.graph.results import DIVERGED_FILE, stopped
from tasks.graph.rows import RowSpec, backbone_names, row_addresses, row_named
from tasks.graph.scale import Scale
from tasks.params.pages import read_page, read_settings
from tasks.params.stages import RowsAndSeeds
from tasks.report.games import BENCHMARK
from tasks.report.outputs import ResultTree, StageOutput, overlap_in_words
from tasks.report.worlds import Comparison, compare, exploratory
from tasks.running.artifacts import read_object, stage_record
from tasks.running.doubtful_numbers import alarm_text, alarms_of
from tasks.running.platform_state import read_private
from tasks.studies.world_record import STAGE_FAILED

WIN_RATE = "win_rate_vs_sft"
#: Metrics that are compared unless another is asked for: the first that every row has.
FIRST_CHOICES = (WIN_RATE, "judged_win_rate_vs_sft", "average", "reward_bench", "accuracy", "score/holistic")
#: Metrics by the headings that tables have for them.
HEADINGS = {"tokens": f"{BENCHMARK}_tokens"}
#: Settings in which a row and the first row of its page agree.
ALIKE = ("kind", "backbone")
#: Folder of the notes that failed stages leave until they succeed.
FAILURES = Path(".work") / "failures"


@dataclass(frozen=True)
class RowRuns:
    """A row and its finished runs.

    Attributes:
        address: `<paper>/<row>`.
        title: of the row.
        runs: by seed.
        difference: in the metric that is compared, to the first of the rows; None of the first one, or without a world
            that both have.
    """

    address: str
    title: str
    runs: Mapping[int, StageOutput]
    difference: Comparison | None = None

    @property
    def paper(self) -> str:
        return self.address.partition("/")[0]

    @property
    def name(self) -> str:
        return self.address.partition("/")[2]

    def has(self, metric: str) -> bool:
        """Returns whether every run has a metric."""
        return bool(self.runs) and all(metric in run.metrics for run in self.runs.values())

    def values(self, metric: str) -> dict[int, float]:
        """Returns a metric by seed, of the runs that have it."""
        return {seed: run.metrics[metric] for seed, run in self.runs.items() if metric in run.metrics}

    @property
    def alarms(self) -> dict[int, str]:
        """Returns the kinds and steps of the hacking alarms by seed, of the runs with any."""
        texts = {seed: alarm_text(alarms_of(run.result)) for seed, run in self.runs.items()}
        return {seed: text for seed, text in texts.items() if text}


@dataclass(frozen=True)
class RowsCompared:
    """Rows beside the first of them.

    Attributes:
        metric: that is compared.
        rows: in the order in which they were named.
        caveats: what else differs between the rows, and how strong the evidence is.
    """

    metric: str
    rows: tuple[RowRuns, ...]
    caveats: tuple[str, ...]


def stage_of(row: RowSpec) -> tuple[str, str, str]:
    """Returns owner, kind and name of the stage whose result a row is compared by."""
    if row.kind == "raw":
        return "shared", "sft", row.backbone
    return row.paper, "policy" if row.kind in ("reward", "supervised") else row.kind, row.name


def row_runs(root: Path, scale: str, paper: str, name: str, seeds: Sequence[int] = ()) -> RowRuns:
    """Returns a row with its finished runs, of some seeds or of all that there are."""
    row = row_named(root, paper, name)
    results, (group, stage, of) = root / "results" / scale, stage_of(row)
    there = sorted(int(path.name) for path in (results / group / stage / of).glob("[0-9]*"))
    chosen = tuple(seed for seed in there if not seeds or seed in seeds)
    runs = ResultTree(results, chosen).outputs(group, stage, of) if chosen else {}
    title = str(read_settings(row.path.under(root)).get("title", name))
    return RowRuns(f"{paper}/{name}", title, runs)


def compare_rows(
    root: Path, scale: str, names: Sequence[str], *, metric: str | None = None, seeds: Sequence[int] = ()
) -> RowsCompared:
    """Returns rows beside the first one.

    Args:
        root: the repository.
        scale: whose results are read.
        names: rows (`find_rows`); of a paper or study, its rows with results.
        metric: that is compared; the first of `FIRST_CHOICES` that every row has unless given.
        seeds: the worlds that count; every one that was run unless given.

    Raises:
        RecipeError: an unknown row, a row without results, or a metric that none or not every row has.
    """
    rows = [row_runs(root, scale, paper, name, seeds) for paper, name in find_rows(root, names)]
    asked = {name.rpartition("/")[2] for name in names}
    rows = [row for row in rows if row.runs or row.name in asked]
    missing = [row.address for row in rows if not row.runs]
    if missing or not rows:
        where = f"scale {scale}" + "".join(f", seed {seed}" for seed in seeds)
        what = f"no row of {', '.join(names)} has results"
        if missing:
            what = f"no results of {', '.join(address + _other_seeds(root, scale, address) for address in missing)}"
        by_paper: dict[str, list[str]] = {}
        for name in missing or names[:1]:
            by_paper.setdefault(name.partition("/")[0], []).append(name)
        commands = (" ".join(["rewardsmith run", *of, *run_options(scale, seeds)]) for of in by_paper.values())
        raise RecipeError(f"{what} at {where}: {' and '.join(commands)}{demo_elsewhere(root)}")
    return beside_first(rows, _metric(rows, metric))


def _other_seeds(root: Path, scale: str, address: str) -> str:
    """Returns the seeds at which a row has results, in brackets; empty without any."""
    paper, _, name = address.partition("/")
    there = ", ".join(map(str, row_runs(root, scale, paper, name).runs))
    return f" (has seed {there})" if there else ""


def beside_first(rows: Sequence[RowRuns], metric: str) -> RowsCompared:
    """Returns rows with results, each but the first with its difference to the first."""
    first, values = rows[0], rows[0].values(metric)
    others = [
        replace(row, difference=compare(row.address, row.values(metric), first.address, values)) for row in rows[1:]
    ]
    return RowsCompared(metric, (first, *others), tuple(_caveats(first, others, metric)))


def metric_of(row: RowRuns) -> str | None:
    """Returns the metric that a row is compared by, which every run of it has; None without one."""
    return next(filter(row.has, FIRST_CHOICES), None)


def _metric(rows: Sequence[RowRuns], asked: str | None) -> str:
    common = set.intersection(*(set(run.metrics) for row in rows for run in row.runs.values()))
    if asked not in common:
        asked = HEADINGS.get(asked or "", asked)
    if asked is not None and asked not in common:
        without = [row.address for row in rows if not row.has(asked)]
        near = hint(asked, sorted(common), more=5)
        raise RecipeError(f"metric '{asked}' is missing of {', '.join(without)}{near}")
    found = asked or next((name for name in FIRST_CHOICES if name in common), None)
    if found is None:
        raise RecipeError(
            f"the rows share none of {', '.join(FIRST_CHOICES)}; name a metric by --metric, of "
            f"{', '.join(sorted(common)[:8]) or 'none: they have no metric in common'}"
        )
    return found


def _caveats(first: RowRuns, others: Sequence[RowRuns], metric: str) -> Iterator[str]:
    made_from: dict[str, Callable[[StageOutput], Sequence[str]]] = {
        "data": lambda run: _inputs(run, "data"),
        "an SFT model": lambda run: _inputs(run, "sft"),
        "a judge": lambda run: [str(run.win_rate_facts.get(metric, {}).get("judge") or "true rewards")],
    }
    rows = [first, *others]
    for what, of in made_from.items():
        names = [dict.fromkeys(name for run in row.runs.values() for name in of(run)) for row in rows]
        found = {row.address: ", ".join(own) or "not recorded" for row, own in zip(rows, names, strict=True)}
        if len({*found.values()}) > 1:
            differing = "; ".join(f"{address}: {value}" for address, value in found.items())
            yield f"Rows have {what} of their own ({differing}): differences are of that, too."
    overlaps = [text for row in rows for run in row.runs.values() for text in _overlaps(run)]
    yield from (f"{text}: numbers measured on them are too good." for text in dict.fromkeys(overlaps))
    differences = [row.difference for row in others if row.difference is not None]
    yield from dict.fromkeys(f"Not the same worlds: {found.missing}." for found in differences if found.missing)
    apart = (row.address for row in others if row.difference is None)
    yield from (f"{address} shares no world with {first.address}: no difference." for address in apart)
    if any(found.effect.worlds == 1 for found in differences):
        yield "One world says nothing about how much worlds differ: no interval. More: --seed on run."
    if exploratory(seed for row in rows for seed in row.runs):
        yield "Exploratory: these seeds are not of a registered study."


def _inputs(run: StageOutput, kind: str) -> list[str]:
    """Returns the names of the data or models that a run is made from."""
    inputs = [Path(name).parts for name in stage_record(run.path).get("inputs", {})]
    return [parts[parts.index(kind) + 1] for parts in inputs if kind in parts]


def _overlaps(run: StageOutput) -> list[str]:
    """Returns what of the held-out data of a run is trained on."""
    root = run.path.parents[5]  # results/<scale>/<paper>/<kind>/<row>/<seed>
    read = [root / name / "data.json" for name in stage_record(run.path).get("inputs", {})]
    return [text for file in read if file.is_file() for text in overlap_in_words(read_object(file))]


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
