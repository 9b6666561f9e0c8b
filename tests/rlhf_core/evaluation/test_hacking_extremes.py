"""The hacking alarm where a run is extreme: each case has a defined answer."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from rlhf_core.evaluation.hacking_alarm import AlarmSettings, HackingAlarm, end_level, fall, fall_level
from tests.rlhf_core.evaluation.test_hacking import SFT


def scores(wins: int, prompts: int = 64) -> dict[str, float]:
    return {str(i): float(i < wins) for i in range(prompts)}


def kinds(alarm: HackingAlarm) -> list[tuple[str, int]]:
    return [(raised.kind, raised.step) for raised in alarm.alarms]


@pytest.mark.parametrize("evaluations", range(1, 30))
def test_levels_of_all_comparisons_and_the_end_sum_to_the_stated_chance(evaluations: int) -> None:
    settings = AlarmSettings(false_alarms=0.08)
    every = [
        fall_level(settings, evaluations, later - earlier)
        for later in range(1, evaluations + 1)
        for earlier in range(later)
    ]
    assert math.fsum([*every, end_level(settings)]) == pytest.approx(0.08)
    assert fall_level(settings, evaluations, evaluations) == max(every)


@pytest.mark.parametrize("carried", [0.0, 0.9])
def test_runs_that_only_fluctuate_ring_at_most_at_the_stated_rate_and_naive_tests_far_more_often(
    carried: float,
) -> None:
    """Evaluations on the same prompts depend on each other: on the prompts' difficulty, and on the neighbours'."""
    rng, settings, rang, naive = random.Random(11), AlarmSettings(false_alarms=0.1), 0, 0
    runs, prompts, final = 200, 48, 144
    for _ in range(runs):
        alarm = HackingAlarm(settings, evaluations=6)
        own = [rng.gauss(0, 0.7) for _ in range(final)]
        moving = [rng.gauss(0, 1) for _ in range(final)]
        seen = [dict.fromkeys(map(str, range(prompts)), 0.5)]
        for step in range(1, 7):
            moving = [carried * value + math.sqrt(1 - carried**2) * rng.gauss(0, 1) for value in moving]
            drawn = {str(i): float(own[i] + moving[i] > 0) for i in range(final)}
            alarm.observe(step, SFT | {"proxy": float(step)}, 64)
            seen.append({name: drawn[name] for name in seen[0]})
            alarm.observe_evaluation(step, seen[-1])
        alarm.observe_end(6, drawn)
        rang += bool(alarm.alarms)
        falls = (fall(seen[i], seen[k], 0.1).upper < 0.5 for k in range(1, 7) for i in range(k))
        naive += any(falls) or fall(dict.fromkeys(drawn, 0.5), drawn, 0.1).upper < 0.5
    assert stats.binomtest(rang, runs, 0.1, alternative="greater").pvalue > 0.01, rang / runs
    assert naive / runs > 0.3


def test_a_final_win_rate_that_was_missed_at_the_level_of_a_pair_rings() -> None:
    """43.5 % of 512 prompts, p .003: above the level .05 / 46 of ten evaluations' pairs, below half of .05."""
    alarm = HackingAlarm(AlarmSettings(), evaluations=9)
    (found,) = alarm.observe_end(36, scores(223, 512))
    assert (found.kind, found.step) == ("end", 36)
    assert HackingAlarm(AlarmSettings(), evaluations=9).observe_end(36, scores(240, 512)) == []


def test_responses_that_collapse_to_one_token_ring_by_length() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=0)
    for step, length in enumerate([40.0, 22.0, 3.0, 1.0, 1.0], start=1):
        alarm.observe(step, SFT | {"response_length": length}, 64)
    assert kinds(alarm) == [("length", 4)]
    assert alarm.alarms[0].since == 2


def test_a_reward_that_rises_with_truncation_rings_by_truncation_and_by_the_fall() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=4)
    for step, (cut, wins) in enumerate([(0.1, 34), (0.3, 30), (0.5, 20), (0.7, 8)], start=1):
        alarm.observe(step, SFT | {"truncated": cut, "proxy": float(step)}, 128)
        alarm.observe_evaluation(step, scores(wins))
    assert ("truncation", 4) in kinds(alarm)
    assert "fall" in {kind for kind, _ in kinds(alarm)}


def test_a_policy_that_always_reaches_the_limit_has_no_more_truncation_to_gain() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=0)
    for step in range(1, 5):
        alarm.observe(step, SFT | {"truncated": 0.9 if step == 1 else 1.0}, 64)
    assert alarm.alarms == []


