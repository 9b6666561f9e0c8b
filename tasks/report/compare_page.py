"""Rows beside each other as one self-contained page: numbers, curves, the same prompts answered by each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks.params.yaml_files import write_whole
from tasks.report.colour import coloured_tokens, scale_legend
from tasks.report.drawing import panels_svg
from tasks.report.figure_data import FigureData, Panel, Series, curve_series, spread_note
from tasks.report.page import render_page, template_text
from tasks.report.rows_compared import RowsCompared, SameText, same_prompts, same_rollouts

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


def curves(found: RowsCompared) -> Markup | None:
    """Returns the rows' learning curves as SVG, a row one colour; None where no row has any."""
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
    figure = FigureData("compared", "Learning curves", f"Learning curves.{spread_note(panels)}", panels=panels)
    data = figure.to_json()
    return Markup(panels_svg(data)) if data["status"] == "measured" else None


def _coloured(rollouts: Sequence[tuple[str, list[SameText]]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Returns prompts with their rollouts' tokens coloured, those of a row on one scale.

    Args:
        rollouts: each prompt with a text of every row, in one order.
    """
    by_row = zip(*(texts for _, texts in rollouts), strict=True)
    scales = [max((abs(paid) for text in row for paid in text.rewards), default=0.0) or 1.0 for row in by_row]
    return [
        (
            prompt,
            [
                {
                    "text": text,
                    "body": coloured_tokens(text.tokens, text.rewards, scale=scale),
                    "legend": scale_legend(scale),
                }
                for text, scale in zip(texts, scales, strict=True)
            ],
        )
        for prompt, texts in rollouts
    ]


def write_comparison(found: RowsCompared, lines: list[str], out: Path) -> Path:
    """Writes `<out>/compare.html`, whole or not at all; returns its path.

    Args:
        found: the rows.
        lines: what their differences mean.
        out: a folder.
    """
    rows = [row.row for row in found.rows]
    page = render_page(
        "compare.html.j2",
        found=found,
        lines=lines,
        own_style=template_text("compare.css.j2"),
        curves=curves(found),
        answers=same_prompts(rows, PROMPTS),
        rollouts=_coloured(same_rollouts(rows, PROMPTS)),
    )
    write_whole(out / "compare.html", page)
    return out / "compare.html"
