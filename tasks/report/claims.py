"""Claims of a paper, as comparisons of measured numbers, and their verdicts.

1. The claims of a paper are data: `rlhf_core/published/claims/<paper>.yaml` (`rlhf_core.published.paper_claims`).
2. A claim has parts, and each part makes one or several comparisons.
3. A comparison is an effect over worlds (`tasks.report.worlds`), and the verdict of the claim is by
   `rlhf_core.evaluation.verdicts.claim_verdict`: confirmed if each comparison is significant at .05, contradicted if
   the contrary of one is, corrected for the comparisons of the claim (Holm). A comparison has a verdict of its own, by
   the same p-values; it is not changed by 5 and 6.
4. A comparison of side "beside" (kinds `within` and `ties`) says that two numbers are alike: the 90 % interval of their
   difference over worlds is within the margin (two one-sided t-tests at .05).
5. The comparisons of a claim are over the same worlds. Where they are not, the claim is undecided, and the worlds that
   only some of them have are named.
6. A comparison with a broken row, below its own SFT model even at its best evaluation, confirms no claim, except one
   with the flag `collapse`, whose point is that rows collapse.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.evaluation.verdicts import ClaimSide, ClaimWord, TestedComparison, claim_verdict
from rlhf_core.evaluation.worlds import ALPHA
from rlhf_core.published.paper_claims import Claim, ClaimPart, ClaimsFile
from rlhf_core.published.row_map import recipe_row
from tasks.report.figure_data import FigureData
from tasks.report.numbers import TableRuns, broken, win_rate_source
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.worlds import EXPLORATORY, BySeed, Comparison, compare, compare_constant, exploratory

#: (position, height) by position.
Curve = Sequence[tuple[float, float]]


def claimed_runs(paper: str, file: ClaimsFile, tree: ResultTree) -> TableRuns:
    """Returns the runs of the rows that a paper's claims name."""
    outputs = {row: tree.of(recipe_row(paper, row)) for row in file.rows}
    models = {name: tree.of(recipe_row(paper, name)) for name in file.sft_by_prefix.values()}
    sft_outputs = {row: models[name] for row in outputs if (name := file.model_of(row))}
    tasks = {row: task for task, members in file.rival_groups.items() for row in members}
    return TableRuns(tree, paper, outputs, sft_outputs, tasks)


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

    def over_worlds(self) -> Comparison | None:
        """Returns the first number against the second; None where a row has no results."""
        if isinstance(self.other, float):
            return compare_constant(self.values, self.other)
        return compare(self.left, self.values, self.right, self.other)

    @property
    def means(self) -> list[float]:
        """Returns the means of both numbers over the worlds that both have."""
        if isinstance(self.other, float):
            return [sum(self.values.values()) / len(self.values), self.other]
        seeds = sorted(self.values.keys() & self.other.keys())
        return [sum(by_seed[seed] for seed in seeds) / len(seeds) for by_seed in (self.values, self.other)]


def comparisons(part: ClaimPart, file: ClaimsFile, runs: TableRuns) -> Iterator[ClaimComparison]:
    """Yields the comparisons of a part of a claim."""
    of, side = runs.of, part.side
    margin = file.margin if part.margin is None else part.margin
    for row, other, metric in part.pairs(file.metric):
        if part.kind == "frontier":
            yield from _frontier(part, file, runs, row, other)
        elif part.by:
            left = f"{row} over {other} {file.title(f'wins/{part.by}')}"
            yield ClaimComparison(left, of(row, metric), side, "50", 50.0, margin, (row, other))
        else:
            other_metric = (*part.other_metrics, metric)[0]
            right = other if other_metric == metric else file.label(other, other_metric)
            left, theirs = file.label(row, metric), of(other, other_metric)
            yield ClaimComparison(left, of(row, metric), side, right, theirs, margin, (row, other))
    for metric, row in itertools.product(part.metrics or (file.metric,), part.own):
        if isinstance(part.than, int | float):
            than = float(part.than)
            yield ClaimComparison(file.label(row, metric), of(row, metric), side, f"{than:g}", than, margin)
        for other_metric in part.other_metrics if part.than is None else ():
            left, right = f"{row}, {file.title(metric)}", file.title(other_metric)
            yield ClaimComparison(left, of(row, metric), side, right, of(row, other_metric), margin)


