"""Charts as inline SVG, in one style, readable on a light and on a dark page.

A panel has lines (with bands or error bars), bars, or intervals (positions with errors on named lines). Text stays
text; colours are CSS variables with their light value as fallback, so that the page switches them with its theme.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from tasks.report.figure_data import Panel, Series

#: Okabe and Ito's palette, which colour-blind readers tell apart, and more; slot 0 is a paper's own method.
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#b0609a", "#b98500", "#6b6b6b", "#4c9fd4", "#8c564b", "#7d8f00",
    "#c44e6a", "#3b8f8f", "#7a6fd0",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
INK, RULE, PAPER = "#1b1f24", "#d9dde2", "#fefefd"
#: Up to so many points of a line have markers of their own and error bars; more have a band.
FEW_POINTS = 12
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 3.5, 2.55
#: Of a line of a panel's title.
TITLE_CHARACTERS = 32
#: A single panel with two axes is drawn larger.
LARGE_WIDTH, LARGE_HEIGHT = 7.4, 4.0
#: Inches of a named line of intervals.
LINE_HEIGHT = 0.24
#: Inches of the legend: a line, the margin around the lines, a character, the handle before it.
LEGEND_LINE, LEGEND_MARGIN, LEGEND_CHARACTER, LEGEND_HANDLE = 0.2, 0.16, 0.078, 0.48
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.2,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}
DASHED = (0, (4, 2.2))
DOTTED = (0, (1, 1.6))


def theme_colour(slot: int) -> str:
    """Returns a colour of the palette as CSS, for a page with its theme's colours."""
    slot %= len(PALETTE)
    return f"var(--series-{slot}, {PALETTE[slot]})"


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
        shade = INK if series.colour is None else colour
        axes.plot(x, y, color=shade, linestyle=DOTTED, linewidth=1, label=series.label, zorder=1.5)
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
    named = (series.y for series in panel.series if series.style == "intervals")
    return list(dict.fromkeys(name for names in named for name in names))


def _draw_intervals(axes: Any, panel: Panel) -> None:
    """Draws named lines from top to bottom, on each the positions of all series with their intervals."""
    names = _names(panel)
    drawn = [series for series in panel.series if series.style == "intervals"]
    for number, series in enumerate(drawn):
        colour, marker = _colour(series, number)
        shift = 0.13 * (len(drawn) - 1 - 2 * number) if len(drawn) < 4 else 0.0
        places = [len(names) - 1 - names.index(name) + shift for name in series.y]
        x, error = _numbers(series.x), _numbers(series.error or [])
        axes.errorbar(
            x, places, xerr=error or None, fmt=marker, color=colour, elinewidth=1.2, capsize=2, markersize=4.6,
            label=series.label,
        )  # fmt: skip
    for series in panel.series:
        if series.style == "guide":
            axes.axvline(float(series.x[0]), color=INK, linestyle=DOTTED, linewidth=1, label=series.label)
        elif series.style == "band":
            axes.axvspan(*series.x, color=RULE, alpha=0.55, linewidth=0, label=series.label)
        elif series.style == "points":
            colour, _ = _colour(series, 0)
            places = [len(names) - 1 - names.index(name) - 0.22 for name in series.y]
            axes.scatter(series.x, places, s=7, color=colour, alpha=0.45, linewidths=0, label=series.label)
    axes.set_yticks(range(len(names)), names[::-1])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_ylim(-0.6, len(names) - 0.4)


def _draw_bars(axes: Any, panel: Panel) -> None:
    groups = list(dict.fromkeys(group for series in panel.series for group in series.x))
    width = 0.78 / len(panel.series)
    for number, series in enumerate(panel.series):
        colour, _ = _colour(series, number)
        offset = (number - (len(panel.series) - 1) / 2) * width
        positions, y = [groups.index(group) + offset for group in series.x], _numbers(series.y)
        error = _numbers(series.error) if series.error and None not in series.error else None
        axes.bar(
            positions, y, width * 0.92, color=colour, label=series.label, yerr=error,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.5},
        )  # fmt: skip
    axes.set_xticks(range(len(groups)), groups)
    if sum(len(str(group)) + 1 for group in groups) * LEGEND_CHARACTER > PANEL_WIDTH:
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
        second.margins(x=0.04, y=0.12)
    positions = sorted({x for series in panel.series for x in series.x})
    if len(positions) <= 5:
        axes.set_xticks(positions, [f"{x:g}" for x in positions])
    axes.margins(x=0.04, y=0.12)


