"""The kinds of statement that a claim is made of: the fields of each and the comparisons that follow from it.

A comparison says that one number is above another, below it, or beside it (within a margin). `KINDS` is the one table
of kinds; a new one is a dataclass of its fields and a line there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.verdicts import ClaimSide
from rlhf_core.published.row_map import data_set, recipe_row
from tasks.report.games import Matches, match_of
from tasks.report.numbers import Measurements, TableRuns, broken, measurements
from tasks.report.outputs import BySeed, Outputs, ResultTree, StageOutput

#: (position, height) by position.
Curve = Sequence[tuple[float, float]]
#: Fields of parts that hold names of rows.
ROW_FIELDS = ("rows", "than", "over", "row")


@dataclass(frozen=True)
class ClaimsFile:
    """The top level of a claims file.

    Args:
        numbers_sentence: what the numbers are; `{verdicts}` is replaced by 'true' or 'judged': true rewards or a
            judge decide win rates.
        alike_sentence: when two of them count as alike; `{margin}` is replaced by the margin.
        needs: what has to be run for any claim to have a verdict.
        metric: of parts that name none; the page calls it by the row's name alone.
        claims: {id: {says, source, parts}}.
        margin: of parts that give none.
        titles: what the page calls a metric.
        sft_by_prefix: the SFT model of rows by the prefix of their names; the longest that fits holds.
        rival_groups: rows that are each other's `others` in a match, by the name of their task.
    """

    numbers_sentence: str
    needs: str
    metric: str
    claims: Mapping[str, Any]
    alike_sentence: str = ""
    margin: float = 0.0
    titles: Mapping[str, str] = field(default_factory=dict)
    sft_by_prefix: Mapping[str, str] = field(default_factory=dict)
    rival_groups: Mapping[str, Any] = field(default_factory=dict)

    def title(self, metric: str) -> str:
        """Returns the page's name of a metric."""
        return self.titles.get(metric, metric)

    def label(self, row: str, metric: str) -> str:
        """Returns the page's name of a metric of a row."""
        return row if metric == self.metric else f"{row}, {self.title(metric)}"

    def model_of(self, row: str) -> str | None:
        """Returns the SFT model that a row starts from; None where the file does not say."""
        fitting = [prefix for prefix in self.sft_by_prefix if row.startswith(prefix)]
        return self.sft_by_prefix[max(fitting, key=len)] if fitting else None


class Numbers:
    """The measured numbers of a paper's rows, and what its claims file says of all of them.

    Attributes:
        broken: rows that are below their own SFT model even at their best evaluation.
    """

    def __init__(self, paper: str, file: ClaimsFile, rows: Sequence[str], tree: ResultTree) -> None:
        self.file = file
        places = {row: recipe_row(paper, row) for row in rows}
        self.outputs: Outputs = {row: tree.of(place) for row, place in places.items()}
        models = {name: tree.of(recipe_row(paper, name)) for name in file.sft_by_prefix.values()}
        sft_outputs = {row: models[name] for row in rows if (name := file.model_of(row))}
        self.runs = TableRuns(self.outputs, sft_outputs, tree.alpaca_calibrations(data_set(paper)), paper, tree)
        task_of = {row: task for task, members in file.rival_groups.items() for row in members}
        self.matches = Matches(self.outputs, tree.root, task_of)
        self._known: dict[str, Measurements] = {}
        self.broken = {row for row in rows if places[row].kind == "policy" and broken(self.outputs[row])}

    def of(self, row: str, metric: str) -> BySeed:
        """Returns a metric of a row by seed; empty where it was not measured."""
        match = match_of(metric)
        if match is not None:
            return self.matches.measured(row, match)
        if metric not in self._known:
            self._known[metric] = measurements(self.runs, metric)
        return self._known[metric].get(row, {})


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

    def comparisons(self, numbers: Numbers, side: ClaimSide) -> Iterator[ClaimComparison]:
        """Yields each row beside each other row, a number, or its own other metric."""
        file, margin = numbers.file, numbers.file.margin if self.margin is None else self.margin
        for metric, row in itertools.product(self.metric or (file.metric,), self.rows):
            own, label, other_metric = numbers.of(row, metric), file.label(row, metric), self.than_metric or metric
            if self.than is None:
                label, right = f"{row}, {file.title(metric)}", file.title(other_metric)
                yield ClaimComparison(label, own, side, right, numbers.of(row, other_metric), margin)
            elif isinstance(self.than, tuple):
                for other in self.than:
                    right, theirs = file.label(other, other_metric), numbers.of(other, other_metric)
                    right = other if other_metric == metric else right
                    yield ClaimComparison(label, own, side, right, theirs, margin, (row, other))
            else:
                yield ClaimComparison(label, own, side, f"{self.than:g}", float(self.than), margin)