def _frontier(part: ClaimPart, file: ClaimsFile, runs: TableRuns, row: str, other: str) -> Iterator[ClaimComparison]:
    """Yields a row's curve beside another one's, in every piece of the range that both reach in a world.

    The pieces are cut in each world by its own curves, so that a world's numbers do not depend on other worlds.
    """
    metric, place = (*part.metrics, file.metric)[0], file.title(part.along)
    own, theirs = (
        {seed: _curve(output, metric, part.along) for seed, output in runs.outputs[name].items()}
        for name in (row, other)
    )
    cut = {seed: _shared_pieces([own[seed], theirs[seed]], part.pieces) for seed in own.keys() & theirs.keys()}
    for number in range(part.pieces):
        left, right = (
            {seed: mean_height(curves[seed], *pieces[number]) for seed, pieces in cut.items() if pieces}
            for curves in (own, theirs)
        )
        label = f"{row}, piece {number + 1} of {part.pieces} of the shared {place}"
        yield ClaimComparison(label, left, part.side, other, right, rows=(row, other))


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


def with_verdicts(name: str, claim: Claim, file: ClaimsFile, runs: TableRuns) -> dict[str, Any]:
    """Returns a claim as plain data, with the effect, p-value and verdict of each comparison."""
    found = [one for part in claim.parts for one in comparisons(part, file, runs)]
    measured = [comparison.over_worlds() for comparison in found]
    tested = [
        TestedComparison(result.effect if result else None, one.side, one.margin if one.side == "beside" else None)
        for one, result in zip(found, measured, strict=True)
    ]
    verdict = claim_verdict(tested)
    compared = {row for one in found if one.side != "beside" for row in one.rows}
    below: list[str] = []
    if verdict.word == "confirmed" and not claim.collapse:
        policies = (row for row in sorted(compared) if recipe_row(runs.paper, row).kind == "policy")
        below = [row for row in policies if broken(runs.outputs[row])]
    uneven = _uneven_worlds([result for result in measured if result is not None])
    word: ClaimWord = "undecided" if below or (uneven and verdict.word != "not run") else verdict.word
    lines: list[dict[str, Any]] = []
    for one, test, result, p in zip(found, tested, measured, verdict.p_contradicted, strict=True):
        line: dict[str, Any] = {"left": one.left, "side": one.side, "right": one.right, "verdict": _word(test, p)}
        if result is not None:
            effect, interval = result.effect, result.effect.interval()
            line |= {"values": one.means, "constant": isinstance(one.other, float)}
            line |= {"difference": effect.estimate, "worlds": effect.worlds, "missing": result.missing}
            line |= {"interval": [interval.lower, interval.upper] if interval else None, "p": test.p_holds}
            line |= {"p_contradicted": p, "smallest_visible": effect.smallest_visible()}
        lines.append(line)
    data = {"id": name, "text": claim.says, "where": claim.source, "verdict": word, "parts": lines}
    return data | ({"broken": below} if below else {}) | ({"uneven": uneven} if uneven else {})


def _word(tested: TestedComparison, p_contradicted: float | None) -> ClaimWord:
    """Returns the verdict of one comparison, whose contrary has a p corrected over the comparisons of the claim."""
    if tested.effect is None:
        return "not run"
    if p_contradicted is not None and p_contradicted < ALPHA:
        return "contradicted"
    return "confirmed" if tested.p_holds is not None and tested.p_holds < ALPHA else "undecided"


def _uneven_worlds(compared: Sequence[Comparison]) -> str | None:
    """Returns the worlds that only some comparisons of a claim are over, in words; None if all are over the same."""
    if not compared or len({one.worlds for one in compared}) == 1:
        return None
    every = frozenset.union(*(one.worlds for one in compared))
    shared = frozenset.intersection(*(one.worlds for one in compared))
    return f"its comparisons are over different worlds: {', '.join(map(str, sorted(every - shared)))} only in some"


def claims_figure(paper: str, file: ClaimsFile, tree: ResultTree) -> FigureData:
    """Returns the figure of a paper's claims with their verdicts."""
    numbers_sentence = file.numbers_sentence.format(verdicts=win_rate_source(tree, paper))
    alike_sentence = f"{file.alike_sentence.format(margin=f'{file.margin:g}')} " if file.alike_sentence else ""
    figure = FigureData(
        key="claims",
        title="What the paper says",
        caption=f"{numbers_sentence} A sign between two numbers says where the paper has them: above (›), below (‹) or "
        f"alike (≈). Each comparison is a t-test over worlds, and one world decides nothing. A claim is confirmed when "
        f"each of its comparisons is at .05, and contradicted when the contrary of one is, corrected for their number "
        f"(Holm). A claim whose comparisons are over different worlds is undecided. {alike_sentence}A win over a "
        "broken row, which is below its own SFT model even at its best evaluation, confirms nothing, unless the "
        "collapse is the claim." + (f" These claims are {EXPLORATORY}." if exploratory(tree.seeds) else ""),
        kind="claims",
    )
    runs = claimed_runs(paper, file, tree)
    claims = [with_verdicts(name, claim, file, runs) for name, claim in file.claims.items()]
    if any(claim["verdict"] != "not run" for claim in claims):
        figure.blocks = [{"rows": claims}]
    else:
        figure.missing = [file.needs]
    return figure
