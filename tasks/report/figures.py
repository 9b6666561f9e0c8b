"""Figures of the papers, as `rlhf_core/published/figures/<paper>.yaml` lists them.

A file has `labels` (row: name in legends; its place is its colour in every figure), `figures` in the order of the page,
and `recorded` ones, of records that the tables stage does not read. A figure is a `FigureSpec`; its `kind` names a
function of `KINDS`, and a `{verdicts}` in its texts is 'true' or 'judged': what decides win rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import yaml

from rlhf_core.published import printed_tables
from rlhf_core.published.paper_claims import claims_of
from rlhf_core.typed import typed
from tasks.report import figures_numbers as of_numbers
from tasks.report import figures_texts as of_texts
from tasks.report.claims import claims_figure
from tasks.report.figure_data import (
    Drawing,
    FigureData,
    FigureLine,
    FigureSpec,
    Panel,
    Rows,
    Series,
    Style,
    curve,
    mean_series,
    points_series,
)
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.worlds import mean_of


@dataclass(frozen=True)
class PanelSpec:
    """A panel with a series for each row.

    Attributes:
        title, x, y: its words.
        rows: where they are not the figure's.
        prefix: of the rows' names.
        curve: metric over training, from a `file` of a run's result, at the values of `along`.
        final: whether the last weights' metrics are the last point; points are then in the order of `along`.
        percent_along: whether `along` is a share, shown in percent.
        style: of the curve.
        right, right_curve: label of a second axis and the metric that is drawn on it, dashed.
        diagonal: label of a line on which both axes are equal.
        bars: {metric: name of its group of bars}; `{label}` is the row's.
        sizes: beginning of metrics that end with a number, which is the position.
        metric, positions: one series over all rows, at a position each.
    """

    title: str
    x: str = ""
    y: str = ""
    rows: Rows | None = None
    prefix: str = ""
    curve: str = ""
    file: str = "history.jsonl"
    along: str = "step"
    final: bool = False
    percent_along: bool = False
    style: Style = "line"
    right: str = ""
    right_curve: str = ""
    diagonal: str = ""
    bars: Mapping[str, str] = field(default_factory=dict)
    sizes: str = ""
    metric: str = ""
    positions: tuple[float, ...] = ()


@dataclass(frozen=True)
class PaperFigures:
    """The figures of a paper's file."""

    labels: Mapping[str, str]
    figures: tuple[FigureSpec, ...]
    recorded: tuple[FigureSpec, ...] = ()


@cache
def _file(paper: str) -> PaperFigures:
    path = printed_tables.FOLDER / "figures" / f"{paper}.yaml"
    raw = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)  # figures share captions and axes by aliases
    return typed(PaperFigures, raw, f"figures/{path.name}")


def paper_figures(paper: str, tree: ResultTree) -> list[FigureData]:
    """Returns all figures of a paper, in the order of its file."""
    return [_made(paper, tree, spec) for spec in _file(paper).figures]


def recorded_figures(paper: str, tree: ResultTree) -> list[FigureData]:
    """Returns a paper's figures of how results were made, such as the time they took."""
    return [_made(paper, tree, spec) for spec in _file(paper).recorded]


def _made(paper: str, tree: ResultTree, spec: FigureSpec) -> FigureData:
    if spec.kind == "claims":
        return claims_figure(paper, claims_of(paper), tree)
    drawing, claims = Drawing(paper, tree, spec, _file(paper).labels), []
    key, title = spec.key, drawing.in_words(spec.title)
    if spec.figure:
        printed = printed_tables.figure(f"{paper}/{spec.figure}")
        key, title = printed.id.lower().replace(" ", "-"), f"{printed.id}. {printed.title}"
        claims = [*printed.claims, *map(str, printed.details.get("numbers_in_text", []))]
    form, draw = KINDS[spec.kind]
    content = {"panels" if form == "panels" else "blocks": list(draw(drawing))}
    return FigureData(key, title, drawing.in_words(spec.caption), form, claims, **content, missing=drawing.missing)


