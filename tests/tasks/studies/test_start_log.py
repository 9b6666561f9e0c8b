"""The log of starts: only added to, one line at a time, and nothing that was ever committed leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.commands.study import print_studies
from tasks.report.atlas_page import write_atlas
from tasks.studies.changed_since_start import refuse_study_changed_since_start
from tasks.studies.registration import Registration, registration_of
from tasks.studies.start_log import (
    LOG,
    abandoned,
    note_start,
    parse_starts,
    refuse_edited_log,
    starts,
)
from tests.tasks.studies.synthetic_study import STUDY, commit_records, commit_study, git, write_worlds

FILE = Path("studies") / "credit.yaml"
PROJECT = Path(__file__).parents[3]
STARTING = """
import sys
from pathlib import Path
from tasks.studies.registration import registration_of
from tasks.studies.start_log import note_start
root = Path(sys.argv[1])
own = registration_of(root, root / "studies" / "credit.yaml")
for number in range(5):
    note_start(root, own, [1000 * int(sys.argv[2]) + number], "verdict")
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    commit_study(tmp_path, STUDY)
    return tmp_path


def own(root: Path) -> Registration:
    return registration_of(root, root / FILE)


def write_log(root: Path, lines: list[str]) -> None:
    (root / LOG).write_text("".join(f"{line}\n" for line in lines))


def test_a_started_study_stays_as_it_is(clone: Path) -> None:
    note_start(clone, own(clone), [5], "pilot")
    commit_study(clone, {**STUDY, "margin": 2.0})
    refuse_study_changed_since_start(clone, own(clone))  # a pilot is no start
    note_start(clone, own(clone), [7], "verdict")
    commit_study(clone, {**STUDY, "margin": 1.0})
    with pytest.raises(RecipeError, match="was changed after its first start"):
        refuse_study_changed_since_start(clone, own(clone))


def test_every_start_is_a_line_of_the_log(clone: Path) -> None:
    note_start(clone, own(clone), [7, 3], "verdict")
    note_start(clone, own(clone), [9], "verdict")
    lines = starts(clone)
    assert [line["worlds"] for line in lines] == [[3, 7], [9]]
    assert {line["digest"] for line in lines} == {own(clone).digest}


