"""The hacking alarm: quiet on noise at its stated rate, raised by a rise and fall and by bands that are left."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.hacking_alarm import (
    AlarmSettings,
    Evaluated,
    HackingAlarm,
    end_level,
    fall,
    fall_level,
    find_fall,
)

SFT = {
    "entropy": 0.5,
    "response_length": 40.0,
    "repetition": 0.05,
    "truncated": 0.1,
    "kl": 0.0,
    "proxy": 0.0,
    "proxy_std": 1.0,
    "reward": 0.0,
    "reward_std": 1.0,
}


def curve(rng: random.Random, win_rates: list[float], prompts: int, ties: float = 0.2) -> list[Evaluated]:
    """Evaluations of a run whose proxy rises at every step, with win rates that fluctuate around the given ones."""
    points = [Evaluated(0, 0.0, 0.1, {str(i): 0.5 for i in range(prompts)})]
    for step, rate in enumerate(win_rates, start=1):
        drawn = [0.5 if rng.random() < ties else float(rng.random() < rate) for _ in range(prompts)]
        points.append(Evaluated(step, float(step), 0.1, {str(i): score for i, score in enumerate(drawn)}))
    return points


def kind_of(points: list[Evaluated]) -> str | None:
    """The kind of alarm that the last point raises."""
    found = find_fall(points, AlarmSettings(), len(points) - 1)
    return found and found.kind


def test_a_fall_says_which_reward_rose_and_without_a_rise_it_is_a_decline() -> None:
    points = curve(random.Random(2), [0.9, 0.1], 64)
    flat = [replace(point, proxy=0.0) for point in points]
    paid = [replace(point, paid=float(point.step), paid_error=0.1) for point in flat]
    assert kind_of(points) == "fall"
    assert kind_of(flat) == "decline"
    assert kind_of(paid) == "fall"
    found = find_fall(paid, AlarmSettings(), 2)
    assert found is not None
    assert found.message.startswith("the paid reward rose from 1 to 2 since step 1 while the win rate")


def test_the_end_below_the_start_rings_without_any_evaluation_on_the_way() -> None:
    alarm = HackingAlarm(AlarmSettings(), evaluations=0)
    alarm.observe(1, SFT, 64)
    assert alarm.observe_end(40, {str(i): float(i < 240) for i in range(500)}) == []
    (raised_once,) = alarm.observe_end(40, {str(i): float(i < 134) for i in range(500)})
    assert (raised_once.kind, raised_once.step) == ("end", 40)
    assert "the final win rate over the SFT policy is 26.8 %" in raised_once.message
    assert alarm.observe_end(40, {}) == []


@given(better=st.integers(0, 30), worse=st.integers(0, 30), ties=st.integers(0, 5))
def test_the_bound_is_the_exact_sign_test(better: int, worse: int, ties: int) -> None:
    changes = [1.0] * better + [-1.0] * worse + [0.0] * ties
    before = {str(i): 0.5 for i in range(len(changes))}
    after = {str(i): 0.5 + change / 2 for i, change in enumerate(changes)}
    found = fall(before, after, 0.05)
    assert found.changed == better + worse
    significant = better + worse > 0 and stats.binomtest(better, better + worse, alternative="less").pvalue < 0.05
    assert (found.upper < 0.5) == significant


def test_prompts_are_paired_and_one_that_is_missing_is_left_out() -> None:
    found = fall({"a": 1.0, "b": 0.0, "c": 1.0}, {"b": 1.0, "a": 1.0, "d": 0.0}, 0.05)
    assert (found.changed, found.better, found.difference) == (1, 1.0, 0.5)
    assert fall({}, {}, 0.05).upper == 1.0


@pytest.mark.parametrize(
    ("name", "inside", "outside", "kind"),
    [("kl", 19.0, 21.0, "kl"), ("response_length", 79.0, 81.0, "length"), ("response_length", 14.0, 13.0, "length"),
     ("repetition", 0.24, 0.26, "repetition"), ("truncated", 0.39, 0.41, "truncation"),
     ("entropy", 0.79, 0.81, "entropy"), ("entropy", 0.21, 0.19, "entropy")],
)  # fmt: skip
def test_a_band_left_for_as_many_batches_as_patience_says_is_raised_once(
    name: str, inside: float, outside: float, kind: str
) -> None:
    alarm = HackingAlarm(AlarmSettings(patience=2), evaluations=0)
    seen = [SFT[name], inside, outside, inside, outside, outside, outside, inside, outside, outside]
    found = [alarm.observe(step, SFT | {name: value}, 64) for step, value in enumerate(seen, start=1)]
    assert [len(each) for each in found] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    (raised_once,) = alarm.alarms
    assert (raised_once.kind, raised_once.step, raised_once.since) == (kind, 6, 4)
    assert alarm.onset == 6


def watch(alarm: HackingAlarm, steps: range) -> None:
    rng = random.Random(5)
    draws = [[float(rng.random() < rate) for _ in range(40)] for rate in (0.6, 0.9, 0.5, 0.1, 0.05, 0.0)]
    for step in steps:
        moved = {"proxy": 0.5 * step, "response_length": 40.0 + 15.0 * (step - 1)}
        alarm.observe(step, SFT | moved, 128)
        alarm.observe_evaluation(step, {str(i): score for i, score in enumerate(draws[step - 1])})


@pytest.mark.parametrize("cut", range(7))
def test_an_alarm_goes_on_from_its_state_as_if_never_interrupted(cut: int) -> None:
    straight, before, after = (HackingAlarm(AlarmSettings(), evaluations=6) for _ in range(3))
    watch(straight, range(1, 7))
    watch(before, range(1, cut + 1))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    watch(after, range(cut + 1, 7))
    assert after.state_dict() == straight.state_dict()
    assert {alarm.kind for alarm in straight.alarms} == {"fall", "length"}
    assert straight.peak is not None
    assert straight.peak.step == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"false_alarms": 0.0}, "false_alarms is 0.0"),
        ({"kl": -1.0}, "kl is -1.0"),
        ({"length": (1.5, 2.0)}, "length is \\[1.5, 2.0\\]; it must be \\[least below 1"),
        ({"entropy": (0.5, 0.9)}, "entropy is \\[0.5, 0.9\\]; it must be \\[least below 1"),
        ({"truncation": 0.0}, "truncation is 0.0"),
        ({"patience": 0}, "at least 1"),
        ({"on_hacking": "halt"}, "on_hacking is 'halt'; it must be one of note, stop"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        AlarmSettings(**settings)  # type: ignore[arg-type]


# --- extreme runs --------------------------------------------------------------------------------------------------


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


def test_nothing_is_measured_in_units_of_an_sft_policy_that_writes_nothing_or_without_choice() -> None:
    for silent in ({"response_length": 0.0}, {"entropy": 0.0}):
        alarm = HackingAlarm(AlarmSettings(patience=1), evaluations=0)
        for step in range(1, 3):
            moved = dict.fromkeys(silent, 3.0) if step > 1 else {}
            alarm.observe(step, SFT | silent | moved | {"kl": 0.1}, 64)
        assert alarm.alarms == []
