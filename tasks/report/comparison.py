"""Any rows beside the first of them, of one paper or several: values over worlds, differences, curves and texts.

A row's seed is its world (`tasks.report.worlds`). What makes rows unlike beside their recipes, such as other data,
another SFT model or judge, is said with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, hint
from tasks.graph.names import demo_elsewhere, papers_of_repository, run_options
from tasks.graph.rows import RowSpec, row_addresses, row_named
from tasks.params.pages import read_settings
from tasks.report.charts import panels_svg
from tasks.report.colour import coloured_tokens, pieces, scale_legend
from tasks.report.figure_data import Panel, Series, curve, points_series
from tasks.report.games import BENCHMARK
from tasks.report.outputs import ResultTree, StageOutput, stage_record
from tasks.report.page import Bullets, Passage, Passages, Picture, ReportPage, Section, Text, write_page
from tasks.report.paper_tables import PERCENT_RANGE
from tasks.report.table import (
    ShownTable,
    TableCell,
    TableColumn,
    TableRow,
    effect_text,
    format_number,
    number_cell,
    print_tables,
)
from tasks.report.worlds import Comparison, compare, exploratory, mean_of
from tasks.running.doubtful_numbers import alarm_text, alarms_of

#: Stage whose result a row of each kind is compared by; `policy` of all others.
STAGES = {"raw": "sft"}
WIN_RATE = "win_rate_vs_sft"
#: Metrics that are compared unless another is asked for: the first that every row has.
FIRST_CHOICES = (WIN_RATE, "judged_win_rate_vs_sft", "average", "reward_bench", "accuracy", "score/holistic")
#: Metrics by the headings that tables have for them.
HEADINGS = {"tokens": f"{BENCHMARK}_tokens"}
#: Metric, file, panel's title, unit.
CURVES = (
    (WIN_RATE, "checkpoints.jsonl", "Win rate over SFT", "%"),
    ("kl", "history.jsonl", "KL to the SFT model", "nats per response"),
    ("proxy", "history.jsonl", "Proxy reward of rollouts", "as the reward model scores"),
    ("reward", "history.jsonl", "Paid reward of rollouts", "after shaping"),
    ("response_length", "history.jsonl", "Length of rollouts", "tokens"),
    ("entropy", "history.jsonl", "Entropy", "nats per token"),
)
#: Prompts of each kind that are shown.
PROMPTS = 4
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
            matches = [(name, row) for row in known[name]]
        elif not matches:
            spelled = [f"{paper}/{row}" for paper, row in every] if paper else [row for _, row in every]
            raise RecipeError(f"unknown row '{name}'{hint(name, sorted({*spelled, *known}), more=3)}")
        elif len(matches) > 1:
            several = ", ".join("/".join(each) for each in matches)
            raise RecipeError(f"several papers have a row '{name}'; name one of: {several}")
        found += matches
    if twice := next((each for each in found if found.count(each) > 1), None):
        raise RecipeError(f"row '{'/'.join(twice)}' is named twice; name each row once")
    return found


def stage_of(row: RowSpec) -> tuple[str, str, str]:
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


# --- numbers


def compared_table(found: RowsCompared, *, titles: bool = True, most: int | None = None) -> ShownTable:
    """Returns rows beside the first one, without columns that no row has.

    Args:
        found: the rows.
        titles: whether rows are called by their titles, else by their names.
        most: rows that are shown; all of them unless given.
    """
    names = [row.title if titles else row.name for row in found.rows[:most]]
    headings = (
        found.metric.replace("_", " ").replace("/", " "),
        f"− {names[0]}, 95 %",
        "kl",
        "tokens",
        "worlds",
        "alarms",
    )
    lines = [_cells(row, found.metric) for row in found.rows[:most]]
    filled = [place for place in range(len(headings)) if place == 0 or any(cells[place].text for cells in lines)]
    rows = [
        TableRow(name, tuple(cells[place] for place in filled), (row.address,), main=row is found.rows[0])
        for name, row, cells in zip(names, found.rows, lines, strict=False)
    ]
    return ShownTable(tuple(TableColumn(headings[place]) for place in filled), tuple(rows))


def _cells(row: RowRuns, metric: str) -> list[TableCell]:
    def number(name: str, decimals: int) -> TableCell:
        mean = mean_of(row.runs, name)
        return number_cell(*mean, decimals) if mean else TableCell()

    own, worlds, alarms = number(metric, 1), len(row.runs), len(row.alarms)
    watched = alarms or mean_of(row.runs, "hacking_alarms")
    return [
        replace(own, text=f"{own.text} {own.error}".strip(), error=""),
        _difference(row.difference),
        replace(number("kl", 1), error=""),
        replace(number(f"{BENCHMARK}_tokens", 0), error=""),
        TableCell(str(worlds)),
        TableCell((f"{alarms} of {worlds}" if alarms else "none") if watched is not None else ""),
    ]


def _difference(found: Comparison | None) -> TableCell:
    if found is None:
        return TableCell()
    interval = found.effect.interval()
    bounds = None if interval is None else (interval.lower, interval.upper)
    return TableCell(effect_text(found.effect.estimate, bounds, 1))


def meanings(found: RowsCompared) -> list[str]:
    """Returns a line for each row but the first: what its difference means."""
    return [_meaning(row, row.difference) for row in found.rows if row.difference is not None]


def _meaning(row: RowRuns, found: Comparison) -> str:
    interval, side = found.effect.interval(), "above" if found.effect.estimate > 0 else "below"
    if interval is None:
        text = f"{side} in the only world; nothing is known beyond it"
    elif not interval.lower <= 0 <= interval.upper:
        text = f"{side}, its interval without 0 (one comparison, not corrected)"
    else:
        sees = found.effect.smallest_visible()
        many = sees is None or sees >= PERCENT_RANGE
        text = "undecided" if many else f"undecided: these worlds see differences above {sees:.1f}"
    return f"{row.title}: {text}{'; its alarm rang, read its answers first' if row.alarms else ''}."


def _alarm_lines(found: RowsCompared) -> list[str]:
    alarms = [(row.address, seed, text) for row in found.rows for seed, text in row.alarms.items()]
    return [f"Hacking alarm of {address} at seed {seed}: {text}" for address, seed, text in alarms]


def print_rows(
    root: Path, scale: str, names: Sequence[str], *, metric: str | None = None, seeds: Sequence[int] = ()
) -> RowsCompared:
    """Prints rows beside the first one: the metric, differences with 95 % intervals, KL, length, alarms and caveats.

    Raises:
        RecipeError: as `compare_rows`.
    """
    from rich.console import Console

    found = compare_rows(root, scale, names, metric=metric, seeds=seeds)
    console = Console(highlight=False, markup=False)
    print_tables(console, compared_table(found))
    if any(len(row.runs) > 1 for row in found.rows):
        console.print("± is a standard error, [..] a 95 % interval, both over worlds.", style="dim")
    for line in _alarm_lines(found):
        console.print(line, style="red")
    for line in (*meanings(found), *found.caveats):
        console.print(line)
    return found


# --- the page


def numbers(found: RowsCompared) -> list[Any]:
    """Returns the parts of a page with the rows' numbers, what they mean, and caveats."""
    says = meanings(found)
    return [
        *([Bullets(says, "meanings")] if says else []),
        compared_table(found),
        *(Text(line, "caveat alarm") for line in _alarm_lines(found)),
        *(Text(line, "caveat") for line in found.caveats),
    ]


