"""The papers' claims as `claims/<paper>.yaml` states them: sentence, source, and the comparisons that each is made of.

What was measured of them is in `tasks.report.claims`; this module reads words and names only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml

from rlhf_core.errors import RecipeError, hint
from rlhf_core.evaluation.verdicts import ClaimSide
from rlhf_core.published.printed_tables import FOLDER
from rlhf_core.published.row_map import row_names
from rlhf_core.typed import at_least, typed

Names = tuple[str, ...] | str
#: Kind of a claim's part -> the side of the second number on which it has the first.
SIDES: Mapping[str, ClaimSide] = {
    "greater": "above", "less": "below", "within": "beside", "order": "above", "wins": "above", "ties": "beside",
    "frontier": "above",
}  # fmt: skip


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


@dataclass(frozen=True)
class ClaimPart:
    """One statement of a claim.

    Args:
        kind: greater, less, within (a margin): each row against each of `than` in each metric; order: rows from the
            lowest to the highest; wins, ties: win rates of a row's answers over those of each other row; frontier: a
            row with a curve above other rows' curves.
        rows, than: rows; of greater, less and within, `than` may be a number, or the row itself in `than_metric`.
        metric, than_metric: the file's metric unless given; of a frontier the height of the curve.
        margin: of within and ties, in the metric's unit; the file's unless given.
        by: of wins and ties, the score or judge that says which answer is better.
        along, pieces: of a frontier, its position, and equal pieces of the range that two curves share in a world.
    """

    kind: Literal["greater", "less", "within", "order", "wins", "ties", "frontier"]
    rows: Names
    than: Names | float | None = None
    metric: Names = ()
    than_metric: Names = ()
    margin: float | None = None
    by: str = ""
    along: str = "kl"
    pieces: Annotated[int, at_least(1)] = 3

    def __post_init__(self) -> None:
        if self.than is None and not self.than_metric and self.kind != "order":
            raise RecipeError("a row needs 'than' (rows or a number) or 'than_metric' to be compared with")

    @property
    def side(self) -> ClaimSide:
        return SIDES[self.kind]

    @property
    def own(self) -> tuple[str, ...]:
        """Returns its rows."""
        return _tuple(self.rows)

    @property
    def others(self) -> tuple[str, ...]:
        """Returns the rows that its rows are compared with; none for a number or the row itself."""
        return _tuple(self.than) if isinstance(self.than, str | tuple) else ()

    @property
    def metrics(self) -> tuple[str, ...]:
        return _tuple(self.metric)

    def pairs(self, metric: str) -> list[tuple[str, str, str]]:
        """Returns the pairs of rows that it compares, each with the metric; `metric` is the file's."""
        pairs = list(itertools.product(self.own, self.others))
        if self.kind == "order":
            pairs = [(high, low) for low, high in itertools.pairwise(self.own)]
        if self.by:
            return [(row, other, f"wins/{self.by}/{other}") for row, other in pairs]
        return [(row, other, one) for one in self.metrics or (metric,) for row, other in pairs]

    @property
    def other_metrics(self) -> tuple[str, ...]:
        return _tuple(self.than_metric)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper; it is true when all its parts are.

    Attributes:
        says: the sentence, in this project's words.
        source: the paper's section, table or figure.
        collapse: whether the claim's point is that rows collapse, so that a win over a broken row counts.
    """

    says: str
    source: str
    parts: tuple[ClaimPart, ...]
    collapse: bool = False


@dataclass(frozen=True)
class ClaimsFile:
    """The claims of a paper.

    Args:
        numbers_sentence: what the numbers are; `{verdicts}` is replaced by 'true' or 'judged': true rewards or a
            judge decide win rates.
        needs: what has to be run for any claim to have a verdict.
        metric: of parts that name none; the page calls it by the row's name alone.
        claims: by name, in the order of the file.
        alike_sentence: when two of them count as alike; `{margin}` is replaced by the margin.
        margin: of parts that give none.
        titles: what the page calls a metric.
        sft_by_prefix: the SFT model of rows by the prefix of their names; the longest that fits holds.
        rival_groups: rows that are each other's `others` in a match, by the name of their task.
    """

    numbers_sentence: str
    needs: str
    metric: str
    claims: Mapping[str, Claim]
    alike_sentence: str = ""
    margin: float = 0.0
    titles: Mapping[str, str] = field(default_factory=dict)
    sft_by_prefix: Mapping[str, str] = field(default_factory=dict)
    rival_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        """Returns the rows named by the claims and by the file's groups of rivals, each once."""
        parts = [part for claim in self.claims.values() for part in claim.parts]
        named = {row for part in parts for row in (*part.own, *part.others)}
        return sorted({*named, *(row for rows in self.rival_groups.values() for row in rows)})

    def title(self, metric: str) -> str:
        """Returns the page's name of a metric."""
        kind, _, argument = metric.partition("/")
        return self.titles.get(metric) or (f"{self.titles[kind]} {argument}" if kind in self.titles else metric)

    def label(self, row: str, metric: str) -> str:
        """Returns the page's name of a metric of a row."""
        return row if metric == self.metric else f"{row}, {self.title(metric)}"

    def model_of(self, row: str) -> str | None:
        """Returns the SFT model that a row starts from; None where the file does not say."""
        fitting = [prefix for prefix in self.sft_by_prefix if row.startswith(prefix)]
        return self.sft_by_prefix[max(fitting, key=len)] if fitting else None


