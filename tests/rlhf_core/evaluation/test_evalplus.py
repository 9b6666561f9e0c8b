"""MBPP and HumanEval as EvalPlus measures them: its sanitiser, its tests and its comparison."""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest

from rlhf_core.evaluation.evalplus import LIMITS, asked, program_of
from rlhf_core.evaluation.evalplus_sanitiser import longest_code, sanitised
from rlhf_core.evaluation.sandbox import Program, run_programs
from tasks.evaluating.policies import judged_answers
from tests.rlhf_core.evaluation.test_sandbox import isolated

ADDS = "def f(x):\n    return x + 1"
USES = "def g(x):\n    return math.floor(x) + ONE\ndef f(x):\n    return g(x)"
PLUS = (
    "import numpy as np\n\ndef is_floats(x) -> bool:\n    if isinstance(x, float):\n        return True\n"
    "    if isinstance(x, (list, tuple)):\n        return all(isinstance(i, float) for i in x)\n    return False\n\n"
    "def assertion(out, exp, atol):\n    if atol == 0 and is_floats(exp):\n        atol = 1e-6\n"
    "    if out != exp and atol != 0:\n        assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n    else:\n"
    "        assert out == exp\n\n"
)


def mbpp(inputs: str, results: str, **changes: Any) -> dict[str, Any]:
    loop = "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(f(*inp), exp, 0)\n"
    return {
        "id": "mbpp-1", "question": "Write a function.", "solution": ADDS, "entry_point": "f", "test_setup": "",
        "tests": ["assert f(1) == 2"], "plus_tests": f"{PLUS}inputs = {inputs}\nresults = {results}\n{loop}",
        "n_base": 1, "source": "s",
    } | changes  # fmt: skip


# --- sanitiser -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        (ADDS, ADDS),
        (f"Here it is:\n```python\n{ADDS}\n```\nIt's right.", ADDS),
        (f"```bash\npip install x\n```\n```python\n{ADDS}\n```", ADDS),
        (f"<think>\nLet me see\n</think>\n{ADDS}\nprint(f(1))", ADDS),
        (f"{ADDS}\nif __name__ == '__main__':\n    main()", ADDS),
        (f"{ADDS}\nassert f(1) == 2", ADDS),
        (f"import math\nONE = 1\nclass A:\n    pass\n{USES}", f"import math\nONE = 1\n{USES}"),
        (f"from __future__ import annotations\n{ADDS}\nimport os", f"import os\n{ADDS}"),
        (f"@cache\ndef g(x):\n    return x\n{ADDS}", ADDS),
        (f"def f(x):\n    pass\n{ADDS}", ADDS),
        (f"{ADDS}\n{ADDS.replace('1', '2')}", ADDS),
        (ADDS.replace("\n", "\r\n"), ADDS),
        (f"# \u00e9\u6f22 \U0001f600\n{ADDS}", ADDS),
        ("no code", "no code"),
        ("    import math", "import math"),
        ("", ""),
        ("x = (", "x = ("),
    ],
)  # fmt: skip
def test_the_code_that_a_function_needs_is_kept(answer: str, program: str) -> None:
    assert sanitised(answer, "f") == program


PIECES = (
    "Here is the solution:", "I'm sure it's right.",
    "```python", "```", "Note: (see above", "<think>", "", "   ", "x",
    "print(f(1))", "# note", "assert f(1)", "if __name__ == '__main__':\n    main()",
    "'''doc'''", '"""', "\u00e9 \u6f22",
    "def helper(x):\n    return x",
    "class A:\n    y = 1\n    def g(self):\n        return self.y",
    "import math, os.path", "from typing import *", "from __future__ import annotations",
    "ONE = 5", "a, b = 1, ONE", "(a, b) = ONE",
    "a[0] = ONE", "a.b = helper", "x: int = ONE", "x += 1", "y = z = ONE", "@cache\ndef dec(x):\n    return x",
    "async def co():\n    return 1", "def none():\n    pass",
    "try:\n    import foo\nexcept ImportError as e:\n    foo = 1",
    "match x:\n    case A(y=1):\n        z = 2", "s = f'{helper(1)} {ONE!r}'", "s = '''\n```\n'''", "type = 3",
    "def g2(*args, key=ONE, **kw) -> 'List[int]':\n    return key", "\tdef tabbed():\n\t\treturn 1", "    inner = 1",
    "d = {'a': 1,", "]", "r = [i for i in ONE if helper(i)]", "K = helper; L = ONE", "import a; import b", "f'open {",
    "def f(x):\n    ''' Adds. '''\n    return helper(x) + ONE", "def f(y):\n    return A().g() + math.pi + r[0]",
    "def outer():\n    def inner():\n        return ONE\n    inner()", "x = 1 \\", "v = not helper",
)  # fmt: skip


def test_it_is_the_sanitiser_of_evalplus() -> None:
    """Needs EvalPlus: pip install --no-deps evalplus==0.3.1 tempdir wget multipledispatch termcolor tree-sitter
    tree-sitter-python."""
    official = pytest.importorskip("evalplus.sanitize")
    draw = random.Random(0)
    for _ in range(300):
        answer = "\n".join(draw.choices(PIECES, k=draw.randrange(1, 14)))
        own, theirs = sanitised(answer, "f"), official.sanitize(answer, "f")
        assert longest_code(answer).strip() == official.code_extract(answer).strip(), answer
        assert own == theirs or ast.dump(ast.parse(own)) == ast.dump(ast.parse(theirs)), answer


