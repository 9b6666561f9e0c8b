"""Values between the process of a program and the process of its tests: tagged JSON of builtin types (and numpy's).

A list, number, text, truth value or `None` is itself; anything else is `{type: content}`. A value of a subclass becomes
one of the builtin type, so that an answer brings no code: not an `__eq__`, not an `__abs__`. What is not data becomes
an `Opaque`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any

_SMALL = 1 << 53
_NUMPY_KINDS = "biufcSU"
#: Types whose items are encoded.
_SEQUENCES: dict[str, tuple[Any, Callable[[Iterator[Any]], Any]]] = {
    "tuple": (tuple, tuple),
    "set": ((set, type({}.keys())), set),
    "frozenset": (frozenset, frozenset),
    "deque": (deque, deque),
    "iterator": (Iterator, lambda items: iter([*items])),
}
#: Types that their own text or numbers make again.
_ATOMS: dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, hex, lambda text: int(text, 16)),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, str, Fraction),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
}


class Opaque:
    """An object of the other process, of which it is only known that it is one; equal to itself alone."""


def encode(value: Any) -> Any:
    """Returns a value as JSON."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in _NUMPY_KINDS:
        array = numpy.array(value, copy=True, subok=False, order="C")
        scalar = not isinstance(value, numpy.ndarray)
        return {"numpy": [array.dtype.str, list(array.shape), array.tobytes().hex(), scalar]}
    if value is None or isinstance(value, bool | float | str) or (isinstance(value, int) and abs(value) < _SMALL):
        return value
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    for name, (kinds, _) in _SEQUENCES.items():
        if isinstance(value, kinds):
            return {name: [encode(item) for item in value]}
    for name, (kind, write, _) in _ATOMS.items():
        if isinstance(value, kind):
            return {name: write(value)}
    return {"object": None}


def decode(encoded: Any) -> Any:
    """Returns the value of JSON that `encode` made.

    Raises:
        Exception: of any kind, if the JSON has another form; it comes from a program.
    """
    if isinstance(encoded, list):
        return [decode(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((name, content),) = encoded.items()
    if name == "dict":
        return {decode(key): decode(item) for key, item in content}
    if name == "object":
        return Opaque()
    if name in _SEQUENCES:
        return _SEQUENCES[name][1](decode(item) for item in content)
    if name == "numpy":
        numpy, (kind, shape, data, scalar) = sys.modules["numpy"], content
        dtype = numpy.dtype(kind)
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(kind)
        array = numpy.frombuffer(bytes.fromhex(data), dtype).reshape(shape).copy()
        return array[()] if scalar else array
    return _ATOMS[name][2](content)
