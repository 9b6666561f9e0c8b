"""Points of a drawing that the page's script shows under the pointer: the row's name and its value there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

#: SVG's units in an inch of matplotlib's.
POINTS_PER_INCH = 72
#: Significant digits of shown values.
DIGITS = 4


@dataclass(frozen=True)
class DrawnCurve:
    """A drawn line, cloud of points or set of bars.

    Attributes:
        axes: matplotlib's axes that it is drawn on.
        name: of its row.
        places: of its points on the axes; points with a place that is not finite are left out.
        at: the position of each point in words or numbers, under the label `x`.
        values: the value of each point, under the label `y`.
        errors: standard errors of the values; None of values without one.
    """

    axes: Any
    name: str
    places: Sequence[tuple[float, float]]
    at: Sequence[float | str]
    values: Sequence[float]
    x: str
    y: str
    errors: Sequence[float | None] | None = None


def points_attribute(figure: Any, curves: Iterable[DrawnCurve], corner: tuple[float, float] | None = None) -> str:
    """Returns the attribute of an SVG with the points of its curves, in the drawing's own coordinates.

    Args:
        figure: matplotlib's, in its final layout.
        curves: drawn on it.
        corner: its upper left corner in inches, where the drawing is cut; that of the figure without.
    """
    left, top = corner or (0.0, figure.get_size_inches()[1])
    found = []
    for curve in curves:
        placed = curve.axes.transData.transform(list(curve.places)) / figure.dpi if curve.places else ()
        errors = curve.errors or [None] * len(curve.values)
        points = [
            [
                round(POINTS_PER_INCH * (x - left), 1),
                round(POINTS_PER_INCH * (top - y), 1),
                at if isinstance(at, str) else _short(at),
                _short(value),
                *([] if error is None else [_short(error)]),
            ]
            for (x, y), at, value, error in zip(placed, curve.at, curve.values, errors, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        ]
        if points:
            found.append({"name": curve.name, "x": curve.x, "y": curve.y, "points": points})
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return f" data-curves='{escape(text, quote=False).replace(chr(39), '&#39;')}'" if found else ""


def _short(value: float) -> float | int:
    """Returns a number to `DIGITS` significant digits."""
    number = float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() else number
