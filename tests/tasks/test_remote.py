"""Machines that share a DVC remote: inputs checked by content, results pushed whole, refusals that lose nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.stage import push
from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from tasks.dvc.cache_digests import content_digest
from tasks.dvc.lock_files import locked_stage
from tasks.dvc.remote import Remote, RemoteFailed
from tasks.dvc.stage_results import StageResults
from tasks.running.commit import commit_of

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


def run_one(root: Path, address: str, *, upstream: Sequence[str]) -> str:
    """Runs a stage as a worker does: on inputs from the remote, its result pushed there."""
    commit = commit_of(root)
    with remote_of(root, address, *upstream) as remote:
        remote.pull_inputs(address)
    with closing(StageResults(root, [address])) as results, results.result(address) as outcome:
        if outcome == "ran":
            subprocess.run(results.command(address), shell=True, check=True, cwd=root)
    push(root, address, remote="team", commit=commit)
    return outcome


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a remote and two clones, `first` with the result of `make`, `second` with nothing."""
    folder = tmp_path_factory.mktemp("remote")
    first = folder / "first"
    (first / "tasks").mkdir(parents=True)
    (first / "tasks" / "__init__.py").write_text("")
    (first / "dvc.yaml").write_text(PIPELINE)
    (first / "in.txt").write_text("hello\n")
    (first / ".gitignore").write_text("calls\n/out\n/final.txt\n")
    from dvc.cli import main as dvc

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(first)
        patch.setenv("DVC_NO_ANALYTICS", "true")
        for words in (["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
            subprocess.run(["git", *words], check=True)
        dvc(["init", "-q"])
        dvc(["remote", "add", "team", "../store"])
        subprocess.run(["git", "add", "-A"], check=True)
        subprocess.run(["git", "commit", "-qm", "start"], check=True)
        shutil.copytree(first, folder / "second")
        assert run_one(first, "make", upstream=[]) == "ran"
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path / "second")
    return tmp_path


@contextmanager
def remote_of(root: Path, *stages: str) -> Iterator[Remote]:
    with closing(Remote(root, "team")) as remote:
        remote.load(stages)
        yield remote


def use(root: Path) -> str:
    """Learns the result of `make` and runs `use`, which reads it."""
    with remote_of(root, "make") as remote:
        assert remote.learn("make")
        remote.write_locks()
    return run_one(root, "use", upstream=["make"])


def calls(root: Path) -> list[str]:
    path = root / "calls"
    return path.read_text().split() if path.exists() else []


def objects(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in (folder / "store").rglob("*") if path.is_file()}


def stored(folder: Path, content: str) -> Path:
    """The file of the remote that holds a content."""
    return next(p for p in (folder / "store" / "files").rglob("*") if p.is_file() and p.read_text() == content)


def test_a_result_is_taken_over_by_its_name(folder: Path) -> None:
    first, second = folder / "first", folder / "second"
    with remote_of(first, "make") as remote:
        assert remote.learn("make")
        name = remote.result_name("make")
    with remote_of(second, "make", "use") as remote:
        remote.take_over("make", name)
        remote.write_locks()
        key = remote.key("use")
        with pytest.raises(RemoteFailed, match="no longer has the result"):
            remote.take_over("make", f"{name}-other")
    assert locked_stage(second, "make") == locked_stage(first, "make")
    assert run_one(second, "use", upstream=["make"]) == "ran"
    with remote_of(second, "make", "use") as remote:
        assert remote.key("use") == key == remote.result_name("use").partition("/")[0]


def test_the_digest_of_a_content_is_the_one_that_dvc_notes(made: Path) -> None:
    entry = locked_stage(made / "first", "make")
    assert content_digest(made / "first" / "in.txt") == entry["deps"][0]["md5"]
    assert content_digest(made / "first" / "out") == entry["outs"][0]["md5"]


def test_a_result_of_another_machine_is_known_without_its_data_and_its_stage_does_not_run(folder: Path) -> None:
    second = folder / "second"
    with remote_of(second, "make", "use") as remote:
        assert remote.learn("make")
        assert not remote.learn("use")
        remote.write_locks()
        assert not (second / "out").exists()
        remote.pull(["make"])
    assert locked_stage(second, "make") == locked_stage(folder / "first", "make")
    assert (second / "out" / "deep" / "two.txt").read_text() == "hello\n"
    assert not calls(second)


def test_a_stage_runs_alone_on_pulled_inputs_and_what_it_made_is_known_to_the_others(folder: Path) -> None:
    assert use(folder / "second") == "ran"
    assert calls(folder / "second") == ["use"]
    with remote_of(folder / "first", "make", "use") as remote:
        assert remote.learn("make")
        assert remote.learn("use")
        remote.write_locks()
        remote.pull(["use"])
    assert (folder / "first" / "final.txt").read_text() == "hello\nhello\n"
    assert (folder / "first" / "dvc.lock").read_text() == (folder / "second" / "dvc.lock").read_text()


def test_a_damaged_file_of_the_remote_is_refused_and_pulled_again_once_it_is_whole(folder: Path) -> None:
    file = stored(folder, "hello\n")
    file.chmod(0o644)
    file.write_text("hullo\n")
    file.chmod(0o444)  # as DVC leaves it, and trusts it
    with pytest.raises(DataError, match=r"file out: its content is not what dvc\.lock says .* nothing was run"):
        use(folder / "second")
    assert not calls(folder / "second")
    assert not (folder / "second" / "out").exists()
    file.unlink()
    with remote_of(folder / "first", "make") as remote:
        remote.push(["make"])
    assert use(folder / "second") == "ran"


def test_an_input_that_the_remote_does_not_have_is_named(folder: Path) -> None:
    second = folder / "second"
    with remote_of(second, "make") as remote:
        assert remote.learn("make")
        remote.write_locks()
    shutil.rmtree(folder / "store" / "files")
    with pytest.raises(DataError, match=r"file out: .* cannot be pulled from remote 'team'. Push it from the clone"):
        run_one(second, "use", upstream=["make"])
    assert not calls(second)


def test_an_entry_without_its_outputs_is_not_believed(folder: Path) -> None:
    shutil.rmtree(folder / "store" / "files")
    with remote_of(folder / "second", "make") as remote:
        assert not remote.learn("make")


@pytest.mark.parametrize("call", ["exists", "find", "cat_file"])
def test_a_remote_that_cannot_be_asked_is_one_that_may_answer_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OSError("Transport endpoint is not connected")

    with remote_of(folder / "second", "make") as remote:
        with monkeypatch.context() as patch:
            patch.setattr(remote.fs, call, away)
            patch.setattr(remote.store, "exists", away)
            with pytest.raises(RemoteFailed, match=r"remote 'team' .*cannot be asked: Transport endpoint"):
                remote.learn("make")
        assert remote.learn("make")


def test_a_remote_that_goes_away_while_it_takes_a_result_keeps_it_in_the_clone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OSError("Transport endpoint is not connected")

    with remote_of(folder / "first", "make") as remote:
        monkeypatch.setattr(remote.store, "exists", away)
        with pytest.raises(RemoteFailed, match=r"Transport endpoint is not connected\. The results are kept"):
            remote.push(["make"])


#: Of a lock file: no text, no YAML, no mapping, and so deep that libyaml ends the process.
UNREADABLE = (b"\xff\xfe", b"stages: {", b"[1]", b"stages: 5", b"stages: {make: 5}", b"stages: " + b"[" * 50_000)


@pytest.mark.parametrize("content", UNREADABLE)
def test_a_lock_file_that_is_none_is_named(folder: Path, content: bytes) -> None:
    (folder / "first" / "dvc.lock").write_bytes(content)
    with pytest.raises(DataError, match=r"dvc\.lock.*cannot be read as a lock file.*git checkout dvc\.lock"):
        locked_stage(folder / "first", "make")


DAMAGED = ["", "cmd: [", "cmd: x\nouts: [5]\n", "cmd: rm -rf out\nouts: [{path: out, md5: a}]\n"]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_or_foreign_entry_is_passed_over(folder: Path, text: str) -> None:
    for path in (folder / "store" / "runs").rglob("*"):
        if path.is_file():
            path.write_text(text)
    with remote_of(folder / "second", "make") as remote:
        assert not remote.learn("make")


def test_an_unknown_remote_is_refused_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(RecipeError, match="no DVC remote 'taem'; known: team"):
        Remote(folder / "second", "taem")


def test_a_remote_that_cannot_be_written_is_refused_before_anything_runs(folder: Path) -> None:
    shutil.rmtree(folder / "store")
    (folder / "store").write_text("not a folder")
    with remote_of(folder / "second") as remote, pytest.raises(RewardsmithError, match=r"'team' .* cannot be written"):
        remote.check()


def test_the_check_leaves_nothing_on_the_remote(folder: Path) -> None:
    before = objects(folder)
    with remote_of(folder / "second") as remote:
        remote.check()
    assert objects(folder) == before


def test_a_permission_lost_in_mid_run_keeps_the_result_and_the_next_run_pushes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    first, before = folder / "first", objects(folder)
    monkeypatch.chdir(first)
    with monkeypatch.context() as patch:
        patch.setattr("dvc_data.hashfile.transfer.transfer", refused)
        patch.setattr("dvc_objects.fs.local.LocalFileSystem.pipe_file", refused)
        with pytest.raises(RewardsmithError, match=r"Access Denied.*finished work is kept in this clone") as caught:
            run_one(first, "use", upstream=["make"])
    assert not isinstance(caught.value, RemoteFailed), "trying again does not help"
    assert objects(folder) == before
    assert calls(first) == ["make", "use"]
    run_one(first, "use", upstream=["make"])
    assert calls(first) == ["make", "use"], "it is pushed, not run again"
    with remote_of(folder / "second", "make", "use") as remote:
        assert remote.learn("make")
        assert remote.learn("use")


@pytest.mark.parametrize("edited", ["in.txt", "tasks/__init__.py"])
def test_a_result_whose_inputs_or_code_changed_while_it_ran_is_discarded(folder: Path, edited: str) -> None:
    second, before = folder / "second", objects(folder)
    pipeline = second / "dvc.yaml"
    pipeline.write_text(PIPELINE.replace("&& echo make >> calls", f"&& echo '# more' >> {edited}"))
    subprocess.run(["git", "commit", "-qam", "a slow stage"], cwd=second, check=True)
    with pytest.raises(RewardsmithError, match=rf"{edited} changed while stage make ran"):
        run_one(second, "make", upstream=[])
    assert objects(folder) == before
    assert not locked_stage(second, "make")
    assert not [path for path in (second / ".dvc" / "cache" / "runs").rglob("*") if path.is_file()]


#: A stage whose record names the digest of its input.
RECORDED = """
stages:
  make:
    cmd: >-
      mkdir -p made/result made/record && cp in.txt made/result/one.txt && python -c "import hashlib, json;
      given = hashlib.sha256(open('in.txt', 'rb').read()).hexdigest(); total = hashlib.sha256();
      total.update(f'one.txt\\0{given}\\n'.encode()); record = {'out': 'made', 'inputs': {'in.txt': given},
      'result_digest': total.hexdigest()}; json.dump(record, open('made/record/record.json', 'w'))"
    deps: [in.txt]
    outs: [made/result, made/record]
"""


def same_run(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["cmd"], one["deps"]) == (other["cmd"], other["deps"])


def test_a_pulled_result_of_other_inputs_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = folder / "first", folder / "second"
    for clone in (first, second):
        (clone / "dvc.yaml").write_text(RECORDED)
        (clone / ".gitignore").write_text("/made\n")
        subprocess.run(["git", "add", "-A"], cwd=clone, check=True)
        subprocess.run(["git", "commit", "-qm", "a stage with a record"], cwd=clone, check=True)
    monkeypatch.chdir(first)
    run_one(first, "make", upstream=[])
    right = locked_stage(first, "make")
    (first / "in.txt").write_text("other\n")
    subprocess.run(["git", "commit", "-qam", "another input"], cwd=first, check=True)
    run_one(first, "make", upstream=[])
    entries = {path for path in (folder / "store" / "runs").rglob("*") if path.is_file()}
    ours = next(path for path in entries if same_run(yaml.safe_load(path.read_text()), right))
    entry = yaml.safe_load(ours.read_text()) | {"outs": locked_stage(first, "make")["outs"]}
    ours.write_text(yaml.safe_dump(entry))

    monkeypatch.chdir(second)
    with remote_of(second, "make") as remote:
        assert remote.learn("make"), "the entry has the key of the inputs here"
        remote.write_locks()
        remote.pull(["make"])
        assert (second / "made" / "result" / "one.txt").read_text() == "other\n"
        assert remote.drop_foreign("make") == ["made/result"]
        assert not locked_stage(second, "make")
        assert not ours.exists()
        assert not remote.learn("make")
    assert run_one(second, "make", upstream=[]) == "ran"
    assert (second / "made" / "result" / "one.txt").read_text() == "hello\n"
    with remote_of(second, "make") as remote:
        assert remote.learn("make")
        remote.pull(["make"])
        assert remote.drop_foreign("make") == []
