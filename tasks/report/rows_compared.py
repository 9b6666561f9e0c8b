"""Any rows beside each other, of one paper or several: values over worlds, differences to the first row, caveats.

A row's seed is its world (`tasks.report.worlds`). What makes rows unlike beside their recipes, such as other data,
another SFT model or judge, is said with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.graph.names import demo_elsewhere, papers_of_repository, run_options
from tasks.graph.rows import Row, row_addresses, row_named
from tasks.params.pages import read_settings
from tasks.report.games import BENCHMARK
from tasks.report.outputs import ResultTree, StageOutput, stage_record
from tasks.report.worlds import Comparison, Mean, compare, exploratory, mean_of
from tasks.running.doubtful_numbers import alarm_text, alarms_of

#: Stage whose result a row of each kind is compared by; `policy` of all others.
STAGES = {"raw": "sft"}
#: Metrics that are compared unless another is asked for: the first that every row has.
FIRST_CHOICES = (
    "win_rate_vs_sft", "judged_win_rate_vs_sft", "average", "reward_bench", "accuracy", "score/holistic",
)  # fmt: skip
#: Metrics by the headings that tables have for them.
HEADINGS = {"tokens": f"{BENCHMARK}_tokens"}
#: A prompt, and each row's answer to it.
SamePrompt = tuple[str, list[Mapping[str, Any]]]


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
        return all(metric in run.metrics for run in self.runs.values())

    def values(self, metric: str) -> dict[int, float]:
        """Returns a metric by seed, of the runs that have it."""
        return {seed: run.metrics[metric] for seed, run in self.runs.items() if metric in run.metrics}

    def mean(self, metric: str) -> Mean | None:
        """Returns the mean and, over several worlds, the standard error of a metric; None where no run has it."""
        return mean_of(self.runs, metric)

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
        rows: in the order in which they were named, the first one first.
        caveats: what else differs between the rows, and how strong the evidence is.
    """

    metric: str
    rows: tuple[RowRuns, ...]
    caveats: tuple[str, ...]

    @property
    def first(self) -> RowRuns:
        return self.rows[0]


