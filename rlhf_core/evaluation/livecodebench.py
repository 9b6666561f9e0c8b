"""LiveCodeBench: questions in the official columns, asked, read and tested as its code generation scenario does.

    asked(row, "livecodebench.test", 1)       an item (request, entry point, tests as the row has them), and its day
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
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from rlhf_core.errors import DataError
from rlhf_core.evaluation.sandbox import Program, ProgramLimits, ProgramResult, run_programs, timer
from rlhf_core.evaluation.sandbox_runner import GIVEN, WRITTEN

#: The protocol's name in items.
PROTOCOL = "livecodebench"
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
#: All tests of one question; each of them may take `SECONDS`, as in the official checker.
LIMITS = ProgramLimits(seconds=600, memory_mb=4096, numpy=True)
SECONDS = 6
#: Bytes of private tests.
_LARGEST = 80 << 20
_TEXT_OPCODES = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_OTHER_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}


# --- rows ----------------------------------------------------------------------------------------------------------


def _loaded(value: Any) -> Any:
    """Returns what a JSON text holds, another value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _unpacked(value: Any) -> Any:
    """Returns tests given as a list, as JSON, or as base64 of a compressed pickle of JSON.

    Raises:
        ValueError: another form.
    """
    try:
        return _loaded(value)
    except ValueError:
        return _loaded(_pickled_text(value))


def _pickled_text(encoded: str) -> str:
    """Returns the one text that a compressed pickle holds, without unpickling it."""
    try:
        compressed = base64.b64decode(encoded.encode("ascii"), validate=True)
        unpacking = zlib.decompressobj()
        pickled = unpacking.decompress(compressed, _LARGEST)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise ValueError(f"is cut, or longer than {_LARGEST >> 20} MB")
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


class Case(BaseModel):
    """Input and expected output of one test."""

    input: str
    output: str
    testtype: Literal["stdin", "functional"]


class Metadata(BaseModel):
    """The function that tests call, none for programs that read standard input."""

    func_name: Annotated[str, Field(pattern=r"^[^\W\d]\w*$")] | None = None


Cases = Annotated[list[Case], BeforeValidator(_unpacked)]


class Tests(BaseModel):
    """The columns with the tests of a question; every row of releases v1 to v6 has them."""

    public_test_cases: Cases
    private_test_cases: Cases
    metadata: Annotated[Metadata, BeforeValidator(_loaded)]

    @property
    def cases(self) -> list[Case]:
        return [*self.public_test_cases, *self.private_test_cases]


class LiveQuestion(Tests):
    """The columns of a row that are read."""

    question_id: Annotated[str, Field(pattern=r"\S", coerce_numbers_to_str=True)]
    question_content: Annotated[str, Field(pattern=r"\S")]
    starter_code: str | None
    contest_date: datetime


def read_question(row: Mapping[str, Any], file: str, number: int) -> LiveQuestion:
    """Returns a row in the official columns.

    Raises:
        DataError: a column that is missing or cannot be read, no test, or a test of a function without JSON values;
            names file, row and field.
    """

    def refused(problem: str, field: str, remedy: str | None = None) -> DataError:
        return DataError(problem, file=file, row=number, field=field, remedy=remedy)

    try:
        question = LiveQuestion.model_validate(dict(row))
    except ValidationError as error:
        found = error.errors()[0]
        field, *inner = map(str, found["loc"])
        if found["type"] == "missing" and not inner:
            columns = f"Give the columns of LiveCodeBench: {', '.join(LiveQuestion.model_fields)}"
            raise refused("is missing", field, columns) from None
        raise refused(" ".join([*inner, found["msg"]]), field) from None
    function = question.metadata.func_name
    if not question.cases:
        raise refused("has no test, and neither have the private ones", "public_test_cases")
    for case in question.cases:
        if case.testtype == "functional" and function is None:
            raise refused("a test's testtype is 'functional', but metadata has no func_name", "public_test_cases")
        for text in (*case.input.split("\n"), case.output) if function else ():
            try:
                _loaded(text)
            except ValueError:
                problem = f"'{text[:40]}' is not a JSON value, as calls of {function} need"
                raise refused(problem, "public_test_cases") from None
    return question


