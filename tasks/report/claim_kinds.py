"""The kinds of statement that a claim is made of: the fields of each and the comparisons that follow from it.

A comparison says that one number is above another, below it, or beside it (within a margin). `KINDS` is the one table
of kinds; a new one is a dataclass of its fields, a function and a line there. Fields are checked by their names:
`ROW_FIELDS` are rows of the paper's row map, `METRIC_FIELDS` metrics.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.verdicts import ClaimSide
from tasks.report.claim_numbers import Numbers
from tasks.report.measurements import BySeed
from tasks.report.outputs import StageOutput

#: (position, height) by position.
Curve = Sequence[tuple[float, float]]
#: Fields of parts that hold names of rows, and of metrics.
ROW_FIELDS = ("rows", "than", "over", "row", "peak")
METRIC_FIELDS = ("metric", "than_metric", "best", "end", "along")


@dataclass(frozen=True)
class ClaimComparison:
    """Two numbers and the side of the second on which the paper has the first.

    Attributes:
        left, right: their names on the page.
        values, other: by seed; `other` may be a constant such as the 50 % of the SFT policy.
        margin: of beside, in the metric's unit.
        rows: the two rows that are compared; empty where a row is compared with itself or with a constant.
    """

    left: str
    values: BySeed
    side: ClaimSide
    right: str
    other: BySeed | float
    margin: float = 0.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Fields of greater, less and within: each row against each of `than`, in each metric.

    Args:
        than: other rows or a number; the row itself, in `than_metric`, unless given.
        than_metric: metric of the other side where it is not the same.
        margin: of within.
    """

    rows: tuple[str, ...]
    than: tuple[str, ...] | float | None = None
    metric: tuple[str, ...] = ()
    than_metric: str | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.than is None and self.than_metric is None:
            raise RecipeError("a row needs 'than' (rows or a number) or 'than_metric' to be compared with")
        if isinstance(self.than, tuple) and not self.than_metric and (same := set(self.rows) & set(self.than)):
            raise RecipeError(f"than: '{min(same)}' is compared with itself")


def compare_rows(part: Rows, numbers: Numbers, side: ClaimSide) -> list[ClaimComparison]:
    """Compares each row with each other row, with a number, or with its own other metric."""
    file, found = numbers.file, []
    margin = file.margin if part.margin is None else part.margin
    for metric, row in itertools.product(part.metric or (file.metric,), part.rows):
        own, label, other_metric = numbers.of(row, metric), file.label(row, metric), part.than_metric or metric
        if part.than is None:
            label, right = f"{row}, {file.title(metric)}", file.title(other_metric)
            found.append(ClaimComparison(label, own, side, right, numbers.of(row, other_metric), margin))
        elif isinstance(part.than, tuple):
            for other in part.than:
                right = other if other_metric == metric else file.label(other, other_metric)
                found.append(
                    ClaimComparison(label, own, side, right, numbers.of(other, other_metric), margin, (row, other))
                )
        else:
            found.append(ClaimComparison(label, own, side, f"{part.than:g}", float(part.than), margin))
    return found


@dataclass(frozen=True)
class Order:
    """Fields of order: rows from the lowest to the highest."""

    rows: tuple[str, ...]
    metric: tuple[str, ...] = ()


def compare_order(part: Order, numbers: Numbers) -> list[ClaimComparison]:
    """Compares each row with the one before it."""
    pairs = itertools.product(part.metric or (numbers.file.metric,), itertools.pairwise(part.rows))
    return [
        ClaimComparison(
            numbers.file.label(high, metric),
            numbers.of(high, metric),
            "above",
            low,
            numbers.of(low, metric),
            rows=(high, low),
        )
        for metric, (low, high) in pairs
    ]


@dataclass(frozen=True)
class PeakInside:
    """Fields of peak_inside: rows in the order of a dial, and the one between the ends that is above both."""

    rows: tuple[str, ...]
    peak: str
    metric: str | None = None

    def __post_init__(self) -> None:
        if self.peak not in self.rows[1:-1]:
            raise RecipeError(f"peak is '{self.peak}'; it must be one of 'rows' between the first and the last")


def compare_peak(part: PeakInside, numbers: Numbers) -> list[ClaimComparison]:
    """Compares the peak with both ends of the dial."""
    return compare_rows(
        Rows((part.peak,), (part.rows[0], part.rows[-1]), (part.metric or numbers.file.metric,)), numbers, "above"
    )


@dataclass(frozen=True)
class Collapse:
    """Fields of collapse: rows that end with worse weights than at their best evaluation."""

    rows: tuple[str, ...]
    best: str = "peak_win_rate_vs_sft"
    end: str = "win_rate_vs_sft"


def compare_collapse(part: Collapse, numbers: Numbers) -> list[ClaimComparison]:
    """Compares each row's best evaluation with its end."""
    return compare_rows(Rows(part.rows, None, (part.best,), part.end), numbers, "above")


@dataclass(frozen=True)
class Wins:
    """Fields of wins and ties: a row's answers against the answers of each other row.

    Args:
        over: the other rows.
        by: the score or judge that says which answer is better.
        margin: points from 50 % within which rows tie.
    """

    row: str
    over: tuple[str, ...]
    by: str
    margin: float | None = None