def find_rows(root: Path, names: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the paper and name of each row, `row` or `<paper>/<row>`; a paper's or study's name is all its rows, in
    the order of its pages.

    Raises:
        RecipeError: an unknown row, one that several papers have, or one that is named twice.
    """
    known = {paper: list(row_addresses(root, paper)) for paper in papers_of_repository(root)}
    every = [(paper, row) for paper, rows in known.items() for row in rows]
    found: list[tuple[str, str]] = []
    for name in names:
        paper, _, row = name.rpartition("/")
        matches = [each for each in every if each[1] == row and paper in ("", each[0])]
        if not matches and name in known:
            found += [(name, row) for row in known[name]]
            continue
        if not matches:
            spelled = [f"{paper}/{row}" for paper, row in every] if paper else [row for _, row in every]
            raise RecipeError(f"unknown row '{name}'{hint(name, sorted({*spelled, *known}), more=3)}")
        if len(matches) > 1:
            several = ", ".join("/".join(each) for each in matches)
            raise RecipeError(f"several papers have a row '{name}'; name one of: {several}")
        found += matches
    if twice := next((each for each in found if found.count(each) > 1), None):
        raise RecipeError(f"row '{'/'.join(twice)}' is named twice; name each row once")
    return found


def stage_of(row: Row) -> tuple[str, str, str]:
    """Returns owner, kind and name of the stage whose result a row is compared by."""
    stage = STAGES.get(row.kind, "policy" if row.kind in ("reward", "supervised") else row.kind)
    return ("shared", stage, row.backbone) if row.kind == "raw" else (row.paper, stage, row.name)


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
        command = _run_commands(missing or names[:1], scale, seeds) + demo_elsewhere(root)
        named = ", ".join(address + _has_seeds(root, scale, address) for address in missing)
        what = f"no results of {named}" if missing else f"no row of {', '.join(names)} has results"
        raise RecipeError(f"{what} at {where}: {command}")
    return beside_first(rows, _metric(rows, metric))


def _has_seeds(root: Path, scale: str, address: str) -> str:
    """Returns the seeds at which a row has results, in brackets; empty without any."""
    paper, _, name = address.partition("/")
    there = ", ".join(map(str, row_runs(root, scale, paper, name).runs))
    return f" (has seed {there})" if there else ""


def _run_commands(names: Sequence[str], scale: str, seeds: Sequence[int]) -> str:
    """Returns the commands that run rows, one for each paper."""
    by_paper: dict[str, list[str]] = {}
    for name in names:
        by_paper.setdefault(name.partition("/")[0], []).append(name)
    commands = [["rewardsmith run", *of, *run_options(scale, seeds)] for of in by_paper.values()]
    return " and ".join(" ".join(command) for command in commands)


def beside_first(rows: Sequence[RowRuns], metric: str) -> RowsCompared:
    """Returns rows with results, each but the first with its difference to the first."""
    first, values = rows[0], rows[0].values(metric)
    others = (
        replace(row, difference=compare(row.address, row.values(metric), first.address, values)) for row in rows[1:]
    )
    compared = (first, *others)
    return RowsCompared(metric, compared, tuple(_caveats(compared, metric)))


def metric_of(row: RowRuns) -> str | None:
    """Returns the metric that a row is compared by, which every run of it has; None without one."""
    return next((name for name in FIRST_CHOICES if row.runs and row.has(name)), None)


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


def same_prompts(rows: Sequence[RowRuns], count: int) -> list[SamePrompt]:
    """Returns prompts with every row's answer, of the first seed that all have: test prompts evenly drawn over how far
    apart the answers' true rewards are, or over their order where there are none."""
    found = _on_shared(rows, lambda run: [row for row in run.generations if row["benchmark"] == BENCHMARK])
    if all("true_reward" in answers[0] for _, answers in found):
        found.sort(key=lambda each: _spread([float(row.get("true_reward") or 0.0) for row in each[1]]))
    step = max(1, len(found) // max(1, count))
    return found[step // 2 :: step][:count]


def same_rollouts(rows: Sequence[RowRuns], count: int) -> list[SamePrompt]:
    """Returns prompts of the last rollouts that every row kept, each token with what the row's own reward paid."""

    def last(run: StageOutput) -> list[dict[str, Any]]:
        rollouts = run.rows("rollouts.jsonl")
        end = max((int(row["step"]) for row in rollouts), default=0)
        return [row for row in rollouts if int(row["step"]) == end]

    return _on_shared(rows, last)[:count]


def _on_shared(rows: Sequence[RowRuns], answers: Callable[[StageOutput], list[dict[str, Any]]]) -> list[SamePrompt]:
    """Returns the prompts that all rows have answered at the first seed that all have."""
    seeds = sorted(set.intersection(*(set(row.runs) for row in rows)))
    by_row = [{str(row["prompt"]): row for row in answers(each.runs[seeds[0]])} for each in rows] if seeds else []
    first = by_row[0] if by_row else {}
    return [(prompt, [of[prompt] for of in by_row]) for prompt in first if all(prompt in of for of in by_row)]


def _spread(rewards: Sequence[float]) -> float:
    return max(rewards) - min(rewards)


def _caveats(rows: Sequence[RowRuns], metric: str) -> list[str]:
    lines = []
    made_from: dict[str, Callable[[RowRuns], str]] = {
        "data": lambda row: _input(row, "data"),
        "an SFT model": lambda row: _input(row, "sft"),
        "a judge": lambda row: _judge(row, metric),
    }
    for what, of in made_from.items():
        found = {row.address: of(row) for row in rows}
        if len({*found.values()}) > 1:
            differing = "; ".join(f"{address}: {value}" for address, value in found.items())
            lines.append(f"Rows have {what} of their own ({differing}): differences are of that, too.")
    differences = [row.difference for row in rows]
    missing = dict.fromkeys(found.missing for found in differences if found and found.missing)
    apart = [row.address for row, found in zip(rows[1:], differences[1:], strict=True) if found is None]
    lines += [f"Not the same worlds: {text}." for text in missing]
    lines += [f"{address} shares no world with {rows[0].address}: no difference." for address in apart]
    if any(found and found.effect.worlds == 1 for found in differences):
        lines.append("One world says nothing about how much worlds differ: no interval. More: --seed on run.")
    if exploratory(seed for row in rows for seed in row.runs):
        lines.append("Exploratory: these seeds are not of a registered study.")
    return lines


def _input(row: RowRuns, mark: str) -> str:
    """Returns the names of the data or models that a row's runs are made from."""
    inputs = [Path(name).parts for run in row.runs.values() for name in stage_record(run.path).get("inputs", {})]
    return ", ".join(dict.fromkeys(parts[parts.index(mark) + 1] for parts in inputs if mark in parts)) or "not recorded"


def _judge(row: RowRuns, metric: str) -> str:
    judges = [run.win_rate_facts.get(metric, {}).get("judge") or "true rewards" for run in row.runs.values()]
    return ", ".join(dict.fromkeys(map(str, judges)))
