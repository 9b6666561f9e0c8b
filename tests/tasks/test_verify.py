"""Results against their records and the reference: what any machine gives equally must be equal, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.commands import verify
from tasks.running.artifacts import read_json, write_json, write_jsonl
from tasks.running.result_digests import digests_of
from tests import small_repository

POLICY, DATA = "segment/policy/segment/0", "shared/data/dialogue"
REFERENCE = verify.VERIFIED["demo"][1]
SETTINGS = "params/scales/testbed/stages.yaml:all"


def write_result(root: Path, stage: str, win_rate: float = 75.0, prompt: str = "a", version: int = 1) -> None:
    """Writes a stage's result, with a record that fits."""
    out = root / "results" / "testbed" / stage
    (out / "result").mkdir(parents=True, exist_ok=True)
    (out / "record").mkdir(exist_ok=True)
    write_jsonl(out / "result" / "prompts.jsonl", [{"prompt": prompt, "reward": 0.1 + 1e-9}])
    write_json(out / "result" / "metrics.json", {"win_rate_vs_sft": win_rate, "loss": 1.0})
    kind = "prepare" if "/data/" in stage else stage.split("/")[1].partition("-")[0]
    record = {"stage": kind, "version": version, "inputs": {SETTINGS: "a" * 64}}
    write_json(out / "record" / "record.json", record | digests_of(out / "result"))


def change_record(root: Path, stage: str, **changes: Any) -> None:
    path = root / "results" / "testbed" / stage / "record" / "record.json"
    write_json(path, read_json(path) | changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = small_repository.create(tmp_path)
    for stage in verify.stages_of(root, "demo"):
        write_result(root, stage)
    verify.write_reference(root, "demo")
    return root


def test_equal_results_agree_and_one_line_says_what_was_compared(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert verify.verify(root, "demo") == verify.AGREES
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("demo agrees with reference/demo.json. Compared: ")
    assert line.endswith("2 directions of win rates.")


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda root: write_result(root, POLICY, win_rate=60.0), verify.AGREES, "agrees"),
        (lambda root: write_result(root, POLICY, prompt="another answer"), verify.AGREES, "agrees"),
        (
            lambda root: write_result(root, POLICY, win_rate=20.0),
            verify.DEVIATES,
            "segment: the win rates of segment and the SFT model are 47.5 and 50.0 %, in the reference 75.0 and 50.0",
        ),
        (
            lambda root: write_result(root, DATA, prompt="b"),
            verify.DEVIATES,
            f"{DATA} has another prompts.jsonl than the reference",
        ),
        (lambda root: write_result(root, POLICY, version=2), verify.DEVIATES, f"{POLICY} has another version"),
        (
            lambda root: change_record(root, POLICY, inputs={SETTINGS: "b" * 64}),
            verify.DEVIATES,
            f"{POLICY} has another {SETTINGS}",
        ),
        (
            lambda root: (root / "results/testbed" / POLICY / "result" / "metrics.json").write_text("{}"),
            verify.DAMAGED,
            "metrics.json: it changed after its stage had ended",
        ),
        (
            lambda root: (root / "results/testbed" / DATA / "result" / "prompts.jsonl").unlink(),
            verify.DAMAGED,
            "its stage wrote this file, and it is not there",
        ),
        (
            lambda root: (root / "results/testbed" / POLICY / "record" / "record.json").unlink(),
            verify.DAMAGED,
            f"{POLICY}: there is no result",
        ),
        (
            lambda root: change_record(root, POLICY, inputs={f"results/testbed/{DATA}/result": "b" * 64}),
            verify.DAMAGED,
            f"{POLICY}: it was made from another result of results/testbed/{DATA}/result",
        ),
    ],
)
def test_what_deviates_is_named_and_decides_the_exit_status(
    root: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], status: int, words: str
) -> None:
    change(root)
    assert verify.verify(root, "demo") == status
    assert words in capsys.readouterr().out


def test_numbers_of_data_count_with_six_digits(root: Path) -> None:
    file = root / "results/testbed" / DATA / "result" / "prompts.jsonl"
    write_jsonl(file, [{"prompt": "a", "reward": 0.1}])
    change_record(root, DATA, **digests_of(file.parent))
    assert verify.verify(root, "demo") == verify.AGREES


def test_only_rows_far_apart_have_a_direction() -> None:
    rates = {verify.SFT_MODEL: 50.0, "a": 30.0, "b": 45.9, "c": 20.0}
    far = [("par", verify.SFT_MODEL, "a"), ("par", verify.SFT_MODEL, "c"), ("par", "b", "c")]
    assert verify.directions({"par": rates}) == far


def test_a_reference_is_not_made_of_damaged_results(root: Path) -> None:
    before = (root / REFERENCE).read_bytes()
    (root / "results/testbed" / POLICY / "result" / "metrics.json").write_text("{}")
    with pytest.raises(DataError, match=r"metrics.json: it changed"):
        verify.write_reference(root, "demo")
    assert (root / REFERENCE).read_bytes() == before


def test_what_there_is_nothing_to_compare_with_says_how_to_make_it(root: Path) -> None:
    with pytest.raises(DataError, match="Run `rewardsmith run demo-all` first"):
        verify.verify(root, "demo-all")
    (root / REFERENCE).unlink()
    with pytest.raises(DataError, match="there is no reference"):
        verify.verify(root, "demo")


@pytest.mark.parametrize("name", verify.VERIFIED)
def test_the_committed_references_have_texts_settings_and_directions(name: str) -> None:
    reference = read_json(verify.VERIFIED[name][1])
    facts = reference["stages"]
    assert all(len(known) > 1 for stage, known in facts.items() if "/tables" not in stage)
    assert {"data.json", "prompts.jsonl"} <= next(known for stage, known in facts.items() if "/data/" in stage).keys()
    assert verify.directions(reference["win_rates"])
