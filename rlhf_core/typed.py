"""Settings: dataclasses built from mappings by pydantic's core and checked against their annotations.

    @dataclass(frozen=True)
    class Schedule(Checked):
        steps: Annotated[int, at_least(1)]
        decay: Annotated[str, one_of(SCHEDULES)] = "cosine"
        warmup: Annotated[float, between(0, 1)] = 0.0

    typed(Schedule, {"steps": 0}, "run.yaml")        # RecipeError: run.yaml: steps is 0; it must be at least 1

`typed` reads a mapping, as a YAML file holds it. `Checked` holds the same for objects made directly. What concerns
several fields at once is refused by a class's `_check_together`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, SchemaValidator, ValidationError
from pydantic_core import core_schema as core

from rlhf_core.errors import RecipeError, hint
from rlhf_core.user_code import called

T = TypeVar("T")
#: Errors of annotations that cannot be evaluated.
_UNREADABLE = (NameError, TypeError, AttributeError, SyntaxError)


@dataclass(frozen=True, eq=False)
class FieldRule:
    """A rule beside the type of an annotation: `check` returns a value, or raises what is wrong with it."""

    check: Callable[[Any], Any]


def in_range(says: str, holds: Callable[[float], bool]) -> FieldRule:
    """Returns the numbers for which a condition holds; `says` is the end of "it must be"."""
    return FieldRule(lambda value: value if holds(value) else _raise(f"it must be {says}"))


def at_least(least: float) -> FieldRule:
    """Returns the numbers from `least` on."""
    return in_range(f"at least {least:g}", lambda value: value >= least)


def above(limit: float) -> FieldRule:
    """Returns the numbers above `limit`."""
    return in_range(f"above {limit:g}", lambda value: value > limit)


def between(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> FieldRule:
    """Returns the numbers from `low` to `high`, without an end that is open."""
    if open_low and open_high:
        return in_range(f"between {low:g} and {high:g}, both excluded", lambda value: low < value < high)
    if open_low:
        return in_range(f"above {low:g} and at most {high:g}", lambda value: low < value <= high)
    if open_high:
        return in_range(f"at least {low:g} and below {high:g}", lambda value: low <= value < high)
    return in_range(f"from {low:g} to {high:g}", lambda value: low <= value <= high)


def other_than(number: float) -> FieldRule:
    """Returns all numbers but one."""
    return in_range(f"other than {number:g}", lambda value: value != number)


def each_once(least: int = 1) -> FieldRule:
    """Returns the lists that name at least so many things, each once."""
    says = f"it must name at least {least}, each once"
    return FieldRule(lambda value: value if least <= len(value) == len(set(value)) else _raise(says))


#: Numbers that settings often are; a seed is of random generators.
Count = Annotated[int, at_least(1)]
Size = Annotated[int, at_least(0)]
Share = Annotated[float, between(0, 1)]
InnerShare = Annotated[float, between(0, 1, open_low=True, open_high=True)]
Seed = Annotated[int, at_least(0)]


def one_of(known: Collection[Any], says: str = "known:") -> FieldRule:
    """Returns the words of a table; a table of choices also takes `module:attribute`.

    Args:
        known: the words.
        says: goes before them in a message that no near one is in.
    """

    def check(value: Any) -> Any:
        refusal = getattr(known, "refusal", None)
        if refusal is not None:
            problem = refusal(value)
        elif any(value == one and type(value) is type(one) for one in known):
            problem = None
        else:
            problem = hint(value, known).removeprefix("; ").replace("known:", says, 1)
        return value if problem is None else _raise(problem)

    return FieldRule(check)


def accepted_by(function: Callable[[Any], Any]) -> FieldRule:
    """Returns the values for which a function raises no RecipeError, such as specifications that can be built."""

    def check(value: Any) -> Any:
        try:
            function(value)
        except RecipeError as error:
            if getattr(error, "near", None) is not None:  # an unknown choice, which is named at its `kind`
                found = {"name": getattr(error, "name", None), "near": cast(Any, error).near}
                raise PydanticCustomError("choice", "unknown choice", found) from None
            _raise(str(error))
        return value

    return FieldRule(check)


class Checked:
    """Base of settings whose values are checked against their annotations when they are made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        check_given(type(self), {name: getattr(self, name) for name in init_fields(type(self))})
        self._check_together()

    def _check_together(self) -> None:
        """Refuses values that contradict each other."""


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
    return cast(T, _validated(_validator(cast(Any, cls)), values, where=where))


