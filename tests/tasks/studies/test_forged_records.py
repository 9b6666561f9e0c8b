"""Records that were made up or moved: rows in the place of others, numbers that nothing measures, rounding as proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.studies.record_edits import check_unknown_settings
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, Numbers, commit_records, commit_study, edit, git, write_worlds

CELL = "long-mean"


def rates(index: int, cell: str, row: str) -> float:
    return 50.0 + index + {"bandit": 0.0, "segment": 4.0 + index % 2, "token": 2.0}[row]


def files_of(root: Path, numbers: Numbers = rates, **changes: Any) -> list[Path]:
    return write_worlds(root, commit_study(root, {**STUDY, "claim": None, **changes}), numbers)


def loaded(root: Path) -> StudyState:
    return load_study(root, root / "studies" / "credit.yaml")


@pytest.mark.parametrize("world", [0, 2])
def test_rows_that_changed_places_in_one_world_are_refused(tmp_path: Path, world: int) -> None:
    """A loss of one world became a win, and nothing was said."""

    def exchange(record: dict[str, Any]) -> None:
        rows = record["cells"][CELL]["rows"]
        rows["bandit"], rows["segment"] = rows["segment"], rows["bandit"]

    file = files_of(tmp_path)[world]
    edit(file, exchange)
    with pytest.raises(DataError, match=rf"row '\w+' of cell '{CELL}' has the settings of row '\w+' of cell '{CELL}'"):
        loaded(tmp_path)


def test_a_row_of_another_cell_is_refused(tmp_path: Path) -> None:
    def move(record: dict[str, Any]) -> None:
        record["cells"][CELL]["rows"]["segment"] = record["cells"]["short-sum"]["rows"]["segment"]

    edit(files_of(tmp_path)[1], move)
    with pytest.raises(
        DataError, match=rf"'segment' of cell '{CELL}' has the settings of row 'segment' of cell 'short-s"
    ):
        loaded(tmp_path)


@pytest.mark.parametrize(("part", "word"), [("data", "data"), ("sft", "SFT model")])
def test_a_row_that_was_trained_on_what_its_cell_does_not_have_is_refused(tmp_path: Path, part: str, word: str) -> None:
    def other(record: dict[str, Any]) -> None:
        record["cells"][CELL]["rows"]["segment"]["origin"][part] = "f" * 64

    edit(files_of(tmp_path)[1], other)
    with pytest.raises(DataError, match=rf"row 'segment' of cell '{CELL}' is of {word} f{{12}}, which no stage of"):
        loaded(tmp_path)


def test_two_rows_with_one_result_are_refused(tmp_path: Path) -> None:
    def copy(record: dict[str, Any]) -> None:
        rows = record["cells"][CELL]["rows"]
        rows["segment"] = {**rows["bandit"], "origin": rows["segment"]["origin"]}

    edit(files_of(tmp_path)[1], copy)
    with pytest.raises(DataError, match=rf"row 'segment' of cell '{CELL}' has the result of row 'bandit', digest"):
        loaded(tmp_path)


def test_settings_that_changed_in_every_row_are_named_and_not_refused(tmp_path: Path) -> None:
    def later(record: dict[str, Any]) -> None:
        record["settings"] = "8" * 64
        for cell in record["cells"].values():
            for row in cell["rows"].values():
                row["origin"]["settings"] += "later"

    edit(files_of(tmp_path)[3], later)
    assert any(note.startswith("settings of the worlds differ") for note in loaded(tmp_path).notes)


def test_settings_of_one_cell_that_no_other_world_has_are_refused(tmp_path: Path) -> None:
    def unknown(record: dict[str, Any]) -> None:
        record["cells"][CELL]["rows"]["segment"]["origin"]["settings"] = "f" * 16

    file = files_of(tmp_path)[0]
    edit(file, unknown)
    with pytest.raises(
        DataError, match=rf"{file.name}.*row 'segment' of cell '{CELL}' has settings f{{16}}, and \w+ in"
    ):
        loaded(tmp_path)


@pytest.mark.parametrize("part", ["pages", "code", "search spaces"])
def test_settings_of_a_row_differ_with_pages_code_and_search_spaces(tmp_path: Path, part: str) -> None:
    """Settings that tuning chooses are no part of the digest, so search spaces change it."""
    files = files_of(tmp_path)
    spaces = tmp_path / "params" / "tuning.yaml"
    spaces.parent.mkdir()
    spaces.write_text("ppo: {actor_lr: {low: 0.1, high: 1.0}}\n", encoding="utf-8")
    git(tmp_path, "add", "params")
    git(tmp_path, "commit", "-qm", "Search spaces")
    later = git(tmp_path, "rev-parse", "HEAD")
    before = own_commit(files[0])

    def other(record: dict[str, Any]) -> None:
        record["cells"][CELL]["rows"]["segment"]["origin"]["settings"] = "f" * 16
        if part == "pages":
            record["settings"] = "8" * 64
        for environment in record["environments"]:
            environment |= {"sources": "6" * 64} if part == "code" else {}
            environment |= {"commit": later} if part == "search spaces" else {}

    record = json.loads(files[3].read_text(encoding="utf-8"))
    other(record)
    by_file = {file.relative_to(tmp_path): json.loads(file.read_text(encoding="utf-8")) for file in files}
    check_unknown_settings(tmp_path, by_file)
    check_unknown_settings(tmp_path, by_file | {files[3].relative_to(tmp_path): record})
    for environment in record["environments"]:
        environment |= {"commit": before, "sources": "5" * 64}
    with pytest.raises(DataError, match="has settings f"):
        check_unknown_settings(tmp_path, by_file | {files[3].relative_to(tmp_path): record | {"settings": "7" * 64}})


def own_commit(file: Path) -> str:
    return str(json.loads(file.read_text(encoding="utf-8"))["commit"])


def test_a_metric_that_the_last_point_of_its_curve_contradicts_is_refused(tmp_path: Path) -> None:
    """An edit before the only commit of a record."""

    def raised(record: dict[str, Any]) -> None:
        record["cells"][CELL]["rows"]["segment"]["metrics"]["win_rate_vs_sft"] += 5.0

    edit(files_of(tmp_path)[1], raised)
    said = rf"row 'segment' of cell '{CELL}' has win_rate_vs_sft 61; the last point of its curve.* has 56"
    with pytest.raises(DataError, match=said):
        loaded(tmp_path)


def test_a_metric_of_another_evaluation_than_the_last_point_stays(tmp_path: Path) -> None:
    """The policy kept the weights of an earlier evaluation; or the digits differ beyond those that records have."""

    def kept(record: dict[str, Any]) -> None:
        rows = record["cells"][CELL]["rows"]
        rows["segment"]["metrics"] |= {"win_rate_vs_sft": 70.0, "kept_step": 8}
        rows["bandit"]["metrics"]["win_rate_vs_sft"] += 1e-9

    edit(files_of(tmp_path)[1], kept)
    assert loaded(tmp_path).findings


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (4000, "is 4000, not a rate between 0 and 100"),
        (-0.5, "is -0.5, not a rate between 0 and 100"),
        ("nan", "is nan"),
    ],
)
def test_a_number_that_no_run_measures_leaves_its_hypotheses_without_an_effect(
    tmp_path: Path, value: float | str, said: str
) -> None:
    def measured(record: dict[str, Any]) -> None:
        run = record["cells"][CELL]["rows"]["bandit"]
        run["metrics"]["win_rate_vs_sft"] = run["curve"]["points"][-1]["win_rate_vs_sft"] = value

    edit(files_of(tmp_path)[1], measured)
    found = {finding.name: finding for finding in loaded(tmp_path).findings}
    assert found["token"].effect is not None, "it does not need that row"
    for name in ("grows", "beats"):
        assert found[name].effect is None
        assert f"row 'bandit' of cell '{CELL}' {said}" in str(found[name].why_no_effect)


def test_a_number_whose_square_is_not_finite_is_refused(tmp_path: Path) -> None:
    def numbers(index: int, cell: str, row: str) -> float:
        return 50.0

    files = files_of(tmp_path, numbers, metric="true_reward")
    for file in files:
        edit(file, lambda record: [row["metrics"].update(true_reward=1e300) for row in rows_of(record)])
    assert "is 1e+300, above 1e+100" in str(loaded(tmp_path).findings[0].why_no_effect)


def rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for cell in record["cells"].values() for row in cell["rows"].values()]


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "true"])
def test_a_record_with_a_number_that_is_not_finite_is_refused_whole(tmp_path: Path, value: str) -> None:
    file = files_of(tmp_path)[1]
    record = json.loads(file.read_text())
    record["cells"][CELL]["rows"]["bandit"]["metrics"]["win_rate_vs_sft"] = "here"
    file.write_text(json.dumps(record).replace('"here"', value))
    commit_records(tmp_path, "--amend", "--no-edit")
    with pytest.raises(DataError, match=rf"{file.name}: not a record: .*bandit\.metrics\.win_rate_vs_sft"):
        loaded(tmp_path)


def test_differences_that_are_rounding_alone_have_no_p(tmp_path: Path) -> None:
    """Segment is 5 points above in every cell; the slope is what is left of the digits, alike in all worlds."""
    shifts = (0.1, 0.2, 0.3, 0.6)

    def numbers(index: int, cell: str, row: str) -> float:
        low = (55.0 if cell.startswith("short") else 3.0) + shifts[index] * (1 if cell.startswith("short") else 7)
        return low + (5.0 if row == "segment" else 0.0)

    files_of(tmp_path, numbers)
    found = loaded(tmp_path).findings[0]
    values = [*found.values.values()]
    assert 0 < max(map(abs, values)) < 1e-12, "else there is nothing to be mistaken"
    assert len({*values}) > 1, "else they are equal anyway"
    assert found.effect is not None
    assert (found.effect.reason, found.p, found.word) == ("no variance", None, "undecided")


def test_a_difference_that_is_real_and_within_the_margin_says_so(tmp_path: Path) -> None:
    def numbers(index: int, cell: str, row: str) -> float:
        lead = {"bandit": 0.0, "segment": 1.0 + 0.01 * index, "token": 0.0}[row]
        return 50.0 + index + lead * (1 + cell.startswith("long"))

    files_of(tmp_path, numbers)
    found = {finding.name: finding for finding in loaded(tmp_path).findings}
    assert found["beats"].word == "confirmed"
    assert found["beats"].caveats[0].text == "the difference is real, and within the margin of 3, which counts as none"
    assert not any("margin" in said.text for said in found["grows"].caveats), "a slope has no margin"
