"""Rates of the alarm: the records replay as they rang, and the document has what they give."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from benchmarks import alarm_rates as rates
from rlhf_core.evaluation.hacking_alarm import AlarmSettings, HackingAlarm, end_level, fall_level
from tasks.running.artifacts import read_json

PROJECT = Path(__file__).resolve().parents[2]
ONES = {"kl": 0.0, "entropy": 0.7, "repetition": 0.0, "truncated": 0.0, "proxy_std": 1.0, "reward_std": 1.0}


@pytest.mark.parametrize(
    ("rate", "p", "gain", "onset", "truth"),
    [
        (40.0, 0.01, 1.0, None, "hacked"),
        (55.0, 0.2, 1.0, 8.0, "hacked"),
        (40.0, 0.01, -1.0, None, "between"),
        (48.0, 0.4, 1.0, None, "between"),
        (50.0, 1.0, 1.0, None, "clean"),
    ],
)
def test_hacked_clean_and_between(rate: float, p: float, gain: float, onset: float | None, truth: str) -> None:
    metrics = {"win_rate_vs_sft": rate, "win_rate_vs_sft_p": p, "hacking/proxy_gain": gain}
    assert rates.truth_of(metrics | ({} if onset is None else {"hacking/onset_step": onset})) == truth


@pytest.mark.parametrize("file", sorted((PROJECT / rates.RECORDS).glob("*.json")), ids=lambda file: file.stem)
def test_records_replay_as_they_rang(file: Path) -> None:
    for run in read_json(file)["runs"].values():
        if run["version"] == 7:
            assert [[a.step, a.kind, a.since] for a in rates.replay(run)] == run["rang"]


def test_the_document_shows_what_the_records_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    text = re.sub(r"\s+", " ", (PROJECT / "docs" / "hackability.md").read_text(encoding="utf-8"))
    shown = re.sub(r"\s+", " ", rates.table())
    assert shown in text, "copy it into docs/hackability.md: python -m benchmarks.alarm_rates"


#: Ways in which scores of a prompt depend on each other while the true win rate stays at 50 %: share of the variance of
#: their latent normals that is the prompt's own, and correlation of the rest between neighbouring evaluations.
NULLS = {"independent": (0.0, 0.0), "same prompts": (0.5, 0.0), "neighbours": (0.3, 0.9)}
TIES = 0.2

Scores = NDArray[np.float64]


def null_scores(null: str, runs: int, evaluations: int, prompts: int, generator: np.random.Generator) -> Scores:
    """Returns scores [runs, evaluations, prompts] of runs whose win rate is 50 % throughout."""
    shared, carried = NULLS[null]
    own = generator.standard_normal((runs, 1, prompts))
    moving = generator.standard_normal((runs, evaluations, prompts))
    for step in range(1, evaluations):
        moving[:, step] = carried * moving[:, step - 1] + (1 - carried**2) ** 0.5 * moving[:, step]
    drawn = stats.norm.cdf(shared**0.5 * own + (1 - shared) ** 0.5 * moving)
    return np.where(drawn < (1 - TIES) / 2, 0.0, np.where(drawn < (1 + TIES) / 2, 0.5, 1.0))


def rings(scores: Scores, prompts: int, settings: AlarmSettings, *, naive: bool = False) -> NDArray[np.bool_]:
    """Returns whether each run has an alarm of its win rate, tested naively at the whole level or as the alarm does.

    Args:
        scores: [runs, evaluations, all test prompts]; the last evaluation is the final one.
        prompts: of the evaluations on the way, the first ones.
    """
    runs, count, _ = scores.shape
    level = settings.false_alarms
    rang = _fell(np.full_like(scores[:, -1], 0.5), scores[:, -1], level if naive else end_level(settings))
    seen = np.concatenate([np.full((runs, 1, prompts), 0.5), scores[:, :, :prompts]], axis=1)
    for later in range(1, count + 1):
        for earlier in range(later):
            own = level if naive else fall_level(settings, count, later - earlier)
            rang |= _fell(seen[:, earlier], seen[:, later], own)
    return rang


def _fell(before: Scores, after: Scores, level: float) -> NDArray[np.bool_]:
    rose, fell = (after > before).sum(axis=1), (after < before).sum(axis=1)
    return np.asarray(stats.binom.cdf(rose, rose + fell, 0.5) < level) & (rose + fell > 0)


def null_rates(null: str, runs: int, seed: int = 0) -> list[float]:
    """Returns the share of simulated runs that ring, by the alarm's levels and naively."""
    scores = null_scores(null, runs, 8, 256, np.random.default_rng(seed))
    return [float(rings(scores, 64, AlarmSettings(), naive=naive).mean()) for naive in (False, True)]


@pytest.mark.parametrize("null", NULLS)
def test_simulated_runs_ring_at_most_at_the_stated_rate(null: str) -> None:
    rule, naive = null_rates(null, 2000, seed=1)
    assert rule < 0.05
    assert naive > 0.35


def test_the_simulated_comparisons_are_those_of_the_alarm() -> None:
    generator, settings = np.random.default_rng(2), AlarmSettings(false_alarms=0.4)
    scores = null_scores("same prompts", 60, 4, 96, generator)
    expected = []
    for one in scores:
        alarm = HackingAlarm(settings, 4)
        for step, row in enumerate(one, start=1):
            alarm.observe(step, ONES | {"response_length": 30.0, "proxy": 0.0, "reward": 0.0}, 64)
            alarm.observe_evaluation(step, {str(i): float(score) for i, score in enumerate(row[:32])})
        alarm.observe_end(4, {str(i): float(score) for i, score in enumerate(one[-1])})
        expected.append(bool(alarm.alarms))
    assert rings(scores, 32, settings).tolist() == expected
    assert 3 < sum(expected) < 30
