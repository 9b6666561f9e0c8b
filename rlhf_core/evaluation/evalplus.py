"""MBPP and HumanEval as EvalPlus measures them: its prompt, its sanitiser and its tests, in this project's sandbox.

Source: EvalPlus 0.3.1 (`codegen`, `provider`, `sanitize`). Deviations:

1. A program has 10 s for all tests of a question; EvalPlus times each input against the reference solution.
2. The tests are those of the published files, one text a question, instead of inputs that EvalPlus runs one by one.
3. What HumanEval's prompt defines is defined for the program, too, since the tests of two questions call it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.answers import cut_at
from rlhf_core.evaluation.sandbox import ProgramLimits

#: Request to a model with a chat template, and the opening of the assistant's answer.
ASKED = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
OPENED = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)
#: Stop strings of a generation.
STOPS = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(", "\n```\n")
_CLOSE = "np.allclose(out, exp,"
#: Limits of a program whose tests import numpy.
LIMITS = ProgramLimits(memory_mb=2048, numpy=True)


def require_evalplus() -> None:
    """Refuses where EvalPlus is not installed.

    Raises:
        RecipeError: says what to install, and why `pip install evalplus` does not.
    """
    missing = [name for name in ("evalplus", "tree_sitter", "tree_sitter_python") if not importlib.util.find_spec(name)]
    if missing:
        raise RecipeError(
            f"{', '.join(missing)} is not installed, whose sanitiser reads the code of answers. EvalPlus requires "
            "google-generativeai, which needs protobuf below 5 and contradicts constraints.txt; its sanitiser does not "
            "use it: pip install --no-deps evalplus==0.3.1 tempdir wget multipledispatch termcolor tree-sitter "
            "tree-sitter-python"
        )


def asked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an item of functions.<name>.jsonl: prompt, opening of the answer, and programs' setup and tests.

    Args:
        row: a record of code; `question` is the task of MBPP, or the function's head of HumanEval.
    """
    tests = [row["tests"]] if isinstance(row["tests"], str) else list(row["tests"])
    head = "test_setup" not in row
    task = row["question"] if head else f'"""\n{row["question"]}\n{tests[0]}\n"""'
    called = [f"check({row['entry_point']})"] if head else []
    return {
        "id": row["id"],
        "question": f"{ASKED}\n```\n{task.strip()}\n```\n",
        "opening": f"{OPENED}\n```python\n",
        "entry_point": row["entry_point"],
        "setup": row["question"] if head else row["test_setup"],
        "tests": ["\n".join([*tests, *called])] if head else tests,
        "plus_tests": ["\n".join([_of_one_shape(row["plus_tests"]), *called])] if row.get("plus_tests") else None,
        "source": row["source"],
    }


def _of_one_shape(tests: str) -> str:
    """Returns tests whose comparison of floats refuses another shape, as EvalPlus' evaluator does: numpy takes an empty
    list for close to any number."""
    return tests.replace(_CLOSE, f"np.shape(out) == np.shape(exp) and {_CLOSE}")


def program_of(text: str, entry_point: str) -> str:
    """Returns the code of an answer after its opening, sanitised for a function."""
    from evalplus.sanitize import sanitize

    return str(sanitize(cut_at(text, STOPS), entry_point))
