"""Records of a study's worlds: what does not fit the registered study is refused by name, what is not of it unused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.commands.study import print_study
from tasks.params.studies import read_study
from tasks.report.atlas_page import write_atlas
from tasks.studies.committed import read_records
from tasks.studies.records import value_of
from tasks.studies.registration import Registration
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_study, edit, git, write_worlds

FILE = Path("studies") / "credit.yaml"
CELL = "short-sum"


def rates(index: int, cell: str, row: str) -> float:
    return 50.0 + index + {"bandit": 0.0, "segment": 4.0, "token": 2.0}[row]


@pytest.fixture
def own(tmp_path: Path) -> Registration:
    return commit_study(tmp_path, STUDY)


def loaded(root: Path) -> StudyState:
    return load_study(root, root / FILE)


def test_records_are_read_by_the_index_of_their_world(tmp_path: Path, own: Registration) -> None:
    write_worlds(tmp_path, own, rates, worlds=3)
    found = read_records(tmp_path, own, read_study(tmp_path / FILE)).committed
    assert [record["world"] for record in found.values()] == [own.world_seed(index) for index in range(3)]
    assert value_of(found[2], CELL, "segment", "win_rate_vs_sft") == 56.0


def test_a_record_of_another_version_of_the_study_is_refused(tmp_path: Path, own: Registration) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    edit(file, lambda record: record.update(digest="0" * 64))
    with pytest.raises(
        DataError, match=rf"{own.world_seed(1)}\.json.*'digest'.*another version of studies/credit\.yaml"
    ):
        loaded(tmp_path)


def test_a_record_made_before_the_study_was_committed_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-qm", "Before", "--allow-empty")
    before = git(tmp_path, "rev-parse", "HEAD")
    file = write_worlds(tmp_path, commit_study(tmp_path, STUDY), rates)[0]
    edit(file, lambda record: record.update(commit=before))
    with pytest.raises(DataError, match=rf"'commit'.*{before[:10]} does not have studies/credit\.yaml"):
        loaded(tmp_path)


def test_one_record_of_a_commit_that_is_not_in_the_history_makes_the_study_exploratory(
    tmp_path: Path, own: Registration
) -> None:
    git(tmp_path, "checkout", "-qb", "other")
    git(tmp_path, "commit", "-qm", "Elsewhere", "--allow-empty")
    other = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "checkout", "-q", "-")
    file = write_worlds(tmp_path, own, rates)[0]
    edit(file, lambda record: record.update(commit=other))
    state = load_study(tmp_path, tmp_path / "studies" / "credit.yaml")
    assert state.notes[0] == f"worlds ran at commits that are not in this history: {other[:10]}"
    assert {finding.word for finding in state.findings} == {"exploratory"}


def test_a_missing_row_and_a_missing_cell_are_refused(tmp_path: Path, own: Registration) -> None:
    file = write_worlds(tmp_path, own, rates)[2]
    edit(file, lambda record: record["cells"][CELL]["rows"].pop("segment"))
    with pytest.raises(DataError, match=rf"{file.name}.*row 'segment' of cell 'short-sum' is missing"):
        loaded(tmp_path)
    edit(file, lambda record: record["cells"].pop(CELL))
    with pytest.raises(DataError, match="cell 'short-sum' is missing"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("stopped: no pair differs", "row 'token' of cell 'long-mean' stopped: no pair differs"),
        ("nan", "'win_rate_vs_sft'.*row 'token' of cell 'long-mean' is nan"),
        (None, "row 'token' of cell 'long-mean' has no such metric"),
    ],
)
def test_a_row_without_a_finite_number_is_refused(
    tmp_path: Path, own: Registration, value: str | None, said: str
) -> None:
    write_worlds(tmp_path, own, lambda i, c, r: value if (i, c, r) == (1, "long-mean", "token") else rates(i, c, r))
    record = read_records(tmp_path, own, read_study(tmp_path / FILE)).committed[1]
    with pytest.raises(DataError, match=said) as refused:
        value_of(record, "long-mean", "token", "win_rate_vs_sft")
    assert f"world {own.world_seed(1)}" in str(refused.value)


def cut(record: str) -> str:
    return record[: len(record) // 2]


def edited(**changes: Any) -> Callable[[str], str]:
    return lambda record: json.dumps({**json.loads(record), **changes})


def in_a_run(**changes: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        record = json.loads(text)
        record["cells"][CELL]["rows"]["segment"] |= changes
        return json.dumps(record)

    return change


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (cut, "not valid JSON"),
        (lambda record: "[]", "not a record"),
        (lambda record: "", "not valid JSON"),
        (edited(world="7"), "world is the text '7'"),
        (edited(cells={"short-sum": []}), "cells.short-sum is []; it must be a mapping"),
        (edited(note="x"), "unknown setting 'note'"),
        (edited(machine={}), "machine.threads is None"),
        (edited(environments=[]), "environment is 0; there is no such one"),
        (in_a_run(metrics={"win_rate_vs_sft": math.nan}), "win_rate_vs_sft is nan; it must be a finite number"),
        (in_a_run(metrics={"win_rate_vs_sft": [61.0]}), "it must be a number or text"),
        (in_a_run(seconds=None), "seconds is null"),
        (in_a_run(curve={"points": 3}), "curve"),
        (in_a_run(rank=1), "unknown setting"),
    ],
)
def test_a_damaged_record_is_named_with_its_remedy(
    tmp_path: Path, own: Registration, fault: Callable[[str], str], said: str
) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    file.write_text(fault(file.read_text()))
    with pytest.raises(DataError, match=re.escape(said)) as refused:
        loaded(tmp_path)
    assert refused.value.file == file.relative_to(tmp_path).as_posix()
    assert f"git checkout HEAD -- {refused.value.file}" in str(refused.value)


def test_a_damaged_record_leaves_the_other_studies_on_the_page(tmp_path: Path, own: Registration) -> None:
    damaged = write_worlds(tmp_path, own, rates)[1]
    write_worlds(tmp_path, commit_study(tmp_path, {**STUDY, "title": "Gate"}, "gate"), rates)
    damaged.write_text(cut(damaged.read_text()))
    page = write_atlas(tmp_path, tmp_path / "report").read_text(encoding="utf-8")
    shown = {name: page.split(f'id="study-{name}"')[1].split("</section>")[0] for name in ("credit", "gate")}
    assert f"Refused: file {damaged.relative_to(tmp_path)}: not valid JSON" in shown["credit"]
    assert "no variance" in shown["gate"], "its numbers"


def test_records_of_other_worlds_are_named_and_not_used(
    tmp_path: Path, own: Registration, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_worlds(tmp_path, own, rates)
    before = loaded(tmp_path)
    extra = files[0].with_name("1234567.json")
    extra.write_text(files[0].read_text(encoding="utf-8").replace("54.0", "94.0"), encoding="utf-8")
    after = loaded(tmp_path)
    assert before.unused == ()
    assert [file.name for file in after.unused] == ["1234567.json"]
    assert after.findings == before.findings
    monkeypatch.chdir(tmp_path)
    print_study(tmp_path, "credit")
    assert "not used: reference/studies/credit/1234567.json" in capsys.readouterr().out


def test_pilots_are_not_named(tmp_path: Path, own: Registration) -> None:
    files = write_worlds(tmp_path, own, rates)
    files[0].with_name("pilot-100.json").write_text("{}")
    assert loaded(tmp_path).unused == ()


def test_a_study_that_was_changed_after_its_start_is_refused(tmp_path: Path, own: Registration) -> None:
    write_worlds(tmp_path, own, rates)
    commit_study(tmp_path, {**STUDY, "margin": 9.0})
    with pytest.raises(RecipeError, match="was changed after its first start"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"id": "bestt"}, r"claim.*id is 'bestt'.*claims/segment\.yaml.*best"),
        ({"paper": "segmentt"}, r"claim.*paper.*segmentt.*segment"),
    ],
)
def test_a_claim_that_no_paper_makes_is_refused(tmp_path: Path, claim: dict[str, str], said: str) -> None:
    commit_study(tmp_path, {**STUDY, "claim": {**STUDY["claim"], **claim}})
    with pytest.raises(RecipeError, match=said):
        read_study(tmp_path / FILE)
