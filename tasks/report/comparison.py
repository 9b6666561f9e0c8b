"""Rows beside the first of them: table, meanings, learning curves and texts, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.report.charts import panels_svg
from tasks.report.colour import coloured_tokens, pieces, scale_legend
from tasks.report.figure_data import Panel, Series, curve, points_series
from tasks.report.games import BENCHMARK
from tasks.report.outputs import StageOutput
from tasks.report.page import Bullets, Passage, Passages, Picture, ReportPage, Section, Text, write_page
from tasks.report.paper_tables import PERCENT_RANGE
from tasks.report.row_runs import FIRST_CHOICES, WIN_RATE, RowRuns, RowsCompared, compare_rows
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
from tasks.report.worlds import Comparison, mean_of

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
    return [_meaning(row, row.difference, found.metric) for row in found.rows if row.difference is not None]


def _meaning(row: RowRuns, found: Comparison, metric: str) -> str:
    interval, side = found.effect.interval(), "above" if found.effect.estimate > 0 else "below"
    if interval is None:
        text = f"{side} in the only world; nothing is known beyond it"
    elif not interval.lower <= 0 <= interval.upper:
        text = f"{side}, its interval without 0 (one comparison, not corrected)"
    else:
        sees = found.effect.smallest_visible()
        too_wide = sees is None or (metric in FIRST_CHOICES and sees >= PERCENT_RANGE)
        text = "undecided" if too_wide else f"undecided: these worlds see differences above {sees:.1f}"
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
    print_tables(console.width, compared_table(found))
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
            for series in points_series(row.title, curve(row.runs, metric, file=file, with_end=rates), colour=number)
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
