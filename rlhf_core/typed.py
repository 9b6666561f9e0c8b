"""Settings: dataclasses built from mappings and checked against their annotations.

    @dataclass(frozen=True)
    class Schedule(Checked):
        steps: Annotated[int, at_least(1)]
        decay: Annotated[str, one_of(SCHEDULES)] = "cosine"
        warmup: Annotated[float, between(0, 1)] = 0.0

    typed(Schedule, {"steps": 0}, "run.yaml")        # RecipeError: run.yaml: steps is 0; it must be at least 1

`typed` reads a mapping, as a YAML file holds it. `Checked` holds the same for objects made directly. What concerns
several fields at once stays in a class's `__post_init__`, after `super().__post_init__()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from rlhf_core.errors import RecipeError, hint
from rlhf_core.user_code import called

T = TypeVar("T")
_HINTS: dict[Any, dict[str, Any]] = {}
#: Errors of annotations that cannot be evaluated.
_UNREADABLE = (NameError, TypeError, AttributeError, SyntaxError)


class Constraint(Protocol):
    """A demand on a value beyond its type."""

    def problem(self, value: Any) -> str | None:
        """Returns the problem of a value, as the end of a message, or None."""


@dataclass(frozen=True)
class Range:
    """A range of numbers.

    Args:
        says: the end of "it must be".
        holds: whether a number is in it.
    """

    says: str
    holds: Callable[[float], bool]

    def problem(self, value: Any) -> str | None:
        return None if self.holds(value) else f"it must be {self.says}"


def at_least(least: float) -> Range:
    """Returns the numbers from `least` on."""
    return Range(f"at least {least:g}", lambda value: value >= least)


def above(limit: float) -> Range:
    """Returns the numbers above `limit`."""
    return Range(f"above {limit:g}", lambda value: value > limit)


def between(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> Range:
    """Returns the numbers from `low` to `high`, without an end that is open."""
    if open_low and open_high:
        return Range(f"between {low:g} and {high:g}, both excluded", lambda value: low < value < high)
    if open_low:
        return Range(f"above {low:g} and at most {high:g}", lambda value: low < value <= high)
    if open_high:
        return Range(f"at least {low:g} and below {high:g}", lambda value: low <= value < high)
    return Range(f"from {low:g} to {high:g}", lambda value: low <= value <= high)


def other_than(number: float) -> Range:
    """Returns all numbers but one."""
    return Range(f"other than {number:g}", lambda value: value != number)


#: Seeds of random generators.
Seed = Annotated[int, at_least(0)]


@dataclass(frozen=True)
class MayBeInfinite:
    """Lets a number be infinite, which is refused otherwise."""

    def problem(self, value: Any) -> str | None:
        return None


@dataclass(frozen=True, eq=False)
class OneOf:
    """A word of a table; a table of choices also takes `module:attribute`."""

    known: Collection[Any]

    def problem(self, value: Any) -> str | None:
        refusal = getattr(self.known, "refusal", None)
        if refusal is not None:
            found: str | None = refusal(value)
            return found
        return None if value in self.known else hint(value, self.known).removeprefix("; ")


def one_of(known: Collection[Any]) -> OneOf:
    """Returns the words of a table."""
    return OneOf(known)


@dataclass(frozen=True, eq=False)
class Accepted:
    """A value that a function accepts; its RecipeError says what is wrong."""

    by: Callable[[Any], Any]

    def problem(self, value: Any) -> str | None:
        try:
            self.by(value)
        except RecipeError as error:
            return str(error)
        return None

    def refusal(self, value: Any, path: str) -> str | None:
        """Returns the whole message about a word that a table of choices does not have, None where that is not it."""
        try:
            self.by(value)
        except RecipeError as error:
            near = getattr(error, "near", None)
            if near is not None:
                at = f"{path}.kind" if isinstance(value, Mapping) else path
                return f"{at} is {_shown(getattr(error, 'name', None))}{near}"
        return None


def accepted_by(function: Callable[[Any], Any]) -> Accepted:
    """Returns the values for which a function raises no RecipeError, such as specifications that can be built."""
    return Accepted(function)


class Checked:
    """Base of settings whose values are checked against their annotations when they are made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        checking = _hints(type(self))
        for field in fields(self):
            if field.init:
                _converted(getattr(self, field.name), checking[field.name], field.name)


