"""Rows beside the first of them: table, meanings, learning curves and texts, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.report.charts import panels_svg
from tasks.report.colour import coloured_tokens, pieces, scale_legend
from tasks.report.figure_data import Panel, Series, curve, curve_series
from tasks.report.page import Bullets, Passage, Passages, Picture, ReportPage, Section, Text, write_page
from tasks.report.paper_tables import PERCENT_RANGE, cannot_decide
from tasks.report.rows_compared import (
    FIRST_CHOICES,
    RowRuns,
    RowsCompared,
    SamePrompt,
    compare_rows,
    same_prompts,
    same_rollouts,
)
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow, format_number, print_tables

WIN_RATE = "win_rate_vs_sft"
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
#: Width of an interval from which on its bounds have no decimals.
WIDE_INTERVAL = 20


def _difference_text(row: RowRuns) -> str:
    """Returns a row's difference to the first with its 95 % interval, which one world has not."""
    if row.difference is None:
        return ""
    interval = row.difference.effect.interval()
    if interval is None:
        return f"{row.difference.effect.estimate:+.1f}"
    bounds = 1 if interval.upper - interval.lower < WIDE_INTERVAL else 0
    return f"{interval.estimate:+.1f} [{interval.lower:+.{bounds}f}, {interval.upper:+.{bounds}f}]"


def _mean_text(row: RowRuns, metric: str, decimals: int = 1, *, spread: bool = False) -> str:
    mean = row.mean(metric)
    if mean is None:
        return ""
    error = f" ±{mean[1]:.{decimals}f}" if spread and mean[1] is not None else ""
    return f"{format_number(mean[0], decimals)}{error}"


def compared_table(found: RowsCompared, *, titles: bool = True, most: int | None = None) -> ShownTable:
    """Returns rows beside the first one, without columns that no row has.

    Args:
        found: the rows.
        titles: whether rows are called by their titles, else by their names.
        most: rows that are shown; all of them unless given.
    """
    name = found.first.title if titles else found.first.name
    headings = (found.metric.replace("_", " ").replace("/", " "), f"− {name}, 95 %", "kl", "tokens", "worlds", "alarms")
    lines = [_cells(row, found.metric) for row in found.rows[:most]]
    filled = [place for place in range(len(headings)) if place == 0 or any(cells[place] for cells in lines)]
    rows = [
        TableRow(
            row.title if titles else row.name,
            tuple(TableCell(cells[place]) for place in filled),
            (row.address,),
            main=row is found.first,
        )
        for row, cells in zip(found.rows, lines, strict=False)
    ]
    return ShownTable(tuple(TableColumn(headings[place]) for place in filled), tuple(rows))


def _cells(row: RowRuns, metric: str) -> list[str]:
    worlds, alarms = len(row.runs), len(row.alarms)
    watched = alarms or row.mean("hacking_alarms") is not None
    return [
        _mean_text(row, metric, spread=True),
        _difference_text(row),
        _mean_text(row, "kl"),
        _mean_text(row, "alpaca_tokens", 0),
        str(worlds),
        (f"{alarms} of {worlds}" if alarms else "none") if watched else "",
    ]


def meanings(found: RowsCompared) -> list[str]:
    """Returns a line for each row but the first: what its difference means."""
    return [_meaning(row, found.metric) for row in found.rows if row.difference is not None]


def _meaning(row: RowRuns, metric: str) -> str:
    assert row.difference is not None
    effect = row.difference.effect
    interval, side = effect.interval(), "above" if effect.estimate > 0 else "below"
    if interval is None:
        text = f"{side} in the only world; nothing is known beyond it"
    elif not interval.lower <= 0 <= interval.upper:
        text = f"{side}, its interval without 0 (one comparison, not corrected)"
    else:
        sees = effect.smallest_visible()
        text = "undecided" if sees is None else f"undecided: these worlds see differences above {sees:.1f}"
        if metric in FIRST_CHOICES and sees is not None and sees >= PERCENT_RANGE:
            text = f"undecided: {cannot_decide(effect.worlds)}"
    alarm = "; its alarm rang, read its answers first" if row.alarms else ""
    return f"{row.title}: {text}{alarm}."


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


def curves(found: RowsCompared, key: str = "compared") -> Picture | None:
    """Returns the rows' learning curves, a row one colour; None where no row has any."""
    panels = []
    for metric, file, title, unit in CURVES:
        rates = metric == WIN_RATE
        lines = [
            series
            for number, row in enumerate(found.rows)
            for series in curve_series(row.title, curve(row.runs, metric, file=file, with_end=rates), colour=number)
        ]
        if rates and lines:
            steps = [step for series in lines for step in series.x]
            lines.append(Series("SFT model", [min(steps), max(steps)], [50.0, 50.0], style="guide"))
        panels.append(Panel(title, "training step", unit, lines))
    caption = "Means over worlds; error bars and bands are one standard error."
    drawn = any(panel.series for panel in panels)
    return Picture(panels_svg(key, "Learning curves", panels), caption) if drawn else None


def numbers(found: RowsCompared) -> list[Any]:
    """Returns the parts of a page with the rows' numbers, what they mean, and caveats."""
    says = meanings(found)
    return [
        *([Bullets(says, "meanings")] if says else []),
        compared_table(found),
        *(Text(line, "caveat alarm") for line in _alarm_lines(found)),
        *(Text(line, "caveat") for line in found.caveats),
    ]


def _texts(rows: Sequence[RowRuns], found: Sequence[SamePrompt]) -> list[Passages]:
    """Returns the rows' answers side by side; those with rewards coloured by what each token was paid, on one scale for
    each row."""
    paid = [
        [abs(one) for answer in answers for one in answer.get("rewards", ())]
        for answers in zip(*(of for _, of in found), strict=True)
    ]
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
