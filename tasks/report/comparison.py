"""Rows beside the first of them: table, meanings, learning curves and texts, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.params.metric_names import NAMES
from tasks.report.charts import panels_svg
from tasks.report.colour import coloured_tokens, scale_legend
from tasks.report.figure_data import FigureData, Panel, Series, curve_series, spread_note
from tasks.report.page import Bullets, Passage, Passages, Picture, ReportPage, Section, Text, write_page
from tasks.report.paper_tables import PERCENT_RANGE, cannot_decide
from tasks.report.rows_compared import (
    FIRST_CHOICES,
    ONE_WORLD,
    UNDECIDED,
    ComparedRow,
    RowRuns,
    RowsCompared,
    SamePrompt,
    compare_rows,
    same_prompts,
    same_rollouts,
    side_of,
)
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow, format_number, print_tables, simple_table

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
#: Prompts of each kind that are shown, and lines of the table of other metrics on a terminal.
PROMPTS, LINES = 4, 10
#: Width of an interval from which on its bounds have no decimals.
WIDE_INTERVAL = 20


def difference_text(row: ComparedRow, decimals: int = 1) -> str:
    """Returns a row's difference to the first with its 95 % interval, which one world has not."""
    if row.difference is None:
        return ""
    interval = row.difference.effect.interval()
    if interval is None:
        return f"{row.difference.effect.estimate:+.1f}"
    bounds = decimals if interval.upper - interval.lower < WIDE_INTERVAL else 0
    return f"{interval.estimate:+.{decimals}f} [{interval.lower:+.{bounds}f}, {interval.upper:+.{bounds}f}]"


def mean_text(row: RowRuns, metric: str, decimals: int = 1, *, spread: bool = True) -> str:
    """Returns the mean of a row's metric, with its standard error; empty where no run has it."""
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
    metric = found.metric.replace("_", " ").replace("/", " ")
    headings = (metric, f"− {name}, 95 %", "beats it, %", "kl", "tokens", "worlds", "alarms")
    lines = [_cells(row, found.metric) for row in found.rows[:most]]
    filled = [place for place in range(len(headings)) if place == 0 or any(cells[place] for cells in lines)]
    rows = [
        TableRow(
            row.row.title if titles else row.row.name,
            tuple(TableCell(cells[place]) for place in filled),
            (row.row.address,),
            main=row.row is found.first,
        )
        for row, cells in zip(found.rows, lines, strict=False)
    ]
    return ShownTable(tuple(TableColumn(headings[place]) for place in filled), tuple(rows))


def _cells(row: ComparedRow, metric: str) -> list[str]:
    worlds, alarms = len(row.row.runs), len(row.row.alarms)
    watched = alarms or row.row.mean("hacking_alarms") is not None
    return [
        mean_text(row.row, metric),
        difference_text(row),
        "" if row.beats is None else f"{row.beats:.1f}",
        mean_text(row.row, "kl", spread=False),
        mean_text(row.row, "alpaca_tokens", 0, spread=False),
        str(worlds),
        (f"{alarms} of {worlds}" if alarms else "none") if watched else "",
    ]


def meanings(found: RowsCompared) -> list[str]:
    """Returns a line for each row but the first: what its difference means."""
    return [_meaning(row, found.metric) for row in found.rows if row.difference is not None]


def _meaning(row: ComparedRow, metric: str) -> str:
    assert row.difference is not None
    side, effect = side_of(row), row.difference.effect
    if side == ONE_WORLD:
        text = f"{'above' if effect.estimate > 0 else 'below'} in the only world; nothing is known beyond it"
    elif side == UNDECIDED:
        sees = effect.smallest_visible()
        text = "undecided" if sees is None else f"undecided: these worlds see differences above {sees:.1f}"
        if metric in FIRST_CHOICES and sees is not None and sees >= PERCENT_RANGE:
            text = f"undecided: {cannot_decide(effect.worlds)}"
    else:
        text = f"{side}, its interval without 0 (one comparison, not corrected)"
    alarm = "; its alarm rang, read its answers first" if row.row.alarms else ""
    return f"{row.row.title}: {text}{alarm}."