def _panels(drawing: Drawing) -> Iterator[Panel]:
    """Yields a figure's panels."""
    for raw in drawing.spec.panels:
        panel = typed(PanelSpec, {**drawing.spec.each, **raw}, f"figure '{drawing.spec.key or drawing.spec.figure}'")
        runs = [(line, drawing.runs(panel.prefix + line.name)) for line in drawing.lines(panel.rows)]
        if panel.positions:
            means = {at: mean_of(own, panel.metric) for at, (_, own) in zip(panel.positions, runs, strict=True)}
            series = mean_series(next(iter(drawing.labels.values())), means, colour=0)
        else:
            series = [one for line, own in runs for one in _series(panel, line, own)]
        if panel.diagonal and series:
            values = [end for one in series for end in (*one.x, *one.y)]
            ends = [min(values), max(values)]
            series.append(Series(panel.diagonal, ends, ends, style="guide"))
        yield Panel(panel.title, panel.x, drawing.in_words(panel.y), series, panel.right)


def _series(panel: PanelSpec, line: FigureLine, runs: Mapping[int, StageOutput]) -> list[Series]:
    """Returns the series of a row: bars, means by size, or its curve with the one of the second axis."""
    if panel.bars:
        means = {name: mean for metric, name in panel.bars.items() if (mean := mean_of(runs, metric))}
        named = {name.replace("{label}", line.label): mean for name, mean in means.items()}
        return mean_series(line.label, named, style="bars", colour=line.colour)
    if panel.sizes:
        names = {name for run in runs.values() for name in run.metrics if name.startswith(panel.sizes)}
        sizes = {int(name.removeprefix(panel.sizes)): mean_of(runs, name) for name in names}
        return mean_series(line.label, dict(sorted(sizes.items())), colour=line.colour)
    found = _curve(panel, panel.curve, line, runs)
    right = _curve(panel, panel.right_curve, line, runs) if panel.right_curve else []
    return found + [replace(one, style="dashed", right=True) for one in right]


def _curve(panel: PanelSpec, metric: str, line: FigureLine, runs: Mapping[int, StageOutput]) -> list[Series]:
    points = curve(runs, metric, file=panel.file, x=panel.along)
    if panel.final:
        place, height = mean_of(runs, panel.along), mean_of(runs, metric)
        points += [(place[0], *height)] if place and height else []
        points.sort(key=lambda point: point[0])
    points = [(100 * x if panel.percent_along else x, height, error) for x, height, error in points]
    series = points_series(line.label, points, style=panel.style, colour=line.colour)
    return [replace(one, error=None) for one in series] if panel.style == "path" else series


#: Kind -> form of its data (see `figure_data`), and the function that yields its panels or blocks.
KINDS: dict[str, tuple[str, Callable[[Drawing], Iterator[Any]]]] = {
    "panels": ("panels", _panels),
    "reward_models": ("table", of_numbers.reward_models),
    "selection": ("panels", of_numbers.selection),
    "normaliser_fits": ("panels", of_numbers.normaliser_fits),
    "shaping_functions": ("panels", of_numbers.shaping_functions),
    "outcomes": ("panels", of_numbers.outcomes),
    "before_ends": ("panels", of_numbers.before_ends),
    "training_time": ("panels", of_numbers.training_time),
    "rewriting": ("panels", of_numbers.rewriting),
    "error_positions": ("panels", of_numbers.error_positions),
    "coloured_examples": ("coloured_text", of_texts.coloured_examples),
    "segmentation": ("segmentation", of_texts.segmentation),
    "answers_side_by_side": ("coloured_text", of_texts.answers_side_by_side),
    "highest_paid_rollouts": ("coloured_text", of_texts.highest_paid_rollouts),
    "coloured_credit": ("coloured_text", of_texts.coloured_credit),
    "cases": ("coloured_text", of_texts.cases),
}
