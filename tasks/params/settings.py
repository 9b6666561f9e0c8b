"""Setting files: YAML mappings turned into typed values, with unknown fields refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from rlhf_core.errors import DataError, RecipeError

T = TypeVar("T")


class _Twice(yaml.YAMLError):
    """A setting that stands twice in one mapping."""

    def __init__(self, name: str, row: int) -> None:
        self.name, self.row = name, row


class _Loader(yaml.CSafeLoader):
    """Refuses what YAML would settle silently by the later one: two values of one setting."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Twice(key.value, key.start_mark.line + 1)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_settings(path: Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        DataError: it cannot be read, is no YAML, no mapping, or has a setting twice.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Check the path") from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", file=str(path), remedy="Check the path") from None
    except _Twice as twice:
        raise DataError(
            "stands twice", file=str(path), row=twice.row, field=twice.name, remedy="Keep the one that is meant"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        row = mark.line + 1 if mark else None
        raise DataError(
            f"not valid YAML ({error.problem})", file=str(path), row=row, remedy="Correct it there"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"not valid YAML ({reason})", file=str(path), remedy="It must be YAML in UTF-8") from None
    if not isinstance(value, dict):
        raise DataError(
            "expected a mapping of settings", file=str(path), remedy="It needs lines of the form name: value"
        )
    return value


def typed(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """A dataclass from a mapping; unknown and missing fields are named with the file that holds them."""
    assert is_dataclass(cls)
    known = {f.name for f in fields(cls)}
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(sorted(known))}"
            raise RecipeError(f"{where}: unknown setting '{name}'{hint}")
    converted = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    hints = get_type_hints(cls)
    for name, value in converted.items():
        if not _fits(value, hints[name]):
            raise RecipeError(f"{where}: setting '{name}' is {_shown(value)}; it must be {_described(hints[name])}")
    try:
        return cls(**converted)
    except TypeError as error:
        raise RecipeError(f"{where}: {str(error).replace(f'{cls.__name__}.__init__() ', '')}") from None
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None


_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value has the type of a field, as far as the hint says it plainly."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is Any or origin is Literal:
        return True
    kind = origin or hint
    if kind in (float, int):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, kind) if isinstance(kind, type) else True


def _described(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    return _WORDS.get(kind, "a list" if kind is tuple else "a mapping")


def _shown(value: Any) -> str:
    """The value, with a hint where a number is text to YAML: in quotes, or with an exponent but no decimal point."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return f"the text '{value}'"
        hint = f"with a decimal point, such as {number:.1e}" if "e" in value.lower() else "without quotes"
        return f"the text '{value}' (write a number {hint})"
    return repr(value)


def overrides(own: Mapping[str, Any], scale: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's own settings over the scale's; `{times: 2}` is twice the scale's value.

    Raises:
        RecipeError: a multiple of what is no number.
    """
    return {name: _multiple(name, value, scale) for name, value in own.items() if name != "kind"}


def _multiple(name: str, value: Any, scale: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    times, own = value.get("times"), scale.get(name)
    for number, whose in ((times, "the row"), (own, "the scale")):
        if set(value) != {"times"} or isinstance(number, bool) or not isinstance(number, int | float):
            raise RecipeError(
                f"{name} is {dict(value)}, {whose} gives {number}; state a number, or {{times: 2}} of the scale's"
            )
    found = times * own  # type: ignore[operator]
    return round(found) if isinstance(own, int) else found
