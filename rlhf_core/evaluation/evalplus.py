"""MBPP and HumanEval as EvalPlus measures them: its prompt, its sanitiser and its tests, in this project's sandbox.

Source: EvalPlus 0.3.1 (`codegen`, `provider`, `sanitize`, `evaluate`). Deviations:

1. A call has 10 s and a question 60 s; EvalPlus gives a call four times the reference solution's seconds, at least 1.
2. The inputs and expected results are those of the published test texts, in which EvalPlus' comparison is put where the
   texts have a weaker one: results of another type or shape are never close.

MBPP+'s tests of `mbpp-737` and `mbpp-794` assert nothing; no program passes `mbpp-255`, of which one input asks for
1,663,740 tuples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.evaluation.answers import cut_at
from rlhf_core.evaluation.evalplus_sanitiser import sanitised
from rlhf_core.evaluation.sandbox import ProgramLimits, timer

#: Request to a model with a chat template, and the opening of the assistant's answer.
ASKED = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
OPENED = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)
#: Stop strings of a generation.
STOPS = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(", "\n```\n")
_CLOSE = "np.allclose(out, exp,"
#: The check in the published tests of two questions of MBPP, which asserts nothing, so that every program passes.
_NOT_NONE = "        exact_match = exp == (out is not None)\n"
#: The loop over the inputs of a plus test.
_LOOP = re.compile(r"enumerate\((?:zip\(inputs, results\)|inputs)\):")
#: Limits of a program whose tests import numpy.
LIMITS = ProgramLimits(seconds=60, memory_mb=2048, numpy=True)
_SECONDS_PER_CALL = 10


def asked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an item of functions.<name>.jsonl: prompt, opening of the answer, tests and plus tests.

    A program gets neither the imports nor the other functions of HumanEval's prompt, nor MBPP's `test_setup`: its tests
    do. The base tests are the plus tests on the base inputs where the row has them, so that floats are compared alike.

    Args:
        row: a record of code; `question` is the task of MBPP, or the function's head of HumanEval. `n_base` is the
            number of base inputs; without it, one for each test of MBPP.

    Raises:
        DataError: a row without a function that its tests call.
    """
    tests = [row["tests"]] if isinstance(row["tests"], str) else list(row["tests"])
    entry_point = str(row.get("entry_point") or _called(str(row["solution"]), tests))
    head = "test_setup" not in row and f"def {entry_point}(" in row["question"]
    task = row["question"] if head else f'"""\n{row["question"]}\n{tests[0]}\n"""'
    if not entry_point:
        raise DataError(f"'{row['id']}' has no function that its first test calls", field="entry_point",
                        remedy="Name the function under entry_point")  # fmt: skip
    called = [f"check({entry_point})"] if head else []
    given = _beside(row["question"], entry_point) if head else str(row.get("test_setup") or "")
    timed = f"import functools\n{entry_point} = functools.partial(timed, {entry_point})"
    before = [given, timer(_SECONDS_PER_CALL), timed]
    plus = _as_evalplus_compares(row["plus_tests"]) if row.get("plus_tests") else None
    count = row.get("n_base") or (None if head else len(tests))
    base = _of_the_first(plus, count) if plus and count else None
    return {
        "id": row["id"],
        "question": f"{ASKED}\n```\n{task.strip()}\n```\n",
        "opening": f"{OPENED}\n```python\n",
        "entry_point": entry_point,
        "setup": "",
        "tests": ["\n".join([*before, *([base] if base else tests), *called])],
        "plus_tests": ["\n".join([*before, plus, *called])] if plus else None,
        "source": row["source"],
    }


def _beside(prompt: str, entry_point: str) -> str:
    """Returns what the prompt of HumanEval has beside the function that is asked for: imports and other functions."""
    try:
        module = ast.parse(prompt)
    except SyntaxError:
        return ""
    kept = [each for each in module.body if getattr(each, "name", None) != entry_point]
    return ast.unparse(ast.Module(kept, []))


def _called(solution: str, tests: list[str]) -> str:
    """Returns the function of a reference solution that the first test calls; the last one if it calls none, '' without
    functions."""
    try:
        defined = [each.name for each in ast.parse(solution).body if isinstance(each, ast.FunctionDef)]
    except SyntaxError:
        return ""
    used = [name for name in defined if re.search(rf"\b{re.escape(name)}\(", tests[0])]
    return (used or defined or [""])[-1]


def _as_evalplus_compares(tests: str) -> str:
    """Returns tests whose comparison of floats refuses another type or shape, as EvalPlus' evaluator does: to numpy, an
    empty list is close to any number; and which assert what they compute."""
    tests = tests.replace(_NOT_NONE, f"{_NOT_NONE}    assert exact_match\n")
    return tests.replace(_CLOSE, f"type(out) == type(exp) and np.shape(out) == np.shape(exp) and {_CLOSE}")


def _of_the_first(tests: str, count: int) -> str | None:
    """Returns plus tests on their first inputs; None for tests of another form."""
    both = "zip(inputs, results)" in tests
    cases = f"list(zip(inputs, results))[:{count}]" if both else f"inputs[:{count}]"
    changed, loops = _LOOP.subn(f"enumerate({cases}):", tests)
    return changed if loops == 1 else None


def program_of(text: str, entry_point: str) -> str:
    """Returns the code of an answer after its opening, sanitised for a function.

    A tab is four spaces, as in EvalPlus' providers.
    """
    return sanitised(cut_at(text, STOPS).replace("\t", "    "), entry_point)