@dataclass(frozen=True)
class Order:
    """Fields of order: rows from the lowest to the highest."""

    rows: tuple[str, ...]
    metric: tuple[str, ...] = ()

    def comparisons(self, numbers: Numbers, side: ClaimSide) -> Iterator[ClaimComparison]:
        """Yields each row beside the one before it."""
        for metric in self.metric or (numbers.file.metric,):
            for low, high in itertools.pairwise(self.rows):
                left, own, theirs = numbers.file.label(high, metric), numbers.of(high, metric), numbers.of(low, metric)
                yield ClaimComparison(left, own, side, low, theirs, rows=(high, low))


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

    def comparisons(self, numbers: Numbers, side: ClaimSide) -> Iterator[ClaimComparison]:
        """Yields the row's win rate over each other row beside 50 %."""
        margin = numbers.file.margin if self.margin is None else self.margin
        for other in self.over:
            left = f"{self.row} over {other} {numbers.file.title(f'wins/{self.by}')}"
            rates = numbers.of(self.row, f"wins/{self.by}/{other}")
            yield ClaimComparison(left, rates, side, "50", 50.0, margin, (self.row, other))


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

    def comparisons(self, numbers: Numbers, _: ClaimSide) -> Iterator[ClaimComparison]:
        """Yields the chosen aspect beside each other aspect of the selection."""
        own, label = numbers.of(self.row, f"{self.metric}/{self.aspect}"), numbers.file.title(self.metric)
        side: ClaimSide = "above" if self.side == "above" else "below"
        for other in self.others:
            theirs = numbers.of(self.row, f"{self.metric}/{other}")
            yield ClaimComparison(f"{label} {self.aspect}", own, side, other, theirs)


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

    def comparisons(self, numbers: Numbers, side: ClaimSide) -> Iterator[ClaimComparison]:
        """Yields the row's curve beside each other curve, in every piece of the range that both reach in a world.

        The pieces are cut in each world by its own curves, so that a world's numbers do not depend on other worlds.
        """
        metric, place = self.metric or numbers.file.metric, numbers.file.title(self.along)
        for other in self.over:
            own, theirs = (
                {seed: _curve(output, metric, self.along) for seed, output in numbers.outputs[name].items()}
                for name in (self.row, other)
            )
            cut = {seed: _shared_pieces([own[seed], theirs[seed]], self.pieces) for seed in own.keys() & theirs.keys()}
            for number in range(self.pieces):
                left, right = (
                    {seed: mean_height(curves[seed], *pieces[number]) for seed, pieces in cut.items() if pieces}
                    for curves in (own, theirs)
                )
                label = f"{self.row}, piece {number + 1} of {self.pieces} of the shared {place}"
                yield ClaimComparison(label, left, side, other, right, rows=(self.row, other))


def _curve(output: StageOutput, metric: str, along: str) -> Curve:
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


def _shared_pieces(curves: Sequence[Curve], pieces: int) -> list[tuple[float, float]]:
    """Returns equal pieces of the range that all curves reach; none where there is no such range."""
    if not all(curves):
        return []
    low, high = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    width = (high - low) / pieces
    return [(low + i * width, low + (i + 1) * width) for i in range(pieces)] if low < high else []


class Kind(NamedTuple):
    """The fields of a kind, and the side on which the paper has the first number of its comparisons."""

    fields: type[Any]
    side: ClaimSide


KINDS: dict[str, Kind] = {
    "greater": Kind(Rows, "above"),
    "less": Kind(Rows, "below"),
    "within": Kind(Rows, "beside"),
    "order": Kind(Order, "above"),
    "wins": Kind(Wins, "above"),
    "ties": Kind(Wins, "beside"),
    "selected": Kind(Selected, "above"),
    "frontier": Kind(Frontier, "above"),
}
