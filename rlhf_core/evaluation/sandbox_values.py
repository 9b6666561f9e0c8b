"""Values as JSON between the process of a program and the process of its tests; standard library only.

A program's answer is rebuilt in the tests' process from builtin types alone, so that it brings no code of its own: not
an `__eq__`, not an `__abs__`. What is not data stays in the program's process and is known by a number (`Handles`).
"""

from __future__ import annotations

import builtins
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from keyword import iskeyword
from typing import Any, Protocol

Encoded = Any
_SMALL = 1 << 53
_NUMPY_KINDS = "biufcSU"
_KEYS: type[Any] = type({}.keys())
_SEQUENCES: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_MAPPINGS: dict[str, type[Any]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
#: Types that their text makes again.
_TEXTS: dict[str, tuple[type[Any], Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, str, Fraction),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
}


#: Objects of which there is one.
_SINGLE = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
#: Fields of a named tuple; of one with more, the items are left.
_MOST_FIELDS = 64


class Handles(Protocol):
    """Objects that stay in their process."""

    def hold(self, value: Any) -> Encoded:
        """Returns the name of an object for the other process; refuses one that may not be named."""
        ...

    def held(self, name: Encoded) -> Any:
        """Returns the object that the other process named."""
        ...


def encode(value: Any, handles: Handles) -> Encoded:
    """Returns a value as JSON; a subclass of a builtin type becomes the builtin type."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        halves = not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text)  # JSON would join two
        return {"t": "str", "v": [ord(one) for one in text]} if halves else text
    if isinstance(value, float):
        found = _numpy_encoded(value)
        return float.__float__(value) if found is None else found
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_SMALL < number < _SMALL else {"t": "int", "v": hex(number)}
    if isinstance(value, complex):
        found = _numpy_encoded(value)
        return {"t": "complex", "v": [value.real, value.imag]} if found is None else found
    if isinstance(value, list):
        return [encode(item, handles) for item in list.__iter__(value)]
    return _encode_other(value, handles)


def _encode_other(value: Any, handles: Handles) -> Encoded:
    if type(value) is defaultdict:
        return {"t": "dict", "v": [[encode(k, handles), encode(v, handles)] for k, v in value.items()]}
    for name, kind in reversed(_MAPPINGS.items()):
        if isinstance(value, kind):
            return {"t": name, "v": [[encode(k, handles), encode(v, handles)] for k, v in kind.items(value)]}
    fields = _fields(value)
    if fields:
        items = [encode(item, handles) for item in tuple.__iter__(value)]
        return {"t": "named", "n": [type(value).__name__, *fields], "v": items}
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {"t": name, "v": [encode(item, handles) for item in kind.__iter__(value)]}
    for name, (kind, write, _) in _TEXTS.items():
        if type(value) is kind:
            return {"t": name, "v": write(value)}
    if type(value) is _KEYS:
        return {"t": "keys", "v": [encode(item, handles) for item in value]}
    if type(value) is range:
        return {"t": "range", "v": [encode(n, handles) for n in (value.start, value.stop, value.step)]}
    if type(value) is slice:
        return {"t": "slice", "v": [encode(n, handles) for n in (value.start, value.stop, value.step)]}
    if type(value) is memoryview:
        return {"t": "memoryview", "v": value.tobytes().hex()}
    for name, single in _SINGLE.items():
        if value is single:
            return {"t": "single", "v": name}
    if type(value) is timedelta:
        return {"t": "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    word = getattr(value, "__name__", None)
    if isinstance(value, type) and isinstance(word, str) and getattr(builtins, word, None) is value:
        return {"t": "type", "v": word}
    found = _numpy_encoded(value)
    return handles.hold(value) if found is None else found


def _fields(value: Any) -> list[str]:
    """Returns the fields of a named tuple, empty for anything else."""
    names = getattr(type(value), "_fields", None) if isinstance(value, tuple) else None
    if type(names) is not tuple or not len(names) == tuple.__len__(value) <= _MOST_FIELDS:
        return []
    right = all(type(name) is str and name.isidentifier() and name[0] != "_" and not iskeyword(name) for name in names)
    return list(names) if right and len({*names}) == len(names) else []


@lru_cache(maxsize=256)
def _named(name: str, *fields: str) -> type[Any]:
    """Returns a named tuple's class, whose names `namedtuple` checks; it has no code of the program."""
    return namedtuple(name, fields)  # type: ignore[misc]


def _numpy_encoded(value: Any) -> Encoded | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic) or value.dtype.kind not in _NUMPY_KINDS:
        return None
    # bytes of the array, not of a subclass with code of its own
    array = numpy.array(value, copy=True, subok=False, order="C")
    scalar = not isinstance(value, numpy.ndarray)
    return {"t": "numpy", "d": array.dtype.str, "s": list(array.shape), "v": array.tobytes().hex(), "scalar": scalar}


