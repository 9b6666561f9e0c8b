"""Figures of the papers, as `rlhf_core/published/figures/<paper>.yaml` lists them.

A file has `labels` (row: name in legends; its place is its colour in every figure), `figures` in the order of the page,
and `recorded` ones, of records that the tables stage does not read. A figure has

    figure             number of a published figure, whose title and claims it has; else `key` and `title`
    caption            `{verdicts}` is 'true' or 'judged': what decides win rates
    rows               names, or {name: label}
    own_colours        whether colours follow the rows' places in the figure
    row_by_row         whether missing rows are named in the order of the rows, not of the panels
    panels             of kind panels: see `PanelSpec`; `each` has the fields that all panels share
    kind, options      a function of `KINDS` that draws something else, and its arguments
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import yaml

from rlhf_core.published.printed_tables import FOLDER
from rlhf_core.published.row_map import RecipeRow, recipe_row
from rlhf_core.typed import typed
from tasks.report import figures_numbers as of_numbers
from tasks.report import figures_texts as of_texts
from tasks.report.claims import paper_claims_figure
from tasks.report.figure_data import (
    FigureData,
    FigureLine,
    Panel,
    Request,
    Series,
    Style,
    curve,
    mean_series,
    metric_bars,
    metric_by_seed,
    published_figure,
    spread_note,
    table_line,
)
from tasks.report.numbers import win_rate_source
from tasks.report.outputs import ResultTree, StageOutput

#: Panels of training curves: metric, title, unit.
TRAINING_CURVES = (
    ("reward", "Proxy reward", "reward per response"),
    ("true_reward", "True reward", "sum over clauses"),
    ("kl", "KL to the SFT policy", "nats per response"),
)
REWARD_MODEL_COLUMNS = {
    "accuracy": "Accuracy",
    "bayes_ceiling": "Bayes ceiling",
    "ece": "ECE",
    "fidelity_pearson": "Fidelity (Pearson)",
    "fidelity_spearman": "Fidelity (Spearman)",
    "boundary_f1": "Boundary F1",
}


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
    rows: tuple[str, ...] | None = None
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
    rows: Any = ()
    own_colours: bool = False
    row_by_row: bool = False
    each: Mapping[str, Any] = field(default_factory=dict)
    panels: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperFigures:
    """The figures of a paper's file."""

    labels: Mapping[str, str]
    figures: tuple[Any, ...]
    recorded: tuple[Any, ...] = ()
    #: True where captions of panels say what their errors are.
    spread_note: bool = False


@cache
def _file(paper: str) -> PaperFigures:
    path = FOLDER / "figures" / f"{paper}.yaml"
    if not path.exists():
        return PaperFigures({}, ())
    raw = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)  # figures share captions and axes by aliases
    return typed(PaperFigures, raw, f"figures/{path.name}")


def paper_figures(paper: str, tree: ResultTree) -> list[FigureData]:
    """Returns all figures of a paper, in the order of its file."""
    return list(_made(paper, tree, _file(paper).figures))


def recorded_figures(paper: str, tree: ResultTree) -> list[FigureData]:
    """Returns a paper's figures of how results were made, such as the time they took."""
    return list(_made(paper, tree, _file(paper).recorded))


def _made(paper: str, tree: ResultTree, figures: Sequence[Any]) -> Iterator[FigureData]:
    file = _file(paper)
    verdicts = win_rate_source(tree, paper)
    for number, raw in enumerate(figures, 1):
        spec = typed(FigureSpec, raw, f"figures/{paper}.yaml, figure {number}")
        if spec.kind == "claims":
            yield paper_claims_figure(paper, tree)
            continue
        form, draw = KINDS[spec.kind]
        caption, title = (_with_verdicts(text, verdicts) for text in (spec.caption, spec.title))
        if spec.figure:
            figure = published_figure(f"{paper}/{spec.figure}", caption, form)
        else:
            figure = FigureData(spec.key, title, caption, form)
        draw(figure, Request(paper, tree, _lines(spec, file.labels), file.labels, verdicts, spec))
        if file.spread_note and spec.kind == "panels":
            figure.caption += spread_note(figure.panels)
        yield figure


def _with_verdicts(text: str, verdicts: str) -> str:
    return text.replace("{verdicts}", verdicts).replace("{Verdicts}", verdicts.capitalize())


def _lines(spec: FigureSpec, labels: Mapping[str, str]) -> list[FigureLine]:
    """Returns the rows of a figure with their labels and colours: those of their label, else of their place."""
    named = spec.rows if isinstance(spec.rows, Mapping) else {name: labels.get(name, name) for name in spec.rows}
    colours = {} if spec.own_colours else {label: slot for slot, label in enumerate(labels.values())}
    return [FigureLine(name, label, colours.get(label, place)) for place, (name, label) in enumerate(named.items())]


