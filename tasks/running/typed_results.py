"""Readers of `result/` folders that check the fields' types of each kind of file (`tasks.running.result_rows`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from rlhf_core.errors import DataError
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import RECORD
from tasks.running.result_rows import WholeRecord

R = TypeVar("R")


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Returns the rows of a file in a `result/` folder.

    Args:
        path: the file.
        kind: the rows' type, of this module.

    Raises:
        DataError: a row without a field that the type requires.
    """
    rows = read_jsonl(path)
    required = cast(frozenset[str], kind.__required_keys__)  # type: ignore[attr-defined]
    for number, row in enumerate(rows, start=1):
        for name in sorted(required - row.keys()):
            raise DataError(
                f"the row has no '{name}'", file=str(path), row=number, field=name, remedy="Run its stage again"
            )
    return cast(list[R], rows)


def read_typed_rows(path: Path, kind: type[R], needed: Collection[str] | None = None) -> list[R]:
    """Returns the rows of a file in a `result/` folder whose fields have the types that their kind states.

    Args:
        path: the file.
        kind: the rows' type, of this module.
        needed: fields that a row must have; None for those that the type requires.

    Raises:
        DataError: a row that lacks a field, or has a value of another type or a number that is not finite.
    """
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        check_types(
            row, kind, partial(DataError, file=str(path), row=number, remedy="Run its stage again"), needed=needed
        )
    return cast(list[R], rows)


def read_typed_object(path: Path, kind: type[R]) -> R:
    """Returns the object of a JSON file in a `result/` folder, whose fields have the types that its kind states.

    Raises:
        DataError: a field that is missing, or a value of another type or a number that is not finite.
    """
    value = read_object(path)
    check_types(value, kind, partial(DataError, file=str(path), remedy="Run its stage again"))
    return cast(R, value)


def read_stage_record(out: Path) -> WholeRecord:
    """Returns the record of a stage's output directory.

    Raises:
        DataError: it lacks a field that every stage writes.
    """
    return read_typed_object(out / RECORD, WholeRecord)


def read_metrics(path: Path) -> dict[str, float]:
    """Returns the flat numbers of a metrics.json.

    Raises:
        DataError: a value that is not a finite number.
    """
    raw = read_object(path)
    for name, value in raw.items():
        if not _fits(value, float):
            raise DataError(f"{value!r:.60} is not a number", file=str(path), field=name, remedy="Run its stage again")
    return {name: float(value) for name, value in raw.items()}


def read_numbers(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a history: `step` and finite numbers, or null where a step has none.

    Raises:
        DataError: a row without `step`, or another value.
    """
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        error_at = partial(DataError, file=str(path), row=number, remedy="Run its stage again")
        if not _fits(row.get("step"), int):
            raise error_at(f"{row.get('step')!r:.60} is not the number of a step", field="step")
        for name, value in row.items():
            if not _fits(value, float | None):
                raise error_at(f"{value!r:.60} is not a number", field=name)
    return rows


def check_types(
    value: Any, kind: Any, error_at: Callable[..., DataError], name: str = "", needed: Collection[str] | None = None
) -> None:
    """Refuses an object that lacks a field of its kind or has a value of another type, with the field's place.

    Args:
        value: of a JSON file.
        kind: a type of `tasks.running.result_rows`.
        error_at: makes the error of a problem and its field.
        name: of the value's place in its file.
        needed: fields that it must have; None for those that the type requires.

    Raises:
        DataError: the first problem.
    """
    for place, found, hint in _misfits(value, kind, name, needed):
        field = place.removeprefix("/")
        raise error_at(
            f"there is no '{field}'" if hint is None else f"{found!r:.60} is not {_described(hint)}", field=field
        )


def _misfits(value: Any, hint: Any, name: str, needed: Collection[str] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Yields the places of a value that are not as a type says: place, value and type; no type for a lacking field."""
    origin, parts = get_origin(hint), get_args(hint)
    if is_typeddict(hint) and isinstance(value, dict):
        required = hint.__required_keys__ if needed is None else needed
        yield from ((f"{name}/{key}", None, None) for key in sorted(set(required) - value.keys()))
        hints = _hints(hint)
        for key in value:
            yield from _misfits(value[key], hints.get(key, Any), f"{name}/{key}")
    elif origin is list and isinstance(value, list):
        for place, one in enumerate(value):
            yield from _misfits(one, parts[0], f"{name}/{place}")
    elif origin is dict and isinstance(value, dict):
        for key, one in value.items():
            yield from _misfits(one, parts[1], f"{name}/{key}")
    elif origin in (Union, UnionType) and value is not None and sum(part is not NoneType for part in parts) == 1:
        yield from _misfits(value, next(part for part in parts if part is not NoneType), name)
    elif not _fits(value, hint):
        yield name, value, hint


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    """Returns whether a value of JSON has a type; a number is finite."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if is_typeddict(hint) or origin in (list, dict):
        return isinstance(value, list if origin is list else dict) and not any(_misfits(value, hint, ""))
    if hint in (int, float):
        right = isinstance(value, int) or (hint is float and isinstance(value, float))
        return right and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return hint is Any or (value is None if hint is NoneType else isinstance(value, hint))


def _described(hint: Any) -> str:
    if is_typeddict(hint):
        return f"an object with {', '.join(sorted(hint.__required_keys__))}"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