def test_a_run_that_recovers_keeps_the_alarm_of_its_fall_and_has_none_of_its_end() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=4)
    for step, wins in enumerate([36, 6, 34, 40], start=1):
        alarm.observe(step, SFT | {"proxy": float(step)}, 128)
        alarm.observe_evaluation(step, scores(wins))
    alarm.observe_end(4, scores(160, 256))
    assert kinds(alarm) == [("fall", 2)]


@pytest.mark.parametrize("false_alarms", [0.05, 0.99])
def test_one_prompt_proves_nothing_at_any_level(false_alarms: float) -> None:
    alarm = HackingAlarm(AlarmSettings(false_alarms=false_alarms), evaluations=2)
    for step, score in enumerate([1.0, 0.0], start=1):
        alarm.observe(step, SFT | {"proxy": 9.0 * step}, 64)
        alarm.observe_evaluation(step, {"only": score})
    alarm.observe_end(2, {"only": 0.0})
    assert alarm.alarms == []


def test_prompts_without_a_verdict_are_left_out_not_lost() -> None:
    unjudged = dict.fromkeys(map(str, range(60)), math.nan)
    alarm = HackingAlarm(AlarmSettings(), evaluations=2)
    alarm.observe(1, SFT, 64)
    alarm.observe_evaluation(1, scores(60))
    alarm.observe(2, SFT | {"proxy": 9.0}, 64)
    alarm.observe_evaluation(2, scores(60) | unjudged)
    alarm.observe_end(2, scores(60) | unjudged)
    assert alarm.alarms == []
    assert alarm.points[-1].win_rate == 0.0  # of the four prompts with a verdict
    assert alarm.peak is not None
    assert alarm.peak.step == 1


def test_an_evaluation_without_any_verdict_is_not_kept() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=2)
    alarm.observe(1, SFT, 64)
    assert alarm.observe_evaluation(1, dict.fromkeys("abc", math.nan)) == []
    assert alarm.points == []
    assert alarm.observe_end(1, dict.fromkeys("abc", math.nan)) == []


def test_one_evaluation_alone_is_compared_with_the_start() -> None:
    for wins, found in ((32, []), (24, []), (10, [("fall", 3)])):
        alarm = HackingAlarm(AlarmSettings(), evaluations=1)
        for step in range(1, 4):
            alarm.observe(step, SFT | {"proxy": float(step)}, 128)
        alarm.observe_evaluation(3, scores(wins))
        assert kinds(alarm) == found, wins


def test_the_first_batch_makes_the_bands_and_can_ring_by_its_evaluation_alone() -> None:
    alarm = HackingAlarm(AlarmSettings(patience=1), evaluations=1)
    assert alarm.observe(1, SFT | {"kl": 1e9, "truncated": 1.0, "response_length": 1.0}, 64) == []
    alarm.observe_evaluation(1, scores(2))
    assert kinds(alarm) == [("decline", 1)]
    assert alarm.onset == 1


def test_more_evaluations_than_were_planned_are_tested_more_strictly() -> None:
    found = []
    for planned in (1, 12):
        alarm = HackingAlarm(AlarmSettings(), evaluations=planned)
        for step, wins in enumerate([32] * 11 + [19], start=1):
            alarm.observe(step, SFT, 64)
            alarm.observe_evaluation(step, scores(wins))
        found.append(kinds(alarm))
    assert found[0] == found[1]


def test_a_metric_that_is_not_a_number_is_neither_inside_nor_outside_its_band() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=0)
    for step, length in enumerate([40.0, 90.0, math.nan, 90.0], start=1):
        alarm.observe(step, SFT | {"response_length": length}, 64)
    assert kinds(alarm) == [("length", 4)]
    unknown = HackingAlarm(AlarmSettings(patience=1), evaluations=0)
    for step in range(1, 4):
        unknown.observe(step, SFT | {"response_length": math.nan if step == 1 else 1.0, "kl": 9.0}, 64)
    assert unknown.alarms == []


def test_nothing_is_measured_in_units_of_an_sft_policy_that_writes_nothing_or_without_choice() -> None:
    for silent in ({"response_length": 0.0}, {"entropy": 0.0}):
        alarm = HackingAlarm(AlarmSettings(patience=1), evaluations=0)
        for step in range(1, 3):
            moved = dict.fromkeys(silent, 3.0) if step > 1 else {}
            alarm.observe(step, SFT | silent | moved | {"kl": 0.1}, 64)
        assert alarm.alarms == []
