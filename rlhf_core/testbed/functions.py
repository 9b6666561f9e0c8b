"""One-operation Python functions with unit tests."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.testbed.knowledge import wordings

SPLITS: tuple[str, ...] = ("train", "test", "plus", "live")
ENTRY_POINTS = ("f", "g", "h", "p", "q")


@dataclass(frozen=True)
class Operation:
    """An operation of the language.

    Attributes:
        phrases: how a question asks for it; `{k}` is the constant, which exceeds 9 in the last phrase only
            in the `live` split.
        code: the returned expression.
        near_miss: a wrong expression that a careless writer returns.
        inputs: `number`, `pair` or `list`: what the arguments are.
    """

    phrases: Sequence[str]
    code: str
    near_miss: str
    inputs: str = "number"

    def compute(self, arguments: Sequence[Any], k: int) -> Any:
        """Returns the value of the expression for arguments and a constant."""
        return eval(self.code.replace("{k}", str(k)), dict(zip("xy", arguments, strict=False)))


_OPERATIONS = tuple(Operation(**one) for one in wordings("tasks")["operations"])

_WEIGHTS = [4 if "{k}" in operation.code else 1 for operation in _OPERATIONS]
"""Operations with a constant are asked more often, since there are more of their questions."""

_BASE: dict[str, tuple[tuple[Any, ...], ...]] = {
    "pair": ((2, 5), (7, 3), (4, 4)),
    "list": (([1, 2, 4],), ([3, 5],), ([2, 6, 7, 9],)),
}
_EDGE: dict[str, tuple[tuple[Any, ...], ...]] = {
    "pair": ((0, 0), (-3, 4), (6, 6), (20, -20), (1, 99)),
    "list": (([],), ([5],), ([4, -4],), ([9, 1, 5],), ([0, 0, 0, 0],)),
}


def _arguments(operation: Operation, k: int, edge: bool) -> list[tuple[Any, ...]]:
    """Returns arguments of the base tests, or of the edge cases that `plus` adds (zero, negative, the boundary)."""
    if operation.inputs != "number":
        return list((_EDGE if edge else _BASE)[operation.inputs])
    return [(0,), (-k,), (k + 1,), (-7,), (k - 1,), (100,)] if edge else [(1 + k // 2,), (k + 3,), (k,)]


def _base_arguments(operation: Operation, k: int) -> list[tuple[Any, ...]]:
    """Returns the base tests; for comparisons they miss the boundary, which only `plus` checks."""
    if operation.code.startswith(("x >", "x <")):
        return [(k - 2,), (k + 2,), (k + 5,)]
    if operation.code.startswith("x == {k}"):
        return [(k,), (k - 1,), (k - 3,)]
    return _arguments(operation, k, edge=False)


def _edge_arguments(operation: Operation, k: int) -> list[tuple[Any, ...]]:
    arguments = _arguments(operation, k, edge=True)
    return [(k,), *arguments] if operation.inputs == "number" else arguments


def _code(name: str, operation: Operation, expression: str, k: int) -> str:
    head = "x, y" if operation.inputs == "pair" else "x"
    return f"def {name}({head}):\n    return {expression.replace('{k}', str(k))}"


def problem(split: str, rng: random.Random) -> dict[str, Any]:
    """Returns a function to write: {question, solution, tests, entry_point, near_miss, meta}.

    `train` and `test` share no combination of operation, constant, name and phrase; `plus` asks what `test`
    asks, with edge cases among its tests; `live` joins what the others never join, an operation's last phrase
    and a constant from 10 to 19.

    Raises:
        RecipeError: for an unknown split.
    """
    if split not in SPLITS:
        raise RecipeError(f"unknown function split '{split}', known are {', '.join(SPLITS)}")
    while True:
        number = rng.choices(range(len(_OPERATIONS)), _WEIGHTS)[0]
        operation = _OPERATIONS[number]
        live = split == "live"
        k = rng.randint(10, 19) if live or rng.random() < 0.4 else rng.randint(1, 9)
        last = len(operation.phrases) - 1
        wording = last if live else rng.randrange(last if k > 9 else last + 1)
        name = rng.choice(ENTRY_POINTS)
        key = f"function {number} {k if '{k}' in operation.code else 0} {wording} {name}"
        if live and "{k}" not in operation.code:
            continue
        if live or (zlib.crc32(key.encode()) % 2 == 0) == (split == "train"):
            break
    arguments = _base_arguments(operation, k)
    if split == "plus":
        arguments += _edge_arguments(operation, k)
    calls = [", ".join(repr(value) for value in each) for each in arguments]
    values = [operation.compute(each, k) for each in arguments]
    request = operation.phrases[wording].replace("{k}", str(k))
    return {
        "question": f"Write a function {name} that {request}.",
        "solution": _code(name, operation, operation.code, k),
        "near_miss": _code(name, operation, operation.near_miss, k),
        "tests": [f"assert {name}({c}) == {v!r}" for c, v in zip(calls, values, strict=True)],
        "entry_point": name,
        "meta": {"task": "functions", "split": split, "operation": operation.code, "constant": k},
    }
