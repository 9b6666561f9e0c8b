"""The data behind a figure, as plain values: what the tables stage writes and the report draws.

Five kinds cover the papers' figures: `panels` (lines, points and bars on axes), `coloured_text` (one response
under several reward models), `segmentation` (true and found boundaries of one response), `table`, and `claims` (what
the paper says and what was measured of it).
A new figure is data of one of these kinds; the page needs no change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import RecipeRow, recipe_row
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error

#: Largest distance in characters from the end of one token to the start of the next token's text.
LOOK_AHEAD = 8

#: A mean over worlds and its standard error, None of a single world.
Mean = tuple[float, float | None]
Style = Literal["line", "dashed", "points", "path", "thin", "guide", "intervals", "band", "bars"]
#: Up to so many points of a line have markers of their own and error bars; more have a band.
FEW_POINTS = 12


@dataclass
class Series:
    """One line, cloud of points or set of bars.

    Args:
        label: name in the legend; series of one label share a colour.
        x: positions (numbers) or bar groups (words).
        y: heights; None leaves a gap.
        error: standard error per height; None where there is one world. Of intervals, half their width.
        style: line (solid) or dashed; points; path, points joined in their order; thin, a faint line
            without a name; guide, a line to read the others against; intervals, one position (x) and its error for each
            named line (y), with points beside them and a band from one position to another; bars.
        colour: slot in the palette (0 is the paper's own method); None takes the next free one, a guide ink.
        right: measured on the panel's right axis.
    """

    label: str
    x: list[Any]
    y: list[Any]
    error: list[float | None] | None = None
    style: Style = "line"
    colour: int | None = None
    right: bool = False


@dataclass
class Panel:
    """One pair of axes; with a `right_label` there is a second vertical one."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    right_label: str = ""


@dataclass
class FigureData:
    """One figure.

    Args:
        key: anchor on the page, such as 'figure-4'.
        title: heading.
        caption: what is shown, from which rows and seeds, in a sentence or two.
        kind: panels | coloured_text | segmentation | table | claims.
        claims: what the paper's figure claims, as printed in the paper.
        panels: for kind panels.
        blocks: for the other kinds: plain mappings as the page's template of that kind reads them.
        missing: rows that the figure needs and that were not run.
    """

    key: str
    title: str
    caption: str
    kind: str = "panels"
    claims: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def needs(self, name: str, outputs: Mapping[int, StageOutput]) -> Mapping[int, StageOutput]:
        """Returns the runs of a row that the figure shows; notes the row as missing where there are none."""
        if not outputs and name not in self.missing:
            self.missing.append(name)
        return outputs

    @property
    def drawn(self) -> bool:
        return bool(self.blocks) or any(panel.series for panel in self.panels)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; panels without a series are left out, `status` says whether anything was measured."""
        self.panels = [panel for panel in self.panels if panel.series]
        return {**asdict(self), "status": "measured" if self.drawn else "not run"}


@dataclass(frozen=True)
class FigureLine:
    """A row of a figure, with its label and colour."""

    name: str
    label: str
    colour: int


@dataclass(frozen=True)
class Request:
    """A figure to draw.

    Attributes:
        paper: its key.
        tree: the results.
        lines: the figure's rows.
        labels: of all rows of the paper's file, in the order of their colours.
        verdicts: what decides win rates, 'true' or 'judged'.
        spec: the figure as the file has it (`tasks.report.figures.FigureSpec`).
    """

    paper: str
    tree: ResultTree
    lines: Sequence[FigureLine]
    labels: Mapping[str, str]
    verdicts: str
    spec: Any

    def runs(self, name: str) -> dict[int, StageOutput]:
        """Returns the runs of a row of the paper by seed."""
        return self.tree.of(recipe_row(self.paper, name))


def published_figure(name: str, caption: str, kind: str = "panels") -> FigureData:
    """Returns the empty data of a published figure ('segment/4'), with its printed title and claims."""
    figure = printed_tables.figure(name)
    return FigureData(
        key=figure.id.lower().replace(" ", "-"),
        title=f"{figure.id}. {figure.title}",
        caption=caption,
        kind=kind,
        claims=[*figure.claims, *map(str, figure.details.get("numbers_in_text", []))],
    )


def spread_note(panels: Sequence[Panel]) -> str:
    """Returns a sentence on the errors of line panels and their drawing; '' without errors."""
    spread = [
        len(series.x) <= FEW_POINTS
        for panel in panels
        for series in panel.series
        if series.error and any(error is not None for error in series.error)
    ]
    drawn = [name for few, name in ((True, "error bars"), (False, "bands")) if few in spread]
    words = " and ".join(drawn)
    return f" Means over worlds; {words} are one standard error." if drawn else ""


def metric_by_seed(outputs: Mapping[int, StageOutput], metric: str) -> Mean | None:
    """Returns the mean and standard error of a metric over worlds; None where no run has it."""
    values = [out.metrics[metric] for out in outputs.values() if metric in out.metrics]
    return mean_and_standard_error(values) if values else None


def mean_series(label: str, means: Mapping[Any, Mean | None], *, colour: int, style: Style = "line") -> list[Series]:
    """Returns means by position or bar group as a list of one series, or of none where nothing was measured."""
    found = {place: mean for place, mean in means.items() if mean}
    if not found:
        return []
    heights, errors = zip(*found.values(), strict=True)
    return [Series(label, list(found), list(heights), list(errors), style=style, colour=colour)]


def metric_bars(
    label: str, outputs: Mapping[int, StageOutput], metrics: Mapping[str, str], colour: int
) -> list[Series]:
    """Returns one set of bars over several metrics, {metric: name of its group}; none where nothing was measured."""
    means = {name: metric_by_seed(outputs, metric) for metric, name in metrics.items()}
    return mean_series(label, means, colour=colour, style="bars")


def table_line(name: str, row: RecipeRow, means: Sequence[Mean | None]) -> dict[str, Any]:
    """Returns a line of a figure of kind table, which links to the row's runs."""
    cells = [{"mean": mean[0], "se": mean[1]} if mean else None for mean in means]
    return {"name": name, "run": f"{row.group}/{row.kind}/{row.name}", "cells": cells}


def curve(
    outputs: Mapping[int, StageOutput],
    metric: str,
    *,
    file: str = "history.jsonl",
    x: str = "step",
    with_end: bool = False,
) -> tuple[list[float], list[float | None], list[float | None]]:
    """Returns a metric over training: x, mean over worlds and standard error, aligned by `step`.

    Steps that only some of the seeds have are left out, so that a mean never changes its seeds on the way.

    Args:
        outputs: runs by seed.
        metric: field of the rows of `file`.
        x: field for the horizontal axis; its mean over worlds is taken.
        with_end: whether the last weights' metrics are the value at the last step.
    """
    by_seed = []
    for out in outputs.values():
        rows = out.rows(file)
        if with_end and (history := out.rows("history.jsonl")):
            rows = [*rows, {**out.metrics, "step": history[-1]["step"]}]
        by_seed.append({int(row["step"]): row for row in rows if row.get(metric) is not None and x in row})
    by_seed = [rows for rows in by_seed if rows]
    if not by_seed:
        return [], [], []
    steps = sorted(set.intersection(*(set(rows) for rows in by_seed)))
    points = [mean_and_standard_error([float(rows[step][metric]) for rows in by_seed]) for step in steps]
    positions = [sum(float(rows[step][x]) for rows in by_seed) / len(by_seed) for step in steps]
    return positions, [mean for mean, _ in points], [error for _, error in points]


def curve_series(
    label: str,
    outputs: Mapping[int, StageOutput],
    metric: str,
    *,
    colour: int,
    style: Style = "line",
    **options: Any,
) -> list[Series]:
    """Returns the curve of a metric as a list of one series, or of none where nothing was recorded."""
    x, y, error = curve(outputs, metric, **options)
    return [Series(label, x, y, error, style=style, colour=colour)] if x else []


def token_spans(tokens: Sequence[str], response: str) -> list[tuple[int, int]]:
    """Returns half-open character spans of the tokens in the response; together they cover it.

    A token that does not stand at its place is looked for a few characters on (a byte of a longer character, a
    space that the first token lost); one that is not there at all (an end-of-text mark) gets an empty span.
    """
    starts: list[int | None] = []
    position = 0
    for token in tokens:
        core = token if response.startswith(token, position) else token.strip()
        place = response.find(core, position, position + len(core) + LOOK_AHEAD) if core else -1
        starts.append(place if place >= 0 else None)
        position = place + len(core) if place >= 0 else position
    spans: list[tuple[int, int]] = []
    following = len(response)
    for index in range(len(tokens) - 1, -1, -1):
        start = starts[index]
        first = 0 if index == 0 else following if start is None else start
        spans.append((first, following))
        following = first
    return spans[::-1]
