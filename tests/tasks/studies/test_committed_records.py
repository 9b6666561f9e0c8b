"""Records against git: one counts once it is committed with its start, as its world left it, in its own place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.commands.study import print_study
from tasks.report.atlas_page import write_atlas
from tasks.studies.claim_verdicts import studied_claim
from tasks.studies.registration import Registration
from tasks.studies.start_log import LOG, note_start
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_records, commit_study, edit, git, write_worlds

FILE = Path("studies") / "credit.yaml"


def rates(index: int, cell: str, row: str) -> float:
    return 50.0 + index + {"bandit": 0.0, "segment": 4.0 + index % 2, "token": 2.0}[row]


@pytest.fixture
def own(tmp_path: Path) -> Registration:
    return commit_study(tmp_path, STUDY)


def loaded(root: Path) -> StudyState:
    return load_study(root, root / FILE)


def test_a_record_counts_once_it_is_committed(
    tmp_path: Path, own: Registration, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_worlds(tmp_path, own, rates, commit=False)
    before = loaded(tmp_path)
    assert (len(before.records), before.findings) == (0, ())
    assert [tmp_path / file for file in before.uncommitted] == files
    monkeypatch.chdir(tmp_path)
    print_study(tmp_path, "credit")
    said = capsys.readouterr().out
    assert "0 of 4 worlds, 4 not committed yet, started 20" in said
    assert f"not committed yet, so not counted: {before.uncommitted[0]}" in said
    page = write_atlas(tmp_path, tmp_path / "report")
    for shown in (page, page.with_name("atlas.md")):
        assert "Not committed yet, so not counted" in shown.read_text()
    git(tmp_path, "add", "reference")
    assert len(loaded(tmp_path).uncommitted) == 4, "staged is not committed"
    commit_records(tmp_path)
    assert (len(loaded(tmp_path).records), loaded(tmp_path).uncommitted) == (4, ())


def test_a_committed_record_stays_as_it_was_added(tmp_path: Path, own: Registration) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    as_added = file.read_text()
    file.write_text(as_added.replace("56.0", "95.0"))
    with pytest.raises(DataError, match=r"differs from the record that commit \w{10} added.*git checkout"):
        loaded(tmp_path)
    commit_records(tmp_path)
    with pytest.raises(DataError, match=rf"{file.name}: was changed after commit \w{{10}}, which added it"):
        loaded(tmp_path)
    file.write_text(as_added)
    commit_records(tmp_path)
    with pytest.raises(DataError, match="was changed after commit"):
        loaded(tmp_path)


def test_a_world_that_was_run_again_after_its_record_was_removed_is_refused(tmp_path: Path, own: Registration) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    content = file.read_text()
    git(tmp_path, "rm", "-q", str(file))
    with pytest.raises(DataError, match=rf"{file.name}: the committed record was removed.*git checkout"):
        loaded(tmp_path)
    git(tmp_path, "commit", "-qm", "Removed")
    with pytest.raises(DataError, match="the committed record was removed"):
        loaded(tmp_path)
    note_start(tmp_path, own, [own.world_seed(1)], "verdict")
    file.write_text(content.replace("56.0", "95.0"))
    commit_records(tmp_path)
    with pytest.raises(DataError, match="was changed after commit"):
        loaded(tmp_path)


def test_a_record_that_a_merge_changed_is_refused(tmp_path: Path, own: Registration) -> None:
    here = git(tmp_path, "branch", "--show-current")
    git(tmp_path, "checkout", "-qb", "other")
    file = write_worlds(tmp_path, own, rates)[1]
    git(tmp_path, "checkout", "-q", here)
    git(tmp_path, "commit", "-qm", "Here", "--allow-empty")
    git(tmp_path, "merge", "-q", "--no-commit", "other")
    file.write_text(file.read_text().replace("56.0", "95.0"))
    commit_records(tmp_path)
    with pytest.raises(DataError, match="was changed after commit"):
        loaded(tmp_path)


def test_records_of_a_merged_branch_count(tmp_path: Path, own: Registration) -> None:
    here = git(tmp_path, "branch", "--show-current")
    git(tmp_path, "checkout", "-qb", "other")
    write_worlds(tmp_path, own, rates)
    git(tmp_path, "checkout", "-q", here)
    git(tmp_path, "commit", "-qm", "Here", "--allow-empty")
    git(tmp_path, "merge", "-q", "other")
    assert len(loaded(tmp_path).records) == 4


def test_a_record_without_its_start_is_refused(tmp_path: Path, own: Registration) -> None:
    write_worlds(tmp_path, own, rates)
    log = (tmp_path / LOG).read_text()
    lines = log.splitlines()
    (tmp_path / LOG).write_text("".join(f"{line}\n" for line in lines if f"[{own.world_seed(2)}]" not in line))
    commit_records(tmp_path, "--amend", "--no-edit")
    with pytest.raises(DataError, match=rf"{own.world_seed(2)}\.json.*has no start of the world"):
        loaded(tmp_path)
    (tmp_path / LOG).write_text("".join(f"{line}\n" for line in lines if f"[{own.world_seed(2)}]" not in line))
    note_start(tmp_path, own, [own.world_seed(2)], "verdict")
    commit_records(tmp_path)
    with pytest.raises(DataError, match="has no start of the world"):
        loaded(tmp_path)


@pytest.mark.parametrize("field", ["digest", "study", "worlds", "kind"])
def test_a_start_is_of_the_same_study_version_world_and_kind(tmp_path: Path, own: Registration, field: str) -> None:
    write_worlds(tmp_path, own, rates)
    other = {"digest": "0" * 64, "study": "gate", "worlds": [3], "kind": "pilot"}[field]
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    lines[2] |= {field: other, **({"kind": "pilot"} if field == "digest" else {})}
    (tmp_path / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    commit_records(tmp_path, "--amend", "--no-edit")
    with pytest.raises(DataError, match=rf"{own.world_seed(2)}\.json.*has no start of the world"):
        loaded(tmp_path)


@pytest.mark.parametrize(("field", "other"), [("study", "gate"), ("kind", "pilot"), ("world", 5)])
def test_a_record_says_what_its_place_says(tmp_path: Path, own: Registration, field: str, other: object) -> None:
    file = write_worlds(tmp_path, own, rates)[3]
    edit(file, lambda record: record.update({field: other}))
    with pytest.raises(DataError, match=rf"{file.name}, field '{field}': is {other}, but its place is that of"):
        loaded(tmp_path)


@pytest.mark.parametrize("part", ["prepare/dialogue", "sft/phi3-mini", "row 'token'"])
def test_a_copied_world_is_refused(tmp_path: Path, own: Registration, part: str) -> None:
    first, second = write_worlds(tmp_path, own, rates)[:2]
    donor = json.loads(first.read_text())["cells"]["long-mean"]

    def copy(record: dict[str, Any]) -> None:
        for kind, name in (("above", part), ("rows", "token")):
            if name in donor[kind] and (kind == "above") == ("row" not in part):
                record["cells"]["long-mean"][kind][name]["result"] = donor[kind][name]["result"]

    edit(second, copy)
    with pytest.raises(DataError, match=rf"{second.name}.*has the {part} of .*{first.name}.*independent draws"):
        loaded(tmp_path)


def test_a_world_copied_from_another_study_is_refused(tmp_path: Path, own: Registration) -> None:
    """The second study gives its worlds the data of the first one's."""
    theirs = write_worlds(tmp_path, own, rates)[0]
    gate = commit_study(tmp_path, {**STUDY, "title": "Gate"}, "gate")
    files = write_worlds(tmp_path, gate, rates)
    stolen = json.loads(theirs.read_text())["cells"]
    edit(files[1], lambda record: record.update(cells=stolen))
    with pytest.raises(DataError, match=rf"gate/{files[1].name}.*reference/studies/credit/{theirs.name}"):
        load_study(tmp_path, tmp_path / "studies" / "gate.yaml")