def _panels(figure: FigureData, request: Request) -> None:
    """Draws a figure's panels."""
    panels = [typed(PanelSpec, {**request.spec.each, **raw}, f"figure '{figure.title}'") for raw in request.spec.panels]
    if request.spec.row_by_row:
        for name in (panel.prefix + line.name for line in request.lines for panel in panels):
            figure.needs(name, request.tree.of(recipe_row(request.paper, name)))
    for panel in panels:
        y = _with_verdicts(panel.y, request.verdicts)
        drawn = Panel(panel.title, panel.x, y, [], right_label=panel.right)
        lines = request.lines if panel.rows is None else _lines(replace(request.spec, rows=panel.rows), request.labels)
        places = [(line, recipe_row(request.paper, panel.prefix + line.name)) for line in lines]
        runs = [figure.needs(panel.prefix + line.name, request.tree.of(place)) for line, place in places]
        if panel.positions:
            means = {
                at: _mean(panel, request, line, own) for at, line, own in zip(panel.positions, lines, runs, strict=True)
            }
            drawn.series = mean_series(next(iter(request.labels.values())), means, colour=0)
        else:
            drawn.series = [one for line, own in zip(lines, runs, strict=True) for one in _series(panel, line, own)]
        if panel.diagonal and (ends := [end for one in drawn.series for end in (*one.x, *one.y)]):
            ends = [min(ends), max(ends)]
            drawn.series.append(Series(panel.diagonal, ends, ends, style="guide"))
        figure.panels.append(drawn)


def _mean(
    panel: PanelSpec, request: Request, line: FigureLine, runs: Mapping[int, StageOutput]
) -> tuple[float, float | None] | None:
    found = metric_by_seed(runs, panel.metric)
    if found is None and panel.else_of_reward_model:
        model = request.tree.outputs(request.paper, "reward_model", line.name)
        return metric_by_seed(model, panel.else_of_reward_model)
    return found


def _series(panel: PanelSpec, line: FigureLine, runs: Mapping[int, StageOutput]) -> list[Series]:
    """Returns the series of a row: bars, means by size, or its curve with the one of the second axis."""
    if panel.bars:
        groups = {metric: name.replace("{label}", line.label) for metric, name in panel.bars.items()}
        return metric_bars(line.label, runs, groups, line.colour)
    if panel.sizes:
        names = {name for run in runs.values() for name in run.metrics if name.startswith(panel.sizes)}
        sizes = sorted(int(name.removeprefix(panel.sizes)) for name in names)
        means = {size: metric_by_seed(runs, f"{panel.sizes}{size}") for size in sizes}
        return mean_series(line.label, means, colour=line.colour)
    found = [_curve(panel, panel.curve, line, runs)]
    if panel.right_curve:
        found.append(replace(_curve(panel, panel.right_curve, line, runs), style="dashed", right=True))
    return [series for series in found if series.x]


def _curve(panel: PanelSpec, metric: str, line: FigureLine, runs: Mapping[int, StageOutput]) -> Series:
    points = list(zip(*curve(runs, metric, file=panel.file, x=panel.along), strict=True))
    if panel.final:
        place, height = metric_by_seed(runs, panel.along), metric_by_seed(runs, metric)
        points += [(place[0], *height)] if place and height else []
        points.sort(key=lambda point: point[0])
    x = [100 * place if panel.percent_along else place for place, _, _ in points]
    error = None if panel.style == "path" else [error for _, _, error in points]
    return Series(line.label, x, [height for _, height, _ in points], error, panel.style, line.colour)


def _training_curves(figure: FigureData, request: Request) -> None:
    """Draws the reward, true reward and KL over training steps, one line per row."""
    figure.key, figure.title = "training-curves", "Training curves"
    panels = [
        {"title": title, "x": "training step", "y": unit, "curve": metric} for metric, title, unit in TRAINING_CURVES
    ]
    _panels(figure, replace(request, spec=replace(request.spec, panels=tuple(panels))))


def _reward_models(figure: FigureData, request: Request) -> None:
    """Fills in accuracy against the Bayes ceiling, calibration and credit-assignment fidelity, one line per model."""
    figure.key, figure.title = "reward-models", "Reward models"
    lines = []
    for line in request.lines:
        row = RecipeRow(line.name, request.paper, "reward_model")
        if outputs := figure.needs(row.name, request.tree.of(row)):
            lines.append(
                table_line(row.name, row, [metric_by_seed(outputs, metric) for metric in REWARD_MODEL_COLUMNS])
            )
    if lines:
        figure.blocks = [{"columns": list(REWARD_MODEL_COLUMNS.values()), "rows": lines}]


#: Kind -> form of its data (see `figure_data`), and the function that fills it in.
KINDS: dict[str, tuple[str, Callable[[FigureData, Request], None]]] = {
    "panels": ("panels", _panels),
    "training_curves": ("panels", _training_curves),
    "reward_models": ("table", _reward_models),
    "selection": ("panels", of_numbers.selection),
    "normaliser_fits": ("panels", of_numbers.normaliser_fits),
    "shaping_functions": ("panels", of_numbers.shaping_functions),
    "outcomes": ("panels", of_numbers.outcomes),
    "outcomes_table": ("table", of_numbers.outcomes_table),
    "before_ends": ("panels", of_numbers.before_ends),
    "training_time": ("panels", of_numbers.training_time),
    "rewriting": ("panels", of_numbers.rewriting),
    "error_positions": ("panels", of_numbers.error_positions),
    "credit_fidelity": ("panels", of_numbers.credit_fidelity),
    "credit_fidelity_table": ("table", of_numbers.credit_fidelity_table),
    "kept_wrong_steps": ("table", of_numbers.kept_wrong_steps),
    "coloured_examples": ("coloured_text", of_texts.coloured_examples),
    "segmentation": ("segmentation", of_texts.segmentation),
    "answers_side_by_side": ("coloured_text", of_texts.answers_side_by_side),
    "highest_paid_rollouts": ("coloured_text", of_texts.highest_paid_rollouts),
    "coloured_credit": ("coloured_text", of_texts.coloured_credit),
    "cases": ("coloured_text", of_texts.cases),
}
