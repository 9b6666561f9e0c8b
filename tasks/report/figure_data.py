"""The data behind a figure, as plain values: what the tables stage writes and the report draws.

Five kinds cover the papers' figures: `panels` (lines, points and bars on axes), `coloured_text` (one response
under several reward models), `segmentation` (true and found boundaries of one response), `table`, and `claims` (what
the paper says and what was measured of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from rlhf_core.published.row_map import RecipeRow, recipe_row
from tasks.report.numbers import win_rate_source
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.worlds import Mean, mean_and_standard_error

Style = Literal["line", "dashed", "points", "path", "thin", "guide", "intervals", "bars"]
#: Names of rows, or of rows with their labels.
Rows = tuple[str, ...] | Mapping[str, str]


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
            named line (y), with points beside them; bars.
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


def panels_of(figure: Mapping[str, Any]) -> list[Panel]:
    """Returns the panels of a figure of figures.json."""
    return [
        Panel(**{**panel, "series": [Series(**series) for series in panel["series"]]}) for panel in figure["panels"]
    ]


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
        blocks: for the other kinds: plain mappings, as `figure_parts` reads them.
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

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; panels without a series are left out, `status` says whether anything was measured."""
        self.panels = [panel for panel in self.panels if panel.series]
        return {**asdict(self), "status": "measured" if self.panels or self.blocks else "not run"}


@dataclass(frozen=True)
class FigureSpec:
    """A figure of a file.

    Attributes:
        kind: one of `KINDS`.
        figure: number of a published figure, whose title and claims it has; else `key` and `title`.
        rows: of policies, else `<kind>/<name>` or `<group>/<kind>/<name>`.
        own_colours: whether colours follow the rows' places in the figure.
        panels: of kind panels; `each` has the fields that all of them share.
        options: arguments of the kind's function.
    """

    kind: str = "panels"
    figure: str = ""
    key: str = ""
    title: str = ""
    caption: str = ""
    rows: Rows = ()
    own_colours: bool = False
    each: Mapping[str, Any] = field(default_factory=dict)
    panels: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class FigureLine(NamedTuple):
    """A row of a figure, with its label and colour."""

    name: str
    label: str
    colour: int


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn.

    Attributes:
        labels: of all rows of the paper's file, in the order of their colours.
        missing: rows without results, noted while drawing.
    """

    paper: str
    tree: ResultTree
    spec: FigureSpec
    labels: Mapping[str, str]
    missing: list[str] = field(default_factory=list)

    def lines(self, rows: Rows | None = None) -> list[FigureLine]:
        """Returns rows, the figure's unless given, with their labels and colours: those of their label, else of their
        place."""
        rows = self.spec.rows if rows is None else rows
        named = rows if isinstance(rows, Mapping) else {name: self.labels.get(name, name) for name in rows}
        colours = {} if self.spec.own_colours else {label: slot for slot, label in enumerate(self.labels.values())}
        return [FigureLine(name, label, colours.get(label, place)) for place, (name, label) in enumerate(named.items())]

    def runs(self, name: str) -> Mapping[int, StageOutput]:
        """Returns the runs of a row by seed; a row without runs is noted as missing."""
        *place, own = name.split("/")
        row = recipe_row(self.paper, own)
        found = self.tree.of(RecipeRow(own, (self.paper, *place)[-2], place[-1]) if place else row)
        if not found and name not in self.missing:
            self.missing.append(name)
        return found

    def in_words(self, text: str) -> str:
        """Returns a text with what decides win rates."""
        verdicts = win_rate_source(self.tree, self.paper) if "erdicts}" in text else ""
        return text.replace("{verdicts}", verdicts).replace("{Verdicts}", verdicts.capitalize())


#: Position, mean over worlds, standard error.
Point = tuple[Any, float, float | None]


def points_series(label: str, points: Sequence[Point], **options: Any) -> list[Series]:
    """Returns points as a list of one series, or of none without points."""
    if not points:
        return []
    x, y, error = zip(*points, strict=True)
    return [Series(label, [*x], [*y], [*error], **options)]


def mean_series(label: str, means: Mapping[Any, Mean | None], **options: Any) -> list[Series]:
    """Returns means by position or bar group as a list of one series, or of none where nothing was measured."""
    return points_series(label, [(place, *mean) for place, mean in means.items() if mean], **options)


def curve(
    outputs: Mapping[int, StageOutput],
    metric: str,
    *,
    file: str = "history.jsonl",
    x: str = "step",
    with_end: bool = False,
) -> list[Point]:
    """Returns a metric over training, aligned by `step`.

    Steps that only some of the seeds have are left out, so that a mean never changes its seeds on the way.

    Args:
        outputs: runs by seed.
        metric: field of the rows of `file`.
        x: field for the horizontal axis; its mean over worlds is taken.
        with_end: whether the last weights' metrics are the value at the last step.
    """
    every = []
    for out in outputs.values():
        rows = out.rows(file)
        if with_end and (history := out.rows("history.jsonl")):
            rows = [*rows, {**out.metrics, "step": history[-1]["step"]}]
        every.append({int(row["step"]): row for row in rows if row.get(metric) is not None and x in row})
    by_seed = [rows for rows in every if rows]
    points = []
    for step in sorted(set.intersection(*map(set, by_seed))) if by_seed else ():
        place = sum(float(rows[step][x]) for rows in by_seed) / len(by_seed)
        points.append((place, *mean_and_standard_error([float(rows[step][metric]) for rows in by_seed])))
    return points