def test_starts_at_the_same_time_are_whole_lines(clone: Path) -> None:
    call = [sys.executable, "-P", "-c", STARTING, str(clone)]
    environment = {"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin"}
    running = [subprocess.Popen([*call, str(n)], env=environment, stderr=subprocess.PIPE) for n in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert sorted(line["worlds"][0] for line in starts(clone)) == [1000 * n + k for n in range(3) for k in range(5)]


@pytest.mark.parametrize("fault", ["removed", "changed", "first"])
def test_a_committed_line_of_the_log_stays(clone: Path, fault: str) -> None:
    note_start(clone, own(clone), [1], "verdict")
    note_start(clone, own(clone), [2], "verdict")
    commit_records(clone)
    refuse_edited_log(clone)
    lines = (clone / LOG).read_text().splitlines()
    changed = {"removed": lines[:1], "changed": [lines[0], lines[1].replace("[2]", "[4]")], "first": lines[::-1]}[fault]
    write_log(clone, changed)
    with pytest.raises(DataError, match="a line was changed or removed"):
        note_start(clone, own(clone), [3], "verdict")


@pytest.mark.parametrize("fault", ["removed", "changed", "deleted"])
def test_a_line_that_a_later_commit_changed_or_removed_is_found(clone: Path, fault: str) -> None:
    """The log as HEAD has it tells nothing of this; the history does."""
    note_start(clone, own(clone), [1], "verdict")
    commit_records(clone)
    note_start(clone, own(clone), [2], "verdict")
    commit_records(clone)
    first, second = (clone / LOG).read_text().splitlines()
    if fault == "deleted":
        git(clone, "rm", "-q", str(LOG))
        git(clone, "commit", "-qm", "No log")
    else:
        write_log(clone, {"removed": [second], "changed": [first.replace("[1]", "[4]"), second]}[fault])
        commit_records(clone)
    with pytest.raises(DataError, match=r'was changed or removed by a later commit: .*"worlds": \[1\]') as refused:
        refuse_edited_log(clone)
    assert refused.value.file == LOG.as_posix()
    if fault != "changed":  # what it was changed into was committed, too
        (clone / LOG).parent.mkdir(parents=True, exist_ok=True)
        write_log(clone, [first, second])
        commit_records(clone)
        refuse_edited_log(clone)


def test_a_start_is_not_put_before_others(clone: Path) -> None:
    """Such a line used to be the first start, whose commit settles the record of tuning."""
    note_start(clone, own(clone), [1], "verdict")
    commit_records(clone)
    (line,) = (clone / LOG).read_text().splitlines()
    write_log(clone, [line.replace("[1]", "[4]"), line])
    commit_records(clone)
    with pytest.raises(DataError, match=r"log\.jsonl, row 1: .*put a line before others: .*\[4\]"):
        refuse_edited_log(clone)


def test_lines_that_two_branches_added_are_all_of_the_merge(clone: Path) -> None:
    note_start(clone, own(clone), [1], "verdict")
    commit_records(clone)
    here = git(clone, "branch", "--show-current")
    git(clone, "checkout", "-qb", "other")
    note_start(clone, own(clone), [2], "verdict")
    commit_records(clone)
    theirs = (clone / LOG).read_text().splitlines()
    git(clone, "checkout", "-q", here)
    note_start(clone, own(clone), [3], "verdict")
    commit_records(clone)
    ours = (clone / LOG).read_text().splitlines()
    subprocess.run(["git", "-C", str(clone), "merge", "-q", "other"], capture_output=True)
    write_log(clone, [*ours, theirs[1]])
    git(clone, "commit", "-qam", "Both")
    refuse_edited_log(clone)
    write_log(clone, ours)
    git(clone, "commit", "-q", "--amend", "-am", "Ours alone")
    with pytest.raises(DataError, match=r'"worlds": \[2\]'):
        refuse_edited_log(clone)


@pytest.mark.parametrize(
    ("text", "said"), [('{"time": "2026-0', "not valid JSON"), ("[]", "field 'time'"), ('{"time": 3}', "field 'time'")]
)
def test_a_damaged_log_is_named(clone: Path, text: str, said: str) -> None:
    note_start(clone, own(clone), [1], "verdict")
    with (clone / LOG).open("a") as log:
        log.write(text)
    with pytest.raises(DataError, match=rf"log\.jsonl, row 2.*{said}.*git checkout"):
        note_start(clone, own(clone), [2], "verdict")


def renamed(root: Path) -> None:
    git(root, "mv", str(FILE), "studies/credit2.yaml")


def deleted(root: Path) -> None:
    commit_study(root, {**STUDY, "title": "Another"}, "other")
    git(root, "rm", "-q", str(FILE))


@pytest.mark.parametrize(
    ("fault", "said"),
    [(renamed, "abandoned: its text is that of 'credit2' now"), (deleted, "abandoned: its file is gone")],
)
def test_a_study_without_its_file_is_abandoned(
    clone: Path, fault: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_start(clone, own(clone), [100], "pilot")
    write_worlds(clone, own(clone), lambda i, c, r: 50.0, worlds=2)
    assert callable(fault)
    fault(clone)
    git(clone, "commit", "-qm", "Gone")
    (found,) = abandoned(clone)
    assert found.text.startswith(said)
    assert (found.worlds, found.pilots, found.records) == (2, 1, 2)
    print_studies(clone)
    assert f"credit        {found.text}" in capsys.readouterr().out
    page = write_atlas(clone, tmp_path / "report")
    for shown in (page, page.with_name("atlas.md")):
        assert "2 worlds and 1 pilots started since" in shown.read_text()


def test_records_that_a_commit_removed_are_counted(clone: Path) -> None:
    files = write_worlds(clone, own(clone), lambda i, c, r: 50.0, worlds=2)
    deleted(clone)
    git(clone, "rm", "-q", str(files[0].relative_to(clone)))
    git(clone, "commit", "-qm", "Gone")
    (found,) = abandoned(clone)
    assert (found.records, found.removed) == (1, 1)
    assert found.text.endswith("1 records of worlds, 1 removed")


def test_a_study_that_had_pilots_alone_was_dropped(clone: Path) -> None:
    note_start(clone, own(clone), [100], "pilot")
    deleted(clone)
    git(clone, "commit", "-qm", "Gone")
    (found,) = abandoned(clone)
    assert found.text.startswith("dropped before its first world: its file is gone; pilots since ")
    assert found.text.endswith(": 1")


def test_a_study_that_was_started_and_not_finished_says_since_when(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_start(clone, own(clone), [own(clone).world_seed(0)], "verdict")
    print_studies(clone)
    assert f"0 of 4 worlds, started {starts(clone)[0]['time'][:10]}" in capsys.readouterr().out
    line = json.loads((clone / LOG).read_text())
    assert len(line["code"]) == 64


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("study", "\ud800", "row 1, field 'study'"),
        ("worlds", [1, float("inf")], "row 1, field 'worlds': inf is not the number of a world"),
        ("worlds", ["1"], "row 1, field 'worlds': '1' is not the number of a world"),
    ],
)
def test_a_damaged_line_is_named(field: str, value: object, message: str) -> None:
    line = {"time": "", "kind": "pilot", "study": "s", "digest": "", "blob": "", "commit": "", "worlds": [1]}
    with pytest.raises(DataError, match=message):
        parse_starts(json.dumps({**line, field: value}).replace("Infinity", "1e400"))


def test_a_log_of_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).write_text("{}", encoding="utf-16")
    with pytest.raises(DataError, match="not UTF-8"):
        starts(tmp_path)
