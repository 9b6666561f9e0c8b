"""Machines that share a DVC remote: inputs checked by content, results pushed whole, refusals that lose nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from tasks.dvc.remote import Remote, RemoteFailed
from tasks.dvc.stage_results import RESTORED, StageResults

#: A stage that makes a directory, and one that reads it.
PIPELINE = """
stages:
  make:
    cmd: mkdir -p out/deep && cp in.txt out/one.txt && cp in.txt out/deep/two.txt && echo make >> calls
    deps: [in.txt]
    outs: [out]
  use:
    cmd: cat out/one.txt out/deep/two.txt > final.txt && echo use >> calls
    deps: [out]
    outs: [final.txt]
"""


@contextmanager
def results_of(root: Path) -> Iterator[StageResults]:
    with closing(StageResults(root, ["make", "use"], "team")) as results:
        yield results


def remote_of(results: StageResults) -> Remote:
    assert results.remote is not None
    return results.remote


def run_one(root: Path, address: str, given: dict[str, Any] | None = None) -> str:
    """Runs a stage as a worker does: on inputs from the remote, its result pushed there."""
    with results_of(root) as results:
        results.take_inputs(given or {})
        with results.result(address) as outcome:
            if outcome == "ran":
                subprocess.run(results.command(address), shell=True, check=True, cwd=root)
        results.push([address])
    return outcome


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a remote and two clones, `first` with the result of `make`, `second` with nothing."""
    folder = tmp_path_factory.mktemp("remote")
    first = folder / "first"
    first.mkdir()
    (first / "dvc.yaml").write_text(PIPELINE)
    (first / "in.txt").write_text("hello\n")
    from dvc.cli import main as dvc

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(first)
        patch.setenv("DVC_NO_ANALYTICS", "true")
        dvc(["init", "-q", "--no-scm"])
        dvc(["remote", "add", "team", "../store"])
        shutil.copytree(first, folder / "second")
        assert run_one(first, "make") == "ran"
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path / "second")
    return tmp_path


def entry(root: Path, address: str) -> dict[str, Any]:
    with results_of(root) as results:
        return results.entry(address)


def use(folder: Path) -> str:
    """Runs `use` in the second clone, on what the first one made."""
    return run_one(folder / "second", "use", {"make": entry(folder / "first", "make")})


def calls(root: Path) -> list[str]:
    path = root / "calls"
    return path.read_text().split() if path.exists() else []


def objects(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "store").rglob("*") if path.is_file()}


def stored(folder: Path, content: str) -> Path:
    """The file of the remote that holds a content."""
    return next(p for p in (folder / "store" / "files").rglob("*") if p.is_file() and p.read_text() == content)


def test_what_one_machine_made_is_restored_on_others_and_its_stage_does_not_run(folder: Path) -> None:
    first, second = folder / "first", folder / "second"
    assert use(folder) == "ran"
    assert calls(second) == ["use"], "on the result that the first one made"
    third = folder / "third"
    shutil.copytree(second, third, ignore=shutil.ignore_patterns("cache", "dvc.lock", "out", "final.txt", "calls"))
    for clone in (first, third):
        with results_of(clone) as results:
            assert results.restored("make") in ("unchanged", RESTORED)
            assert results.restored("use") == RESTORED
            assert results.key("use")
        assert (clone / "final.txt").read_text() == "hello\nhello\n"
        assert (clone / "dvc.lock").read_text() == (second / "dvc.lock").read_text()
    assert not calls(third)


def test_a_damaged_file_of_the_remote_is_refused_and_pulled_again_once_it_is_whole(folder: Path) -> None:
    file = stored(folder, "hello\n")
    file.chmod(0o644)
    file.write_text("hullo\n")
    file.chmod(0o444)  # as DVC leaves it, and trusts it
    with pytest.raises(DataError, match=r"file out: its content is not what dvc\.lock says .* nothing was run"):
        use(folder)
    assert not calls(folder / "second")
    assert not (folder / "second" / "out").exists()
    with results_of(folder / "second") as results:
        assert results.restored("make") is None, "the coordinator does not believe it, either"
    file.unlink()
    with results_of(folder / "first") as results:
        results.push(["make"])
    assert use(folder) == "ran"


def test_an_input_that_the_remote_does_not_have_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "store" / "files")
    with pytest.raises(DataError, match=r"file out: cannot be pulled from remote 'team'.*Push it from the clone"):
        use(folder)
    assert not calls(folder / "second")
    with results_of(folder / "second") as results:
        assert results.restored("make") is None, "an entry without its outputs is not believed"


def away(*_: Any, **__: Any) -> None:
    raise OSError("Transport endpoint is not connected")


@pytest.mark.parametrize("call", ["exists", "cat_file"])
def test_a_remote_that_cannot_be_asked_is_one_that_may_answer_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with results_of(folder / "second") as results:
        with monkeypatch.context() as patch:
            patch.setattr(remote_of(results).fs, call, away)
            with pytest.raises(RemoteFailed, match=r"remote 'team' .*cannot be asked from here: Transport endpoint"):
                results.restored("make")
        assert results.restored("make") == RESTORED


DAMAGED = ["cmd: [", "cmd: rm -rf out\nouts: [{path: out, md5: a}]\n"]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_or_foreign_entry_is_passed_over(folder: Path, text: str) -> None:
    for path in (folder / "store" / "runs").rglob("*"):
        if path.is_file():
            path.write_text(text)
    with results_of(folder / "second") as results:
        assert results.restored("make") is None


def test_an_unknown_remote_is_refused_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(RecipeError, match="no DVC remote 'taem'; known: team"):
        StageResults(folder / "second", [], "taem")
    with pytest.raises(RecipeError, match="this clone has no default DVC remote; known: team"):
        StageResults(folder / "second", [], "")


def test_a_remote_is_tried_before_anything_runs_and_the_check_leaves_nothing(folder: Path) -> None:
    before = objects(folder)
    with results_of(folder / "second") as results:
        remote_of(results).check()
        assert objects(folder) == before
        shutil.rmtree(folder / "store")
        (folder / "store").write_text("not a folder")
        with pytest.raises(RewardsmithError, match=r"'team' .* cannot be written"):
            remote_of(results).check()


def test_a_permission_lost_in_mid_run_keeps_the_result_and_the_next_run_pushes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    first, before = folder / "first", objects(folder)
    monkeypatch.chdir(first)
    with monkeypatch.context() as patch:
        patch.setattr("dvc_data.hashfile.transfer.transfer", refused)
        with pytest.raises(RewardsmithError, match=r"Access Denied.*finished work is kept in this clone") as caught:
            run_one(first, "use")
    assert not isinstance(caught.value, RemoteFailed), "trying again does not help"
    assert objects(folder) == before
    assert run_one(first, "use") == "unchanged", "it is pushed, not run again"
    assert calls(first) == ["make", "use"]
    with results_of(folder / "second") as results:
        assert [results.restored(name) for name in ("make", "use")] == [RESTORED, RESTORED]
