"""Control groups around a sandbox, where this machine lets this process make them."""

import os
import subprocess
import sys

import pytest

from rlhf_core.evaluation.sandbox import Program, ProgramLimits, Sandbox
from rlhf_core.evaluation.sandbox_groups import make_group
from tests.rlhf_core.evaluation.test_sandbox import isolated

_group = make_group(64, 8)
LIMITED = {name for names in _group.folders for name in names}
_group.remove()
needs_memory = pytest.mark.skipif("memory" not in LIMITED, reason="no control group for memory can be made here")
needs_pids = pytest.mark.skipif("pids" not in LIMITED, reason="no control group for processes can be made here")


def end_of(code, group):
    join = f"for file in {group.files!r}: open(file, 'w').write('0')\n"
    return subprocess.run([sys.executable, "-I", "-S", "-c", join + code], capture_output=True, text=True)


@needs_memory
def test_a_group_ends_a_process_that_takes_more_memory_in_any_form():
    group = make_group(64, 8)
    try:
        assert end_of("x = bytearray(16 << 20)", group).returncode == 0
        fills = "import os\nf = os.memfd_create('x')\nfor _ in range(200): os.write(f, bytes(1 << 20))"
        assert end_of(fills, group).returncode == -9
    finally:
        group.remove()
    assert not any(folder.exists() for folder in group.folders.values())


@needs_pids
def test_a_group_refuses_more_processes():
    group = make_group(64, 4)
    try:
        made = end_of("import os\nfor _ in range(8): os.fork() or __import__('time').sleep(.2) or os._exit(0)", group)
    finally:
        group.remove()
    assert "BlockingIOError" in made.stderr


@isolated
@needs_memory
def test_a_sandbox_is_in_its_group_until_it_ends():
    with Sandbox(ProgramLimits(memory_mb=128)) as sandbox:
        assert "memory" in sandbox.group_limits
        folders = list(sandbox._group.folders.values())
        assert sandbox.run(Program("def f(x): return x", ("assert f(1) == 1",))).passed
        members = [(folder / "cgroup.procs").read_text().split() for folder in folders]
        assert all(len(processes) >= 2 for processes in members)
        assert str(os.getpid()) not in members[0]
    assert not any(folder.exists() for folder in folders)


def made_with(tmp_path, control):
    proc, mount = tmp_path / "proc", tmp_path / "fs with space"
    own = mount / "user" / "session"
    for folder in (proc, own):
        folder.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/user/session\n")
    place = str(mount).replace(" ", "\\040")
    (proc / "mountinfo").write_text(f"30 20 0:26 / {place} rw - cgroup2 cgroup2 rw\n")
    (own / "cgroup.subtree_control").write_text("\n")
    (own.parent / "cgroup.subtree_control").write_text(control + "\n")
    return make_group(64, 8, proc), own


def test_in_version_2_the_group_is_made_where_controllers_are_handed_down(tmp_path):
    """A folder of files, not a kernel's: this shows which limits are written where."""
    group, own = made_with(tmp_path, "cpu memory pids")
    (folder,) = group.folders.values()
    assert folder.parent == own.parent
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"memory.max": str(64 << 20), "pids.max": "8"}


@pytest.mark.parametrize("control", ["", "cpu io"])
def test_without_a_controller_no_group_is_made(tmp_path, control):
    group, own = made_with(tmp_path, control)
    assert group.folders == {}
    assert [path.name for path in own.parent.iterdir() if path.is_dir()] == ["session"]