def decode(encoded: Encoded, handles: Handles) -> Any:
    """Returns the value of JSON that `encode` made, made of builtin types (and numpy's, if it is loaded).

    Raises:
        Exception: of any kind, if the JSON has another form; it comes from a program.
    """
    if isinstance(encoded, list):
        return [decode(item, handles) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    kind = encoded["t"]
    content: Any = encoded.get("v")
    if kind == "int":
        return int(content, 16)
    if kind == "str":
        return "".join(map(chr, content))
    if kind == "complex":
        return complex(*content)
    if kind == "named":
        return _named(*encoded["n"])(*(decode(item, handles) for item in content))
    if kind == "slice":
        return slice(*(decode(n, handles) for n in content))
    if kind == "memoryview":
        return memoryview(bytes.fromhex(content))
    if kind == "single":
        return _SINGLE[content]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, handles) for item in content)
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]({decode(k, handles): decode(v, handles) for k, v in content})
    if kind in _TEXTS:
        return _TEXTS[kind][2](content)
    if kind == "keys":
        return dict.fromkeys(decode(item, handles) for item in content).keys()
    if kind == "range":
        return range(*(decode(n, handles) for n in content))
    if kind == "timedelta":
        return timedelta(*content)
    if kind == "type":
        found = getattr(builtins, content)
        if not isinstance(found, type):
            raise ValueError(content)
        return found
    if kind == "numpy":
        return _numpy_decoded(encoded)
    return handles.held(encoded)


def _numpy_decoded(encoded: dict[str, Any]) -> Any:
    numpy = sys.modules["numpy"]
    dtype = numpy.dtype(encoded["d"])
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(dtype)
    array = numpy.frombuffer(bytes.fromhex(encoded["v"]), dtype).reshape(encoded["s"]).copy()
    return array[()] if encoded["scalar"] else array


def replace_content(old: Any, new: Any) -> None:
    """Gives a list, dictionary, set, array, or those in a tuple, the content that a program left in it."""
    if isinstance(old, list | bytearray) and isinstance(new, list | bytearray):
        if isinstance(old, list) and len(old) == len(new):
            for i, item in enumerate(new):
                if _both_mutable(old[i], item):
                    replace_content(old[i], item)
                else:
                    old[i] = item
        else:
            old[:] = new
    elif isinstance(old, dict | set) and isinstance(new, dict | set):
        old.clear()
        old.update(new)
    elif isinstance(old, tuple) and isinstance(new, tuple):
        for one, other in zip(old, new, strict=False):
            if _both_mutable(one, other) or isinstance(one, tuple):
                replace_content(one, other)
    elif isinstance(old, deque):
        old.clear()
        old.extend(new)
    elif hasattr(old, "dtype") and hasattr(new, "dtype") and old.shape == new.shape and old.shape:
        old[...] = new


def _both_mutable(old: Any, new: Any) -> bool:
    return type(old) is type(new) and isinstance(old, list | dict | set | deque | bytearray)
