"""Settings turned into typed values; unknown fields are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rlhf_core.errors import RecipeError

T = TypeVar("T")


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