def _alarm_lines(found: RowsCompared) -> list[str]:
    return [
        f"Hacking alarm of {row.row.address} at seed {seed}: {text}"
        for row in found.rows
        for seed, text in row.row.alarms.items()
    ]


def _other_metrics(found: RowsCompared) -> list[str]:
    """Returns other metrics of the answers that every row has and that differ: scores by aspects, true rewards."""
    common = set.intersection(*(set(run.metrics) for row in found.rows for run in row.row.runs.values()))
    known = [name for name in (*sorted(common - {*NAMES}), *NAMES) if name in common]
    shown = [name for name in known if name.startswith("score/") or name in ("true_reward", "average", "kl")]
    apart = [name for name in shown if len({row.row.mean(name) for row in found.rows}) > 1 or len(found.rows) == 1]
    return [name for name in apart if name != found.metric]


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
    if others := _other_metrics(found):
        lines = ([name, *(mean_text(row.row, name, 2) for row in found.rows)] for name in others[:LINES])
        print_tables(console, simple_table(["", *(row.row.title for row in found.rows)], lines))
        if len(others) > LINES:
            console.print(f"{len(others) - LINES} more: --metric NAME", style="dim")
    if any(len(row.row.runs) > 1 for row in found.rows):
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
            for series in curve_series(row.row.title, row.row.runs, metric, colour=number, file=file, with_end=rates)
        ]
        if rates and lines:
            lines += _guides(found, lines)
        panels.append(Panel(title, "training step", unit, lines))
    figure = FigureData(key, "Learning curves", "", panels=panels)
    return Picture(panels_svg(figure), spread_note(panels).strip()) if figure.to_json()["panels"] else None


def _guides(found: RowsCompared, lines: list[Series]) -> list[Series]:
    """Returns the SFT model's win rate, and each row's first hacking alarm as an upright line."""
    steps = [step for series in lines for step in series.x]
    rates = [50.0, *(rate for series in lines for rate in series.y if rate is not None)]
    model = Series("SFT model", [min(steps), max(steps)], [50.0, 50.0], style="guide")
    alarms = [
        Series(f"first alarm of {row.row.title}", [step, step], [min(rates), max(rates)], style="guide", colour=number)
        for number, row in enumerate(found.rows)
        if (step := row.row.first_alarm) is not None
    ]
    return [model, *alarms]


def numbers(found: RowsCompared) -> list[object]:
    """Returns the parts of a page with the rows' numbers, what they mean, and caveats."""
    parts: list[object] = [Bullets(tuple(meanings(found)), "meanings")] if meanings(found) else []
    parts.append(compared_table(found))
    return [
        *parts,
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
    return [
        Passages(prompt, tuple(map(_passage, (row.title for row in rows), answers, scales)))
        for prompt, answers in found
    ]


def _passage(title: str, answer: Mapping[str, Any], scale: float) -> Passage:
    reward = answer.get("true_reward")
    true = "" if reward is None else f"true reward {format_number(reward, 2)}"
    if not answer.get("tokens"):
        return Passage(title, str(answer["response"]), true)
    return Passage(title, coloured_tokens(answer["tokens"], answer["rewards"], scale=scale), true, scale_legend(scale))


def comparison_page(found: RowsCompared) -> ReportPage:
    """Returns the page of some rows: numbers, curves, the same prompts answered by each, what each reward pays for."""
    rows = [row.row for row in found.rows]
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
    title = f"Rewardsmith · {', '.join(names)}"
    return ReportPage(title, " · ".join(names), tuple(numbers(found)), tuple(sections))


def write_comparison(found: RowsCompared, out: Path) -> Path:
    """Writes `<out>/compare.html`, whole or not at all; returns its path."""
    return write_page(comparison_page(found), out / "compare.html")