def test_tabs_are_four_spaces_and_an_answer_ends_at_the_stop_strings() -> None:
    mixed = "def f(x):\n\tif x:\n        return 1\n\treturn 2"
    assert program_of(mixed, "f") == "def f(x):\n    if x:\n        return 1\n    return 2"
    assert program_of(f"{ADDS}\n```\nIt is\n```python\ndef f(x):\n    return 0\n```\n", "f") == ADDS
    assert program_of("x = 1\nprint(1)\ndef f(x):\n    return 0", "f") == "x = 1"


# --- tests ---------------------------------------------------------------------------------------------------------


FLOATS = {
    "0.3": True, "0.1 + 0.2": True, "0.3 * (1 + 1e-8)": True, "0.31": False, "'0.3'": False, "[0.3]": False,
    "None": False, "__import__('numpy').float64(0.30000001)": False,
}  # fmt: skip


def passes(returned: dict[str, bool], *tests: list[str], before: str = "") -> dict[str, bool]:
    """Returns whether functions of one value pass each of some tests; those that pass a part of them are left out."""
    programs = [
        Program(f"{before}def f(x):\n    return {value}", tuple(one), "f") for value in returned for one in tests
    ]
    results = [result.passed for result in run_programs(programs, LIMITS)]
    parts = [set(results[at : at + len(tests)]) for at in range(0, len(results), len(tests))]
    return {value: part.pop() for value, part in zip(returned, parts, strict=True) if len(part) == 1}


@isolated
def test_base_and_plus_tests_compare_floats_alike() -> None:
    item = asked(mbpp("[[1], [2]]", "[0.3, 0.3]", tests=["assert f(1) == 0.3"]))
    assert passes(FLOATS, item["tests"], item["plus_tests"]) == FLOATS


@isolated
def test_base_tests_are_the_plus_tests_on_the_base_inputs() -> None:
    item = asked(mbpp("[[1], [2]]", "[2, 7]"))
    base, plus = (
        run_programs([Program(ADDS, tuple(tests), "f")], LIMITS)[0] for tests in (item["tests"], item["plus_tests"])
    )
    assert base.passed
    assert not plus.passed
    without = asked(mbpp("[[1], [2]]", "[2, 7]", plus_tests=None))
    assert without["tests"][0].endswith("\nassert f(1) == 2")
    assert without["plus_tests"] is None


@isolated
def test_a_program_gets_neither_imports_nor_functions_of_the_prompt_but_its_tests_do() -> None:
    prompt = "from typing import List\n\ndef shift(x):\n    return x + 1\n\n"
    prompt += "def f(x: int) -> List[int]:\n    ''' Lists. '''\n"
    row = {
        "id": "HumanEval/1", "question": prompt, "solution": "    return [shift(x)]\n", "entry_point": "f",
        "source": "s",
        "tests": "def check(candidate):\n    assert candidate(shift(1)) == [3]\n",
    }  # fmt: skip
    item = asked(row)
    assert item["question"].startswith("Please provide a self-contained Python script")
    right = "from typing import List\n\ndef f(x: int) -> List[int]:\n    return [x + 1]\n"
    results = judged_answers([item] * 3, [right, right.split("\n\n")[1], "def f(x):\n    return [shift(x)]\n"])
    assert [result.passed for result in results] == [True, False, False]


def test_the_function_of_a_row_without_its_name_is_the_one_that_the_tests_call() -> None:
    solution = "def g(x):\n    return x\ndef f(x):\n    return g(x) + 1\ndef h():\n    return 1\n"
    row = mbpp("[[1]]", "[2]", solution=solution)
    del row["entry_point"], row["test_setup"], row["n_base"]
    assert asked(row)["entry_point"] == "f"
    assert "[:1]" in asked(row)["tests"][0]


@isolated
def test_tests_that_compute_a_match_assert_it() -> None:
    assertion = (
        "def assertion(out, exp, atol):\n    if isinstance(out, bool):\n        exact_match = out == exp\n    else:\n"
        "        exact_match = exp == (out is not None)\n\n\n"
    )
    row = mbpp("[[1], [2]]", "[False, True]")
    item = asked(row | {"plus_tests": row["plus_tests"].replace(PLUS, assertion)})
    returned = {"x > 1": True, "x if x > 1 else None": True, "None": False, "[x]": False}
    assert passes(returned, item["plus_tests"]) == returned


@isolated
def test_evalplus_tests_of_floats_take_no_empty_answer_and_no_address() -> None:
    row = {
        "id": "x", "question": "def f(x: float) -> float:\n    '''Adds 1.'''\n", "entry_point": "f", "source": "s",
        "tests": "def check(candidate):\n    assert candidate(1.0) == 2.0\n",
        "plus_tests": "import numpy as np\ndef assertion(out, exp, atol):\n"
        "    assert out == exp or np.allclose(out, exp, rtol=1e-07, atol=1e-6)\n"
        "def check(candidate):\n    assertion(candidate(1.0), 2.0, 0)\n",
    }  # fmt: skip
    memory = (
        "import ctypes\nheld = ctypes.c_double(2.0)\nclass Memory:\n __array_interface__ = {'shape': (), "
        "'typestr': '<f8', 'data': (ctypes.addressof(held), True), 'version': 3}\n"
    )
    wrong = ("[]", "[[]]", "__import__('numpy').zeros((0, 1))", "Memory()", "float('nan')")
    returned = {"x + 1": True, **dict.fromkeys(wrong, False)}
    assert passes(returned, asked(row)["plus_tests"], before=memory) == returned