def typed(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Returns settings as a dataclass, typed and checked: lists become tuples, nested mappings dataclasses.

    Args:
        cls: a dataclass.
        values: by field.
        where: the file, or the part of it, for messages.

    Raises:
        RecipeError: an unknown or missing field, or a value that its annotation does not allow; the message has
            `where`, the field, the value, what it must be and the nearest known name.
    """
    if isinstance(values, cls):
        return values
    try:
        return _built(cls, values, "")
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None


def check_given(cls: type[Any], values: Any, path: str = "") -> None:
    """Refuses values that a dataclass does not take, whatever else it needs: settings that override others.

    Args:
        cls: a dataclass.
        values: by field.
        path: what the fields' names begin with in messages, as in 'alarm.'.

    Raises:
        RecipeError: an unknown field, or a value that its annotation does not allow.
    """
    hints = _hints(cls)
    for name, value in _known(cls, values, path).items():
        _converted(value, hints[name], f"{path}{name}")


def checked_arguments(function: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns arguments of a function, or of a class that is no dataclass, as its annotations have them.

    Raises:
        RecipeError: a value that its annotation does not allow.
    """
    maker: Any = vars(function).get("__init__", object) if isinstance(function, type) else function
    try:
        hints = get_type_hints(maker, include_extras=True)
    except _UNREADABLE:  # of a user's own, whose annotations only a type checker can read
        return dict(values)
    try:
        return {name: _converted(value, hints.get(name, Any), name) for name, value in values.items()}
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None


def init_fields(cls: type[Any]) -> dict[str, Field[Any]]:
    """Returns the fields that a dataclass takes, by name."""
    return {field.name: field for field in fields(cls) if field.init}


def _built(cls: type[T], values: Mapping[str, Any], path: str) -> T:
    assert is_dataclass(cls)
    values = _known(cls, values, path)
    missing = [
        name
        for name, field in init_fields(cls).items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        named = " and ".join(f"'{path}{name}'" for name in missing)
        raise RecipeError(f"{named} {'is' if len(missing) == 1 else 'are'} missing")
    hints = _hints(cls)
    converted = {name: _converted(value, hints[name], f"{path}{name}") for name, value in values.items()}
    try:
        return called(cls, converted)
    except RecipeError as error:
        raise RecipeError(f"{path.rstrip('.')}: {error}" if path else str(error)) from None


def _known(cls: type[Any], values: Any, path: str) -> Mapping[str, Any]:
    """Returns values, all of fields that a dataclass has."""
    if not isinstance(values, Mapping):
        raise RecipeError(f"{path.rstrip('.') or 'the value'} is {_shown(values)}; it must be a mapping")
    known = init_fields(cls)
    for name in values:
        if not isinstance(name, str):
            raise RecipeError(f"{path}{name!r} is not a name of a setting; names are text{hint('', known)}")
        if name not in known:
            raise RecipeError(f"unknown setting '{path}{name}'{hint(name, known)}")
    return values


def _hints(cls: Any) -> dict[str, Any]:
    """Returns the annotations of a dataclass's fields."""
    if cls not in _HINTS:
        _HINTS[cls] = _resolved(cls)
    return _HINTS[cls]


def _resolved(cls: Any) -> dict[str, Any]:
    try:
        return get_type_hints(cls, include_extras=True)
    except _UNREADABLE:  # of a user's own class, whose annotations only a type checker can read
        return dict.fromkeys((field.name for field in fields(cls)), Any)


def _converted(value: Any, hint: Any, path: str) -> Any:
    """Returns a value as its annotation has it, or raises a RecipeError that names `path`."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *constraints = get_args(hint)
        free = any(isinstance(constraint, MayBeInfinite) for constraint in constraints)
        found = _number(value, float, path, finite=False) if free else _converted(value, inner, path)
        for constraint in constraints:
            problem = constraint.problem(found) if hasattr(constraint, "problem") else None
            if problem is not None:
                whole = constraint.refusal(found, path) if isinstance(constraint, Accepted) else None
                raise RecipeError(whole or f"{path} is {_shown(value)}; {problem}")
        return found
    if origin in (Union, UnionType):
        return _of_union(value, hint, path)
    if hint == Any or isinstance(hint, TypeVar):
        return tuple(value) if isinstance(value, list) else value
    if hint is NoneType:
        return _checked(value, value is None, hint, path)
    if origin is Literal:
        allowed = get_args(hint)
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise RecipeError(f"{path} is {_shown(value)}{hint_of(value, allowed)}")
        return value
    if hint in (int, float):
        return _number(value, hint, path)
    if origin is not None:
        return _of_collection(value, hint, path)
    if hint in (list, tuple, Sequence) and isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint):
        return _built(hint, value, f"{path}.")
    if isinstance(hint, type) and issubclass(hint, Enum) and not isinstance(value, hint):
        return hint(_converted(value, Literal[tuple(one.value for one in hint)], path))
    known = isinstance(hint, type) and not getattr(hint, "_is_protocol", False)
    return _checked(value, isinstance(value, hint) if known else True, hint, path)


def hint_of(word: Any, known: Sequence[Any]) -> str:
    """Returns the end of a message about a word that must be one of a few."""
    near = hint(word, known)
    return near if "did you mean" in near else f"; it must be one of {', '.join(map(str, known))}"


def _checked(value: Any, fits: bool, hint: Any, path: str) -> Any:
    if not fits:
        raise RecipeError(f"{path} is {_shown(value)}; it must be {described(hint)}")
    return value


def _number(value: Any, hint: Any, path: str, *, finite: bool = True) -> Any:
    fits = isinstance(value, int | float if hint is float else int) and not isinstance(value, bool)
    _checked(value, fits, hint, path)
    if finite and isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{path} is {value}; it must be a finite number")
    if not finite and value != value:
        raise RecipeError(f"{path} is {value}; it must be a number")
    return value


def _of_union(value: Any, hint: Any, path: str) -> Any:
    """Returns the value as the first alternative that it fits; the error is of the closest alternative."""
    closest: RecipeError | None = None
    alternatives = get_args(hint)
    for alternative in alternatives:
        try:
            return _converted(value, alternative, path)
        except RecipeError as error:
            if _of_the_kind(value, alternative):
                closest = closest or error
    if closest is not None:
        raise closest
    raise RecipeError(f"{path} is {_shown(value)}; it must be {described(hint)}")


def _of_the_kind(value: Any, hint: Any) -> bool:
    """Returns whether a value is of an annotation's outer type, so that what is wrong is within."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kind = get_origin(hint) or hint
    if kind is Literal:
        return any(type(value) is type(one) for one in get_args(hint))
    if kind in (int, float):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    if isinstance(value, list | tuple):
        return isinstance(kind, type) and issubclass(kind, Sequence) and not issubclass(kind, str)
    if isinstance(value, Mapping) and is_dataclass(kind):
        return True
    return isinstance(kind, type) and isinstance(value, kind)


def _of_collection(value: Any, hint: Any, path: str) -> Any:
    """Returns tuples, sequences, sets and mappings with every element converted."""
    kind, inner = get_origin(hint), get_args(hint)
    if not isinstance(kind, type):
        return value
    if issubclass(kind, Mapping):
        _checked(value, isinstance(value, Mapping), hint, path)
        return {_key(name, inner[0], path): _item(item, inner[1], f"{path}.{name}") for name, item in value.items()}
    if issubclass(kind, AbstractSet):
        _checked(value, isinstance(value, list | tuple | AbstractSet), hint, path)
        return frozenset(_item(item, inner[0], f"{path}[{i}]") for i, item in enumerate(value))
    if not (isinstance(kind, type) and issubclass(kind, Sequence)):
        return _checked(value, isinstance(value, kind), hint, path)
    _checked(value, isinstance(value, list | tuple), hint, path)
    if issubclass(kind, tuple) and Ellipsis not in inner:
        if len(value) != len(inner):
            raise RecipeError(f"{path} is {_shown(value)}; it must be a list of {len(inner)}")
        pairs = enumerate(zip(value, inner, strict=True))
        return tuple(_item(item, one, f"{path}[{i}]") for i, (item, one) in pairs)
    return tuple(_item(item, inner[0], f"{path}[{i}]") for i, item in enumerate(value))


def _item(value: Any, hint: Any, path: str) -> Any:
    """Returns an element of a collection; one of any type stays as it is."""
    return value if hint is Any else _converted(value, hint, path)


def _key(name: Any, hint: Any, path: str) -> Any:
    if hint is str and not isinstance(name, str):
        raise RecipeError(f"{path}: the key {name!r} is not text; write it in quotes")
    return name if hint is Any else _converted(name, hint, f"{path}: a key")


_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "null", None: "null"}


def described(hint: Any) -> str:
    """Returns an annotation in words, as the end of "it must be"."""
    origin = get_origin(hint)
    if origin is Annotated:
        return described(get_args(hint)[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(described(part) for part in get_args(hint)))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    kind = origin or hint
    if kind in _WORDS:
        return _WORDS[kind]
    if isinstance(kind, type) and issubclass(kind, Sequence | AbstractSet):
        return "a list"
    return "a mapping" if is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, Mapping)) else str(kind)


def _shown(value: Any) -> str:
    """Returns the value as a message has it, with a hint where a number is text to YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, str):
        return repr(dict(value) if isinstance(value, Mapping) else value)
    try:
        number = float(value)
    except ValueError:
        return repr(value)
    how = f"with a decimal point, such as {number:.1e}" if "e" in value.lower() else "without quotes"
    return f"the text '{value}' (write a number {how})"
