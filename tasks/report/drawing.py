"""Panels as inline SVG, in one style, readable on a light and on a dark page.

Text stays text (selectable, in the page's font). Colours are written as CSS variables with their light value
as fallback, so the page switches them with its theme.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tasks.report.figure_data import FEW_POINTS
from tasks.report.hovering import DrawnCurve, points_attribute

#: Okabe and Ito's palette, which colour-blind readers tell apart; slot 0 is a paper's own method.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b0609a", "#b98500", "#6b6b6b", "#4c9fd4", "#8c564b", "#7d8f00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
INK, RULE, PAPER = "#1b1f24", "#d9dde2", "#fefefd"
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 3.5, 2.55
#: Of a line of a panel's title.
TITLE_CHARACTERS = 32
#: A single panel with two axes is drawn larger.
LARGE_WIDTH, LARGE_HEIGHT = 7.4, 4.0
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


def _colour(series: Mapping[str, Any], position: int) -> tuple[str, str]:
    slot = series["colour"] if series["colour"] is not None else position
    return PALETTE[slot % len(PALETTE)], MARKERS[slot % len(MARKERS)]


def _numbers(values: Sequence[Any]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]


def _draw_line(axes: Any, series: Mapping[str, Any], position: int) -> None:
    import numpy as np

    colour, marker = _colour(series, position)
    x, y = _numbers(series["x"]), np.array(_numbers(series["y"]))
    if series["style"] == "guide":
        shade = INK if series["colour"] is None else colour
        axes.plot(x, y, color=shade, linestyle=DOTTED, linewidth=1, label=series["label"], zorder=1.5)
        return
    if series["style"] == "points":
        axes.scatter(x, y, s=11, color=colour, alpha=0.65, linewidths=0, label=series["label"])
        return
    few, main = len(x) <= FEW_POINTS, series["colour"] == 0
    dashed, path = series["style"] == "dashed", series["style"] == "path"
    axes.plot(
        x, y, color=colour, linestyle=DASHED if dashed else "-", marker=marker if few or path else None,
        label=series["label"], markersize=3.4 if dashed else None, markeredgecolor=PAPER, markeredgewidth=0.6,
        linewidth=0.8 if path else 2.3 if main else None, zorder=3 if main else 2,
    )  # fmt: skip
    if series["error"] and any(error is not None for error in series["error"]):
        error = np.array(_numbers(series["error"]))
        if few:
            axes.errorbar(x, y, yerr=error, fmt="none", ecolor=colour, elinewidth=1, capsize=2.5)
        else:
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.16, linewidth=0)


def _said(panel: Mapping[str, Any], label: str = "y_label") -> str:
    """Returns the name of what a panel shows: its title and an axis's label."""
    return ", ".join(text for text in (panel["title"], panel[label]) if text)


def _draw_intervals(axes: Any, panel: Mapping[str, Any]) -> list[DrawnCurve]:
    """Draws named lines from top to bottom, on each the positions of all series with their intervals."""
    curves = []
    drawn = [series for series in panel["series"] if series["style"] == "intervals"]
    names = list(dict.fromkeys(name for series in drawn for name in series["y"]))
    for number, series in enumerate(drawn):
        colour, marker = _colour(series, number)
        places = [len(names) - 1 - names.index(name) + 0.13 * (len(drawn) - 1 - 2 * number) for name in series["y"]]
        error = _numbers(series["error"]) if series["error"] and None not in series["error"] else None
        axes.errorbar(
            _numbers(series["x"]), places, xerr=error, fmt=marker, color=colour, elinewidth=1.2, capsize=2,
            markersize=4.6, label=series["label"],
        )  # fmt: skip
        x = _numbers(series["x"])
        at = list(zip(x, places, strict=True))
        curves.append(
            DrawnCurve(axes, series["label"], at, series["y"], x, "", _said(panel, "x_label"), series["error"])
        )
    for series in panel["series"]:
        if series["style"] == "guide":
            axes.axvline(float(series["x"][0]), color=INK, linestyle=DOTTED, linewidth=1, label=series["label"])
    axes.set_yticks(range(len(names)), names[::-1])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_ylim(-0.6, len(names) - 0.4)
    return curves


def _draw_bars(axes: Any, panel: Mapping[str, Any]) -> list[DrawnCurve]:
    curves = []
    groups = list(dict.fromkeys(group for series in panel["series"] for group in series["x"]))
    width = 0.78 / len(panel["series"])
    for number, series in enumerate(panel["series"]):
        colour, _ = _colour(series, number)
        offset = (number - (len(panel["series"]) - 1) / 2) * width
        positions = [groups.index(group) + offset for group in series["x"]]
        error = _numbers(series["error"]) if series["error"] and None not in series["error"] else None
        axes.bar(
            positions, _numbers(series["y"]), width * 0.92, color=colour, label=series["label"], yerr=error,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.5},
        )  # fmt: skip
        y = _numbers(series["y"])
        at = list(zip(positions, y, strict=True))
        curves.append(DrawnCurve(axes, series["label"], at, series["x"], y, "", _said(panel), series["error"]))
    axes.set_xticks(range(len(groups)), groups)
    if sum(len(str(group)) + 1 for group in groups) * LEGEND_CHARACTER > PANEL_WIDTH:
        for label in axes.get_xticklabels():
            label.set(rotation=25, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)
    return curves


