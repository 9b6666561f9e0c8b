"""Provenance: worlds run from committed code, and differences of code, versions and threads are named."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.commands.study import print_study
from tasks.params.studies import StudySpec
from tasks.report.atlas_page import write_atlas
from tasks.running.artifacts import read_json, stage_output
from tasks.studies import provenance
from tasks.studies.git_history import content_of
from tasks.studies.provenance import (
    ENVIRONMENT,
    differences,
    environment_of,
    refuse_uncommitted_code,
    settings_digest,
    uncommitted_code,
)
from tasks.studies.record_format import Environment
from tasks.studies.registration import Registration
from tasks.studies.start_log import note_start, starts
from tasks.studies.tree import WorldTree, write_tree
from tests.tasks.studies import synthetic_study
from tests.tasks.studies.synthetic_study import STUDY, commit_records, commit_study, edit, git, write_worlds

REPOSITORY = Path(__file__).parents[3]
ROWS = {name: STUDY["rows"][name] for name in ("bandit", "segment")}
HYPOTHESES = {"beats": STUDY["hypotheses"]["beats"]}
CODE = ("rlhf_core/credit.py", "tasks/sft.py", "flows/study.py", "params/par/rows.yaml", "dvc.yaml")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of which the code runs."""
    for name in CODE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Code")
    commit_study(tmp_path, STUDY)
    monkeypatch.setattr(provenance, "PROJECT", tmp_path.resolve())
    return tmp_path


def test_a_world_runs_from_committed_code(clone: Path) -> None:
    (clone / "notes.md").write_text("not code")
    refuse_uncommitted_code(clone)
    assert uncommitted_code(clone) == []


@pytest.mark.parametrize("name", [*CODE, "tasks/new.py", "studies/credit.yaml"])
def test_a_world_does_not_run_from_changed_code_or_settings(clone: Path, name: str) -> None:
    with (clone / name).open("a") as file:
        file.write("2\n")
    with pytest.raises(RecipeError, match=rf"^{name} differ from the commit.*run a pilot"):
        refuse_uncommitted_code(clone)
    git(clone, "add", "-A")
    with pytest.raises(RecipeError, match="differ from the commit"):
        refuse_uncommitted_code(clone)
    git(clone, "commit", "-qm", "Changed")
    refuse_uncommitted_code(clone)


def test_a_world_does_not_run_from_the_code_of_another_folder(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PROJECT", clone.parent)
    with pytest.raises(RecipeError, match=rf"the code that runs is that of {clone.parent}, not of {clone}"):
        refuse_uncommitted_code(clone)


def test_the_record_of_a_stage_has_its_environment(tmp_path: Path) -> None:
    with stage_output(tmp_path / "out", stage="prepare", version=1, inputs=[]) as result:
        (result / "x").touch()
    known: list[dict[str, Any]] = []
    record = read_json(tmp_path / "out" / "record" / "record.json")
    assert environment_of(record, known) == environment_of(record, known) == 0
    assert environment_of({**record, "threads": 99}, known) == 1
    assert tuple(known[0]) == ENVIRONMENT
    Environment(**known[0])
    assert len(known[0]["sources"]) == 64
    assert known[0]["versions"]["torch"]


def world(number: int, *environments: dict[str, Any]) -> dict[str, Any]:
    own = [{"commit": "a" * 40, **synthetic_study.ENVIRONMENT, **changes} for changes in environments or ({},)]
    return {"world": number, "settings": "7" * 64, "environments": own}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"threads": 2}, "threads of the worlds differ: 1 in worlds 1, 2; 2 in world 3"),
        ({"cpu_capability": "DEFAULT"}, "cpu_capability of the worlds differ: AVX2 in worlds 1, 2; DEFAULT in world 3"),
        ({"sources": "6" * 64}, f"sources of the worlds differ: {'5' * 12} in worlds 1, 2; {'6' * 12} in world 3"),
        ({"versions": {"torch": "2.8.0", "numpy": "2.3.0"}}, "torch of the worlds differ: 2.9.0 in worlds 1, 2; 2.8.0"),
    ],
)
def test_worlds_that_ran_otherwise_are_named(changes: dict[str, Any], said: str) -> None:
    assert differences([world(1), world(2)]) == []
    (found,) = differences([world(1), world(2), world(3, changes)])
    assert found.startswith(said)


