"""Charts as inline SVG, in one style (templates/chart.mplstyle), readable on a light and on a dark page.

A panel has lines (with bands or error bars), bars, or intervals (positions with errors on named lines). Text stays
text; colours are CSS variables with their light value as fallback, so that the page switches them with its theme.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks.report.figure_data import Panel, Series

STYLE = Path(__file__).parent / "templates" / "chart.mplstyle"
#: Okabe and Ito's palette, which colour-blind readers tell apart, and more; slot 0 is a paper's own method.
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#b0609a", "#b98500", "#6b6b6b", "#4c9fd4", "#8c564b", "#7d8f00",
    "#c44e6a", "#3b8f8f", "#7a6fd0",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
INK, RULE, PAPER = "#1b1f24", "#d9dde2", "#fefefd"
DASHED, DOTTED = (0, (4, 2.2)), (0, (1, 1.6))
#: Up to so many points of a line have markers of their own and error bars; more have a band.
FEW_POINTS = 12
#: Inches of a panel, of a single panel with two axes, of a named line of intervals.
PANEL, LARGE, LINE_HEIGHT = (3.5, 2.55), (7.4, 4.0), 0.24
COLUMNS, TITLE_CHARACTERS = 3, 32
#: Inches of the legend: a line, the margin around the lines, a character, the handle before it.
LEGEND_LINE, LEGEND_MARGIN, LEGEND_CHARACTER, LEGEND_HANDLE = 0.2, 0.16, 0.078, 0.48


def _colour(series: Series, position: int) -> tuple[str, str]:
    slot = series.colour if series.colour is not None else position
    return PALETTE[slot % len(PALETTE)], MARKERS[slot % len(MARKERS)]


def _numbers(values: Iterable[Any]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _draw_line(axes: Any, series: Series, position: int) -> None:
    import numpy as np

    colour, marker = _colour(series, position)
    x, y = _numbers(series.x), np.array(_numbers(series.y))
    if series.style == "guide":
        axes.plot(x, y, color=INK, linestyle=DOTTED, linewidth=1, label=series.label, zorder=1.5)
        return
    if series.style == "thin":
        axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.3)
        return
    if series.style == "points":
        axes.scatter(x, y, s=11, color=colour, alpha=0.65, linewidths=0, label=series.label)
        return
    few, main = len(x) <= FEW_POINTS, series.colour == 0
    dashed, path = series.style == "dashed", series.style == "path"
    axes.plot(
        x, y, color=colour, linestyle=DASHED if dashed else "-", marker=marker if few or path else None,
        label=series.label, markersize=3.4 if dashed else None, markeredgecolor=PAPER, markeredgewidth=0.6,
        linewidth=0.8 if path else 2.3 if main else None, zorder=3 if main else 2,
    )  # fmt: skip
    if series.error and any(error is not None for error in series.error):
        error = np.array(_numbers(series.error))
        if few:
            axes.errorbar(x, y, yerr=error, fmt="none", ecolor=colour, elinewidth=1, capsize=2.5)
        else:
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.16, linewidth=0)


def _names(panel: Panel) -> list[str]:
    """Returns the named lines of a panel of intervals, from top to bottom; empty of another panel."""
    return list(dict.fromkeys(name for series in panel.series if series.style == "intervals" for name in series.y))


def _draw_intervals(axes: Any, panel: Panel) -> None:
    """Draws named lines from top to bottom, on each the positions of all series with their intervals."""
    names = _names(panel)
    height = {name: len(names) - 1 - place for place, name in enumerate(names)}
    drawn = [series for series in panel.series if series.style == "intervals"]
    for number, series in enumerate(drawn):
        colour, marker = _colour(series, number)
        shift = 0.13 * (len(drawn) - 1 - 2 * number) if len(drawn) < 4 else 0.0
        axes.errorbar(
            _numbers(series.x), [height[name] + shift for name in series.y], xerr=_numbers(series.error or []) or None,
            fmt=marker, color=colour, elinewidth=1.2, capsize=2, markersize=4.6, label=series.label,
        )  # fmt: skip
    for series in panel.series:
        if series.style == "guide":
            axes.axvline(float(series.x[0]), color=INK, linestyle=DOTTED, linewidth=1, label=series.label)
        elif series.style == "points":
            places = [height[name] - 0.22 for name in series.y]
            axes.scatter(
                series.x, places, s=7, color=_colour(series, 0)[0], alpha=0.45, linewidths=0, label=series.label
            )
    axes.set_yticks(range(len(names)), names[::-1])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_ylim(-0.6, len(names) - 0.4)


def _draw_bars(axes: Any, panel: Panel) -> None:
    groups = list(dict.fromkeys(group for series in panel.series for group in series.x))
    width = 0.78 / len(panel.series)
    for number, series in enumerate(panel.series):
        offset = (number - (len(panel.series) - 1) / 2) * width
        axes.bar(
            [groups.index(group) + offset for group in series.x], _numbers(series.y), width * 0.92,
            yerr=_numbers(series.error) if series.error and None not in series.error else None,
            color=_colour(series, number)[0], label=series.label,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.5},
        )  # fmt: skip
    axes.set_xticks(range(len(groups)), groups)
    if sum(len(str(group)) + 1 for group in groups) * LEGEND_CHARACTER > PANEL[0]:
        for label in axes.get_xticklabels():
            label.set(rotation=25, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)


def _draw_lines(axes: Any, panel: Panel) -> None:
    second = axes.twinx() if panel.right_label else axes
    for number, series in enumerate(panel.series):
        _draw_line(second if series.right else axes, series, number)
    if second is not axes:
        second.set_ylabel(panel.right_label)
        second.spines["right"].set_visible(True)
        second.grid(visible=False)
    positions = sorted({x for series in panel.series for x in series.x})
    if len(positions) <= 5:
        axes.set_xticks(positions, [f"{x:g}" for x in positions])


def _draw_panel(axes: Any, panel: Panel) -> None:
    styles = {series.style for series in panel.series}
    draw = _draw_bars if "bars" in styles else _draw_intervals if "intervals" in styles else _draw_lines
    draw(axes, panel)
    axes.set_title(textwrap.fill(panel.title, TITLE_CHARACTERS))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _handles(panels: Sequence[Panel], all_axes: Iterable[Any]) -> dict[str, Any]:
    """Returns the legend entries of all panels, each label once; where a panel has two axes, which line belongs to
    which. There are none where every panel has one series, all of one colour: its title says what a legend would."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    if all(len(panel.series) == 1 for panel in panels) and len({panel.series[0].colour for panel in panels}) == 1:
        return handles
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    twin = next((panel for panel in panels if panel.right_label), None)
    if twin is not None:
        for label, line in handles.items():
            handles[label] = Line2D([], [], color=line.get_color(), marker=line.get_marker(), linewidth=2)
        handles[twin.y_label] = Line2D([], [], color=INK, linewidth=1.4)
        handles[twin.right_label] = Line2D([], [], color=INK, linestyle=DASHED, linewidth=1.4)
    return handles


