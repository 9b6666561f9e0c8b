"""Generated code: what must not get out, what must not count as a pass, and pass@k."""

import gzip
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.code import extract_code, judge_samples, pass_at_k, summarise_passes
from rlhf_core.evaluation.sandbox import (
    Program,
    ProgramLimits,
    ProgramResult,
    Sandbox,
    SandboxError,
    run_programs,
)


def isolation_problem() -> str | None:
    """Returns why generated code cannot be isolated here, or None if it can."""
    try:
        with Sandbox():
            return None
    except SandboxError as error:
        return str(error)


PROBLEM = isolation_problem()
isolated = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))
GOOD = "def f(x):\n    return x + 1\n"
SPRAY = """
import os
for i in range(3, 64):
    try:
        os.write(i, b"x\\npassed\\n2\\n")
    except OSError:
        pass
os._exit(0)
"""
TESTS = ("assert f(1) == 2", "assert f(-1) == 0")


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(ProgramLimits(seconds=3.0, memory_mb=128)) as running:
        yield running


def status(sandbox, source, tests=TESTS):
    result = sandbox.run(Program(source, tests))
    # whatever the program did, the next one is unharmed
    assert sandbox.run(Program(GOOD, TESTS)) == ProgramResult("passed", "", 2)
    return result.status


@isolated
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (GOOD, "passed"),
        ("def f(x): return 2", "failed"),
        ("def f(x): raise ValueError('no')", "error"),
        ("def f(: pass", "error"),
        ("import sys; sys.exit(0)", "error"),
        ("import os; os._exit(0)", "exited"),
        ("def f(x):\n import os; os._exit(0)", "exited"),
        ("raise SystemExit(0)", "error"),
        ("def f(x):\n raise KeyboardInterrupt", "error"),
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(100)", "timeout"),
        ("while True:\n try:\n  while True: pass\n except BaseException: pass", "timeout"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "error"),
        ("x = 'a' * (1 << 33)", "error"),
        ("import os\nwhile True: os.fork()", "error"),
        ("import subprocess\nsubprocess.run(['/bin/sh'])", "error"),
        ("import threading\nwhile True: threading.Thread(target=input).start()", "error"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 80), 1)", "error"),
        ("import socket\nsocket.create_connection(('1.1.1.1', 80), 1)", "error"),
        ("import urllib.request\nurllib.request.urlopen('http://example.org', timeout=1)", "error"),
        ("open('/tmp/escaped', 'w')", "error"),
        ("open('/usr/escaped', 'w')", "error"),
        ("open('/runner.py', 'a')", "error"),
        ("open('/etc/passwd').read()", "error"),
        ("open('/proc/1/environ').read()", "error"),
        ("open('/work/big', 'wb').write(b'0' * (1 << 24))", "error"),
        ("def g(): return g()\ng()", "error"),
        ("import ctypes\nctypes.string_at(0)", "crashed"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "timeout"),
        (f"import os\nos.kill(1, 9)\n{GOOD}", "error"),
        (f"for _ in range(100_000): print('flood' * 20)\n{GOOD}", "passed"),
        (SPRAY, "exited"),
        (f"import os, json\nos._exit = lambda *a: None\njson.dumps = None\n{GOOD}", "passed"),
        ("class E(Exception):\n def __str__(self): raise E\nraise E", "error"),
        ("raise ValueError('\\ud800 \\n' + 'x' * 10_000)", "error"),
        (f"open('/work/mine', 'w').write('x')\n{GOOD}", "passed"),
        (f"import os\nassert os.listdir('/work') == []\n{GOOD}", "passed"),
        ("x = '\0'", "error"),
        ("x = '\ud800'", "error"),
    ],
)
def test_status_of(sandbox, source, expected):
    assert status(sandbox, source) == expected


