"""The published results of the five papers: tables, figures, hyperparameters and open questions, as data.

Every number is kept as the string that the paper prints, so trailing zeros and dashes survive; `Printed.mean`
gives the number where there is one.

    from rlhf_core.published import printed_tables
    printed_tables.table("segment/1").rows[0].values["alpaca_lc"].text   # "18.89"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rlhf_core.errors import RecipeError, hint

FOLDER = Path(__file__).parent
PAPERS = ("segment", "sentence", "alarm", "rlmec", "par")

_ROW_FIELDS = ("condition", "backbone", "values")
_COLUMN_FIELDS = ("key", "printed", "unit", "direction", "benchmark")


@dataclass(frozen=True)
class Printed:
    """One printed cell: the string as printed and, where the paper gives one, its standard error."""

    text: str
    standard_error: str | None = None

    @property
    def mean(self) -> float | None:
        """Returns the number, in the column's unit; None for a dash or words."""
        try:
            return float(self.text)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.text} ± {self.standard_error}" if self.standard_error else self.text


@dataclass(frozen=True)
class Column:
    """One column: `key` is its name in `values`, `direction` is 'up', 'down' or None (no better side)."""

    key: str
    printed: str
    unit: str
    direction: str | None = None
    benchmark: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class PrintedRow:
    """One row: a condition (or the name of a hyperparameter), its backbone and the printed cells."""

    condition: str
    backbone: str | None
    values: Mapping[str, Printed]
    extra: Mapping[str, str]

    @property
    def label(self) -> str:
        """Returns the condition and everything that sets it apart from the same condition elsewhere in the table."""
        return " · ".join(part for part in (self.condition, self.backbone) if part)


@dataclass(frozen=True)
class Table:
    """One published table."""

    paper: str
    id: str
    title: str
    kind: str
    columns: tuple[Column, ...]
    rows: tuple[PrintedRow, ...]

    @property
    def name(self) -> str:
        """Returns the short name, such as 'segment/1'."""
        return f"{self.paper}/{self.id.removeprefix('Table ')}"

    @property
    def is_result(self) -> bool:
        """Returns whether the table holds measurements (rather than settings, prompts or examples)."""
        return self.kind.startswith("results")


@dataclass(frozen=True)
class Figure:
    """One published figure: what it varies and claims (figures carry no plotted values here)."""

    id: str
    title: str
    claims: tuple[str, ...]
    details: Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """One paper: what it prints and the project compares with; `raw` is its whole file."""

    key: str
    title: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    raw: Mapping[str, Any]


P = TypeVar("P", Table, Figure)


def _printed(value: Any) -> Printed:
    if isinstance(value, Mapping):
        return Printed(str(value["mean"]), str(value["se"]))
    return Printed(str(value))


def _row(raw: Mapping[str, Any]) -> PrintedRow:
    condition = str(raw.get("condition", raw.get("hyperparameter", "")))
    return PrintedRow(
        condition=condition,
        backbone=raw.get("backbone"),
        values={key: _printed(value) for key, value in raw["values"].items()},
        extra={k: str(v) for k, v in raw.items() if k not in _ROW_FIELDS and k != "hyperparameter"},
    )


def _table(paper_key: str, raw: Mapping[str, Any]) -> Table:
    columns = tuple(
        Column(**{name: column.get(name) for name in _COLUMN_FIELDS}, source=column.get("judge_or_source"))
        for column in raw["columns"]
    )
    rows = tuple(_row(row) for row in raw["rows"])
    return Table(paper_key, raw["id"], raw["title"], raw["kind"], columns, rows)


def _figure(raw: Mapping[str, Any]) -> Figure:
    details = {key: value for key, value in raw.items() if key not in ("id", "title", "claims")}
    return Figure(raw["id"], raw["title"], tuple(raw.get("claims", ())), details)


@cache
def paper(key: str) -> Paper:
    """Returns a paper by its key ('segment', 'sentence', 'alarm', 'rlmec', 'par'), in any case.

    Raises:
        RecipeError: an unknown key, with the nearest known one.
    """
    name = key.strip().lower()
    if name not in PAPERS:
        raise RecipeError(f"unknown paper '{key}'{hint(name, PAPERS)}")
    raw = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    tables, figures = (_table(name, each) for each in raw["tables"]), (_figure(each) for each in raw["figures"])
    return Paper(name, raw["title"], tuple(tables), tuple(figures), raw)


def table(name: str) -> Table:
    """Returns a table by name: 'segment/1' or 'Segment/Table 1'.

    Raises:
        RecipeError: an unknown paper or table, with the nearest known one.
    """
    return _by_name(name, "Table", lambda owner: owner.tables)


def figure(name: str) -> Figure:
    """Returns a figure by name: 'segment/4' or 'Segment/Figure 4'.

    Raises:
        RecipeError: an unknown paper or figure, with the nearest known one.
    """
    return _by_name(name, "Figure", lambda owner: owner.figures)


def _by_name(name: str, kind: str, printed: Callable[[Paper], Sequence[P]]) -> P:
    paper_key, _, rest = name.partition("/")
    if not rest.strip():
        raise RecipeError(f"'{name}' does not name a {kind.lower()}: write <paper>/<number>, such as 'segment/1'")
    owner, wanted = paper(paper_key), f"{kind} {rest.strip().lower().removeprefix(kind.lower()).strip()}"
    known = {each.id: each for each in printed(owner)}
    if wanted not in known:
        raise RecipeError(f"paper '{owner.key}' has no {wanted}{hint(wanted, known)}")
    return known[wanted]