def check_given(cls: type[Any], values: Any, path: str = "", *, complete: bool = False) -> None:
    """Refuses values that a dataclass does not take, without making it: settings that override others, or whose texts
    are replaced before they are used, as `${NAME}` is.

    Args:
        cls: a dataclass.
        values: by field.
        path: what the fields' names begin with in messages, as in 'alarm.'.
        complete: whether fields without a default must be given.

    Raises:
        RecipeError: an unknown or missing field, or a value that its annotation does not allow.
    """
    _validated(_validator(cast(Any, cls), make=False, complete=complete), values, path=path)


def checked_arguments(function: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns arguments of a function, or of a class that is no dataclass, as its annotations have them.

    Raises:
        RecipeError: a value that its annotation does not allow.
    """
    maker: Any = vars(function).get("__init__", object) if isinstance(function, type) else function
    hints = _hints(maker)
    schema = core.typed_dict_schema({name: core.typed_dict_field(_field(hints.get(name, Any))) for name in values})
    return cast(dict[str, Any], _validated(SchemaValidator(schema), values, where=where))


def init_fields(cls: type[Any]) -> dict[str, Field[Any]]:
    """Returns the fields that a dataclass takes, by name."""
    return {field.name: field for field in fields(cls) if field.init}


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number, other than true and false."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


# --- annotations -------------------------------------------------------------------------------------------------


def _raise(problem: str) -> None:
    raise PydanticCustomError("problem", "wrong value", {"problem": problem})


def _hints(of: Any) -> dict[str, Any]:
    """Returns annotations by name; none of a user's own that only a type checker can read."""
    try:
        return get_type_hints(of, include_extras=True)
    except _UNREADABLE:
        return {}


@cache
def _validator(cls: type[Any], *, make: bool = True, complete: bool = True) -> SchemaValidator:
    return SchemaValidator(_dataclass(cls, make=make, complete=complete))


def _dataclass(cls: type[Any], *, make: bool = True, complete: bool = True) -> CoreSchema:
    """Returns the schema of a dataclass, or of its fields, or some of them, as a mapping."""
    known, hints = init_fields(cls), _hints(cls)
    stated = {
        name: core.typed_dict_field(
            _field(hints.get(name, Any)),
            required=complete and field.default is MISSING and field.default_factory is MISSING,
        )
        for name, field in known.items()
    }

    def build(values: Any, handler: Callable[[Any], Any]) -> Any:
        if make and isinstance(values, cls):
            return values
        for name in values if isinstance(values, Mapping) else ():
            if name not in known:
                raise PydanticCustomError("unknown", "unknown", {"name": name, "known": [*known]})
        found = handler(values)
        try:
            return called(cls, found) if make else found
        except RecipeError as error:
            raise PydanticCustomError("whole", "wrong settings", {"problem": str(error)}) from error

    return core.no_info_wrap_validator_function(build, core.typed_dict_schema(stated))


def _field(hint: Any) -> CoreSchema:
    """Returns the schema of an annotation; a list of anything becomes a tuple."""
    if hint is Any or isinstance(hint, TypeVar):
        return core.no_info_plain_validator_function(lambda value: tuple(value) if isinstance(value, list) else value)
    return _schema(hint)


def _schema(hint: Any) -> CoreSchema:
    """Returns the schema of an annotation: as strict as YAML's types, but for lists, which become tuples."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        schema = _schema(inner[0])
        for one in inner[1:]:
            if isinstance(one, FieldRule):
                schema = core.no_info_after_validator_function(one.check, schema)
        return schema
    if kind in (Union, UnionType):
        return core.union_schema([(made := _schema(one), _label(made)) for one in inner], mode="left_to_right")
    if kind is Literal:
        return core.no_info_plain_validator_function(one_of(inner, "it must be one of").check)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return core.any_schema()
    if is_dataclass(kind):
        return _dataclass(kind)
    if issubclass(kind, Enum):
        return core.enum_schema(kind, list(kind))
    if issubclass(kind, Mapping):
        keys, values = map(_schema, inner or (Any, Any))
        return core.dict_schema(keys, values)
    if issubclass(kind, AbstractSet):
        return core.frozenset_schema(_schema(inner[0]))
    if issubclass(kind, tuple) and inner and Ellipsis not in inner:
        return core.tuple_schema([_schema(one) for one in inner])
    if issubclass(kind, Sequence) and not issubclass(kind, str | bytes):
        return core.tuple_schema([_schema(inner[0] if inner else Any)], variadic_item_index=0)
    return core.is_instance_schema(kind)


def _as_written(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Returns a number as it is written: a whole one stays whole."""
    handler(value)
    return value


_PLAIN: dict[Any, CoreSchema] = {
    int: core.int_schema(strict=True),
    float: core.no_info_wrap_validator_function(_as_written, core.float_schema(strict=True, allow_inf_nan=False)),
    bool: core.bool_schema(strict=True),
    str: core.str_schema(strict=True),
    NoneType: core.none_schema(),
    Any: core.any_schema(),
}

# --- messages ----------------------------------------------------------------------------------------------------

#: Types of values in words, by pydantic's names of schemas and of errors.
_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "string": "text",
    "none": "null", "none_required": "null", "tuple": "a list", "frozenset": "a list", "frozen_set": "a list",
    "dict": "a mapping", "typed-dict": "a mapping",
}  # fmt: skip
_OF = "\0"