def _draw_panel(axes: Any, panel: Panel) -> None:
    styles = {series.style for series in panel.series}
    draw = _draw_bars if "bars" in styles else _draw_intervals if "intervals" in styles else _draw_lines
    draw(axes, panel)
    axes.set_title(textwrap.fill(panel.title, TITLE_CHARACTERS))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _handles(panels: Sequence[Panel], all_axes: Sequence[Any]) -> dict[str, Any]:
    """Returns the legend entries of all panels, each label once; where a panel has two axes, which line belongs to
    which."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    twin = next((panel for panel in panels if panel.right_label), None)
    if twin is None:
        return handles
    for label, line in handles.items():
        handles[label] = Line2D([], [], color=line.get_color(), marker=line.get_marker(), linewidth=2)
    handles[twin.y_label] = Line2D([], [], color=INK, linewidth=1.4)
    handles[twin.right_label] = Line2D([], [], color=INK, linestyle=DASHED, linewidth=1.4)
    return handles


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Returns columns of the legend so that the longest label fits into its own."""
    widest = max(map(len, labels)) * LEGEND_CHARACTER + LEGEND_HANDLE
    return max(1, min(len(labels), int(width / widest)))


def _alone(panels: Sequence[Panel]) -> bool:
    """Returns whether every panel has one series, all of one colour: their titles say what a legend would."""
    every = [series for panel in panels for series in panel.series]
    return len(every) == len(panels) and len({_colour(series, 0) for series in every}) == 1


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
    columns = columns or (min(len(panels), COLUMNS) if len(panels) != 4 else 2)
    large = len(panels) == 1 and bool(panels[0].right_label or len(_names(panels[0])) > FEW_POINTS)
    width = LARGE_WIDTH if large else max(columns, 1.3) * PANEL_WIDTH
    needed = [max(PANEL_HEIGHT, LINE_HEIGHT * len(_names(panel)) + 0.9) for panel in panels]
    heights = [max(needed[at : at + columns]) for at in range(0, len(panels), columns)]
    if large and not _names(panels[0]):
        heights = [LARGE_HEIGHT]
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": key}):
        figure, grid = pyplot.subplots(len(heights), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
        used = [axes for line in grid for axes in line]
        for axes, panel in zip(used, panels, strict=False):
            _draw_panel(axes, panel)
        for axes in used[len(panels) :]:
            axes.remove()
        handles = _handles(panels, used[: len(panels)])
        top, body = 0.0, sum(heights)
        if len(handles) > 1 and not _alone(panels):
            fitting = _legend_columns(list(handles), width)
            top = LEGEND_MARGIN + LEGEND_LINE * -(-len(handles) // fitting)
            figure.legend(
                handles.values(), handles.keys(), loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=fitting,
                frameon=False, handlelength=1.8, columnspacing=1.6, borderaxespad=0.2,
            )  # fmt: skip
        figure.set_size_inches(width, body + top)
        figure.tight_layout(rect=(0, 0, 1, 1 - top / (body + top)), w_pad=2.2, h_pad=1.8)
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
    svg = svg.replace(INK, "currentColor").replace(RULE, f"var(--rule, {RULE})")
    svg = svg.replace(PAPER, f"var(--paper, {PAPER})")
    for slot, colour in enumerate(PALETTE):
        svg = svg.replace(colour, theme_colour(slot))
    svg = re.sub(r"font: ([^;\"]*?)(\d[\d.]*px) [^;\"]+", r"font: \1\2 var(--sans)", svg)
    opening = svg[: svg.index(">") + 1]
    found = re.search(r'\bwidth="([\d.]+)pt"', opening)
    width = float(found.group(1)) * 4 / 3 if found else 960.0  # a point is 4/3 of a CSS pixel
    named = f'<svg role="img" aria-label="{escape(title)}" style="max-width:{width:.0f}px;--natural:{width:.0f}px"'
    return Markup(svg.replace(opening, named + re.sub(r'^<svg|\s(width|height)="[^"]*"', "", opening), 1))
