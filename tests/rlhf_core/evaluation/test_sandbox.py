"""The sandbox: programs with the outcome they must have (`programs.yaml`), limits, and refusal without isolation."""

import gzip
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rlhf_core.evaluation import sandbox as sandbox_module
from rlhf_core.evaluation import sandbox_syscalls
from rlhf_core.evaluation.evalplus import asked
from rlhf_core.evaluation.sandbox import Program, ProgramLimits, ProgramResult, Sandbox, SandboxError, run_programs


def isolation_problem() -> str | None:
    """Returns why generated code cannot be isolated here, or None if it can."""
    try:
        with Sandbox():
            return None
    except SandboxError as error:
        return str(error)


ROOT = Path(__file__).resolve().parents[3]
PROBLEM = isolation_problem()
isolated = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))
CASES = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text())
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


def program(solution: str, tests: tuple[str, ...] = TESTS, setup: str = "", entry_point: str = "f") -> Program:
    return Program(solution, tests, entry_point, setup)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(ProgramLimits(seconds=2.0, memory_mb=128)) as running:
        yield running


@isolated
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_program_has_its_outcome_and_the_next_is_unharmed(sandbox, case):
    tests = tuple(case.get("tests", TESTS))
    result = sandbox.run(program(case["solution"], tests, case.get("setup", ""), case.get("entry_point", "f")))
    if case["status"] == "not passed":
        assert not result.passed
    else:
        assert result.status == case["status"], result
    assert sandbox.run(program(GOOD, TESTS)) == ProgramResult("passed")


@isolated
@pytest.mark.parametrize(
    ("setup", "later"),
    [
        ("import math\nmath.pi = 3", "import math\nassert math.pi > 3.14"),
        ("import sys\nsys.setrecursionlimit(60)", "def r(n): return 0 if n == 0 else r(n - 1)\nassert r(200) == 0"),
        ("exec('import math; math.pi = 3')", "import math\nassert math.pi > 3.14"),
    ],
)
def test_what_one_program_s_tests_set_is_unset_for_the_next(sandbox, setup, later):
    assert sandbox.run(program(GOOD, (setup, "assert f(1) == 2"))).passed
    assert sandbox.run(program(GOOD, (later, "assert f(1) == 2"))) == ProgramResult("passed")


@isolated
def test_a_program_never_sees_its_tests_nor_another_program(sandbox):
    assert sandbox.run(program(f"secret = 'MARKED'\n{GOOD}", ("assert f(1) == 2, 'MARKED'",))).passed
    reads = (
        "import gc\nmark = 'MAR' + 'KED'\n"
        "texts = [r for o in gc.get_objects() for r in gc.get_referents(o) if isinstance(r, str)]\n"
        "found = [text for text in texts if mark in text and text is not mark]\n"
        "assert not found, found\n"
    )
    assert sandbox.run(program(reads + GOOD, (*TESTS, "assert 'MARKED'"))).passed


@isolated
def test_nothing_reaches_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    with Sandbox() as fresh:
        probe = "import os\nraise ValueError(sorted(os.listdir('/')), dict(os.environ), os.getuid())"
        detail = fresh.run(program(probe, TESTS)).detail
        assert fresh.run(program(f"open({str(tmp_path / 'outside')!r}, 'w')", TESTS)).status == "error"
    assert not (tmp_path / "outside").exists()
    assert "do-not-tell" not in detail
    assert "home" not in detail
    assert ", 65534)" in detail


@isolated
def test_a_timeout_is_kept():
    start = time.monotonic()
    with Sandbox(ProgramLimits(seconds=1)) as quick:
        assert quick.run(program("while True: pass", TESTS)).status == "ended"
    assert time.monotonic() - start < 5


@isolated
def test_messages_are_reported(sandbox):
    result = sandbox.run(program("raise ValueError('why')", TESTS))
    assert result.detail == "ValueError: why"
    result = sandbox.run(program("raise ValueError('\\ud800 \\n' + 'x' * 10_000)", TESTS))
    assert (result.status, len(result.detail)) == ("error", 300)


@isolated
def test_a_sandbox_that_dies_is_replaced():
    with Sandbox() as mortal:
        assert mortal.run(program(GOOD, TESTS)).passed
        mortal._process.kill()
        mortal._process.wait()
        assert mortal.run(program(GOOD, TESTS)).status == "ended"
        assert mortal.run(program(GOOD, TESTS)).passed


@pytest.mark.parametrize(
    ("bubblewrap", "reason"),
    [
        (
            "#!/bin/sh\necho 'no permissions to create a namespace' >&2; exit 1\n",
            "no permissions to create a namespace",
        ),
        (
            f"#!{sys.executable}\nimport sys\nsys.argv = sys.argv[-1:] * 2\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from rlhf_core.evaluation.sandbox_runner import main\nmain()\n",
            "must end with 'error', not 'passed'",
        ),
    ],
    ids=["bubblewrap refuses", "bubblewrap isolates nothing"],
)
def test_without_isolation_nothing_runs(tmp_path, monkeypatch, bubblewrap, reason):
    script = tmp_path / "bwrap"
    script.write_text(bubblewrap)
    script.chmod(0o755)
    monkeypatch.setattr(sandbox_module, "_bubblewrap", lambda: str(script))
    with pytest.raises(SandboxError, match=f"cannot be isolated on this machine .*{reason}"):
        run_programs([program(f"open({str(tmp_path / 'ran')!r}, 'w')", TESTS)])
    assert not (tmp_path / "ran").exists()


LIMITED = """
import resource, sys
from rlhf_core.evaluation.sandbox import Program, SandboxError, run_programs
from rlhf_core.evaluation.sandbox_runner import resource_limits

for option, (kind, value, _) in resource_limits(10.0, 256).items():
    if option != "-u":  # the user's other processes count, too
        most = value - (option == sys.argv[1])
        resource.setrlimit(kind, (most, most))
tests = ("assert f(1) == 2",)
try:
    print(*(one.status for one in run_programs([Program(f"def f(x): return x + {n}", tests, "f") for n in (1, 2)])))
except SandboxError as error:
    print(error)
"""


@isolated
@pytest.mark.parametrize("lower", ["-v", "-d", "-s", "-t", "-f", "-n", "none"])
def test_a_shell_s_limit_is_enough_or_named(lower):
    said = subprocess.run([sys.executable, "-c", LIMITED, lower], cwd=ROOT, capture_output=True, text=True).stdout
    assert said == "passed failed\n" if lower == "none" else f"`ulimit {lower}` is " in said


def test_programs_without_tests_and_odd_limits_are_refused():
    with pytest.raises(SandboxError, match="at least one test"):
        Sandbox().run(program(GOOD, ()))
    with pytest.raises(SandboxError, match="limits out of range"):
        ProgramLimits(seconds=0)


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
def test_gold_solutions_of_mbpp_pass():
    default = ROOT.parent / "shared" / "data"
    path = Path(os.environ.get("REWARDSMITH_DATA", default)) / "mbpp.test.jsonl.gz"
    if not path.exists():
        pytest.skip("no data directory")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in itertools.islice(file, 100)]
    rows = [row for row in rows if row["id"] != "mbpp-123"]  # seconds of honest work
    programs = [
        Program(row["solution"], (*item["tests"],), item["entry_point"])
        for row, item in zip(rows, map(asked, rows), strict=True)
    ]
    results = run_programs(programs, ProgramLimits(seconds=30))
    assert [(row["id"], r) for row, r in zip(rows, results, strict=True) if not r.passed] == []
