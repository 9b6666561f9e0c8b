"""The data behind a figure, as plain values: what the tables stage writes and the report draws.

Five kinds cover the papers' figures: `panels` (lines, points and bars on axes), `coloured_text` (one response
under several reward models), `segmentation` (true and found boundaries of one response), `table`, and `claims` (what
the paper says and what was measured of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlhf_core.published.row_map import RecipeRow, recipe_row
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.worlds import Mean, mean_and_standard_error

Style = Literal["line", "dashed", "points", "path", "thin", "guide", "intervals", "band", "bars"]


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
        missing: rows without results, noted while drawing.
    """

    paper: str
    tree: ResultTree
    lines: Sequence[FigureLine]
    labels: Mapping[str, str]
    verdicts: str
    spec: Any
    missing: list[str] = field(default_factory=list)

    @property
    def options(self) -> Mapping[str, Any]:
        return self.spec.options  # type: ignore[no-any-return]

    def runs(self, name: str) -> Mapping[int, StageOutput]:
        """Returns the runs of a row by seed: a policy's by its name, else of `<kind>/<name>` or
        `<group>/<kind>/<name>`; a row without runs is noted as missing."""
        *place, own = name.split("/")
        row = (
            recipe_row(self.paper, own)
            if not place
            else RecipeRow(own, place[-2] if place[1:] else self.paper, place[-1])
        )
        found = self.tree.of(row)
        if not found:
            self.miss(name)
        return found

    def miss(self, name: str) -> None:
        """Notes a row as missing, once."""
        if name not in self.missing:
            self.missing.append(name)


def mean_series(label: str, means: Mapping[Any, Mean | None], *, colour: int, style: Style = "line") -> list[Series]:
    """Returns means by position or bar group as a list of one series, or of none where nothing was measured."""
    found = {place: mean for place, mean in means.items() if mean}
    if not found:
        return []
    heights, errors = zip(*found.values(), strict=True)
    return [Series(label, list(found), list(heights), list(errors), style=style, colour=colour)]


def curve(
    outputs: Mapping[int, StageOutput],
    metric: str,
    *,
    file: str = "history.jsonl",
    x: str = "step",
    with_end: bool = False,
) -> list[tuple[float, float, float | None]]:
    """Returns a metric over training as points (x, mean over worlds, standard error), aligned by `step`.

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
    points = []
    for step in sorted(set.intersection(*(set(rows) for rows in by_seed))) if by_seed else ():
        place = sum(float(rows[step][x]) for rows in by_seed) / len(by_seed)
        points.append((place, *mean_and_standard_error([float(rows[step][metric]) for rows in by_seed])))
    return points


def curve_series(label: str, points: Sequence[tuple[float, float, float | None]], **options: Any) -> list[Series]:
    """Returns the points of a curve as a list of one series, or of none without points."""
    if not points:
        return []
    x, y, error = zip(*points, strict=True)
    return [Series(label, [*x], [*y], [*error], **options)]