def compare_wins(part: Wins, numbers: Numbers, side: ClaimSide) -> list[ClaimComparison]:
    """Compares the row's win rate over each other row with 50 %."""
    margin = numbers.file.margin if part.margin is None else part.margin
    judge = numbers.file.title(f"wins/{part.by}")
    return [
        ClaimComparison(
            f"{part.row} over {other} {judge}",
            numbers.of(part.row, metric),
            side,
            "50",
            50.0,
            margin,
            (part.row, other),
        )
        for other in part.over
        for metric in (f"wins/{part.by}/{other}",)
    ]


@dataclass(frozen=True)
class Selected:
    """Fields of selected: the aspect that a selection chooses, and others that it leaves.

    Args:
        metric: of the selection, without the aspect's name.
        side: of the chosen aspect, 'above' or 'below' the others.
    """

    row: str
    aspect: str
    others: tuple[str, ...]
    metric: str
    side: str

    def __post_init__(self) -> None:
        if self.side not in ("above", "below"):
            raise RecipeError(f"side is '{self.side}'; it must be 'above' or 'below'")


def compare_selected(part: Selected, numbers: Numbers) -> list[ClaimComparison]:
    """Compares the chosen aspect with each other aspect of the selection."""
    side: ClaimSide = "above" if part.side == "above" else "below"
    own = numbers.of(part.row, f"{part.metric}/{part.aspect}")
    label = f"{numbers.file.title(part.metric)} {part.aspect}"
    return [
        ClaimComparison(label, own, side, other, numbers.of(part.row, f"{part.metric}/{other}"))
        for other in part.others
    ]


@dataclass(frozen=True)
class Frontier:
    """Fields of frontier: the row with a curve above other rows' curves.

    Args:
        metric: height of the curve, in the evaluations of a run and of its last weights.
        along: its position.
        pieces: equal pieces of the range that two curves share in a world; in each the mean heights are compared.
    """

    row: str
    over: tuple[str, ...]
    metric: str | None = None
    along: str = "kl"
    pieces: int = 3

    def __post_init__(self) -> None:
        if self.pieces < 1:
            raise RecipeError(f"pieces is {self.pieces}; it must be at least 1")


def curve_of(output: StageOutput, metric: str, along: str) -> Curve:
    """Returns (position, height) of every evaluation of a run and of its last weights, by position."""
    rows = [*output.rows("checkpoints.jsonl"), output.metrics]
    return sorted((float(row[along]), float(row[metric])) for row in rows if along in row and metric in row)


def mean_height(curve: Curve, start: float, end: float) -> float:
    """Returns the mean height of the lines through a curve's points, which reach from `start` to `end` or beyond."""
    area = 0.0
    for (x, y), (following, height) in itertools.pairwise(curve):
        low, high = max(x, start), min(following, end)
        if low < high:
            middle = y + (height - y) * ((low + high) / 2 - x) / (following - x)
            area += middle * (high - low)
    return area / (end - start)


def shared_pieces(curves: Sequence[Curve], pieces: int) -> list[tuple[float, float]]:
    """Returns equal pieces of the range that all curves reach; none where there is no such range."""
    if not curves or not all(curves):
        return []
    low, high = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    width = (high - low) / pieces
    return [(low + i * width, low + (i + 1) * width) for i in range(pieces)] if low < high else []


def compare_frontier(part: Frontier, numbers: Numbers) -> list[ClaimComparison]:
    """Compares the row's curve with each other curve, in every piece of the range that both reach in a world.

    The pieces are cut in each world by its own curves, so that a world's numbers do not depend on other worlds.
    """
    metric, place, found = part.metric or numbers.file.metric, numbers.file.title(part.along), []
    for other in part.over:
        own, theirs = (
            {seed: curve_of(output, metric, part.along) for seed, output in numbers.outputs[name].items()}
            for name in (part.row, other)
        )
        cut = {seed: shared_pieces([own[seed], theirs[seed]], part.pieces) for seed in own.keys() & theirs.keys()}
        for number in range(part.pieces):
            left, right = (
                {seed: mean_height(curves[seed], *pieces[number]) for seed, pieces in cut.items() if pieces}
                for curves in (own, theirs)
            )
            label = f"{part.row}, piece {number + 1} of {part.pieces} of the shared {place}"
            found.append(ClaimComparison(label, left, "above", other, right, rows=(part.row, other)))
    return found


class Kind(NamedTuple):
    """The fields of a kind and the function that makes its comparisons."""

    fields: type[Any]
    comparisons: Callable[[Any, Numbers], list[ClaimComparison]]


KINDS: dict[str, Kind] = {
    "greater": Kind(Rows, partial(compare_rows, side="above")),
    "less": Kind(Rows, partial(compare_rows, side="below")),
    "within": Kind(Rows, partial(compare_rows, side="beside")),
    "order": Kind(Order, compare_order),
    "peak_inside": Kind(PeakInside, compare_peak),
    "collapse": Kind(Collapse, compare_collapse),
    "wins": Kind(Wins, partial(compare_wins, side="above")),
    "ties": Kind(Wins, partial(compare_wins, side="beside")),
    "selected": Kind(Selected, compare_selected),
    "frontier": Kind(Frontier, compare_frontier),
}