def _draw_lines(axes: Any, panel: Mapping[str, Any]) -> list[DrawnCurve]:
    second = axes.twinx() if panel["right_label"] else axes
    curves = []
    for number, series in enumerate(panel["series"]):
        own, label = (second, "right_label") if series["right"] else (axes, "y_label")
        _draw_line(own, series, number)
        if series["style"] != "guide":
            x, y = _numbers(series["x"]), _numbers(series["y"])
            at = list(zip(x, y, strict=True))
            curves.append(
                DrawnCurve(own, series["label"], at, x, y, panel["x_label"], _said(panel, label), series["error"])
            )
    if second is not axes:
        second.set_ylabel(panel["right_label"])
        second.spines["right"].set_visible(True)
        second.grid(visible=False)
        second.margins(x=0.04, y=0.12)
    positions = sorted({x for series in panel["series"] for x in series["x"]})
    if len(positions) <= 5:
        axes.set_xticks(positions, [f"{x:g}" for x in positions])
    axes.margins(x=0.04, y=0.12)
    return curves


def _draw_panel(axes: Any, panel: Mapping[str, Any]) -> list[DrawnCurve]:
    """Draws a panel; returns what can be read from it."""
    styles = {series["style"] for series in panel["series"]}
    draw = _draw_bars if "bars" in styles else _draw_intervals if "intervals" in styles else _draw_lines
    curves = draw(axes, panel)
    axes.set_title(textwrap.fill(panel["title"], TITLE_CHARACTERS))
    axes.set_xlabel(panel["x_label"])
    axes.set_ylabel(panel["y_label"])
    return curves


def _handles(figure_data: Mapping[str, Any], all_axes: Sequence[Any]) -> dict[str, Any]:
    """Returns the legend entries of all panels, each label once; where a panel has two axes, which line belongs to
    which."""
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    twin = next((panel for panel in figure_data["panels"] if panel["right_label"]), None)
    if twin is None:
        return handles
    for label, line in handles.items():
        handles[label] = Line2D([], [], color=line.get_color(), marker=line.get_marker(), linewidth=2)
    handles[twin["y_label"]] = Line2D([], [], color=INK, linewidth=1.4)
    handles[twin["right_label"]] = Line2D([], [], color=INK, linestyle=DASHED, linewidth=1.4)
    return handles


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Returns columns of the legend so that the longest label fits into its own."""
    widest = max(map(len, labels)) * LEGEND_CHARACTER + LEGEND_HANDLE
    return max(1, min(len(labels), int(width / widest)))


def _alone(panels: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether every panel has one series, all of one colour: their titles say what a legend would."""
    every = [series for panel in panels for series in panel["series"]]
    return len(every) == len(panels) and len({_colour(series, 0) for series in every}) == 1


def panels_svg(figure_data: Mapping[str, Any]) -> str:
    """Returns a figure of kind `panels` as an SVG element for the inside of a page.

    Args:
        figure_data: what `FigureData.to_json` made; its key becomes the prefix of every id in the SVG.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = figure_data["panels"]
    columns = min(len(panels), COLUMNS) if len(panels) != 4 else 2
    rows = -(-len(panels) // columns)
    large = len(panels) == 1 and panels[0]["right_label"]
    width = LARGE_WIDTH if large else max(columns, 1.3) * PANEL_WIDTH
    body = LARGE_HEIGHT if large else rows * PANEL_HEIGHT
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": figure_data["key"]}):
        figure, grid = pyplot.subplots(rows, columns, squeeze=False)
        used = [axes for line in grid for axes in line]
        curves = [curve for axes, panel in zip(used, panels, strict=False) for curve in _draw_panel(axes, panel)]
        for axes in used[len(panels) :]:
            axes.remove()
        handles = _handles(figure_data, used[: len(panels)])
        top = 0.0
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
        points = points_attribute(figure, curves)
        pyplot.close(figure)
    return inline_svg(buffer.getvalue(), figure_data["key"], figure_data["title"], points)


def inline_svg(svg: str, prefix: str, title: str, points: str = "") -> str:
    """Returns a stand-alone SVG made fit for a page: own ids, theme colours, no fixed size, an accessible name.

    Args:
        svg: matplotlib's.
        prefix: of every id.
        title: for readers who do not see it.
        points: the attribute of `points_attribute`.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)([^")]+)', rf"\1{prefix}-\2", svg)
    svg = svg.replace(INK, "currentColor").replace(RULE, f"var(--rule, {RULE})")
    svg = svg.replace(PAPER, f"var(--paper, {PAPER})")
    for slot, colour in enumerate(PALETTE):
        svg = svg.replace(colour, theme_colour(slot))
    svg = re.sub(r"font: ([^;\"]*?)(\d[\d.]*px) [^;\"]+", r"font: \1\2 var(--sans)", svg)
    opening, width = _opening(svg)
    named = (
        f'<svg role="img" aria-label="{escape(title)}" style="max-width:{width:.0f}px;--natural:{width:.0f}px"{points}'
    )
    return svg.replace(opening, named + re.sub(r'^<svg|\s(width|height)="[^"]*"', "", opening), 1)


def _opening(svg: str) -> tuple[str, float]:
    """Returns the opening tag and the drawing's natural width in CSS pixels (a point is 4/3 of one)."""
    opening = svg[: svg.index(">") + 1]
    found = re.search(r'\bwidth="([\d.]+)pt"', opening)
    return opening, float(found.group(1)) * 4 / 3 if found else 960.0
