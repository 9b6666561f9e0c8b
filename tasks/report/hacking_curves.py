"""Proxy reward (solid) and win rate (dashed) over training, as the PAR paper draws them: one colour a mitigation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tasks.report.drawing import DASHED, PALETTE, RULE, STYLE, inline_svg, theme_colour
from tasks.report.hovering import DrawnCurve, points_attribute

#: The first colour is plain PPO's, the eighth PAR's, in the order of mitigations.yaml.
COLOURS = (
    PALETTE[1], PALETTE[4], PALETTE[7], PALETTE[3], PALETTE[2], PALETTE[5], PALETTE[6], PALETTE[0],
    "#c44e6a", "#3b8f8f", "#7a6fd0", "#8f8f2a",
)  # fmt: skip
PANEL = (5.4, 3.1)
SPARK = (132, 46)
STEP, PROXY, WIN_RATE = "training step", "proxy reward less SFT's", "win rate over SFT, %"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A mitigation's curves: (step, rise of the mean proxy reward) and (step, win rate in percent)."""

    title: str
    colour: str
    proxy: Points
    win_rate: Points


def colour(place: int) -> str:
    """Returns the colour of the mitigation at a place of the order, for a page with its theme's colours."""
    value = COLOURS[place % len(COLOURS)]
    return theme_colour(PALETTE.index(value)) if value in PALETTE else value


def _path(points: Points, x: tuple[float, float], y: tuple[float, float]) -> str:
    """Returns the points within a sparkline whose axes have these ranges."""
    width, height = SPARK
    wide, high = x[1] - x[0] or 1.0, y[1] - y[0] or 1.0
    placed = ((2 + (width - 4) * (a - x[0]) / wide, height - 2 - (height - 4) * (b - y[0]) / high) for a, b in points)
    return " ".join(f"{'L' if number else 'M'}{a:.1f} {b:.1f}" for number, (a, b) in enumerate(placed))


def spark_svg(curve: Curve, steps: tuple[float, float], proxy: tuple[float, float]) -> str:
    """Returns a small drawing of one mitigation's curves; the faint line is a win rate of 50.

    Args:
        curve: of the mitigation.
        steps, proxy: ranges of the axes, shared with its neighbours; the win rate's is 0 to 100.
    """
    width, height = SPARK
    stroke = f'fill="none" stroke="{curve.colour}" stroke-width="1.6" stroke-linejoin="round"'
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(curve.title)}: proxy reward '
        f'and win rate over training"><path d="M0 {height / 2:.1f}H{width}" stroke="var(--rule, {RULE})"/>'
        f'<path d="{_path(curve.proxy, steps, proxy)}" {stroke}/>'
        f'<path d="{_path(curve.win_rate, steps, (0, 100))}" {stroke} stroke-dasharray="3.5 2.5"/></svg>'
    )


def curves_svg(key: str, title: str, curves: Sequence[Curve]) -> str:
    """Returns all mitigations of one reward in one panel: proxy on the left axis, win rate on the right.

    Args:
        key: prefix of ids in the SVG, letters, digits and dashes.
        title: for people who cannot see it.
        curves: in the order of the legend.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    settings = {**STYLE, "svg.hashsalt": key}
    with matplotlib.rc_context(settings):
        figure, left = pyplot.subplots(figsize=PANEL)
        right = left.twinx()
        right.spines["right"].set_visible(True)
        right.grid(False)
        right.axhline(50, color=RULE, linewidth=0.9)
        drawn = []
        for curve in curves:
            named = next((value for value in (*COLOURS, *PALETTE) if value in curve.colour), curve.colour)
            left.plot(*zip(*curve.proxy, strict=True), color=named, linewidth=1.6)
            right.plot(*zip(*curve.win_rate, strict=True), color=named, linewidth=1.5, linestyle=DASHED)
            for axes, path, said in ((left, curve.proxy, PROXY), (right, curve.win_rate, WIN_RATE)):
                steps, values = zip(*path, strict=True)
                drawn.append(DrawnCurve(axes, curve.title, path, steps, values, STEP, said))
        left.grid(False)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set_xlabel(STEP)
        left.set_ylabel(f"{PROXY} (solid)")
        right.set_ylabel(f"{WIN_RATE} (dashed)")
        right.set_ylim(0, 100)
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        points = points_attribute(figure, drawn)
        pyplot.close(figure)
    return inline_svg(buffer.getvalue(), key, title, points)


def span(curves: Sequence[Points], place: int) -> tuple[float, float]:
    """Returns the least and largest step (place 0) or value (1) of several curves; (0, 1) without a point."""
    values = [point[place] for curve in curves for point in curve]
    return (min(values), max(values)) if values else (0.0, 1.0)


def colours_of(mitigations: Sequence[str]) -> dict[str, str]:
    """Returns the colour of every mitigation, by its place."""
    return {name: colour(place) for place, name in enumerate(mitigations)}