@isolated
def test_nothing_reaches_the_host(sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    target = tmp_path / "outside"
    with Sandbox() as fresh:
        probe = "import os\nraise ValueError(sorted(os.listdir('/')), dict(os.environ), os.getuid())"
        detail = fresh.run(Program(probe, TESTS)).detail
        assert fresh.run(Program(f"open({str(target)!r}, 'w')", TESTS)).status == "error"
    assert not target.exists()
    assert "do-not-tell" not in detail
    assert "home" not in detail
    assert ", 65534)" in detail


@isolated
def test_a_timeout_is_kept():
    start = time.monotonic()
    with Sandbox(ProgramLimits(seconds=0.3)) as quick:
        assert quick.run(Program("while True: pass", TESTS)).status == "timeout"
    assert time.monotonic() - start < 3


@isolated
def test_partial_passes_and_messages_are_reported(sandbox):
    result = sandbox.run(Program("def f(x): return 2", TESTS))
    assert (result.status, result.n_passed) == ("failed", 1)
    result = sandbox.run(Program("raise ValueError('why')", TESTS))
    assert result.detail == "ValueError: why"
    assert sandbox.run(Program("", ("assert k == 1",), setup="k = 1")).passed


@isolated
def test_a_sandbox_that_dies_is_replaced():
    with Sandbox() as mortal:
        assert mortal.run(Program(GOOD, TESTS)).passed
        mortal._process.kill()
        mortal._process.wait()
        assert mortal.run(Program(GOOD, TESTS)).status == "crashed"
        assert mortal.run(Program(GOOD, TESTS)).passed


@isolated
def test_order_is_kept_over_several_workers_and_nothing_is_left_behind():
    programs = [Program(f"def f(x): return x + {i % 2}", TESTS) for i in range(20)]
    results = run_programs(programs, workers=3)
    assert [r.passed for r in results] == [bool(i % 2) for i in range(20)]
    assert run_programs([]) == []


@isolated
def test_speed():
    programs = [Program(GOOD, TESTS)] * 100
    start = time.monotonic()
    assert all(r.passed for r in run_programs(programs))
    assert time.monotonic() - start < 10  # about .4 s on an idle core


def test_without_isolation_nothing_runs(tmp_path):
    """A launcher that cannot make namespaces refuses; the program must leave no trace."""
    script = (
        "import ctypes, sys\n"
        "from rlhf_core.evaluation import sandbox\n"
        "broken = sys.argv[1]\n"
        "import pathlib, shutil\n"
        "here = pathlib.Path(broken) / 'rlhf_core' / 'evaluation'\n"
        "shutil.copytree(sandbox._HERE, here, ignore=shutil.ignore_patterns('__pycache__'))\n"
        "launcher = here / 'sandbox_launcher.py'\n"
        "text = launcher.read_text().replace('def enter_namespaces() -> None:',\n"
        "    'def enter_namespaces() -> None:\\n    refuse(\"unshare\", 1)')\n"
        "launcher.write_text(text)\n"
        "sandbox._HERE = here\n"
        "try:\n"
        "    sandbox.run_programs([sandbox.Program('open(\"/tmp/ran\", \"w\")', ('1',))])\n"
        "except sandbox.SandboxError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "broken")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        check=False,
    )
    assert "cannot be isolated" in done.stdout, done.stderr
    assert "unshare: Operation not permitted" in done.stdout


def test_programs_without_tests_and_odd_limits_are_refused():
    with pytest.raises(SandboxError, match="at least one test"):
        Sandbox().run(Program(GOOD, ()))
    with pytest.raises(SandboxError, match="limits out of range"):
        ProgramLimits(seconds=0)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 1), (7, 3, 5)])
def test_pass_at_k_counts_subsets(n, c, k):
    subsets = list(itertools.combinations(range(n), k))
    share = sum(any(i < c for i in subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, c, k) == pytest.approx(share)


def test_pass_at_k_bounds():
    with pytest.raises(DataError):
        pass_at_k(3, 1, 4)


def test_code_is_taken_from_the_first_fence():
    assert extract_code("Sure:\n```python\nx = 1\n```\nand\n```\ny = 2\n```") == "x = 1\n"
    assert extract_code("```py\nx = 1") == "x = 1"
    assert extract_code("x = 1") == "x = 1"
    installed = "```bash\npip install numpy\n```\nThen:\n```python\nx = 1\n```"
    assert extract_code(installed) == "x = 1\n"
    assert extract_code(f"```\nout\n```\n{installed}") == "x = 1\n"
    assert extract_code("```bash\nls\n```\n```\nx = 1\n```") == "x = 1\n"


@isolated
def test_gold_solutions_of_mbpp_pass():
    default = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    path = Path(os.environ.get("REWARDSMITH_DATA", default)) / "mbpp.test.jsonl.gz"
    if not path.exists():
        pytest.skip("no data directory")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in itertools.islice(file, 100)]
    rows = [row for row in rows if row["id"] != "mbpp-123"]  # seconds of honest work
    programs = [Program(row["solution"], (row["test_setup"] or "pass", *row["tests"])) for row in rows]
    failed = [
        (row["id"], result)
        for row, result in zip(rows, run_programs(programs, ProgramLimits(seconds=30)), strict=True)
        if not result.passed
    ]
    assert failed == []


@isolated
def test_samples_are_summarised_per_problem():
    results = judge_samples([[GOOD, "def f(x): return 0"], [GOOD, GOOD]], [TESTS, TESTS])
    summary = summarise_passes(results, (1, 2))
    assert summary["pass@1"] == pytest.approx(0.75)
    assert summary["pass@2"] == 1.0
    assert (summary["n_passed"], summary["n_failed"], summary["n_problems"]) == (3, 1, 2)
    with pytest.raises(DataError, match="one of each per problem"):
        judge_samples([[GOOD]], [])