def panels_svg(key: str, title: str, panels: Sequence[Panel], *, columns: int | None = None) -> Markup:
    """Returns panels as an SVG element for the inside of a page.

    Args:
        key: prefix of every id in the SVG.
        title: for readers who do not see it.
        panels: those without a series are left out.
        columns: of panels; as many as are wide enough, unless given.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = [panel for panel in panels if panel.series]
    columns = columns or (2 if len(panels) == 4 else min(len(panels), COLUMNS))
    large = len(panels) == 1 and bool(panels[0].right_label)
    width, height = LARGE if large else (max(columns, 1.3) * PANEL[0], PANEL[1])
    needed = [max(height, LINE_HEIGHT * len(_names(panel)) + 0.9) for panel in panels]
    heights = [max(needed[at : at + columns]) for at in range(0, len(panels), columns)]
    with pyplot.style.context([STYLE, {"svg.hashsalt": key}]):
        figure, grid = pyplot.subplots(
            len(heights), columns, squeeze=False, height_ratios=heights, layout="constrained"
        )
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        top = 0.0
        if handles := _handles(panels, figure.axes):
            widest = max(map(len, handles)) * LEGEND_CHARACTER + LEGEND_HANDLE
            fitting = max(1, min(len(handles), int(width / widest)))
            top = LEGEND_MARGIN + LEGEND_LINE * -(-len(handles) // fitting)
            figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=fitting)
        figure.set_size_inches(width, sum(heights) + top)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return _inline(buffer.getvalue(), key, title)


def _inline(svg: str, prefix: str, title: str) -> Markup:
    """Returns matplotlib's SVG made fit for a page: own ids, theme colours, no fixed size, an accessible name."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', rf"\1{prefix}-\2", svg)
    theme = {INK: "currentColor", RULE: f"var(--rule, {RULE})", PAPER: f"var(--paper, {PAPER})"}
    theme |= {colour: f"var(--series-{slot}, {colour})" for slot, colour in enumerate(PALETTE)}
    for colour, variable in theme.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"font: ([^;\"]*?)(\d[\d.]*px) [^;\"]+", r"font: \1\2 var(--sans)", svg)
    opening = svg[: svg.index(">") + 1]
    found = re.search(r'\bwidth="([\d.]+)pt"', opening)
    width = float(found.group(1)) * 4 / 3 if found else 960.0  # a point is 4/3 of a CSS pixel
    named = f'<svg role="img" aria-label="{escape(title)}" style="max-width:{width:.0f}px;--natural:{width:.0f}px"'
    return Markup(svg.replace(opening, named + re.sub(r'^<svg|\s(width|height)="[^"]*"', "", opening), 1))
