"""Mismatches: parts of a finished stage's result that disagree with the rest of it or with the stage's inputs.

A result says some things twice, such as a mean and the rows behind it. A stage's function `mismatches` yields a message
for each mismatch; `rewardsmith verify` calls it. Rows determine metrics to six digits on any machine, while tolerances
between re-runs may be wide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rlhf_core.errors import RecipeError
from tasks.params.pages import Address, read_settings
from tasks.params.settings import typed
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import RECORD, exists_or_raise_if_lost
from tasks.running.typed_results import read_stage_record

#: Relative difference from which on two numbers are not the same sum in another order.
ROUNDING = 1e-6
Rows = Sequence[Mapping[str, Any]]
S = TypeVar("S")


@dataclass(frozen=True)
class FinishedStage:
    """A finished stage: the files of its result, and the results and settings that it read.

    Args:
        out: the output directory, with `result/` and `record/`.
        root: of the repository, in which inputs are found.
    """

    out: Path
    root: Path

    @cached_property
    def inputs(self) -> list[Path]:
        return [self.root / name for name in read_stage_record(self.out)["inputs"]]

    @property
    def result(self) -> Path:
        return self.out / "result"

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Returns the metrics; empty without metrics.json."""
        return (
            read_object(self.result / "metrics.json") if exists_or_raise_if_lost(self.result / "metrics.json") else {}
        )

    @property
    def seed(self) -> int | None:
        """Returns the seed that a stage's output is named by, if it is."""
        name = Path(read_object(self.out / RECORD).get("out", "")).name
        return int(name) if name.isdecimal() else None

    def rows(self, file: str) -> list[dict[str, Any]]:
        """Returns the rows of a file of the result; empty without the file."""
        path = self.result / file
        return read_jsonl(path) if exists_or_raise_if_lost(path) else []

    def input_from(self, kind: str) -> Path | None:
        """Returns the result of a kind of stage that this stage read; None where it read none or several."""
        found = [path for path in self.inputs if self._kind(path) == kind and path.is_dir()]
        return found[0] if len(found) == 1 else None

    def _kind(self, result: Path) -> str:
        record = result.parent / RECORD
        return read_stage_record(result.parent)["stage"] if record.exists() else ""

    def settings(self, kind: type[S]) -> S | None:
        """Returns the entry of a page that this stage read as a kind of settings; None where none is of that kind."""
        for path in self.inputs:
            address = Address(path)
            if ".yaml" in path.name and address.file.exists():
                try:
                    return typed(kind, read_settings(address), str(path))
                except RecipeError:
                    continue
        return None

    def metric_mismatches(self, values: Mapping[str, float]) -> Iterator[str]:
        """Yields metrics that are not the given values; a metric that the result does not have is passed over."""
        for name, value in values.items():
            stated = self.metrics.get(name)
            if isinstance(stated, int | float) and not same(stated, value):
                yield f"metrics.json has {name} {stated:.6g}, but the rows beside it give {value:.6g}"

    def row_mismatches(self, file: str, rows: Rows, values: Rows) -> Iterator[str]:
        """Yields fields of a file's rows that are not the given values.

        Args:
            file: its name.
            rows: of the file.
            values: of some fields, for each row.
        """
        if len(rows) != len(values):
            yield f"{file} has {len(rows)} rows, but what it was made from gives {len(values)}"
            return
        for field in sorted({name for row in values for name in row}):
            pairs = [(row.get(field), value[field]) for row, value in zip(rows, values, strict=True) if field in value]
            if wrong := sum(not same(stated, value) for stated, value in pairs):
                yield f"{file} has another '{field}' in {wrong} of {len(pairs)} rows than the rest of each row gives"

    def copy_mismatches(
        self, file: str, rows: Rows, source: Rows, fields: Sequence[str], key: str = "id"
    ) -> Iterator[str]:
        """Yields fields that rows do not have from the row of another file that alone has the same id."""
        count = Counter(row.get(key) for row in source)
        known = {row[key]: row for row in source if count[row.get(key)] == 1}
        kept = [row for row in rows if row.get(key) in known]
        values = [{name: known[row[key]].get(name) for name in fields} for row in kept]
        yield from self.row_mismatches(file, kept, values)


def same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal, numbers but for rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (one, other)):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))
