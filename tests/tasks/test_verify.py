"""The demo against its reference: inputs must be equal, what models compute may vary as re-runs do."""

from __future__ import annotations

import json
import math
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.commands import result_mismatches, verify
from tasks.commands.fingerprints import DRIFT, Fingerprint
from tasks.graph import dvc_files as graph
from tasks.graph.matrix import HEADLINE_ROWS
from tasks.params.pages import read_settings
from tasks.running.artifacts import digest, read_json, write_json, write_jsonl
from tests import small_repository
from tests.small_repository import write_yaml

METRICS = {"win_rate_vs_sft": 60.0, "alpaca_wr": 55.0}
POLICY = "segment/policy/segment/0"
ANSWERS = [f"answer {i}" for i in range(50)]
SPREAD = {
    kind: {
        "metrics/win_rate_vs_sft": [15, 0.015, 0.03],
        "metrics/alpaca_wr": None,
        "generations.jsonl/response": [15, 0.04, 0.05],
    }
    for kind in ("policy", "sft", "reward_model", "entropies", "normaliser")
}


def write_result(root: Path, stage: str, answers: list[str] | None = None, **metrics: float) -> None:
    """Writes a stage's result, with a record that fits."""
    out = root / "results" / "testbed" / stage
    (out / "result").mkdir(parents=True, exist_ok=True)
    (out / "record").mkdir(exist_ok=True)
    rows = [{"id": str(i), "response": text} for i, text in enumerate(ANSWERS if answers is None else answers)]
    write_jsonl(out / "result" / "generations.jsonl", rows)
    write_json(out / "result" / "metrics.json", METRICS | metrics)
    kind = "prepare" if "/data/" in stage else stage.split("/")[1].partition("-")[0]
    write_record(out, stage=kind, version=1, inputs={"params/scales/testbed/stages.yaml:all": "a" * 64})


