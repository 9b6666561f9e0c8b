"""Figures of the papers, as `rlhf_core/published/figures/<paper>.yaml` lists them.

A file has `labels` (row: name in legends; its place is its colour in every figure), `figures` in the order of the page,
and `recorded` ones, of records that the tables stage does not read. A figure has

    figure             number of a published figure, whose title and claims it has; else `key` and `title`
    caption            `{verdicts}` is 'true' or 'judged': what decides win rates
    rows               names, or {name: label}: of policies, else `<kind>/<name>` or `<group>/<kind>/<name>`
    own_colours        whether colours follow the rows' places in the figure
    panels             of kind panels: see `PanelSpec`; `each` has the fields that all panels share
    kind, options      a function of `KINDS` that draws something else, and its arguments
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    FigureData,
    FigureLine,
    Panel,
    Request,
    Series,
    Style,
    curve,
    curve_series,
    mean_series,
)
from tasks.report.numbers import win_rate_source
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.worlds import Mean, mean_of

#: Panels of training curves.
TRAINING_CURVES = (
    {"title": "Proxy reward", "curve": "reward", "y": "reward per response"},
    {"title": "True reward", "curve": "true_reward", "y": "sum over clauses"},
    {"title": "KL to the SFT policy", "curve": "kl", "y": "nats per response"},
)


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
        else_of_reward_model: metric of the row's reward model where the row has no `metric`.
    """

    title: str
    x: str = ""
    y: str = ""
    rows: tuple[str, ...] | Mapping[str, str] | None = None
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
    else_of_reward_model: str = ""


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a file, see the module."""

    kind: str = "panels"
    figure: str = ""
    key: str = ""
    title: str = ""
    caption: str = ""
    rows: tuple[str, ...] | Mapping[str, str] = ()
    own_colours: bool = False
    each: Mapping[str, Any] = field(default_factory=dict)
    panels: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperFigures:
    """The figures of a paper's file."""

    labels: Mapping[str, str]
    figures: tuple[Any, ...]
    recorded: tuple[Any, ...] = ()


@cache
def _file(paper: str) -> PaperFigures:
    path = printed_tables.FOLDER / "figures" / f"{paper}.yaml"
    if not path.exists():
        return PaperFigures({}, ())
    raw = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)  # figures share captions and axes by aliases
    return typed(PaperFigures, raw, f"figures/{path.name}")


def paper_figures(paper: str, tree: ResultTree) -> list[FigureData]:
    """Returns all figures of a paper, in the order of its file."""
    return [_made(paper, tree, raw) for raw in _file(paper).figures]


def recorded_figures(paper: str, tree: ResultTree) -> list[FigureData]:
    """Returns a paper's figures of how results were made, such as the time they took."""
    return [_made(paper, tree, raw) for raw in _file(paper).recorded]


def _made(paper: str, tree: ResultTree, raw: Any) -> FigureData:
    labels, verdicts = _file(paper).labels, win_rate_source(tree, paper)
    spec = typed(FigureSpec, raw, f"figures/{paper}.yaml, figure {raw.get('figure') or raw.get('key')}")
    if spec.kind == "claims":
        return claims_figure(paper, claims_of(paper), tree)
    key, title, claims = spec.key, _with_verdicts(spec.title, verdicts), []
    if spec.figure:
        printed = printed_tables.figure(f"{paper}/{spec.figure}")
        key, title = printed.id.lower().replace(" ", "-"), f"{printed.id}. {printed.title}"
        claims = [*printed.claims, *map(str, printed.details.get("numbers_in_text", []))]
    form, draw = KINDS[spec.kind]
    request = Request(paper, tree, _lines(spec, spec.rows, labels), labels, verdicts, spec)
    drawn = list(draw(request))
    content = {"panels": drawn} if form == "panels" else {"blocks": drawn}
    caption = _with_verdicts(spec.caption, verdicts)
    return FigureData(key, title, caption, form, claims, **content, missing=request.missing)


def _with_verdicts(text: str, verdicts: str) -> str:
    return text.replace("{verdicts}", verdicts).replace("{Verdicts}", verdicts.capitalize())


def _lines(spec: FigureSpec, rows: Sequence[str] | Mapping[str, str], labels: Mapping[str, str]) -> list[FigureLine]:
    """Returns rows with their labels and colours: those of their label, else of their place."""
    named = rows if isinstance(rows, Mapping) else {name: labels.get(name, name) for name in rows}
    colours = {} if spec.own_colours else {label: slot for slot, label in enumerate(labels.values())}
    return [FigureLine(name, label, colours.get(label, place)) for place, (name, label) in enumerate(named.items())]


def _panels(request: Request) -> Iterator[Panel]:
    """Yields a figure's panels."""
    for raw in request.spec.panels:
        panel = typed(PanelSpec, {**request.spec.each, **raw}, f"figure '{request.spec.key or request.spec.figure}'")
        lines = request.lines if panel.rows is None else _lines(request.spec, panel.rows, request.labels)
        runs = [request.runs(panel.prefix + line.name) for line in lines]
        if panel.positions:
            means = {
                at: _mean(panel, request, line, own) for at, line, own in zip(panel.positions, lines, runs, strict=True)
            }
            series = mean_series(next(iter(request.labels.values())), means, colour=0)
        else:
            series = [one for line, own in zip(lines, runs, strict=True) for one in _series(panel, line, own)]
        if panel.diagonal and series:
            values = [end for one in series for end in (*one.x, *one.y)]
            ends = [min(values), max(values)]
            series.append(Series(panel.diagonal, ends, ends, style="guide"))
        yield Panel(panel.title, panel.x, _with_verdicts(panel.y, request.verdicts), series, panel.right)


def _mean(panel: PanelSpec, request: Request, line: FigureLine, runs: Mapping[int, StageOutput]) -> Mean | None:
    found = mean_of(runs, panel.metric)
    if found is None and panel.else_of_reward_model:
        model = request.tree.outputs(request.paper, "reward_model", line.name)
        return mean_of(model, panel.else_of_reward_model)
    return found


def _series(panel: PanelSpec, line: FigureLine, runs: Mapping[int, StageOutput]) -> list[Series]:
    """Returns the series of a row: bars, means by size, or its curve with the one of the second axis."""
    if panel.bars:
        means = {name: mean for metric, name in panel.bars.items() if (mean := mean_of(runs, metric))}
        named = {name.replace("{label}", line.label): mean for name, mean in means.items()}
        return mean_series(line.label, named, colour=line.colour, style="bars")
    if panel.sizes:
        names = {name for run in runs.values() for name in run.metrics if name.startswith(panel.sizes)}
        sizes = sorted(int(name.removeprefix(panel.sizes)) for name in names)
        return mean_series(
            line.label, {size: mean_of(runs, f"{panel.sizes}{size}") for size in sizes}, colour=line.colour
        )
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
    series = curve_series(line.label, points, style=panel.style, colour=line.colour)
    return [replace(one, error=None) for one in series] if panel.style == "path" else series


def _training_curves(request: Request) -> Iterator[Panel]:
    """Yields the reward, true reward and KL over training steps, one line per row."""
    return _panels(replace(request, spec=replace(request.spec, each={"x": "training step"}, panels=TRAINING_CURVES)))


#: Kind -> form of its data (see `figure_data`), and the function that yields its panels or blocks.
KINDS: dict[str, tuple[str, Callable[[Request], Iterator[Any]]]] = {
    "panels": ("panels", _panels),
    "training_curves": ("panels", _training_curves),
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
