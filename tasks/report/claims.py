"""What a paper says in words, as comparisons of measured numbers, and whether they bear it out.

A claim has parts: one number stands above another, below it, or beside it (within a margin). A part is tested as a cell
of a table is (`significance`): over prompts where both numbers have the same ones, else over seeds, corrected (Holm)
for the parts of its claim, with at least two seeds on the same side. Beside means that the 90 % interval of the
difference over seeds lies within the margin (two one-sided t-tests at .05).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scipy import stats

from rlhf_core.evaluation.statistics import mean_and_standard_error
from tasks.report.figure_data import FigureData
from tasks.report.matches import Matches, match_of
from tasks.report.measurements import BySeed, Measurement, TableRuns, measurements
from tasks.report.outputs import StageOutput
from tasks.report.significance import Comparison, compare, corrected_p

Verdict = Literal["confirmed", "contradicted", "undecided", "not run"]
Side = Literal["above", "below", "beside"]
#: A number of one run, with its prompts if it has any; None where it has none.
Derived = Callable[[StageOutput], float | Measurement | None]
LEVEL = 0.05


@dataclass(frozen=True)
class Number:
    """A metric of a row.

    Args:
        row: its name.
        metric: of metrics.json, or a derived one, or a match with other rows such as `wins/judge/qa-holistic`.
        label: what the page calls it.
    """

    row: str
    metric: str
    label: str


@dataclass(frozen=True)
class Part:
    """One comparison of a claim.

    Args:
        left: a number.
        side: where the paper has it.
        right: another number, or a constant such as the 50 % of the SFT policy.
        margin: of beside, in the metric's unit.
    """

    left: Number
    side: Side
    right: Number | float
    margin: float = 0.0


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper; it holds when all its parts do."""

    text: str
    where: str
    parts: Sequence[Part]


@dataclass
class Results:
    """The runs behind the claims.

    Args:
        runs: outputs of every row, and those of the SFT models that they started from.
        derived: metrics that are computed from a run's histories, by name.
        matches: rows against each other; None where no claim asks for that.
    """

    runs: TableRuns
    derived: Mapping[str, Derived] = field(default_factory=dict)
    matches: Matches | None = None
    _known: dict[str, Mapping[str, BySeed]] = field(default_factory=dict)

    def of(self, number: Number) -> BySeed:
        """The number by seed; empty where it was not measured."""
        if number.metric in self.derived:
            read = self.derived[number.metric]
            found = {seed: read(out) for seed, out in self.runs.outputs.get(number.row, {}).items()}
            return {
                seed: value if isinstance(value, Measurement) else Measurement(value)
                for seed, value in found.items()
                if value is not None
            }
        match = match_of(number.metric)
        if match is not None and self.matches is not None:
            return self.matches.measured(number.row, match)
        if number.metric not in self._known:
            self._known[number.metric] = measurements(self.runs, number.metric)
        return self._known[number.metric].get(number.row, {})


def _constant(value: float, like: BySeed) -> BySeed:
    """A constant win rate in percent as a measurement with the prompts of another."""
    return {seed: Measurement(value, dict.fromkeys(own.prompts, value / 100)) for seed, own in like.items()}


def _beside(left: BySeed, right: BySeed, margin: float) -> bool | None:
    """Whether the 90 % interval of the difference over seeds lies within the margin; None with one seed."""
    seeds = sorted(left.keys() & right.keys())
    if len(seeds) < 2:
        return None
    found = mean_and_standard_error([left[seed].value - right[seed].value for seed in seeds])
    half = float(stats.t.ppf(1 - LEVEL, len(seeds) - 1)) * found.standard_error
    return abs(found.mean) + half < margin


def _verdict(part: Part, found: Comparison, corrected: float | None, beside: bool | None) -> Verdict:
    significant = found.significant(corrected)
    if part.side == "beside":
        if beside:
            return "confirmed"
        return "contradicted" if significant and abs(found.difference) > part.margin else "undecided"
    if not significant:
        return "undecided"
    return "confirmed" if (found.difference > 0) == (part.side == "above") else "contradicted"


def claim_verdict(parts: Sequence[Verdict]) -> Verdict:
    """Contradicted where a part is, confirmed where every part is, not run where none was measured."""
    if all(part == "not run" for part in parts):
        return "not run"
    if "contradicted" in parts:
        return "contradicted"
    return "confirmed" if all(part == "confirmed" for part in parts) else "undecided"


def _mean(values: BySeed, seeds: Sequence[int]) -> float:
    return sum(values[seed].value for seed in seeds) / len(seeds)


def judged(claim: Claim, results: Results) -> dict[str, Any]:
    """A claim as plain data: text, where, verdict, and its parts with both numbers, p-value and verdict."""
    shown: list[dict[str, Any]] = []
    tested: list[tuple[Part, Comparison, bool | None, dict[str, Any]]] = []
    for part in claim.parts:
        constant = isinstance(part.right, float)
        left = results.of(part.left)
        right = _constant(part.right, left) if isinstance(part.right, float) else results.of(part.right)
        label = f"{part.right:g}" if isinstance(part.right, float) else part.right.label
        row: dict[str, Any] = {"left": part.left.label, "side": part.side, "right": label, "verdict": "not run"}
        found = compare(left, right)
        if found is not None:
            seeds = sorted(left.keys() & right.keys())
            row |= {"values": [_mean(left, seeds), _mean(right, seeds)], "seeds": len(seeds), "constant": constant}
            beside = _beside(left, right, part.margin) if part.side == "beside" else None
            tested.append((part, found, beside, row))
        shown.append(row)
    corrections = corrected_p([found for _, found, _, _ in tested])
    for (part, found, beside, row), corrected in zip(tested, corrections, strict=True):
        row |= {"p": corrected, "verdict": _verdict(part, found, corrected, beside)}
    verdict = claim_verdict([row["verdict"] for row in shown])
    return {"text": claim.text, "where": claim.where, "verdict": verdict, "parts": shown}


def rows_named(made: Sequence[Claim]) -> list[str]:
    """The rows whose numbers claims name, each once."""
    numbers = (number for claim in made for part in claim.parts for number in (part.left, part.right))
    return sorted({number.row for number in numbers if isinstance(number, Number)})


def claims_figure(made: Sequence[Claim], results: Results, *, numbers: str, alike: str, needs: str) -> FigureData:
    """What a paper says and whether it was borne out.

    Args:
        made: the claims.
        results: the runs behind them.
        numbers: a sentence on what the numbers are.
        alike: a sentence on when two of them count as alike.
        needs: what has to be run for any claim to have a verdict.
    """
    figure = FigureData(
        key="claims",
        title="What the paper says",
        caption=f"{numbers} A sign between two numbers says where the paper has them: above (›), below (‹) or alike "
        f"(≈). A claim is confirmed when all its comparisons are and contradicted when one is. {alike} p-values are "
        "corrected for the comparisons of a claim (Holm), and one seed decides nothing.",
        kind="claims",
    )
    rows = [judged(claim, results) for claim in made]
    if any(row["verdict"] != "not run" for row in rows):
        figure.blocks = [{"rows": rows}]
    else:
        figure.missing = [needs]
    return figure
