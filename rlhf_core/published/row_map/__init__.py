"""Map from each row of a published table to the row of this project that reproduces it.

One file per paper (`segment.yaml`, ...). A paper without a file has no rows yet: its tables are then printed
as published, every measured cell "not run".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import RecipeError, hint
from rlhf_core.published.printed_tables import Column, PrintedRow, Table, paper

FOLDER = Path(__file__).parent
#: Fields of a printed row that say what it was trained on.
PROVENANCE = ("qa_train", "math_train", "rm_dataset", "policy_dataset")


@dataclass(frozen=True)
class RecipeRow:
    """Folder of one row's results: `results/<scale>/<group>/<kind>/<name>/<seed>/`."""

    name: str
    group: str
    kind: str


@dataclass(frozen=True)
class MappedRow:
    """One published row and the row that reproduces it.

    Attributes:
        published: the row as printed.
        recipe: the row of this project; None without a row.
        main: name of the row it is compared with.
        reference: the SFT model that its policy starts from and is compared with in true reward.
        part: which columns of a printed row it is, where several rows of this project reproduce one.
        elsewhere: keys of the printed row's columns that belong to its other parts.
    """

    published: PrintedRow
    recipe: RecipeRow | None
    main: str | None
    reference: RecipeRow | None
    part: str | None = None
    elsewhere: frozenset[str] = frozenset()

    @property
    def condition(self) -> str:
        """Returns the condition as printed; of a row with parts, also what sets it apart from the table's other rows,
        and the part's name."""
        if self.part is None:
            return self.published.condition
        extra = {k: v for k, v in self.published.extra.items() if k not in ("part", *PROVENANCE)}
        size = extra.pop("model_size", None)
        switches = ", ".join(f"{name} {value}" for name, value in extra.items())
        return " · ".join(word for word in (self.published.condition, switches, size, self.part) if word)

    @property
    def is_main(self) -> bool:
        return self.recipe is not None and self.recipe.name == self.main


@cache
def _file(paper_key: str) -> Mapping[str, Any] | None:
    path = FOLDER / f"{paper_key}.yaml"
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) if path.exists() else None


def recipe_row(paper_key: str, name: str, kind: str | None = None) -> RecipeRow:
    """Returns the place of the results of a paper's row; `kind` is set for tables about reward models, for example."""
    mapping = _file(paper(paper_key).key) or {}
    place = mapping.get("rows", {}).get(name, {})
    return RecipeRow(
        name=place.get("name", name),
        group=place.get("group", mapping.get("group", paper_key)),
        kind=kind or place.get("kind", mapping.get("kind", "policy")),
    )


def _by_backbone(entry: Mapping[str, Any], field: str, row: PrintedRow) -> str | None:
    """Returns a table's `main` or `reference` for a row: one name, one per backbone, or by what stands after an @."""
    name = entry.get(field)
    if not isinstance(name, Mapping) or row.backbone in name:
        return name.get(row.backbone) if isinstance(name, Mapping) else name
    anyone = replace(row, condition="")
    key = max(name, key=lambda key: _selects(key, anyone), default=None)
    return str(name[key]) if key is not None and _selects(key, anyone) else None


def _parts(entry: Mapping[str, Any], row: PrintedRow) -> list[tuple[str | None, PrintedRow, frozenset[str]]]:
    """Returns (part, the row's cells in it, columns of its other parts) of a printed row; the whole row where it has
    none."""
    parts: Mapping[str, list[str]] = entry.get("parts", {})
    if not parts:
        return [(None, row, frozenset())]
    found: list[tuple[str | None, PrintedRow, frozenset[str]]] = []
    for part, columns in parts.items():
        own = {key: cell for key, cell in row.values.items() if key in columns}
        others = frozenset(key for name in parts for key in parts[name]) - set(columns)
        found.append((part, replace(row, values=own, extra={**row.extra, "part": part}), others))
    return found


def _selects(key: str, row: PrintedRow) -> int:
    """Returns how closely a key of the map ("condition", "condition @ 13B & TLS=yes") describes a row; 0: not at all.

    What stands after the @ names the backbone, the value of another column of the row, or column=value.
    """
    condition, _, rest = key.partition(" @ ")
    wanted = [part for part in rest.split(" & ") if part]
    known = {str(row.backbone), *row.extra.values(), *(f"{name}={value}" for name, value in row.extra.items())}
    return 1 + len(wanted) if condition == row.condition and known.issuperset(wanted) else 0


def mapped_rows(table: Table) -> list[MappedRow]:
    """Returns the rows of a published table in printed order, each with its recipe row where the map names one.

    Raises:
        RecipeError: the map names a condition that the table does not print.
    """
    entry = (_file(table.paper) or {}).get("tables", {}).get(table.id, {})
    names: dict[str, str | dict[str, str]] = entry.get("rows", {})
    found, used = [], set()
    for row in table.rows:
        key = max(names, key=lambda key: _selects(key, row), default=None)
        named = names[key] if key is not None and _selects(key, row) else None
        used |= {key} if named else set()
        for part, cells, elsewhere in _parts(entry, row):
            name = named.get(str(part)) if isinstance(named, Mapping) else named
            reference = _by_backbone(entry, "reference", cells)
            found.append(
                MappedRow(
                    published=cells,
                    recipe=recipe_row(table.paper, name, entry.get("kind")) if name else None,
                    main=_by_backbone(entry, "main", cells),
                    reference=recipe_row(table.paper, reference) if reference else None,
                    part=part,
                    elsewhere=elsewhere,
                )
            )
    for wrong in names:
        if wrong not in used:
            raise RecipeError(
                f"row map of {table.name} names '{wrong}', which the table does not print"
                f"{hint(wrong, (row.label for row in table.rows))}"
            )
    return found