def test_worlds_of_other_settings_are_named() -> None:
    """A page of params/ was changed and committed between two worlds of a study."""
    (found,) = differences([world(1), {**world(2), "settings": "8" * 64}])
    assert found == f"settings of the worlds differ: {'7' * 12} in world 1; {'8' * 12} in world 2"


def test_the_digest_of_settings_follows_pages_and_not_worlds(tmp_path: Path) -> None:
    spec = typed(StudySpec, {**STUDY, "dials": {}, "hypotheses": HYPOTHESES, "rows": ROWS}, "studies/x.yaml")
    worlds = [WorldTree("x", spec, number, tmp_path / str(number)) for number in (1_000_001, 1_000_002)]
    for one in worlds:
        write_tree(REPOSITORY, one)
    first, second = map(settings_digest, worlds)
    assert first == second
    page = worlds[1].tree / "params" / "scales" / "as-it-is" / "policy.yaml"
    settings = yaml.safe_load(page.read_text())
    settings["ppo"]["optimiser"]["iterations"] += 1
    page.write_text(yaml.safe_dump(settings))
    assert settings_digest(worlds[1]) != first


def test_stages_without_models_run_on_one_thread_in_every_world() -> None:
    both = ({"threads": 1, "cpu_capability": ""}, {"threads": 2})
    assert differences([world(1, *both), world(2, *both[::-1])]) == []


def test_a_world_that_went_on_with_other_code_is_named() -> None:
    same = world(1, {}, {"commit": "b" * 40})
    assert differences([same]) == [], "another commit of the same code"
    (found,) = differences([world(7, {}, {"commit": "b" * 40, "sources": "6" * 64})])
    assert found == (
        f"sources of the stages of world 7 differ: {'5' * 12} at commit {'a' * 10}; {'6' * 12} at commit {'b' * 10}"
    )


def test_differences_are_shown_beside_the_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Registration = commit_study(tmp_path, STUDY)
    file = write_worlds(tmp_path, own, lambda i, c, r: 50.0 + i)[2]
    edit(file, lambda record: record["environments"][0].update(threads=4))
    lines = starts(tmp_path)
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / "x.yaml").write_text("x: 1\n")
    note_start(tmp_path, own, [own.world_seed(1)], "verdict")
    assert starts(tmp_path)[-1]["code"] != lines[1]["code"]
    commit_records(tmp_path)
    monkeypatch.chdir(tmp_path)
    print_study(tmp_path, "credit")
    said = capsys.readouterr().out
    page = write_atlas(tmp_path, tmp_path / "report")
    for shown in (said, page.read_text(), page.with_name("atlas.md").read_text()):
        assert f"4 in world {own.world_seed(2)}" in shown
        assert f"world {own.world_seed(1)} was started 2 times with different code" in shown


def test_objects_that_git_replaces_in_one_clone_do_not_count(tmp_path: Path) -> None:
    """A replaced tree used to show another number at the same commit."""
    own = commit_study(tmp_path, STUDY)
    (first, *_) = write_worlds(tmp_path, own, lambda i, c, r: 50.0)
    file = first.relative_to(tmp_path).as_posix()
    before = git(tmp_path, "rev-parse", f"HEAD:{file}")
    other = subprocess.run(
        ["git", "-C", str(tmp_path), "hash-object", "-w", "--stdin"],
        input=first.read_text().replace("50.0", "70.0"), check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    git(tmp_path, "replace", before, other)
    assert git(tmp_path, "show", f"HEAD:{file}") != first.read_text().strip()
    assert content_of(tmp_path, before) == first.read_text()
