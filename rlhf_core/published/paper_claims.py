"""The papers' claims as `claims/<paper>.yaml` states them: sentence, source, and the pairs of rows that each compares.

What was measured of them is in `tasks.report.claims`; this module reads words and names only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import yaml

from rlhf_core.published.printed_tables import FOLDER

#: The relation between the rows of a pair, by the kind of a claim's part.
_RELATIONS: Mapping[str, Literal["above", "alike"]] = {
    "greater": "above", "less": "above", "order": "above", "wins": "above",
    "within": "alike", "ties": "alike",
}  # fmt: skip


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
    raw = yaml.load((FOLDER / "claims" / f"{paper}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {name: _stated(claim, str(raw["metric"])) for name, claim in raw["claims"].items()}


def _stated(raw: Mapping[str, Any], metric: str) -> StatedClaim:
    pairs: set[ClaimedPair] = set()
    others = 0
    for part in raw["parts"]:
        made = list(_pairs(part, metric))
        pairs |= {*made}
        others += not made
    return StatedClaim(raw["says"], raw["source"], bool(raw.get("collapse")), frozenset(pairs), others)


def _names(value: Any) -> list[str]:
    """Returns one name or several as a list; nothing for a number, which is no row."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []


def _pairs(part: Mapping[str, Any], metric: str) -> Iterator[ClaimedPair]:
    """Yields the pairs of rows that a part compares; none for a part of another form."""
    kind = part["kind"]
    metrics = _names(part.get("metric", metric))
    rows, others = _names(part.get("rows")), _names(part.get("than"))
    if "than_metric" in part or kind not in _RELATIONS:
        return
    if kind in ("wins", "ties"):
        found = [(part["row"], other, f"wins/{part['by']}/{other}") for other in _names(part["over"])]
    elif kind == "order":
        found = [(high, low, one) for one in metrics for low, high in itertools.pairwise(rows)]
    else:
        found = [(row, other, one) for one, row, other in itertools.product(metrics, rows, others)]
    for first, second, one in found:
        if kind == "less" or (_RELATIONS[kind] == "alike" and second < first):
            first, second = second, first
        yield ClaimedPair(first, second, one, _RELATIONS[kind])