def curves(found: RowsCompared, key: str = "compared") -> Picture | None:
    """Returns the rows' learning curves, a row one colour; None where no row has any."""
    panels = []
    for metric, file, title, unit in CURVES:
        rates = metric == WIN_RATE
        lines = [
            series
            for number, row in enumerate(found.rows)
            for series in points_series(row.title, curve(row.runs, metric, file=file), colour=number)
        ]
        if rates and lines:
            steps = [step for series in lines for step in series.x]
            lines.append(Series("SFT model", [min(steps), max(steps)], [50.0, 50.0], style="guide"))
        panels.append(Panel(title, "training step", unit, lines))
    caption = "Means over worlds; error bars and bands are one standard error."
    shown = [panel for panel in panels if panel.series]
    return Picture(panels_svg(key, "Learning curves", shown), caption) if shown else None


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
    by_row = [{str(row["prompt"]): row for row in answers(each.runs[seeds[0]])} for each in rows] if seeds else [{}]
    return [(prompt, [of[prompt] for of in by_row]) for prompt in by_row[0] if all(prompt in of for of in by_row)]


def _spread(rewards: Sequence[float]) -> float:
    return max(rewards) - min(rewards)


def _texts(rows: Sequence[RowRuns], found: Sequence[SamePrompt]) -> list[Passages]:
    """Returns the rows' answers side by side; those with rewards coloured by what each token was paid, on one scale for
    each row."""
    by_row = zip(*(answers for _, answers in found), strict=True)
    paid = [[abs(one) for answer in own for one in answer.get("rewards", ())] for own in by_row]
    scales = [max(own, default=0.0) or 1.0 for own in paid]
    titles = [row.title for row in rows]
    return [Passages(prompt, list(map(_passage, titles, answers, scales))) for prompt, answers in found]


def _passage(title: str, answer: Mapping[str, Any], scale: float) -> Passage:
    reward = answer.get("true_reward")
    true = "" if reward is None else f"true reward {format_number(reward, 2)}"
    if not answer.get("tokens"):
        return Passage(title, str(answer["response"]), true)
    coloured = coloured_tokens(pieces(answer["tokens"], answer["rewards"]), scale)
    return Passage(title, coloured, true, scale_legend(scale))


def comparison_page(found: RowsCompared) -> ReportPage:
    """Returns the page of some rows: numbers, curves, the same prompts answered by each, what each reward pays for."""
    rows = found.rows
    drawn = Text(
        "Drawn evenly over how far apart the answers' true rewards are, where they are known, from the first world "
        "that all rows have."
    )
    paid = Text(
        "Rollouts of the last step to the same prompts. Blue tokens are paid, orange ones cost; each row's colours "
        "have one scale, that of the rewards shown of it."
    )
    sections: list[Section] = []
    if (shown := curves(found)) is not None:
        sections.append(Section("Learning curves", "curves", (shown,), short="Curves"))
    if answers := _texts(rows, same_prompts(rows, PROMPTS)):
        sections.append(Section("The same test prompts", "answers", (drawn, *answers), short="Answers"))
    if rollouts := _texts(rows, same_rollouts(rows, PROMPTS)):
        sections.append(Section("What each reward pays for", "rollouts", (paid, *rollouts), short="Rewards"))
    names = [row.title for row in rows]
    return ReportPage(f"Rewardsmith · {', '.join(names)}", " · ".join(names), numbers(found), sections)


def write_comparison(found: RowsCompared, out: Path) -> Path:
    """Writes `<out>/compare.html`, whole or not at all; returns its path."""
    return write_page(comparison_page(found), out / "compare.html")