def asked(row: Mapping[str, Any], file: str, number: int, *, system_turn: bool = True) -> tuple[dict[str, Any], date]:
    """Returns an item of functions.livecode.jsonl, whose tests stay as the row has them, and the day of its contest.

    Args:
        row: in the official columns.
        file, number: of the row, for messages.
        system_turn: whether the chat template has a system turn; without one, its text begins the request.

    Raises:
        DataError: as `read_question`.
    """
    question = read_question(row, file, number)
    starter = question.starter_code
    form, code = (_WITH_STARTER, starter) if starter else (_WITHOUT_STARTER, "# YOUR CODE HERE")
    request = (
        f"### Question:\n{question.question_content}\n\n### Format: {form}\n```python\n{code}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )
    item = {
        "id": question.question_id,
        "question": request if system_turn else f"{SYSTEM}\n\n{request}",
        "history": [{"role": "system", "content": SYSTEM}] if system_turn else [],
        "protocol": PROTOCOL,
        "entry_point": question.metadata.func_name or "",
        **{column: row[column] for column in Tests.model_fields},
        "source": PROTOCOL,
    }
    return item, question.contest_date.date()


# --- answers -------------------------------------------------------------------------------------------------------


def program_of(text: str) -> str:
    """Returns the lines between the last two lines of an answer that have three backticks; '' with fewer than two."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def program(item: Mapping[str, Any], text: str) -> Program:
    """Returns a program with the tests of its question, as the sandbox runs it.

    A program that reads standard input becomes `run(input)`, which returns what it wrote; one with a function, or with
    a method of its class Solution, becomes `called(*arguments)`. The comparison is made in the process of the tests,
    which never gives an expected value away.
    """
    tests = Tests.model_validate(item)
    function = tests.metadata.func_name
    if function is None:
        source = f"{_BEGIN}\ncode = compile({text!r}, '<solution>', 'exec')\n{_RUN}"
        checks = [f"assert same_output(timed(run, {case.input!r}), {case.output!r})" for case in tests.cases]
        return Program(source, tuple(checks), "run", _SCRIPT_SETUP)
    source = f"{_BEGIN}\ntext, name = {text!r}, {function!r}\ncode = compile(text, '<solution>', 'exec')\n{_CALLED}"
    checks = [
        f"assert same_value(timed(called, *json.loads({arguments!r})), json.loads({output!r}))"
        for arguments, output in (("[" + ",".join(case.input.split("\n")) + "]", case.output) for case in tests.cases)
    ]
    return Program(source, tuple(checks), "called", _FUNCTION_SETUP)


def judged(items: Sequence[Mapping[str, Any]], programs: Sequence[str]) -> list[ProgramResult]:
    """Returns the result of a program for each item; a blank program has failed."""
    asked = [program(item, text) for item, text in zip(items, programs, strict=True) if text.strip()]
    results = iter(run_programs(asked, LIMITS))
    return [next(results) if text.strip() else ProgramResult("error", "no code in the answer") for text in programs]


# --- sources -------------------------------------------------------------------------------------------------------

#: Modules whose names every program may use without importing them, as in the official checker.
_STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_NAMED = tuple(name for name in _STARRED if name not in ("builtins", "typing"))

#: Longest whole numbers that are read and written, as in the official checker.
_DIGITS = "import sys\nsys.set_int_max_str_digits(50000)"
_TIMED = f"import json\n{_DIGITS}\n{timer(SECONDS)}"
#: Setup of the tests of a program that reads standard input: lines are compared without the white space around them,
#: then as decimal numbers.
_SCRIPT_SETUP = f"""{_TIMED}
from decimal import Decimal, InvalidOperation

def stripped_lines(text):
    return [line.strip() for line in text.strip().split("\\n")]

def decimals(line):
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None

def same_line(found, wanted):
    if found == wanted:
        return True
    numbers = decimals(found)
    return numbers is not None and numbers == decimals(wanted)

def same_output(found, wanted):
    lines, others = stripped_lines(found), stripped_lines(wanted)
    return len(lines) == len(others) and all(map(same_line, lines, others))
"""
#: Setup of the tests of a function: a tuple is a list, everything else is compared with ==.
_FUNCTION_SETUP = f"""{_TIMED}
def same_value(found, wanted):
    return bool((list(found) if isinstance(found, tuple) else found) == wanted)
"""

_NAMES = "\n".join(
    [
        *(f"from {name} import *" for name in _STARRED),
        *(f"import {name}" for name in _NAMED),
        "sys.setrecursionlimit(50000)",
        "quit = exit",
        _DIGITS,
    ]
)
_BEGIN = f"""
import atexit, fileinput, gc, os, sys, threading
threading.Thread.start = lambda thread: thread.run()
threading.Thread.join = lambda thread, timeout=None: None
names = {{}}
exec({_NAMES!r}, names)
"""
#: Standard input and output are files, as `program.py < given > written` has them.
_RUN = f"""
def run(given):
    for place in ({GIVEN}, {WRITTEN}):
        os.ftruncate(place, 0)
        os.lseek(place, 0, 0)
    with open({GIVEN}, "wb", closefd=False) as file:
        file.write(given.encode())
    os.lseek({GIVEN}, 0, 0)
    os.dup2({GIVEN}, 0)
    os.dup2({WRITTEN}, 1)
    sys.argv = ["program.py"]
    sys.__stdin__ = sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.__stdout__ = sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
    space = {{**names, "__name__": "__main__", "__file__": "program.py"}}
    try:
        exec(code, space)
    except SystemExit:
        pass
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        try:
            if not getattr(stream, "closed", True):
                stream.flush()
        except ValueError:  # the program detached it
            pass
    fileinput.close()
    space.clear()
    del sys.stdin, sys.stdout, sys.__stdin__, sys.__stdout__, stream
    gc.collect()  # a file that is left would close the next test's descriptor
    os.lseek({WRITTEN}, 0, 0)
    with open({WRITTEN}, "rb", closefd=False) as file:
        return file.read().decode("utf-8", "replace")
"""
_CALLED = """
names["__name__"] = "solution"
exec(code, names)
function = getattr(names["Solution"](), name) if "class Solution" in text else names[name]

def called(*arguments):
    return function(*arguments)
"""