def write_record(out: Path, **changes: Any) -> None:
    path = out / "record" / "record.json"
    before = read_json(path) if path.exists() else {}
    write_json(path, before | {"result_digest": digest(out / "result")} | changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = small_repository.create(tmp_path)
    for stage in verify.outputs(root, verify.DEMO):
        write_result(root, stage)
    assert verify.main(["--root", str(root), "--write-reference"]) == 0
    write_json(root / verify.VARIATION, {"spread": SPREAD})
    return root


def deviations(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Runs verify and returns the deviations that it prints."""
    capsys.readouterr()
    ended = verify.main(["--root", str(root)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("segment/", "shared/"))]
    assert bool(ended) == bool(lines)
    return lines


def test_same_results_agree(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deviations(root, capsys) == []


def test_reference_holds_every_stage_of_the_demo_that_computes(root: Path) -> None:
    stages = json.loads((root / verify.DEMO.reference).read_text())["stages"]
    assert {"shared/data/dialogue", "shared/sft/phi3-mini/1", POLICY, "segment/tables-demo"} <= set(stages)
    assert not any("/check" in stage for stage in stages)


def test_agreement_is_a_few_short_lines(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    capsys.readouterr()
    assert verify.main(["--root", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "demo agrees with the reference"
    assert " comparisons, " in " ".join(lines)


def test_a_metric_may_vary_as_re_runs_do(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(root, POLICY, win_rate_vs_sft=60 * 1.09)
    assert deviations(root, capsys) == []
    write_result(root, POLICY, win_rate_vs_sft=60 * 1.11)
    assert deviations(root, capsys) == [
        f"{POLICY}: metrics/win_rate_vs_sft is 0.11 from the reference, tolerance 0.0975",
    ]


def test_a_number_that_few_re_runs_measured_has_a_wide_tolerance() -> None:
    reference = Fingerprint("policy", 1, {}, metrics={"alpaca_wr": 55.0, "first/loss": 0.5})
    spread = {"metrics/alpaca_wr": [1, 0.001, 0.001], "first/loss": [5, 0.0, 0.0]}
    few = verify.tolerance({"policy": spread}, reference, "metrics/alpaca_wr")
    many = verify.tolerance(
        {"policy": spread | {"metrics/alpaca_wr": [15, 0.01, 0.02]}}, reference, "metrics/alpaca_wr"
    )
    assert few is not None
    assert few > 10, "one re-run may have been near by luck"
    assert many == pytest.approx(0.0655, rel=0.01)
    heavy = verify.tolerance({"policy": {"metrics/alpaca_wr": [50, 0.1, 0.7]}}, reference, "metrics/alpaca_wr")
    assert heavy == pytest.approx(2.1), "one re-run went far: another may go as far"
    assert verify.tolerance({"policy": spread}, reference, "first/loss") == verify.LEAST_FIRST
    assert verify.tolerance({}, reference, "first/loss") is None


def test_an_sft_model_in_the_place_of_a_policy_is_no_matter_of_rounding() -> None:
    """However far re-runs vary: a model that was trained has moved."""
    wide = {"policy": {DRIFT: [5, 10.0, 10.0]}}
    trained, untrained = (Fingerprint("policy", 1, {}, metrics={DRIFT: moved}) for moved in (0.3, 0.0))
    (found,) = verify.compare(POLICY, trained, untrained, wide).deviations
    assert (found.says, found.computed) == ("its model is the SFT model", False)
    for one in (trained, untrained):
        assert verify.compare(POLICY, one, one, wide).deviations == []


def test_nan_and_missing_notes_are_not_taken_for_rounding() -> None:
    spread = {"policy": {"metrics/loss": [5, 0.1, 0.1]}}
    known, lost = (Fingerprint("policy", 1, {}, metrics={"loss": value}) for value in (1.0, math.nan))
    (found,) = verify.Compared("a", "policy", {"metrics/loss": math.nan}, {"metrics/loss": 0.5}).deviations
    assert (found.says, found.computed) == ("metrics/loss is not a number", False)
    assert verify.compare(POLICY, known, lost, spread).deviations
    noted = replace(known, used={"sampling/answers": "ab"})
    (found,) = verify.compare(POLICY, noted, known, spread).deviations
    assert (found.says, found.computed) == ("used/sampling/answers must be equal on any machine and differs", False)


def test_a_result_that_cannot_be_read_hides_no_other(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(root, "shared/data/dialogue", answers=["another", *ANSWERS[1:]])
    write_result(root, POLICY, win_rate_vs_sft="high")  # type: ignore[arg-type]
    assert verify.main(["--root", str(root)]) == 1
    said = capsys.readouterr().out
    assert f"{POLICY}: its result cannot be read: " in said
    assert "shared/data/dialogue: " in said


def test_what_re_runs_cannot_compare_is_not_compared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(root, POLICY, alpaca_wr=10.0)
    assert deviations(root, capsys) == []


def test_other_answers_are_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(root, POLICY, answers=["another", *ANSWERS[1:]])
    assert deviations(root, capsys) == []
    write_result(root, POLICY, answers=ANSWERS[1:] + ANSWERS[:1])
    assert deviations(root, capsys) == [
        f"{POLICY}: generations.jsonl/response is 1 from the reference, tolerance 0.15",
    ]


def test_data_must_be_equal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(root, "shared/data/dialogue", answers=["another", *ANSWERS[1:]])
    assert deviations(root, capsys) == [
        "shared/data/dialogue: generations.jsonl must be equal on any machine and differs",
    ]


def test_other_settings_and_another_version_are_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"params/scales/testbed/stages.yaml:all": "b" * 64}
    write_record(root / "results" / "testbed" / POLICY, version=2, inputs=settings)
    assert deviations(root, capsys) == [
        f"{POLICY}: version of its code is 2, in the reference 1",
        f"{POLICY}: settings params/scales/testbed/stages.yaml:all differ from the reference's",
    ]


def test_a_result_that_was_changed_after_its_stage_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "results" / "testbed" / POLICY / "result" / "notes.txt").write_text("by hand")
    assert deviations(root, capsys) == [f"{POLICY}: result/ changed after the stage had ended"]


def test_a_result_of_previous_data_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = root / "results" / "testbed" / POLICY
    data = "results/testbed/shared/data/dialogue/result"
    write_record(out, inputs=read_json(out / "record" / "record.json")["inputs"] | {data: "c" * 64})
    assert deviations(root, capsys) == [
        f"{POLICY}: it was made from another result of {data}: run it again",
        f"{POLICY}: it read {data}, which the reference did not",
    ]


def test_a_reference_that_cannot_be_written_leaves_the_one_before(root: Path) -> None:
    before = (root / verify.DEMO.reference).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))  # a write beyond it fails as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            verify.main(["--root", str(root), "--write-reference"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (root / verify.DEMO.reference).read_bytes() == before
    assert [path.name for path in (root / verify.DEMO.reference).parent.glob(".*")] == []


def test_missing_result_is_a_deviation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "results" / "testbed" / POLICY / "record" / "record.json").unlink()
    assert deviations(root, capsys) == [f"{POLICY}: there is no result"]


def test_length_controlled_win_rates_of_the_tables_are_compared(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {"table-1/segment/0/alpaca_lc": 40.0, "table-1/segment/alpaca_lc": 41.0, "table-1/segment/alpaca_wr": 9.0}
    write_result(root, "segment/tables-demo", **tables)
    assert verify.main(["--root", str(root), "--write-reference"]) == 0
    write_json(root / verify.VARIATION, {"spread": SPREAD | {"tables": {"metrics/alpaca_lc": [3, 0.0, 0.0]}}})
    kept = json.loads((root / verify.DEMO.reference).read_text())["stages"]["segment/tables-demo"]["metrics"]
    assert kept == METRICS | {"table-1/segment/0/alpaca_lc": 40.0}, "means over seeds repeat what is compared"
    write_result(root, "segment/tables-demo", **tables | {"table-1/segment/0/alpaca_lc": 60.0})
    assert deviations(root, capsys) == [
        "segment/tables-demo: metrics/table-1/segment/0/alpaca_lc is 0.5 from the reference, tolerance 0.05",
    ]


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [(verify.DEMO.reference, "--write-reference"), (verify.VARIATION, "same_seed_var")],
)
def test_without_reference_or_tolerances_the_remedy_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], missing: Path, remedy: str
) -> None:
    (root / missing).unlink()
    assert verify.main(["--root", str(root)]) == 2
    assert remedy in capsys.readouterr().err


def test_headline_rows_have_a_reference_of_their_own(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo's rows as headline rows: the same stages, in another file and with another reference."""
    assert verify.main(["demo-all", "--root", str(root), "--write-reference"]) == 2
    assert "rewardsmith run demo-all" in capsys.readouterr().err
    settings = read_settings(root / "params.yaml")
    write_yaml(root / "params.yaml", {"demo_all": settings["demo"], "suite": settings["suite"]})
    graph.write(root, [HEADLINE_ROWS])
    assert verify.outputs(root, verify.DEMO) == {}
    assert verify.main(["demo-all", "--root", str(root), "--write-reference"]) == 0
    assert POLICY in json.loads((root / "reference/demo_all.json").read_text())["stages"]
    assert verify.main(["demo-all", "--root", str(root)]) == 0
    write_result(root, POLICY, win_rate_vs_sft=90.0)
    assert verify.main(["demo-all", "--root", str(root)]) == verify.FEW_COMPUTED


def test_few_numbers_that_models_computed_have_an_exit_status_of_their_own(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(root, POLICY, win_rate_vs_sft=90.0)
    assert verify.main(["--root", str(root)]) == verify.FEW_COMPUTED
    said = capsys.readouterr().out
    assert "1 deviation(s) in 1 stage(s), all of numbers that models computed; data, settings and seeds are" in said
    write_result(root, "shared/data/dialogue", answers=["another", *ANSWERS[1:]])
    assert verify.main(["--root", str(root)]) == 1, "data differ, too"
    assert "2 deviation(s) in 2 stage(s): another result" in capsys.readouterr().out


def test_many_computed_numbers_and_anything_else_are_no_matter_of_rounding() -> None:
    computed, other = verify.Deviation("a", "far", computed=True), verify.Deviation("a", "another seed")
    assert verify.exit_status([], 100) == 0
    assert verify.exit_status([computed] * 2, 100) == verify.FEW_COMPUTED
    assert verify.exit_status([computed] * 3, 100) == 1
    assert verify.exit_status([computed, other], 1000) == 1
    gone = verify.Compared("a", "policy", {"x": math.inf, "y": 2.0, "z": 1.0}, {"x": 1.0, "y": 1.0, "z": 0.0})
    assert {each.says.split()[0]: each.computed for each in gone.deviations} == {"x": False, "y": True, "z": False}


SFT = "shared/sft/phi3-mini/0"


def write_rewards(root: Path, stage: str, rewards: list[float], **metrics: float) -> None:
    """Writes a stage's result whose answers have true rewards."""
    write_result(root, stage, **metrics)
    out = root / "results" / "testbed" / stage
    rows = [{"id": str(i), "benchmark": "alpaca", "true_reward": reward} for i, reward in enumerate(rewards)]
    write_jsonl(out / "result" / "generations.jsonl", rows)
    verdict = {"benchmark": "alpaca", "template": "alpaca_eval", "valid": True}
    write_jsonl(out / "result" / "judgements.jsonl", [{**verdict, "preference": 1.5}, {**verdict, "preference": 1.75}])
    of_sft = {f"results/testbed/{SFT}/result": digest(root / "results" / "testbed" / SFT / "result")}
    write_record(out, inputs=of_sft if stage == POLICY else {})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        (
            {"win_rate_vs_sft": 37.5},
            ["metrics.json has win_rate_vs_sft 37.5, but the rows beside it give 62.5"],
        ),
        ({"alpaca_wr": 37.5}, ["metrics.json has alpaca_wr 37.5, but the rows beside it give 62.5"]),
        ({"true_reward": 0.0}, ["metrics.json has true_reward 0, but the rows beside it give 0.25"]),
    ],
)
def test_metrics_are_those_of_the_rows_beside_them(root: Path, changes: dict[str, float], said: list[str]) -> None:
    """Their tolerances may be wide: three re-runs gave a win rate one of six times itself."""
    write_rewards(root, SFT, [0.0, 0.0, 0.0, 0.0])
    metrics = {"win_rate_vs_sft": 62.5, "alpaca_wr": 62.5, "true_reward": 0.25}
    write_rewards(root, POLICY, [1.0, 1.0, 0.0, -1.0], **metrics | changes)
    assert result_mismatches.result_mismatches(root / "results" / "testbed" / POLICY, root) == said


def test_verify_names_metrics_of_another_row(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rewards(root, SFT, [0.0, 0.0])
    write_rewards(root, POLICY, [1.0, 0.0], win_rate_vs_sft=60.0)
    said = f"{POLICY}: metrics.json has win_rate_vs_sft 60, but the rows beside it give 75"
    assert said in deviations(root, capsys)
