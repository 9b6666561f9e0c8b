"""Programs written against the sandbox: none passes without being right, none reaches a later program."""

import pytest

from rlhf_core.evaluation import sandbox_syscalls
from rlhf_core.evaluation.evalplus import LIMITS, asked
from rlhf_core.evaluation.sandbox import Program, ProgramLimits, ProgramResult, Sandbox
from tests.rlhf_core.evaluation.test_code import isolated

GOOD = "def f(x):\n    return x + 1\n"
TESTS = (
    "assert f(1) == 2",
    "assert abs(f(3) - 4) < 1e-6",
    "assert str(f(4)) == '5'",
    "assert f(2) in (3,)",
    "assert set([f(0)]) == {1}",
    "assert not f(1) != 2",
    "import math\nassert math.isclose(f(5), 6.0)",
)
WRITES = """
import json, os
def send(message):
    data = json.dumps(message).encode() if isinstance(message, dict) else message
    for descriptor in range(3, 32):
        try:
            os.write(descriptor, len(data).to_bytes(8, 'big') + data)
        except OSError:
            pass
def f(x): return 0
"""
FORGERIES = {
    "replaced str": "import builtins\nbuiltins.str = lambda x='': 'pass'\ndef f(x): return 0",
    "replaced compile": "import builtins\nbuiltins.compile = lambda *a, **k: None\ndef f(x): return 0",
    "replaced FunctionType": "import types\ntypes.FunctionType = lambda *a: lambda: None\ndef f(x): return 0",
    "collector finds the tests": "import gc\nfor o in gc.get_objects():\n"
    " if isinstance(o, dict) and 'tests' in o: o['tests'] = []\n if type(o) is list: o.clear()\ndef f(x): return 0",
    "frames": "import sys\ndef f(x):\n frame = sys._getframe()\n while frame:\n"
    "  if 'tests' in frame.f_locals or 'token' in frame.f_locals: frame.f_locals['tests'].clear()\n"
    "  frame = frame.f_back\n return 0",
    "equal to everything": "class E:\n def __eq__(s, o): return True\n def __ne__(s, o): return False\n"
    " def __sub__(s, o): return s\n def __abs__(s): return 0\n def __lt__(s, o): return True\n"
    " def __hash__(s): return 1\ndef f(x): return E()",
    "int equal to everything": "class E(int):\n def __eq__(s, o): return True\n def __ne__(s, o): return False\n"
    " def __sub__(s, o): return 0\n def __str__(s): return '5'\ndef f(x): return E(7)",
    "StopIteration": "def f(x): raise StopIteration",
    "names of fields": "class E(tuple): _fields = ('__class__',)\ndef f(x): return E([2])",
    "fields as code": "class E(tuple): _fields = ('x=exit()',)\nE.__name__ = 'print(1)'\ndef f(x): return E([2])",
    "an address of memory": "class E:\n"
    " __array_interface__ = {'shape': (), 'typestr': '<f8', 'data': (id(1.0) + 16, True), 'version': 3}\n"
    " def __array__(s, *a, **k): raise TypeError\ndef f(x): return E()",
    "own math": "class math:\n isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 2",
    "own builtins": "def abs(x): return 0\ndef set(x): return {1}\ndef str(x): return '5'\ndef f(x): return 2",
    "an answer in advance": WRITES + "send({'value': 2})\nsend({'value': [['f', 2]]})",
    "a report": WRITES + "send({'status': 'passed', 'n_passed': 7, 'detail': ''})",
    "a call of the tests' own": WRITES + "send({'do': 'call', 'of': 1, 'arguments': [], 'options': {}})",
    "a deep answer": WRITES + "send(b'[' * 100_000)",
    "a long answer": "import os\nos.write(3, (1 << 62).to_bytes(8, 'big'))\ndef f(x): return 0",
    "other functions of the exchange": "import rlhf_core.evaluation.sandbox_exchange as e\n"
    "e.ForeignObject.__eq__ = lambda *a: True\ne.encode = lambda *a: 2\ndef f(x): return 0",
}
ESCAPES = {
    "shared memory": "import ctypes\nassert ctypes.CDLL(None).shmget(0, 50 << 20, 0o1600) >= 0",
    "message queue": "import ctypes\nassert ctypes.CDLL(None).msgget(0, 0o1600) >= 0",
    "memory file": "import os\nos.memfd_create('x')",
    "AF_VSOCK": "import socket\nsocket.socket(socket.AF_VSOCK)",
    "AF_UNIX": "import socket\nsocket.socket(socket.AF_UNIX)",
    "AF_NETLINK": "import socket\nsocket.socket(socket.AF_NETLINK)",
    "user namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "mount namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x20000) == 0",
    "ptrace": "import ctypes\nassert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "prctl": "import ctypes\nassert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0",
    "signals to others": "import os\nos.kill(-1, 9)",
    "limits of others": "import os, resource\nfor p in range(1, 64):\n"
    " if p != os.getpid(): resource.prlimit(p, resource.RLIMIT_CPU, (0, 0))",
    "owner of a descriptor": "import fcntl\nfcntl.fcntl(3, fcntl.F_SETOWN, 1)",
    "size of a pipe": "import os, fcntl\nfcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
    "times of a device": "import os\nos.utime('/dev/null')",
    "lock of the machine's file": "import fcntl, os\nfcntl.flock(os.open('/usr', 0), fcntl.LOCK_SH)",
    "lock of a range": "import fcntl\nfcntl.lockf(open('x', 'w'), fcntl.LOCK_EX)",
    "x32 calls": "import ctypes\nassert ctypes.CDLL(None).syscall(0x40000000 + 39) > 0",
}
BESIEGE = """
import os
os.makedirs('a/b/c')
try:
    for i in range(1000): open(f'a/b/{i}', 'wb').write(b'0' * 50_000)
except OSError:
    pass
for folder in ('a/b/c', 'a/b', 'a'): os.chmod(folder, 0)
"""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(ProgramLimits(seconds=10.0, memory_mb=128)) as running:
        yield running


