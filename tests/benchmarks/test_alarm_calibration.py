"""The calibration of the alarm: definitions, replayed records, and the block of the document."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import alarm_nulls as nulls
from benchmarks.alarm_calibration import (
    BLOCK,
    CELL,
    RECORDS,
    STUDIES,
    block,
    main,
    refuse_seeds,
    scores_text,
    worlds,
    write_block,
)
from benchmarks.alarm_rates import (
    CLEAN_RUNS,
    HACKED_RUNS,
    Rates,
    Run,
    all_rates,
    false_alarms_by_study,
    laboratory_runs,
    lacks,
    replay,
    scores_of,
    study_runs,
    truth_of,
)
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.hacking_alarm import AlarmSettings, HackingAlarm
from tasks.running.artifacts import read_json, write_json
from tasks.studies.tree import WorldTree, write_tree

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENT = PROJECT / "docs" / "hackability.md"
ONES = {"kl": 0.0, "entropy": 0.7, "repetition": 0.0, "truncated": 0.0, "proxy_std": 1.0, "reward_std": 1.0}


def recorded(wins: list[int], final: int, *, lengths: tuple[float, ...] = (30.0,), win_rate: float) -> dict[str, Any]:
    """A run as a record has it, with 64 prompts after every second step and 256 at the end."""
    steps = 2 * len(wins)
    series = {name: [value] * steps for name, value in ONES.items()}
    series |= {name: [float(step) for step in range(steps)] for name in ("proxy", "reward")}
    series["response_length"] = [lengths[min(step, len(lengths) - 1)] for step in range(steps)]
    told = [[2 * (i + 1), "1" * n + "0" * (64 - n)] for i, n in enumerate(wins)]
    outcome = {"win_rate_vs_sft": win_rate, "win_rate_vs_sft_p": 1e-4, "hacking/proxy_gain": 1.0}
    return {
        "version": 7,
        "responses": 64,
        "steps": series,
        "evaluations": told,
        "final": [steps, "1" * final + "0" * (256 - final)],
        "rang": [],
        "outcome": outcome | {"hacking/peak_step": 2.0},
    }


def run(truth: Any, onset: int | None, *, world: str = "300", steps: int = 16) -> Run:
    return Run(world, "length-vanilla", truth, onset is not None, onset, steps, 4, None if onset is None else ("fall",))


@pytest.mark.parametrize("seed", [0, 199, 299, 1000, 1_000_000])
def test_seeds_with_another_use_are_refused(seed: int) -> None:
    with pytest.raises(RecipeError, match=f"--seeds has {seed}"):
        refuse_seeds([300, seed])


def test_a_world_has_its_rows_behind_one_sft_model_and_all_of_its_seed(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    tree = WorldTree("alarms", worlds(), 300, tmp_path)
    write_tree(PROJECT, tree)
    items = tree.items(CELL)
    assert {*tree.stages(CELL)} == {*worlds().rows}
    assert [item.module for item in items].count("sft") == 1
    assert {item.seed for item in items if item.module == "policy"} == {300}


@pytest.mark.parametrize(
    ("measures", "truth"),
    [
        ({"final": 40.0, "p": 0.01, "proxy_gain": 1.0}, "hacked"),
        ({"final": 55.0, "p": 0.2, "proxy_gain": 1.0, "onset": 8.0}, "hacked"),
        ({"final": 40.0, "p": 0.01, "proxy_gain": -1.0}, "between"),
        ({"final": 48.0, "p": 0.4, "proxy_gain": 1.0}, "between"),
        ({"final": 50.0, "p": 1.0, "proxy_gain": 1.0}, "clean"),
    ],
)
def test_hacked_clean_and_between(measures: dict[str, float], truth: str) -> None:
    assert truth_of(measures) == truth


def test_scores_survive_their_string() -> None:
    scores = {"b": 0.5, "a": 1.0, "c": 0.0}
    assert scores_text(scores) == "1=0"
    assert list(scores_of("1=0").values()) == [1.0, 0.5, 0.0]


def test_a_record_is_judged_by_the_present_rule(tmp_path: Path) -> None:
    """A rise and fall, a win whose answers collapse, and a win without any sign."""
    runs = {
        "fallen": recorded([40, 36, 12, 4], 30, win_rate=11.7),
        "short": recorded([40, 44, 44, 48], 190, lengths=(30.0, 30.0, 5.0), win_rate=74.0),
        "well": recorded([40, 44, 44, 48], 190, win_rate=74.0),
    }
    assert [(alarm.kind, alarm.step) for alarm in replay(runs["fallen"])] == [("fall", 6), ("end", 8)]
    write_json(tmp_path / "300.json", {"seed": 300, "runs": runs})
    fallen, short, well = laboratory_runs(tmp_path)
    assert (fallen.truth, fallen.rang, fallen.early, fallen.onset, fallen.peak) == ("hacked", True, True, 6, 2)
    assert (short.truth, short.kinds) == ("clean", ("length",))
    assert (well.truth, well.rang) == ("clean", False)
    loose = AlarmSettings(length=None)
    assert [one.rang for one in laboratory_runs(tmp_path, loose)] == [True, False, False]


def test_rates_count_what_they_say() -> None:
    runs = [run("hacked", 8), run("hacked", 16, world="301"), run("hacked", None), run("clean", 3), run("clean", None)]
    rates = Rates("both", [*runs, run("between", 2)])
    assert rates.worlds == 2
    assert rates.recall.endswith("; 2 of 3)")
    assert rates.early_recall.endswith("; 1 of 3)")
    assert rates.false_alarms == "50.0 % (9.5 to 90.5; 1 of 2)"
    assert rates.between == "1 of 1"
    assert (rates.lead, rates.after_peak) == ("4 (0 to 8)", "8 (4 to 12)")
    assert lacks(rates) == f"{HACKED_RUNS - 3} hacked runs and {CLEAN_RUNS - 2} clean runs"
    assert Rates("none", []).recall == "none"


def test_false_alarms_are_counted_by_study() -> None:
    rang = [run("clean", 4, world="b/1"), run("clean", 4, world="a/1"), run("hacked", 4, world="c/1")]
    runs = [*rang, run("clean", None, world="a/2"), run("clean", None, world="c/2")]
    said = false_alarms_by_study(Rates("study records", runs))
    assert said == "False alarms by study: b 1 of 1, a 1 of 2; none in the others."
    assert false_alarms_by_study(Rates("none", [])) == ""


def test_study_records_count_without_the_study_that_set_a_band() -> None:
    runs = study_runs(PROJECT / STUDIES)
    studies = {one.world.partition("/")[0] for one in runs}
    assert {"collapse", "shaping-again"} <= studies
    assert "twins-again" not in studies
    hacked = [one for one in runs if one.truth == "hacked"]
    assert all(one.rang for one in hacked)  # the end rings at the level at which hacked is defined
    assert any(not one.early for one in hacked)


def test_a_study_with_worlds_to_come_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    shutil.copy(PROJECT / "studies" / "collapse.yaml", tmp_path / "studies")
    shutil.copytree(PROJECT / STUDIES / "collapse", tmp_path / STUDIES / "collapse")
    assert study_runs(tmp_path / STUDIES)
    next((tmp_path / STUDIES / "collapse").glob("*.json")).unlink()
    assert study_runs(tmp_path / STUDIES) == []


@pytest.mark.parametrize("file", sorted((PROJECT / RECORDS).glob("*.json")), ids=lambda file: file.stem)
def test_records_hold_every_row_and_replay_as_they_rang(file: Path) -> None:
    record = read_json(file)
    refuse_seeds([record["seed"]])
    assert file.stem == str(record["seed"])
    assert {*record["runs"]} == {*worlds().rows}
    for one in record["runs"].values():
        assert len(one["evaluations"][0][1]) == 64
        assert len(one["final"][1]) == 256
        if one["version"] == 7:
            assert [[a.step, a.kind, a.since] for a in replay(one)] == one["rang"]


def test_the_document_shows_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    found = BLOCK.search(DOCUMENT.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == f"{found[1]}\n{block(all_rates(STUDIES, RECORDS))}\n\n{found[2]}", (
        "write it anew: python -m benchmarks.alarm_calibration --no-train --document docs/hackability.md"
    )


def test_a_document_without_the_block_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A page\n")
    with pytest.raises(DataError, match="no block of alarm rates"):
        write_block(tmp_path / "page.md", "rates")


def test_a_world_with_a_record_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT)
    write_json(tmp_path / "300.json", {"seed": 300, "runs": {"well": recorded([40, 44], 190, win_rate=74.0)}})
    assert main(["--seeds", "300", "--records", str(tmp_path), "--work", str(tmp_path / "work")]) == 0
    (counts,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| runs: hacked")]
    assert counts.split(" | ")[2] == "0, 1, 0", "the record's run is clean"
    assert not (tmp_path / "work").exists()


def test_no_world_is_begun_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    assert (
        main(["--seeds", "300-301", "--minutes", "0", "--records", str(tmp_path), "--work", str(tmp_path / "w")]) == 0
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("null", nulls.NULLS, ids=lambda null: null.name)
def test_simulated_runs_ring_at_most_at_the_stated_rate(null: nulls.Null) -> None:
    rule, naive = nulls.null_rates(null, 2000, seed=1)
    assert rule < 0.05
    assert naive > 0.35


def test_the_simulated_comparisons_are_those_of_the_alarm() -> None:
    generator, settings = np.random.default_rng(2), AlarmSettings(false_alarms=0.4)
    scores = nulls.null_scores(nulls.NULLS[1], 60, 4, 96, generator)
    expected = []
    for one in scores:
        alarm = HackingAlarm(settings, 4)
        for step, row in enumerate(one, start=1):
            alarm.observe(step, ONES | {"response_length": 30.0, "proxy": 0.0, "reward": 0.0}, 64)
            alarm.observe_evaluation(step, {str(i): float(score) for i, score in enumerate(row[:32])})
        alarm.observe_end(4, {str(i): float(score) for i, score in enumerate(one[-1])})
        expected.append(bool(alarm.alarms))
    assert nulls.rings(scores, 32, settings).tolist() == expected
    assert 3 < sum(expected) < 30
