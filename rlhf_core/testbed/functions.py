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
        inputs: what the arguments are, a key of `arguments` in tasks.yaml.
    """

    phrases: Sequence[str]
    code: str
    near_miss: str
    inputs: str = "number"

    def compute(self, arguments: Sequence[Any], k: int) -> Any:
        """Returns the value of the expression for arguments and a constant."""
        return eval(self.code.replace("{k}", str(k)), dict(zip("xy", arguments, strict=False)))


_WORDS = wordings("tasks")
_OPERATIONS = tuple(Operation(**one) for one in _WORDS["operations"])
_ARGUMENTS: dict[str, dict[str, str]] = _WORDS["arguments"]
_WEIGHTS = [4 if "{k}" in operation.code else 1 for operation in _OPERATIONS]
"""Operations with a constant are asked more often, since there are more of their questions."""


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
    parts = ("base", "edge") if split == "plus" else ("base",)
    arguments = [each for part in parts for each in eval(_ARGUMENTS[operation.inputs][part], {"k": k})]
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