def _label(schema: Any) -> str:
    """Returns the name of an alternative, which marks its place in errors."""
    while schema["type"].startswith("function-") and "schema" in schema:
        schema = schema["schema"]
    return _OF + _WORDS.get(schema["type"], "")


def _validated(validator: SchemaValidator, values: Any, *, where: str = "", path: str = "") -> Any:
    try:
        return validator.validate_python(values)
    except ValidationError as error:
        message = _message(error.errors(include_url=False), path)
        raise RecipeError(f"{where}: {message}" if where else message) from error.__cause__


def _is_alternative(error: ErrorDetails) -> bool:
    """Returns whether an error says only that a value is not of one of several types."""
    return bool(error["loc"]) and str(error["loc"][-1]).startswith(_OF) and _expected(error) is not None


def _expected(error: ErrorDetails) -> str | None:
    return _WORDS.get(error["type"].removesuffix("_type"))


def _message(errors: list[ErrorDetails], path: str) -> str:
    """Returns the first error in words; of a value of several types, that of the type which it is nearest to."""
    error = next((one for one in errors if not _is_alternative(one)), errors[0])
    kind, context = error["type"], error.get("ctx", {})
    place = path + _place(error["loc"])
    at = place.rstrip(".") or "the value"
    if kind == "missing":
        missing = [f"'{path}{_place(one['loc'])}'" for one in errors if one["type"] == kind]
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if kind == "unknown":
        name, inside = context["name"], f"{place}." if place and not place.endswith(".") else place
        return f"unknown setting '{inside}{name}'{hint(name, context['known'])}"
    if kind == "whole":
        return f"{at}: {context['problem']}" if place else str(context["problem"])
    if kind == "choice":
        inside = f"{at}.kind" if isinstance(error["input"], Mapping) else at
        return f"{inside} is {_shown(context['name'])}{context['near']}"
    shown = f"{at} is {_shown(error['input'])}; "
    if kind == "problem":
        return shown + str(context["problem"])
    if kind in ("enum", "finite_number"):
        return shown + f"it must be {context.get('expected', 'a finite number')}"
    same = [one for one in errors if one["loc"][:-1] == error["loc"][:-1]] if _is_alternative(error) else []
    words = dict.fromkeys(str(one["loc"][-1]).removeprefix(_OF) for one in same)
    expected = " or ".join(filter(None, words)) or _expected(error)
    return shown + (f"it must be {expected}" if expected else error["msg"])


def _place(location: tuple[int | str, ...]) -> str:
    """Returns a place in settings, `parts[1].size`."""
    found = ""
    for part in location:
        if not str(part).startswith(_OF):
            found += f"[{part}]" if isinstance(part, int) else f".{part}" if found else part
    return found


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
