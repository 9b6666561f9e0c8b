"""Rates of the alarm: the records replay as they rang, and the document has what they give."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import alarm_rates as rates
from rlhf_core.evaluation.hacking_alarm import AlarmSettings, HackingAlarm
from tasks.running.artifacts import read_json

PROJECT = Path(__file__).resolve().parents[2]
ONES = {"kl": 0.0, "entropy": 0.7, "repetition": 0.0, "truncated": 0.0, "proxy_std": 1.0, "reward_std": 1.0}


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
    assert rates.truth_of(measures) == truth


@pytest.mark.parametrize("file", sorted((PROJECT / rates.RECORDS).glob("*.json")), ids=lambda file: file.stem)
def test_records_replay_as_they_rang(file: Path) -> None:
    for run in read_json(file)["runs"].values():
        if run["version"] == 7:
            assert [[a.step, a.kind, a.since] for a in rates.replay(run)] == run["rang"]


def test_the_document_shows_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    text = re.sub(r"\s+", " ", (PROJECT / "docs" / "hackability.md").read_text(encoding="utf-8"))
    missing = [one for one in rates.tables() if re.sub(r"\s+", " ", one) not in text]
    assert not missing, "copy them into docs/hackability.md: python -m benchmarks.alarm_rates"


@pytest.mark.parametrize("null", rates.NULLS)
def test_simulated_runs_ring_at_most_at_the_stated_rate(null: str) -> None:
    rule, naive = rates.null_rates(null, 2000, seed=1)
    assert rule < 0.05
    assert naive > 0.35


def test_the_simulated_comparisons_are_those_of_the_alarm() -> None:
    generator, settings = np.random.default_rng(2), AlarmSettings(false_alarms=0.4)
    scores = rates.null_scores("same prompts", 60, 4, 96, generator)
    expected = []
    for one in scores:
        alarm = HackingAlarm(settings, 4)
        for step, row in enumerate(one, start=1):
            alarm.observe(step, ONES | {"response_length": 30.0, "proxy": 0.0, "reward": 0.0}, 64)
            alarm.observe_evaluation(step, {str(i): float(score) for i, score in enumerate(row[:32])})
        alarm.observe_end(4, {str(i): float(score) for i, score in enumerate(one[-1])})
        expected.append(bool(alarm.alarms))
    assert rates.rings(scores, 32, settings).tolist() == expected
    assert 3 < sum(expected) < 30