def test_data_that_no_world_draws_may_be_equal(tmp_path: Path, own: Registration) -> None:
    for file in write_worlds(tmp_path, own, rates):

        def read(record: dict[str, Any]) -> None:
            for cell in record["cells"].values():
                cell["above"]["prepare/dialogue"] |= {"drawn": False, "result": "e" * 64}
                for row in cell["rows"].values():
                    row["origin"]["data"] = "e" * 64

        edit(file, read)
    assert len(loaded(tmp_path).records) == 4


@pytest.mark.parametrize("part", ["record", "stage"])
def test_a_record_of_a_stage_at_a_commit_without_the_study_is_refused(tmp_path: Path, part: str) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-qm", "Before", "--allow-empty")
    before = git(tmp_path, "rev-parse", "HEAD")
    file = write_worlds(tmp_path, commit_study(tmp_path, STUDY), rates)[0]
    edit(file, lambda record: (record if part == "record" else record["environments"][0]).update(commit=before))
    with pytest.raises(DataError, match=rf"'commit'.*{before[:10]} does not have studies/credit\.yaml"):
        loaded(tmp_path)


def test_a_study_whose_commit_a_squash_dropped_is_exploratory(
    tmp_path: Path, own: Registration, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers stay; no hypothesis is tested, the claim is open, and both pages say why."""
    write_worlds(tmp_path, own, rates)
    assert [finding.word for finding in loaded(tmp_path).findings] == ["undecided"] * 3
    head = git(tmp_path, "commit-tree", "HEAD^{tree}", "-m", "Squashed")
    git(tmp_path, "reset", "-q", "--hard", head)
    state = loaded(tmp_path)
    assert len(state.records) == 4
    assert [finding.word for finding in state.findings] == ["exploratory"] * 3
    assert all(finding.effect is not None and finding.p is None for finding in state.findings)
    assert studied_claim(state) is None
    monkeypatch.chdir(tmp_path)
    print_study(tmp_path, "credit")
    said = capsys.readouterr().out
    assert f"note: worlds ran at commits that are not in this history: {own.commit[:10]}" in said
    assert "confirmed" not in said
    page = write_atlas(tmp_path, tmp_path / "report")
    for shown in (page, page.with_name("atlas.md")):
        assert "nothing in this history shows that the study was registered" in shown.read_text()
        assert "exploratory, 4 of 4 worlds" in shown.read_text()


def test_a_record_of_code_that_no_commit_has_is_refused(tmp_path: Path, own: Registration) -> None:
    file = write_worlds(tmp_path, own, rates)[0]
    edit(file, lambda record: record["environments"][0].update(dirty=True))
    with pytest.raises(DataError, match=rf"{file.name}.*with changes that were not committed"):
        loaded(tmp_path)


def test_a_shallow_clone_is_refused(tmp_path: Path, own: Registration) -> None:
    write_worlds(tmp_path, own, rates)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}", str(tmp_path / "shallow"))
    with pytest.raises(DataError, match=r"this clone is shallow.*git fetch --unshallow"):
        loaded(tmp_path / "shallow")
    shutil.rmtree(tmp_path / "shallow")