@cache
def claims_of(paper: str) -> ClaimsFile:
    """Returns the claims of one of the five papers."""
    return read_claims(FOLDER / "claims" / f"{paper}.yaml", paper)


def read_claims(path: Path, paper: str) -> ClaimsFile:
    """Parses a claims file.

    Raises:
        RecipeError: an unknown field, kind or row, with the nearest known one.
    """
    raw = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    file, known = typed(ClaimsFile, raw, f"claims/{path.name}"), row_names(paper)
    for row in file.rows:
        if row not in known:
            raise RecipeError(f"claims/{path.name}: '{row}' is not a row of row_map/{paper}.yaml{hint(row, known)}")
    return file


@dataclass(frozen=True)
class ClaimedPair:
    """Two rows in one metric: the first is above the second, or the two are alike and in the order of their names."""

    first: str
    second: str
    metric: str
    relation: Literal["above", "alike"] = "above"

    def __str__(self) -> str:
        return f"'{self.first}' {self.relation} '{self.second}' in {self.metric}"


@dataclass(frozen=True)
class StatedClaim:
    """A sentence of a paper.

    Attributes:
        says: the sentence.
        source: the paper's section, table or figure.
        collapse: the point of the claim is that rows collapse.
        pairs: that it compares at the end of training, each once.
        others: comparisons of another form, such as a row with a constant or two curves.
    """

    says: str
    source: str
    collapse: bool = False
    pairs: frozenset[ClaimedPair] = frozenset()
    others: int = 0


@cache
def stated_claims(paper: str) -> Mapping[str, StatedClaim]:
    """Returns a paper's claims by name, in the order of its file."""
    file, found = claims_of(paper), {}
    for name, claim in file.claims.items():
        made = [frozenset(_pairs(part, file.metric)) for part in claim.parts]
        others = sum(not pairs for pairs in made)
        found[name] = StatedClaim(claim.says, claim.source, claim.collapse, frozenset().union(*made), others)
    return found


def _pairs(part: ClaimPart, metric: str) -> Iterator[ClaimedPair]:
    """Yields the pairs of rows that a part compares; none for a part of another form."""
    if part.than_metric or part.kind == "frontier":
        return
    alike = part.side == "beside"
    for first, second, one in part.pairs(metric):
        if part.side == "below" or (alike and second < first):
            first, second = second, first
        yield ClaimedPair(first, second, one, "alike" if alike else "above")
