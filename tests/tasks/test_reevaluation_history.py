"""Records of re-evaluation that DVC has and the tree lacks are restored before anything reads them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from rlhf_core.errors import DataError, RewardsmithError
from tasks.reevaluation.history import MARK, RECORDS, records, records_folder, restore_records
from tests.small_repository import begin_repository, command


def write(root: Path, name: str, content: object) -> Path:
    path = records_folder(root, "m", "champion") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # DVC may have linked it to its cache
    path.write_text(json.dumps(content))
    return path


def dvc(*arguments: str, root: Path) -> None:
    command(sys.executable, "-m", "dvc", *arguments, root=root)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose reevaluations.dvc names two records, both told; its DVC remote has them."""
    root = tmp_path_factory.mktemp("records") / "tree"
    begin_repository(root, dvc=True)
    dvc("remote", "add", "-q", "-d", "store", str(root.parent / "remote"), root=root)
    (root / ".gitignore").write_text("/reevaluations/\n")
    for number in (1, 2):
        write(root, f"{number:06d}.json", {"number": number})
    write(root, "canary.json", [])
    write(root, MARK, {"record": 2})
    dvc("add", "-q", str(RECORDS), root=root)
    dvc("push", "-q", root=root)
    command("git", "add", "-A", root=root)
    command("git", "commit", "-qm", "records", root=root)
    return root


@pytest.fixture
def clone(known: Path, tmp_path: Path) -> Path:
    """A fresh clone of it, as git makes it: without records and without a cache."""
    command("git", "clone", "-q", str(known), str(tmp_path / "clone"), root=tmp_path)
    return tmp_path / "clone"


def test_a_fresh_clone_gets_its_records_from_the_remote(clone: Path) -> None:
    assert len(restore_records(clone)) == 4
    folder = records_folder(clone, "m", "champion")
    assert [record["number"] for record in records(folder)] == [1, 2]
    assert json.loads((folder / MARK).read_text()) == {"record": 2}
    assert restore_records(clone) == [], "nothing is lacking now"


def test_a_pulled_newer_file_brings_its_records_and_leaves_those_that_are_not_added(
    known: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(known, tmp_path / "tree", symlinks=True))
    folder = records_folder(root, "m", "champion")
    (folder / "000002.json").unlink()
    own = write(root, "000003.json", {"number": 3})
    write(root, MARK, {"record": 3})
    assert restore_records(root) == ["reevaluations/m@champion/000002.json"]
    assert own.exists()
    assert json.loads((folder / MARK).read_text()) == {"record": 3}


def test_records_that_nobody_has_are_an_error_and_not_a_first_evaluation(clone: Path) -> None:
    dvc("remote", "remove", "store", root=clone)
    with pytest.raises(RewardsmithError, match=r"neither DVC's cache nor a remote has .*count as the first"):
        restore_records(clone)
    assert not (clone / RECORDS).exists()


def test_another_record_of_the_same_number_is_refused(known: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(known, tmp_path / "tree", symlinks=True))
    write(root, "000002.json", {"number": 2, "of": "this machine"})
    with pytest.raises(
        DataError, match=r"000002\.json: differs from the file that reevaluations\.dvc names.*Move it away"
    ):
        restore_records(root)
