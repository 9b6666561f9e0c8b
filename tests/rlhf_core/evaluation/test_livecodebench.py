"""LiveCodeBench: rows in the official columns, requests, answers, and programs against their tests."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation import livecodebench
from rlhf_core.evaluation.livecodebench import asked, judged, program_of, read_question
from tests.rlhf_core.evaluation.test_sandbox import isolated


def case(given: str, output: str, testtype: str = "stdin") -> dict[str, str]:
    return {"input": given, "output": output, "testtype": testtype}


def packed(tests: Any) -> str:
    """Returns tests as the official files have private ones."""
    return base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()


def row(**changes: Any) -> dict[str, Any]:
    """Returns an official row that asks for a sum."""
    return {
        "question_title": "Sum", "question_content": "Print a + b.", "platform": "atcoder", "question_id": "abc999_a",
        "contest_id": "abc999", "contest_date": "2024-08-01T00:00:00", "starter_code": "", "difficulty": "easy",
        "public_test_cases": json.dumps([case("1 2\n", "3\n")]),
        "private_test_cases": packed(json.dumps([case("4 5", "9"), case("1 1\n", "2.0\n")])),
        "metadata": "{}",
    } | changes  # fmt: skip


FUNCTION = row(
    question_id="3000",
    starter_code="class Solution:\n    def joined(self, numbers: List[int], last: int) -> List[int]:\n        ",
    public_test_cases=json.dumps([case("[1, 2]\n3", "[1, 2, 3]", "functional")]),
    private_test_cases=json.dumps([case("[]\n9007199254740993", "[9007199254740993]", "functional")]),
    metadata=json.dumps({"func_name": "joined"}),
)


@pytest.mark.parametrize("form", ["json", "list", "packed"])
def test_tests_are_read_in_each_form(form: str) -> None:
    tests = [case("4 5", "9"), case("1 1\n", "2.0\n")]
    private = {"json": json.dumps(tests), "list": tests, "packed": packed(json.dumps(tests))}[form]
    cases = read_question(row(private_test_cases=private), "f", 1).cases
    assert [(case.input, case.output) for case in cases] == [("1 2\n", "3\n"), ("4 5", "9"), ("1 1\n", "2.0\n")]


class Hostile:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


@pytest.mark.parametrize(
    "private",
    [
        packed(Hostile()),
        packed([json.dumps([])]),
        packed({"a": "b"}),
        packed(b"[]"),
        base64.b64encode(zlib.compress(b"cos\nsystem\n(S'true'\ntR.")).decode(),
        base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-6]).decode(),
        base64.b64encode(zlib.compress(b"\0" * (100 << 20))).decode(),
        base64.b64encode(b"nothing").decode(),
        "no base64 \u00e9",
        "",
        "{}",
        17,
        None,
    ],
)
def test_private_tests_of_another_form_are_refused_and_never_unpickled(
    private: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl, row 3, field 'private_test_cases'"):
        asked(row(private_test_cases=private), "rows.jsonl", 3)
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question_content": " "}, "field 'question_content'"),
        ({"metadata": "[]"}, "field 'metadata'"),
        ({"metadata": '{"func_name": "a b"}'}, "field 'metadata': func_name"),
        ({"contest_date": "yesterday"}, "field 'contest_date'"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "has no test"),
        ({"public_test_cases": '[{"input": "1"}]'}, "0 output Field required"),
        ({"public_test_cases": json.dumps([case("1", "2", "interactive")])}, "0 testtype"),
        ({"public_test_cases": json.dumps([case("1", "2", "functional")])}, "metadata has no func_name"),
        ({"metadata": '{"func_name": "f"}'}, "'1 2' is not a JSON value, as calls of f need"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as found:
        asked(row(**changes), "lcb.test.jsonl", 2)
    assert "lcb.test.jsonl, row 2" in str(found.value)
    assert message in str(found.value)


@pytest.mark.parametrize("column", livecodebench.LiveQuestion.model_fields)
def test_a_missing_column_is_named(column: str) -> None:
    found = row()
    del found[column]
    with pytest.raises(DataError, match=f"row 1, field '{column}': is missing"):
        asked(found, "lcb.test.jsonl", 1)


def test_requests_are_the_official_ones_with_and_without_starter_code() -> None:
    item, _ = asked(row(), "f", 1)
    assert item["history"] == [{"role": "system", "content": livecodebench.SYSTEM}]
    assert item["question"] == (
        "### Question:\nPrint a + b.\n\n### Format: Read the inputs from stdin solve the problem and write the answer "
        "to stdout (do not directly test on the sample inputs). Enclose your code within delimiters as follows.\n"
        "```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    with_starter, _ = asked(FUNCTION, "f", 1, system_turn=False)
    assert with_starter["history"] == []
    begin = f"{livecodebench.SYSTEM}\n\n### Question:\nPrint a + b.\n\n### Format: You will use"
    assert with_starter["question"].startswith(begin)
    assert f"```python\n{FUNCTION['starter_code']}\n```\n\n### Answer: (use" in with_starter["question"]


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("Run:\n```bash\nls\n```\nThen:\n```python\nx = 1\n```\nDone.", "x = 1"),
        ("<think>\n```python\nx = 0\n```\n</think>\n```\nx = 1\n```\n", "x = 1"),
        ("  ```py\r\nx = 1\r\n  ```\r\n", "x = 1\r"),
        ("x = 1", ""),
        ("```python\nx = 1", ""),
        ("", ""),
        ("```\n" * 20_000, ""),
    ],
)
def test_the_last_block_is_the_program(answer: str, program: str) -> None:
    assert program_of(answer) == program


RIGHT = {
    "input": "a, b = map(int, input().split())\nprint(a + b)",
    "read": "import sys\na, b = map(int, sys.stdin.read().split())\nprint(a + b, '')",
    "from sys": "from sys import stdin, stdout\nstdout.write(f'{sum(map(int, stdin.readline().split()))}\\n\\n')",
    "lines": "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
    "bytes": "import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, sys.stdin.buffer.readline().split())))",
    "descriptor": "print(sum(map(int, open(0).read().split())))",
    "descriptor closed": "with open(0) as given, open(1, 'w') as written:\n"
    "    print(sum(map(int, given.read().split())), file=written)",
    "fileinput": "import fileinput\nfor line in fileinput.input():\n    print(sum(map(int, line.split())))\n    break",
    "os": "import os, sys\na, b = os.read(sys.stdin.fileno(), os.fstat(0).st_size).split()\n"
    "os.write(1, b'%d' % (int(a) + int(b)))",
    "own streams": "import io, os, sys\nsys.stdin = io.TextIOWrapper(io.FileIO(0))\nsys.stdout = io.StringIO()\n"
    "import atexit\natexit.register(lambda: os.write(1, sys.stdout.getvalue().encode()))\n"
    "print(sum(map(int, input().split())))",
    "no stream": "import sys\nclass Out:\n    def write(self, text):\n        sys.__stdout__.write(text)\n"
    "sys.stdout = Out()\nprint(sum(map(int, input().split())))",
    "unflushed": "out = open(1, 'w')\ndef main():\n    out.write(str(sum(map(int, input().split()))))\nmain()",
    "script": "import os, sys\nassert sys.argv == [__file__]\nprint(sum(map(int, input().split())))\nquit()",
    "closed": "import sys\nprint(sum(map(int, input().split())))\nsys.stdout.close()\nsys.stdin.close()",
    "detached": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), line_buffering=True)\n"
    "print(sum(map(int, input().split())))",
    "global": "def main():\n    global s\n    s = sum(map(int, input().split()))\n    print(s)\nmain()\nexit(0)",
    "main": "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
    "thread": "import threading\ndef main():\n    print(sum(map(int, input().split())))\n"
    "t = threading.Thread(target=main)\nt.start()\nt.join()",
    "numpy": "import numpy as np\nprint(np.sum(np.array(input().split(), dtype=int)))",
    "decimals": "print(f'{sum(map(int, input().split())):.3f}')",
    "without imports": "print(reduce(add, map(int, input().split())) if gcd(2, 4) == 2 else Counter())",
    "windows": "a, b = map(int, input().split())\r\nprint(a + b)\r\n",
    "long numbers": "int(str(10**20000))\nprint(sum(map(int, input().split())))",
    "deep": "def f(n):\n    return n and f(n - 1)\nf(20000)\nprint(sum(map(int, input().split())))",
}  # fmt: skip
WRONG = {
    "constant": "print(3)",
    "another": "a, b = map(int, input().split())\nprint(a - b)",
    "more lines": "print(sum(map(int, input().split())))\nprint(0)",
    "nearly": "print(sum(map(int, input().split())) + 1e-9)",
    "not Python": "print(sum(map(int, input().split()))",
    "error after": "print(sum(map(int, input().split())))\nraise ValueError",
    "nothing": "pass",
    "blank": " ",
    "leaves": "import os\nprint(sum(map(int, input().split())))\nos._exit(0)",
    "never ends": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
}


@isolated
@pytest.mark.parametrize(("programs", "passed"), [(RIGHT, True), (WRONG, False)])
def test_programs_that_read_standard_input(programs: dict[str, str], passed: bool) -> None:
    item, _ = asked(row(), "f", 1)
    results = judged([item] * len(programs), list(programs.values()))
    found = dict(zip(programs, results, strict=True))
    assert {name: result for name, result in found.items() if result.passed != passed} == {}


@isolated
def test_functions_are_called_with_json_values() -> None:
    right = {
        "method": "class Solution:\n    def joined(self, numbers: List[int], last: int) -> List[int]:\n"
        "        return numbers + [last]",
        "tuple": "class Solution:\n    def joined(self, numbers, last):\n        return (*numbers, last)",
        "function": "def joined(numbers, last):\n    return numbers + [last]\nif __name__ == '__main__':\n    input()",
    }
    wrong = {
        "another": "class Solution:\n    def joined(self, numbers, last):\n        return numbers",
        "other name": "class Solution:\n    def join(self, numbers, last):\n        return numbers + [last]",
        "equal to all": "class E(list):\n    def __eq__(self, other): return True\n"
        "class Solution:\n    def joined(self, numbers, last):\n        return E()",
        "text": "def joined(numbers, last):\n    return str(numbers + [last])",
        "the wrong class": "class Solution:\n    pass\ndef joined(numbers, last):\n    return numbers + [last]",
    }
    item, _ = asked(FUNCTION, "f", 1)
    results = judged([item] * (len(right) + len(wrong)), [*right.values(), *wrong.values()])
    found = dict(zip([*right, *wrong], results, strict=True))
    assert {name for name, result in found.items() if result.passed} == {*right}
