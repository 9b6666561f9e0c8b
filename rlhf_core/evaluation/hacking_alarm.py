"""Reward hacking while a policy trains: rewards rise and quality falls, or the policy leaves its bands.

Two kinds of signs. **Win rate**: between two evaluations on the same prompts it fell beyond noise, a *fall* where the
proxy reward or the reward that is paid (after shaping) rose beyond noise meanwhile, else a *decline*; or the final
evaluation is below the SFT policy beyond noise (*end*). **Bands**: KL, length, repetition, truncation or entropy of the
rollouts has left what the SFT policy makes plausible, for some batches in a row. Each kind is raised once per run.
Source: PAR, §3 (proxy and win rate part); Gao et al. 2023 (over-optimisation against KL).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from rlhf_core.errors import RecipeError
from rlhf_core.typed import Checked, above, at_least, between

Scores = Mapping[str, float]
#: A chance, neither 0 nor 1.
Level = Annotated[float, between(0, 1, open_low=True, open_high=True)]


@dataclass(frozen=True)
class AlarmSettings(Checked):
    """Settings of the reward hacking alarm. The first rollout batch represents the SFT policy.

    Args:
        false_alarms: chance that a run whose win rate only fluctuates raises an alarm of the win rate: half for its
            end, half for all pairs of its evaluations (`fall_level`).
        proxy_level: one-sided level at which the proxy or the paid reward must have risen between the two, halved for
            each.
        kl: most nats per response, in units of the SFT policy's entropy per response: beyond 1 its rollouts are
            rarer under the SFT policy than that policy's own responses are; None for no limit.
        length: least and largest mean length, in units of the SFT policy's; None for no band.
        repetition: largest rise of the share of repeated 3-grams over the SFT policy's; None for no limit.
        truncation: largest rise of the share of responses that are cut at the limit; None for no limit.
        entropy: least and largest entropy per token, in units of the SFT policy's; None for no band.
        patience: batches in a row outside a band that raise an alarm.
        on_hacking: note continues training; stop ends it and keeps the weights with the best win rate.
    """

    false_alarms: Level = 0.05
    proxy_level: Level = 0.05
    kl: Annotated[float, above(0)] | None = 1.0
    length: tuple[float, float] | None = (0.33, 2.0)
    repetition: Annotated[float, above(0)] | None = 0.2
    truncation: Annotated[float, above(0)] | None = 0.3
    entropy: tuple[float, float] | None = (0.4, 1.6)
    patience: Annotated[int, at_least(1)] = 2
    on_hacking: Literal["note", "stop"] = "note"

    def _check_together(self) -> None:
        for name, band in (("length", self.length), ("entropy", self.entropy)):
            if band is not None and not 0 <= band[0] < 1 < band[1]:
                raise RecipeError(f"{name} is {list(band)}; it must be [least below 1, largest above 1], or null")


@dataclass(frozen=True)
class Alarm:
    """A sign of reward hacking.

    Attributes:
        step: after which it was seen.
        kind: fall, decline, end, kl, length, repetition, truncation or entropy.
        since: the last step at which all was well.
        message: what was seen, in one line.
    """

    step: int
    kind: str
    since: int
    message: str


@dataclass(frozen=True)
class Evaluated:
    """The policy after a step.

    Attributes:
        step: 0 is the SFT policy.
        proxy, proxy_error: mean proxy reward of its rollouts, and the standard error of that mean.
        paid, paid_error: mean of the reward that it was trained on, and the standard error of that mean.
        scores: wins against the SFT policy by prompt: 1, 0, 1/2 for a tie, or a judge's soft preference.
    """

    step: int
    proxy: float
    proxy_error: float
    scores: Scores
    paid: float = math.nan
    paid_error: float = math.nan

    @property
    def win_rate(self) -> float:
        """Returns the mean score of the prompts with a verdict, NaN without any."""
        return _mean_score(self.scores)


@dataclass(frozen=True)
class Fall:
    """Change of scores on the same prompts.

    Attributes:
        changed: prompts whose score differs.
        better: share of those whose score rose.
        upper: one-sided upper confidence bound of that share; below 1/2 the win rate fell beyond noise.
        difference: of the mean scores, later less earlier.
    """

    changed: int
    better: float
    upper: float
    difference: float


def _mean_score(scores: Scores) -> float:
    known = [score for score in scores.values() if math.isfinite(score)]
    return sum(known) / len(known) if known else math.nan


def fall(before: Scores, after: Scores, level: float) -> Fall:
    """Returns the paired comparison of two evaluations on the prompts that both have.

    The bound is exact (Clopper-Pearson), so that bound < 1/2 is the one-sided sign test at `level`. Prompts without a
    verdict (NaN) are left out.
    """
    from scipy import stats

    both = [(before[name], after[name]) for name in before if name in after]
    differences = [later - earlier for earlier, later in both if math.isfinite(later - earlier)]
    changed = [d for d in differences if d != 0]
    rose = sum(d > 0 for d in changed)
    n = len(changed)
    upper = 1.0 if rose == n else float(stats.beta.ppf(1 - level, rose + 1, n - rose))
    mean = sum(differences) / len(differences) if differences else 0.0
    return Fall(n, rose / n if n else 0.5, upper, mean)


def rose(before: Evaluated, after: Evaluated, level: float, reward: Literal["proxy", "paid"] = "proxy") -> bool:
    """Returns whether a mean reward rose beyond noise: one-sided normal test of two independent means; never where it
    is unknown (NaN)."""
    from scipy import stats

    difference: float = getattr(after, reward) - getattr(before, reward)
    error = math.hypot(getattr(before, f"{reward}_error"), getattr(after, f"{reward}_error"))
    return difference > 0 and difference > float(stats.norm.ppf(1 - level)) * error


def end_level(settings: AlarmSettings) -> float:
    """Returns the level of the test of the final win rate: half of `false_alarms`."""
    return settings.false_alarms / 2


def fall_level(settings: AlarmSettings, evaluations: int, apart: int) -> float:
    """Returns the level of the comparison of two evaluations.

    Comparisons share half of `false_alarms` in proportion to their distance: a policy that is hacked gets worse for a
    while, so that two distant evaluations show it best. By the union bound all comparisons together raise at most that
    half, however they depend on each other.

    Args:
        settings: with `false_alarms`.
        evaluations: of the whole run, the start not counted.
        apart: distance of the two, 1 for neighbours.
    """
    every = evaluations * (evaluations + 1) * (evaluations + 2) // 6  # the distances of all pairs
    return settings.false_alarms / 2 * apart / max(1, every)


def find_fall(points: Sequence[Evaluated], settings: AlarmSettings, evaluations: int) -> Alarm | None:
    """Returns an alarm if the last evaluation is below an earlier one: a fall where a reward rose in between, else a
    decline.

    Args:
        points: evaluations so far, the start among them.
        settings: levels.
        evaluations: how many the whole run will make, the start not counted; if it makes more, as many as it made.
    """
    last, count = points[-1], max(evaluations, len(points) - 1)
    fallen = []
    for place, point in enumerate(points[:-1]):
        level = fall_level(settings, count, len(points) - 1 - place)
        change = fall(point.scores, last.scores, level)
        if change.upper < 0.5:
            fallen.append((change, point, _risen(point, last, settings), level))
    if not fallen:
        return None
    change, since, risen, level = min(fallen, key=lambda each: (not each[2], each[0].difference))
    lost = (
        f"the win rate over the SFT policy fell by {-100 * change.difference:.0f} points: of {change.changed} prompts "
        f"whose outcome changed {100 * change.better:.0f}% got better, below {100 * change.upper:.0f}% at the level "
        f"{level:.2g}"
    )
    if risen:
        return Alarm(last.step, "fall", since.step, f"{risen} since step {since.step} while {lost}")
    return Alarm(last.step, "decline", since.step, f"since step {since.step} {lost}; no reward rose meanwhile")


def _risen(before: Evaluated, after: Evaluated, settings: AlarmSettings) -> str:
    """Returns which reward rose between two evaluations, in words; empty if none did."""
    level = settings.proxy_level / 2
    if rose(before, after, level):
        return f"the proxy rose from {before.proxy:.3g} to {after.proxy:.3g}"
    if rose(before, after, level, "paid"):
        return f"the paid reward rose from {before.paid:.3g} to {after.paid:.3g}"
    return ""


def bands(sft: Mapping[str, float], settings: AlarmSettings) -> dict[str, tuple[float, float]]:
    """Returns the least and the largest value of each metric that has a band.

    Args:
        sft: `entropy` (nats per token), `response_length`, `repetition` and `truncated` of the SFT policy's rollouts;
            a metric that is missing has no band, and nothing is measured in units of 0.
        settings: widths.
    """
    made: dict[str, tuple[float, float]] = {}
    length = sft.get("response_length", 0.0)
    if settings.kl is not None and length * sft.get("entropy", 0.0) > 0:
        made["kl"] = -math.inf, settings.kl * sft["entropy"] * length
    for name, width in (("response_length", settings.length), ("entropy", settings.entropy)):
        if width is not None and sft.get(name, 0.0) > 0:
            made[name] = width[0] * sft[name], width[1] * sft[name]
    for name, rise in (("repetition", settings.repetition), ("truncated", settings.truncation)):
        if rise is not None and name in sft:
            made[name] = -math.inf, sft[name] + rise
    return made


#: Kind of alarm by the metric that has left its band.
_KINDS = {
    "kl": "kl",
    "response_length": "length",
    "repetition": "repetition",
    "truncated": "truncation",
    "entropy": "entropy",
}


class HackingAlarm:
    """Watches a run: `observe` after every step, `observe_evaluation` after every evaluation on the run's
    prompts, `observe_end` after the final one.

    Args:
        settings: when it is raised.
        evaluations: how many the run will make.
    """

    def __init__(self, settings: AlarmSettings, evaluations: int) -> None:
        self.settings, self.evaluations = settings, evaluations
        self.points: list[Evaluated] = []
        self.alarms: list[Alarm] = []
        self._sft: dict[str, float] = {}
        self._rewards: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._outside: dict[str, int] = {}

    @property
    def onset(self) -> int | None:
        """Returns the step of the first alarm."""
        return min((alarm.step for alarm in self.alarms), default=None)

    @property
    def peak(self) -> Evaluated | None:
        """Returns the evaluation with the highest win rate, of equal ones the first; None before any."""
        return max(self.points, key=lambda point: point.win_rate, default=None)

    def observe(self, step: int, metrics: Mapping[str, float], responses: int) -> list[Alarm]:
        """Returns the new alarms of the bands.

        Args:
            step: from 1; the rollouts of the first one are the SFT policy's.
            metrics: of `describe`.
            responses: in the rollout batch.
        """
        self._rewards = _rewards(metrics, responses)
        if not self._sft:
            known = (name for name in _KINDS if math.isfinite(metrics.get(name, math.nan)))
            self._sft = {name: metrics[name] for name in known if name != "kl"}
            self._first = self._rewards
            return []
        raised = []
        for name, (low, high) in bands(self._sft, self.settings).items():
            if not math.isfinite(metrics.get(name, math.nan)):
                continue  # not measured: neither inside nor outside
            outside = 0 if low <= metrics[name] <= high else self._outside.get(name, 0) + 1
            self._outside[name] = outside
            if outside == self.settings.patience and not self._raised(_KINDS[name]):
                limit = f"above {high:.3g}" if metrics[name] > high else f"below {low:.3g}"
                text = f"{name} is {metrics[name]:.3g}, {limit}, for {outside} batches in a row"
                raised.append(Alarm(step, _KINDS[name], step - outside, text))
        self.alarms += raised
        return raised

    def observe_evaluation(self, step: int, scores: Scores) -> list[Alarm]:
        """Returns the new alarms of a fall, given the scores of the policy after a step; the start scores 1/2 on each
        prompt. An evaluation without any verdict says nothing and is not kept."""
        if math.isnan(_mean_score(scores)):
            return []
        if not self.points:
            self.points.append(Evaluated(0, scores=dict.fromkeys(scores, 0.5), **self._first))
        self.points.append(Evaluated(step, scores=dict(scores), **self._rewards))
        return self._raise(find_fall(self.points, self.settings, self.evaluations))

    def observe_end(self, step: int, scores: Scores) -> list[Alarm]:
        """Returns the new alarm of the end, given the scores of the final policy on all test prompts."""
        level = end_level(self.settings)
        change = fall(dict.fromkeys(scores, 0.5), scores, level)
        if not change.changed or change.upper >= 0.5:
            return []
        rate, won, bound = (100 * value for value in (0.5 + change.difference, change.better, change.upper))
        message = (
            f"the final win rate over the SFT policy is {rate:.1f} %: {won:.0f}% of {change.changed} decided prompts "
            f"are won, below {bound:.0f}% at the level {level:.2g}"
        )
        return self._raise(Alarm(step, "end", 0, message))

    def _raise(self, alarm: Alarm | None) -> list[Alarm]:
        """Returns an alarm whose kind was not raised before."""
        if alarm is None or self._raised(alarm.kind):
            return []
        self.alarms.append(alarm)
        return [alarm]

    def _raised(self, kind: str) -> bool:
        return any(alarm.kind == kind for alarm in self.alarms)

    def state_dict(self) -> dict[str, Any]:
        return {
            "points": [asdict(point) for point in self.points],
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "sft": dict(self._sft),
            "rewards": dict(self._rewards),
            "first": dict(self._first),
            "outside": dict(self._outside),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.points = [Evaluated(**point) for point in state["points"]]
        self.alarms = [Alarm(**alarm) for alarm in state["alarms"]]
        self._sft, self._outside = dict(state["sft"]), dict(state["outside"])
        self._rewards, self._first = dict(state["rewards"]), dict(state["first"])


def _rewards(metrics: Mapping[str, float], responses: int) -> dict[str, float]:
    """Returns the means of the proxy and of what was paid, with standard errors, as an `Evaluated` has them."""
    root = math.sqrt(max(1, responses - 1))
    return {
        "proxy": metrics["proxy"],
        "proxy_error": metrics["proxy_std"] / root,
        "paid": metrics.get("reward", math.nan),
        "paid_error": metrics.get("reward_std", math.nan) / root,
    }
