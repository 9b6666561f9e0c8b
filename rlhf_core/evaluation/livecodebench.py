"""LiveCodeBench: questions in the official columns, asked, read and tested as its code generation scenario does.

    asked(row, "livecodebench.test", 1)       an item: request, entry point, tests as the row has them
    program_of(answer)                        the last fenced block
    judged(items, programs)                   results, each program in the sandbox

Source: LiveCodeBench (`lcb_runner`: code_generation, prompts, extraction_utils, testing_util). Deviations:

1. A program that reads standard input runs as a script, once for each test, with real text streams. The official
   checker puts it into a function and replaces methods of `sys.stdin`: right programs that use `global`, `from sys
   import stdin` or lines of `sys.stdin.buffer` fail there.
2. The official runner ends a generation at '###' or 2,000 tokens and draws 10 at temperature .2; here, an answer is
   greedy and as long as the evaluation says.
3. Threads run their function at once: a program has one thread.

Private tests are base64, zlib and pickle in the official files. The text in the pickle is read from its opcodes, and
nothing is unpickled.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.evaluation.livecodebench_programs import FUNCTION_SETUP, SCRIPT_SETUP, function_source, script_source
from rlhf_core.evaluation.sandbox import Program, ProgramLimits, ProgramResult, run_programs

#: The protocol's name in items.
PROTOCOL = "livecodebench"
#: Columns that every row of releases v1 to v6 has and that are read.
COLUMNS = (
    "question_id", "question_content", "starter_code", "contest_date", "public_test_cases", "private_test_cases",
    "metadata",
)  # fmt: skip
SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program."
)
_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
_WITHOUT_STARTER = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows."
)
#: All tests of one question; each of them may take `SECONDS`.
LIMITS = ProgramLimits(seconds=600, memory_mb=4096, numpy=True)
_LARGEST = 40 << 20
_TEXT_OPCODES = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_OTHER_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}


@dataclass(frozen=True)
class Cases:
    """Tests of one question: (input, expected output) each, and the function that is called, None for programs that
    read standard input."""

    cases: tuple[tuple[str, str], ...]
    function: str | None


def asked(row: Mapping[str, Any], file: str, number: int, *, system_turn: bool = True) -> dict[str, Any]:
    """Returns an item of functions.livecode.jsonl; its tests stay as the row has them, since they are large.

    Args:
        row: in the official columns.
        file, number: of the row, for messages.
        system_turn: whether the chat template has a system turn; without one, its text begins the request.

    Raises:
        DataError: a column that is missing or cannot be read, or a row without tests; names file, row and field.
    """
    _check(row, file, number)
    tests = cases_of(row, file, number)
    contest_date(row, file, number)
    request = _request(str(row["question_content"]), str(row["starter_code"] or ""))
    return {
        "id": str(row["question_id"]),
        "question": request if system_turn else f"{SYSTEM}\n\n{request}",
        "history": [{"role": "system", "content": SYSTEM}] if system_turn else [],
        "protocol": PROTOCOL,
        "entry_point": tests.function or "",
        **{column: row[column] for column in COLUMNS if column.endswith("_cases")},
        "metadata": row["metadata"],
        "source": PROTOCOL,
    }


def _check(row: Mapping[str, Any], file: str, number: int) -> None:
    for column in COLUMNS:
        if column not in row:
            raise DataError(
                "is missing", file=file, row=number, field=column,
                remedy=f"Give the columns of LiveCodeBench: {', '.join(COLUMNS)}",
            )  # fmt: skip
    for column in ("question_id", "question_content"):
        if not isinstance(row[column], str | int) or not str(row[column]).strip():
            raise DataError("is not a text with visible characters", file=file, row=number, field=column)
    if not isinstance(row["starter_code"], str | None):
        raise DataError("is not a text", file=file, row=number, field="starter_code")


def _request(question: str, starter: str) -> str:
    form, code = (_WITH_STARTER, starter) if starter else (_WITHOUT_STARTER, "# YOUR CODE HERE")
    return (
        f"### Question:\n{question}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


# --- columns -------------------------------------------------------------------------------------------------------


def contest_date(row: Mapping[str, Any], file: str, number: int) -> date:
    """Returns the day of a question's contest.

    Raises:
        DataError: not a date.
    """
    value = row["contest_date"]
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return datetime.fromisoformat(str(value)).date()
    except ValueError:
        raise DataError(
            f"'{value}' is not a date", file=file, row=number, field="contest_date",
            remedy="Write dates as 2024-08-01 or 2024-08-01T00:00:00",
        ) from None  # fmt: skip


def cases_of(row: Mapping[str, Any], file: str = PROTOCOL, number: int | None = None) -> Cases:
    """Returns the public and private tests of a row.

    Raises:
        DataError: tests or metadata in another form, no test, or a test of a function without JSON values.
    """

    def refused(problem: str, field: str) -> DataError:
        return DataError(problem, file=file, row=number, field=field)

    metadata = _json(row["metadata"]) if isinstance(row["metadata"], str) else row["metadata"]
    if not isinstance(metadata, Mapping):
        raise refused("is not a JSON object", "metadata")
    function = metadata.get("func_name")
    if not isinstance(function, str | None) or (function is not None and not function.isidentifier()):
        raise refused(f"func_name is {function!r}, which is not a name", "metadata")
    cases: list[tuple[str, str]] = []
    for column in ("public_test_cases", "private_test_cases"):
        try:
            found = _decoded(row[column])
        except ValueError as error:
            raise refused(str(error), column) from None
        for place, case in enumerate(found, start=1):
            cases.append(_case(case, function, lambda problem, p=place, c=column: refused(f"test {p}: {problem}", c)))
    if not cases:
        raise refused("has no test, and neither have the private ones", "public_test_cases")
    if sum(len(given) + len(expected) for given, expected in cases) > _LARGEST:
        raise refused(f"the tests are longer than {_LARGEST >> 20} million characters", "private_test_cases")
    return Cases(tuple(cases), function)


def _case(case: Any, function: str | None, refused: Any) -> tuple[str, str]:
    if not isinstance(case, Mapping) or not all(isinstance(case.get(name), str) for name in ("input", "output")):
        raise refused("it does not have the texts 'input' and 'output'")
    kind = case.get("testtype")
    if kind not in ("stdin", "functional"):
        raise refused(f"testtype is {kind!r}; it must be 'stdin' or 'functional'")
    if kind == "functional" and function is None:
        raise refused("testtype is 'functional', but metadata has no func_name")
    if function is not None:
        for text in (*case["input"].split("\n"), case["output"]):
            if _json(text, _json) is _json:
                raise refused(f"'{text[:40]}' is not a JSON value, as calls of {function} need")
    return case["input"], case["output"]


def _json(text: str, default: Any = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default


def _decoded(value: Any) -> list[Any]:
    """Returns tests given as a list, as JSON, or as base64 of a compressed pickle of JSON.

    Raises:
        ValueError: another form.
    """
    if isinstance(value, str):
        found = _json(value)
        value = _json(_pickled_text(value)) if found is None else found
    if not isinstance(value, list):
        raise ValueError("is neither a list of tests nor base64 of compressed ones")
    return value


def _pickled_text(encoded: str) -> str:
    """Returns the one text that a compressed pickle holds, without unpickling it."""
    try:
        compressed = base64.b64decode(encoded.encode("ascii"), validate=True)
        unpacking = zlib.decompressobj()
        pickled = unpacking.decompress(compressed, 2 * _LARGEST)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise ValueError(f"is cut, or longer than {2 * _LARGEST >> 20} MB")
        texts = []
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in _TEXT_OPCODES:
                texts.append(str(argument))
            elif opcode.name not in _OTHER_OPCODES:
                raise ValueError(f"holds a pickle of something else than one text (opcode {opcode.name}); not read")
    except (binascii.Error, UnicodeEncodeError, zlib.error) as error:
        raise ValueError(f"is neither JSON nor base64 of compressed tests ({error})") from None
    if len(texts) != 1:
        raise ValueError(f"holds a pickle of {len(texts)} texts instead of one; not read")
    return texts[0]


# --- answers -------------------------------------------------------------------------------------------------------


def program_of(text: str) -> str:
    """Returns the lines between the last two lines of an answer that have three backticks; '' with fewer than two."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def program(item: Mapping[str, Any], text: str) -> Program:
    """Returns a program with the tests of its question, as the sandbox runs it."""
    tests = cases_of(item)
    if tests.function is None:
        checks = tuple(f"assert same_output(timed(run, {given!r}), {wanted!r})" for given, wanted in tests.cases)
        return Program(script_source(text), checks, SCRIPT_SETUP, "run")
    checks = tuple(
        f"assert same_value(timed(called, *json.loads({_arguments(given)!r})), json.loads({wanted!r}))"
        for given, wanted in tests.cases
    )
    return Program(function_source(text, tests.function), checks, FUNCTION_SETUP, "called")


def _arguments(given: str) -> str:
    return "[" + ",".join(given.split("\n")) + "]"


def judged(items: Sequence[Mapping[str, Any]], programs: Sequence[str]) -> list[ProgramResult]:
    """Returns the result of a program for each item; a blank program has failed."""
    asked = [program(item, text) for item, text in zip(items, programs, strict=True) if text.strip()]
    results = iter(run_programs(asked, LIMITS))
    return [next(results) if text.strip() else ProgramResult("error", "no code in the answer") for text in programs]
