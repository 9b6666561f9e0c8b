"""Pictures of the atlas: a difference over a dial's levels as SVG, and the lines of effects as shares of a scale."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.evaluation.worlds import Effect
from tasks.report.atlas_points import NOT_COUNTED, Point
from tasks.report.drawing import INK, PALETTE, PAPER, RULE, STYLE, inline_svg

WIDTH, HEIGHT = 4.7, 3.1
#: Steps of a scale: the next larger one is taken that gives at most seven.
STEPS = (1, 2, 5)


@dataclass(frozen=True)
class EffectScale:
    """A scale that all effects of a study share.

    Attributes:
        low, high: its ends; 0 is inside.
        ticks: round numbers on it.
    """

    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Returns a value's place in percent of the scale, cut at its ends."""
        return min(100.0, max(0.0, 100 * (value - self.low) / (self.high - self.low)))


def effect_scale(effects: Sequence[Effect], margin: float | None, values: Iterable[float] = ()) -> EffectScale:
    """Returns a scale with room for intervals, values of worlds, margin and 0."""
    ends = [0.0, *values, *((-margin, margin) if margin else ())]
    for effect in effects:
        interval = effect.interval()
        ends += [effect.estimate] if interval is None else [interval.lower, interval.upper]
    low, high = min(ends), max(ends)
    room = 0.08 * ((high - low) or 1.0)
    low, high = low - room, high + room
    step = _step(high - low)
    first = math.ceil(low / step)
    return EffectScale(low, high, tuple(step * n for n in range(first, math.floor(high / step) + 1)))


def tick_text(value: float) -> str:
    """Returns the number of a tick, signed."""
    return f"{value:+g}".replace("-", "−") if value else "0"


def _step(width: float) -> float:
    size = 10.0 ** math.floor(math.log10(width / 7))
    return next(size * step for step in (*STEPS, 10) if width / (size * step) <= 7)


def dial_svg(
    key: str, title: str, points: Sequence[Point], rows: tuple[str, str], margin: float | None, claim: str, mark: str
) -> str:
    """Returns the difference of two rows over labels as an SVG element.

    Args:
        key: prefix of every id in the SVG.
        title: for readers who do not see it.
        points: by series; those with an empty series are drawn strongest, with the value of each world.
        rows: the row and the one it is compared with.
        margin: drawn as a band around 0.
        claim: the expected side: 'above', 'below', 'rises' or 'falls'.
        mark: the word at the arrow to that side.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    labels = list(dict.fromkeys(point.label for point in points))
    series = list(dict.fromkeys(point.series for point in points))
    joined, shifts = claim in ARROWS, _shifts(points, series)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": key}):
        figure, axes = pyplot.subplots(figsize=(WIDTH, HEIGHT))
        if margin:
            axes.axhspan(
                -margin, margin, color=RULE, alpha=0.55, linewidth=0, label=f"within ±{margin:g} counts as none"
            )
        axes.axhline(0, color=INK, linewidth=1.1)
        for number, name in enumerate(series):
            own = [point for point in points if point.series == name]
            _draw_series(axes, own, labels, shifts[name], number, joined=joined)
        axes.set_xticks(range(len(labels)), labels)
        axes.yaxis.set_major_formatter(lambda value, _: tick_text(round(value, 6)))
        axes.set_xlim(-0.45, len(labels) - 0.55 + 0.1)
        axes.margins(y=0.16)
        low, high = axes.get_ylim()
        reach = 0.12 * (high - low)
        axes.set_ylim(min(low, -reach), max(high, reach))
        _mark_sides(axes, rows)
        _mark_claim(axes, claim, mark)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.11 - 0.07 * max(label.count("\n") for label in labels)),
            ncols=2,
            frameon=False,
            handlelength=1.5,
        )
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.04)
        pyplot.close(figure)
    return inline_svg(buffer.getvalue(), key, title)


#: Colours of series beside their mean; green is the claim's.
OTHERS = (1, 3, 4, 7)
#: Directions of an arrow for claims about a slope, in shares of the axes.
ARROWS = {"rises": (-0.09, 0.09), "falls": (0.09, -0.09)}


def _shifts(points: Sequence[Point], series: Sequence[str]) -> dict[str, float]:
    """Returns how far beside its label each series is drawn: 0 where no label has two points."""
    if len({point.label for point in points}) == len(points):
        return dict.fromkeys(series, 0.0)
    return {name: 0.13 * (number - (len(series) - 1) / 2) for number, name in enumerate(series)}


def _draw_series(
    axes: Any, points: Sequence[Point], labels: Sequence[str], shift: float, number: int, *, joined: bool
) -> None:
    """Draws estimates with their intervals, and beside a mean or a single cell the value of each world."""
    import numpy as np

    mean, outside = not points[0].series, points[0].series == NOT_COUNTED
    name = points[0].series or ("mean of these" if number else "mean over worlds")
    colour = PALETTE[0] if mean else PALETTE[5] if outside else PALETTE[OTHERS[number % len(OTHERS)]]
    x = np.array([labels.index(point.label) + shift for point in points])
    intervals = [point.effect.interval() for point in points]
    half = np.array([np.nan if one is None else one.upper - one.estimate for one in intervals])
    if mean or not joined:
        worlds = [(place - 0.09, value) for place, point in zip(x, points, strict=True) for value in point.values]
        axes.plot(
            *zip(*worlds, strict=True), "o", color=colour, markersize=2.6, alpha=0.5, zorder=1.8, linestyle="none",
            label="one world" if mean else None,
        )  # fmt: skip
    axes.errorbar(
        x, [point.effect.estimate for point in points], yerr=half, fmt="o" if mean else "s",
        linestyle="-" if joined else "none", color=colour, markerfacecolor=PAPER if outside else colour,
        linewidth=2.3 if mean else 1.1, elinewidth=2.0 if mean else 1.0, capsize=3.5 if mean else 2,
        markersize=7 if mean else 4, label=name, zorder=3 if mean else 2, alpha=1.0 if mean else 0.75,
    )  # fmt: skip


def _mark_sides(axes: Any, rows: tuple[str, str]) -> None:
    """Writes at the axis which row is better above 0 and which below."""
    low, high = axes.get_ylim()
    zero = -low / (high - low)
    for row, place, align in ((rows[0], 0.99, "top"), (rows[1], 0.01, "bottom")):
        if abs(place - zero) > 0.1:
            axes.text(
                0.015, place, f"{row} better", transform=axes.transAxes, va=align, fontsize=8.5, style="italic"
            )  # fmt: skip


def _mark_claim(axes: Any, claim: str, mark: str) -> None:
    """Draws an arrow beside the axes to the expected side."""
    low, high = axes.get_ylim()
    zero = -low / (high - low)
    if claim in ARROWS:
        start, end = (1.02, 0.5 + ARROWS[claim][0]), (1.12, 0.5 + ARROWS[claim][1])
    else:
        start, end = (1.05, zero), (1.05, zero + (0.24 if claim == "above" else -0.24))
    arrow = {"arrowstyle": "-|>", "color": PALETTE[2], "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, xycoords="axes fraction", arrowprops=arrow)
    axes.annotate(
        mark, xy=(1.015, min(start[1], end[1]) - 0.03), xycoords="axes fraction", ha="left", va="top",
        fontsize=8.5, color=PALETTE[2], fontweight="bold",
    )  # fmt: skip
