"""Gold and proxy reward over the square root of KL, as Gao et al. (2023) draw over-optimisation, for a study's rows.

A record's curve has the mean proxy reward and the true win rate over the SFT model at each evaluation while training.
A record has the true reward at the end alone, so the win rate takes the place of the gold reward. Both begin at the SFT
model: KL 0, a win rate of 50 % and the proxy reward of its answers.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.params.studies import StudySpec
from tasks.report.drawing import DOTTED, INK, PALETTE, STYLE, inline_svg
from tasks.report.hovering import DrawnCurve, points_attribute
from tasks.studies.equal_kl import EVEN, OVER_SFT, curve_problem, path_of

PROXY, PROXY_OF_SFT = "proxy_reward", "proxy_reward_sft"
PANEL = (4.3, 2.7)
#: Inches around the drawing.
MARGIN = 0.04
Path = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class RowCurves:
    """A row's ways through KL in a cell.

    Attributes:
        row, cell: their names.
        gold, proxy: of each world (KL, value) from the SFT model on; empty where the row is not drawn.
        problem: why it is not drawn.
    """

    row: str
    cell: str
    gold: tuple[Path, ...]
    proxy: tuple[Path, ...]
    problem: str | None = None


def row_curves(spec: StudySpec, records: Sequence[Mapping[str, Any]]) -> list[RowCurves]:
    """Returns the curves of a study with KL targets, by cell and row; none of rows that have no evaluation on the way.

    A row is drawn in a cell where every world has its curve: a mean over the other worlds would choose among them.
    """
    if not spec.kl_targets or spec.metric != OVER_SFT:
        return []
    found = []
    for cell, levels in spec.cells.items():
        for row in spec.rows_of(levels):
            runs = [record["cells"][cell]["rows"][row] for record in records]
            problems = [
                f"world {record['world']}: {said}"
                for record, run in zip(records, runs, strict=True)
                if (said := _problem(run)) is not None
            ]
            if problems:
                more = f", and {len(problems) - 1} more worlds" if len(problems) > 1 else ""
                found.append(RowCurves(row, cell, (), (), problems[0] + more))
                continue
            gold = tuple(path_of(run["curve"], OVER_SFT) for run in runs)
            proxy = tuple(path_of(run["curve"], PROXY, run["metrics"].get(PROXY_OF_SFT)) for run in runs)
            found.append(RowCurves(row, cell, gold, proxy))
    return found


def _problem(run: Mapping[str, Any]) -> str | None:
    """Returns why a run's curve cannot be drawn; None where it can."""
    for word in ("stopped", "diverged"):
        if word in run:
            return f"{word}: {run[word]}"
    start = run["metrics"].get(PROXY_OF_SFT, 0.0)
    if not isinstance(start, int | float):
        return f"{PROXY_OF_SFT} is {start}"
    return curve_problem(run["curve"], OVER_SFT) or curve_problem(run["curve"], PROXY)


def mean_path(paths: Sequence[Path]) -> list[tuple[float, float]]:
    """Returns the mean over worlds of root KL and value at each evaluation that all worlds have, in root KL."""
    return [
        (math.fsum(math.sqrt(kl) for kl, _ in each) / len(each), math.fsum(value for _, value in each) / len(each))
        for each in zip(*paths, strict=False)
    ]


def curves_svg(key: str, title: str, curves: Sequence[RowCurves], targets: Sequence[float]) -> str:
    """Returns a line of panels for each cell as an SVG element: the proxy reward at the left, gold at the right.

    Args:
        key: prefix of every id in the SVG.
        title: for readers who do not see it.
        curves: those that have paths are drawn.
        targets: KL at which rows are compared, marked by dotted lines.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    cells = list(dict.fromkeys(one.cell for one in curves))
    rows = list(dict.fromkeys(one.row for one in curves))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": key}):
        size = (2 * PANEL[0], PANEL[1] * len(cells))
        figure, grid = pyplot.subplots(len(cells), 2, squeeze=False, figsize=size, sharex=True, sharey="col")
        drawn = []
        for cell, (left, right) in zip(cells, grid, strict=True):
            for one in (one for one in curves if one.cell == cell and one.gold):
                colour = PALETTE[rows.index(one.row) % len(PALETTE)]
                drawn.append(_draw(left, one.proxy, colour, one.row, "proxy reward"))
                drawn.append(_draw(right, one.gold, colour, one.row, "win rate over SFT, %"))
            for axes, said in ((left, "proxy reward"), (right, "gold: true win rate over SFT")):
                axes.set_title(f"{cell}: {said}")
                for target in targets:
                    axes.axvline(math.sqrt(target), color=INK, linestyle=DOTTED, linewidth=0.8, zorder=1)
            right.axhline(EVEN, color=INK, linewidth=1.0, zorder=1)
        for axes in grid[-1]:
            axes.set_xlabel("√KL, √nats per response")
        handles = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="lower left", bbox_to_anchor=(0.03, 1.0), ncols=6, frameon=False
        )
        figure.tight_layout()
        buffer, box = io.StringIO(), figure.get_tightbbox().padded(MARGIN)
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches=box)
        points = points_attribute(figure, drawn, (box.x0, box.y1))
        pyplot.close(figure)
    return inline_svg(buffer.getvalue(), key, title, points)


def _draw(axes: Any, paths: Sequence[Path], colour: str, label: str, said: str) -> DrawnCurve:
    """Draws a thin line for each world and a thick one for their mean at each evaluation; returns the mean."""
    for path in paths:
        axes.plot(
            [math.sqrt(kl) for kl, _ in path], [value for _, value in path], color=colour, linewidth=0.7, alpha=0.3
        )
    mean = mean_path(paths)
    axes.plot(*zip(*mean, strict=True), color=colour, linewidth=2.4, label=label, marker="o", markersize=3.2)
    return DrawnCurve(axes, label, mean, [x for x, _ in mean], [y for _, y in mean], "√KL", said)