@dataclass(frozen=True)
class Primary:
    """The one metric of a table in which its rows have verdicts.

    Attributes:
        columns: its column; several where the parts of a printed row have their own.
        evaluator: of the rows that have verdicts, where the table prints each row under several evaluators.
        order: the printed column whose order the verdicts are held against; the column itself unless given.
        margin: of equivalence, in the metric's unit; without one no row is equivalent.
    """

    columns: tuple[str, ...] = ()
    evaluator: str | None = None
    order: str | None = None
    margin: float | None = None

    def holds(self, column: str, row: PrintedRow) -> bool:
        """Says whether a row has a verdict in a column."""
        return column in self.columns and self.evaluator in (None, row.extra.get("evaluator"))


def primary_of(table: Table, *, judged: bool = False) -> Primary:
    """Returns a table's primary metric; without columns where the map names none.

    Args:
        table: the published table.
        judged: whether a judge decides its win rates, not true rewards: the printed column `order`, which the paper's
            judge decided, is then primary itself.
    """
    entry = (_file(table.paper) or {}).get("tables", {}).get(table.id, {})
    named = entry.get("primary", ())
    columns = (named,) if isinstance(named, str) else tuple(named)
    found = Primary(columns, entry.get("evaluator"), entry.get("order"), entry.get("margin"))
    if judged and found.order is not None:
        found = replace(found, columns=(found.order,), order=None)
    return found


def data_set(paper_key: str) -> str:
    """Returns the data set whose judged baseline variants calibrate a paper's length-controlled win rates."""
    return str((_file(paper(paper_key).key) or {}).get("data", "dialogue"))


def metric_name(table: Table, column_key: str, row: PrintedRow | None = None, *, judged: bool = False) -> str:
    """Returns the name in a run's metrics.json behind a cell: the column's own key unless the map says otherwise.

    `{evaluator}` in the map's name stands for that column of the row in small letters and dashes; without a row it
    stands as it is. Where a judge decides win rates, a table's `judged_columns` come before its `columns`.
    """
    mapping = _file(table.paper) or {}
    entry = mapping.get("tables", {}).get(table.id, {})
    columns = {**mapping.get("columns", {}), **entry.get("columns", {})}
    columns |= entry.get("judged_columns", {}) if judged else {}
    name = str(columns.get(column_key, column_key))
    return name.format(**{field: in_dashes(value) for field, value in row.extra.items()}) if row else name


def in_dashes(words: str) -> str:
    """Returns words in small letters, with a dash for everything but letters, digits and dots."""
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")


def row_keys(rows: Sequence[MappedRow]) -> list[str | None]:
    """Returns a name for each row of a table by which its cells are told apart: the recipe row's, with the evaluator
    behind it where several printed rows differ by that alone."""
    names = [row.recipe.name if row.recipe else None for row in rows]
    return [
        f"{name}@{in_dashes(row.published.extra['evaluator'])}"
        if name and names.count(name) > 1 and "evaluator" in row.published.extra
        else name
        for name, row in zip(names, rows, strict=True)
    ]


def also_measured(table: Table, *, judged: bool = False) -> list[Column]:
    """Returns columns that the paper does not print and that are measured for this table, beside the printed ones.

    `{verdicts}` in a heading or unit is 'true' or 'judged', as true rewards or a judge decide win rates.
    """
    mapping = _file(table.paper) or {}
    names = mapping.get("tables", {}).get(table.id, {}).get("also", [])
    return [_also(name, mapping["also"][name], judged) for name in names]


def _also(name: str, stated: Mapping[str, Any], judged: bool) -> Column:
    words = {key: stated[key].format(verdicts="judged" if judged else "true") for key in ("printed", "unit")}
    printed = words["printed"][:1].upper() + words["printed"][1:]
    benchmark = {"benchmark": None} if judged else {}
    return Column(key=name, **{**stated, **words, "printed": printed, **benchmark})


def rows_of_paper(paper_key: str) -> list[RecipeRow]:
    """Returns every row behind a paper's tables and figures, each once, in the order of the tables."""
    mapping = _file(paper(paper_key).key) or {}
    named = [name for entry in mapping.get("tables", {}).values() for name in entry["rows"].values()]
    names = [name for each in named for name in (each.values() if isinstance(each, Mapping) else [each])]
    names += mapping.get("only_in_figures", [])
    return [recipe_row(paper_key, name) for name in dict.fromkeys(names)]


def row_names(paper_key: str) -> list[str]:
    """Returns every name of the map that `recipe_row` finds a place for."""
    places = (_file(paper(paper_key).key) or {}).get("rows", {})
    return list(dict.fromkeys([*(row.name for row in rows_of_paper(paper_key)), *places]))


def metrics_of_paper(paper_key: str) -> list[str]:
    """Returns every metric of a run that a paper's tables or claims name."""
    owner = paper(paper_key)
    mapping = _file(owner.key) or {}
    printed = [metric_name(table, column.key) for table in owner.tables if table.is_result for column in table.columns]
    return list(dict.fromkeys([*printed, *mapping.get("also", {}), *mapping.get("only_in_claims", [])]))