@isolated
@pytest.mark.parametrize("source", FORGERIES.values(), ids=FORGERIES)
def test_a_wrong_program_does_not_pass(sandbox, source):
    assert not sandbox.run(Program(source, TESTS)).passed
    assert sandbox.run(Program(GOOD, TESTS)) == ProgramResult("passed", "", len(TESTS))


@isolated
@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_what_a_program_may_not_call_is_refused(sandbox, source):
    result = sandbox.run(Program(source + "\n" + GOOD, TESTS))
    assert result.status == "error", result


@isolated
def test_a_program_finds_an_empty_folder_whatever_the_one_before_left(sandbox):
    assert sandbox.run(Program(BESIEGE + GOOD, TESTS)).passed
    writes = "import os\nassert os.listdir('.') == []\nopen('x', 'wb').write(b'0' * 900_000)\n"
    assert sandbox.run(Program(writes + GOOD, TESTS)).passed


@isolated
def test_a_program_never_sees_its_tests_nor_another_program(sandbox):
    marked = Program(f"secret = 'MARKED'\n{GOOD}", ("assert f(1) == 2, 'MARKED'",))
    assert sandbox.run(marked).passed
    reads = (
        "import gc\nmark = 'MAR' + 'KED'\n"
        "texts = [r for o in gc.get_objects() for r in gc.get_referents(o) if isinstance(r, str)]\n"
        "found = [text for text in texts if mark in text and text is not mark]\n"
        "assert not found, found\n"
    )
    assert sandbox.run(Program(reads + GOOD, (*TESTS, "assert 'MARKED'"))) == ProgramResult("passed", "", 8)


@isolated
@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("def f(x): x.append(1)", ("x = [0]\nf(x)\nassert x == [0, 1]",)),
        ("def f(x): x[0].append(1)", ("x = [[0]]\ny = x[0]\nf(x)\nassert y == [0, 1]",)),
        ("def f(): yield from (1, 2)", ("assert list(f()) == [1, 2]",)),
        ("from collections import Counter\nf = Counter", ("assert f('aab') == {'a': 2, 'b': 1}",)),
        ("class Node:\n def __init__(self, v): self.v, self.left = v, None\ndef f(n): return n.v + n.left.v",
         ("root = Node(1)\nroot.left = Node(2)", "assert f(root) == 3 and root.left.v == 2")),
        ("def f(g, x): return g(g(x))", ("assert f(lambda x: 2 * x, 3) == 12",)),
        ("def f(x): raise ValueError('no')",
         ("try:\n f(1)\nexcept ValueError as e:\n assert str(e) == 'no'\nelse:\n assert 0",)),
        ("def sum(a, b): return a - b", ("assert sum(3, 1) == 2",)),
        ("import math\ndef f(x): return math.pi", ("assert math.isclose(f(1), 3.14159265, rel_tol=1e-6)",)),
        ("def f(x): return 10 ** x, {1: {2, 3}}, b'x', 1j, range(3), None, True",
         ("assert f(5000) == (10 ** 5000, {1: {2, 3}}, b'x', 1j, range(3), None, True)",)),
        ("def f(): yield from (1, 2)", ("g = f()\nassert (next(g), next(g), next(g, 3)) == (1, 2, 3)",)),
        ("def f(): return {1: 2}.keys()", ("assert f() == {1}",)),
        ("def f(*, x): x.append(1)", ("x = []\nf(x=x)\nassert x == [1]",)),
        ("def f(x): x[0][0].append(1)", ("x = (([],),)\nf(x)\nassert x == (([1],),)",)),
        ("def f(x): return x", ("x = [1]\ny = f(x)\ny.append(2)\nassert x == [1, 2] and y is x",)),
        ("def f(): return ..., NotImplemented, slice(1, None, 2), memoryview(b'ab')",
         ("assert f() == (..., NotImplemented, slice(1, None, 2), b'ab') and f()[0] is ...",)),
        ("def f(x): return x + '\\ude00', '\\ud800'",
         ("assert f('\\ud83d') == ('\\ud83d\\ude00', '\\ud800') and len(f('\\ud83d')[0]) == 2",)),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')"
         "\ndef f(p): return P(p.y, p[0]) if p else P(1, [2])",
         ("p = f(None)\nassert p == (1, [2]) and p.y == [2] and str(p) == 'P(x=1, y=[2])'", "assert f(p).x == [2]")),
        ("from collections import namedtuple\ndef f(): return namedtuple('P', 'x x', rename=True)(1, 2)",
         ("assert f() == (1, 2)",)),
        ("async def g(): return 1\ndef f():\n import asyncio\n return asyncio.run(g())", ("assert f() == 1",)),
    ],
)  # fmt: skip
def test_a_right_program_passes(sandbox, source, tests):
    assert sandbox.run(Program(source, tests)) == ProgramResult("passed", "", len(tests))


@isolated
def test_a_program_that_returns_its_argument_does_not_pass_for_one_that_copies(sandbox):
    tests = ("x = [1]\nassert f(x) == x and f(x) is not x",)
    assert not sandbox.run(Program("def f(x): return x", tests)).passed
    assert sandbox.run(Program("def f(x): return list(x)", tests)).passed


@isolated
@pytest.mark.parametrize(
    ("setup", "later"),
    [
        ("import decimal\ndecimal.getcontext().prec = 3",
         "import decimal\nassert decimal.Decimal(1) / 3 == decimal.Decimal('0.' + 28 * '3')"),
        ("import math\nmath.pi = 3", "import math\nassert math.pi > 3.14"),
        ("import sys\nsys.setrecursionlimit(60)", "def r(n): return 0 if n == 0 else r(n - 1)\nassert r(200) == 0"),
        ("(0 for _ in ()).gi_frame.f_builtins['abs'] = len", "assert abs(-2) == 2"),
        ("exec('import math; math.pi = 3')", "import math\nassert math.pi > 3.14"),
    ],
)  # fmt: skip
def test_what_one_program_s_tests_set_is_unset_for_the_next(sandbox, setup, later):
    assert sandbox.run(Program(GOOD, (setup, "assert f(1) == 2"))).passed
    assert sandbox.run(Program(GOOD, (later, "assert f(1) == 2"))) == ProgramResult("passed", "", 2)


@isolated
def test_the_setup_s_names_stay_the_setup_s_with_an_entry_point(sandbox):
    setup = "def check_sum(x): return sum(x)\ndef f(x):\n    '''Doubles.'''\n"
    tests = ("assert check_sum(f([1, 2])) == 6",)
    wrong = "def f(x): return [0]\ndef check_sum(x): return 6"
    right = "def f(x): return [2 * i for i in x]"
    assert not sandbox.run(Program(wrong, tests, setup, "f")).passed
    assert sandbox.run(Program(right, tests, setup, "f")).passed


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_call_that_makes_processes_sockets_or_namespaces_is_listed(machine):
    forbidden = {"fork", "vfork", "clone", "clone3", "execve", "socket", "connect", "bind", "sendmsg", "unshare",
                 "setns", "mount", "ptrace", "shmget", "msgget", "semget", "memfd_create", "prctl", "bpf",
                 "io_uring_setup", "process_vm_writev", "pidfd_open", "userfaultfd"}  # fmt: skip
    assert not forbidden & sandbox_syscalls.ALLOWED.keys()
    assert len(sandbox_syscalls.instructions(machine, 5)) % 8 == 0
    with pytest.raises(OSError, match="no list"):
        sandbox_syscalls.instructions("riscv64", 5)


@isolated
@pytest.mark.parametrize("answer", ["[]", "[[]]", "__import__('numpy').zeros((0, 1))", "Memory()", "float('nan')"])
def test_evalplus_tests_of_floats_take_no_empty_answer_and_no_address(answer):
    row = {
        "id": "x", "question": "def f(x: float) -> float:\n    '''Adds 1.'''\n", "entry_point": "f", "source": "s",
        "tests": "def check(candidate):\n    assert candidate(1.0) == 2.0\n",
        "plus_tests": "import numpy as np\ndef assertion(out, exp, atol):\n"
        "    assert out == exp or np.allclose(out, exp, rtol=1e-07, atol=1e-6)\n"
        "def check(candidate):\n    assertion(candidate(1.0), 2.0, 0)\n",
    }  # fmt: skip
    item = asked(row)
    memory = (
        "import ctypes\nheld = ctypes.c_double(2.0)\nclass Memory:\n __array_interface__ = {'shape': (), "
        "'typestr': '<f8', 'data': (ctypes.addressof(held), True), 'version': 3}\n"
    )
    with Sandbox(LIMITS) as with_numpy:
        right = Program("def f(x): return x + 1", tuple(item["plus_tests"]), item["setup"], "f")
        assert with_numpy.run(right).passed
        wrong = Program(f"{memory}def f(x): return {answer}", tuple(item["plus_tests"]), item["setup"], "f")
        assert not with_numpy.run(wrong).passed
