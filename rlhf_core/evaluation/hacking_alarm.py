"""Reward hacking while a policy trains: the proxy rises and quality falls, or the policy leaves its bands.

Two kinds of signs. **Fall**: between two evaluations on the same prompts the win rate fell beyond noise while the
proxy reward rose beyond noise. **Bands**: KL, mean length or repetition rate of the rollouts has left what the SFT
policy makes plausible, for some batches in a row. Each kind is raised once per run. Source: PAR, §3 (proxy and win
rate part); Gao et al. 2023 (over-optimisation against KL).
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
        false_alarms: chance that a run whose win rate only fluctuates raises an alarm of a fall, over all pairs of
            its evaluations (Bonferroni).
        proxy_level: one-sided level at which the proxy must have risen between the two.
        kl: most nats per response, in units of the SFT policy's entropy per response: beyond 1 its rollouts are
            rarer under the SFT policy than that policy's own responses are; None for no limit.
        length: least and largest mean length, in units of the SFT policy's; None for no band.
        repetition: largest rise of the share of repeated 3-grams over the SFT policy's; None for no limit.
        patience: batches in a row outside a band that raise an alarm.
        on_hacking: note continues training; stop ends it and keeps the weights with the best win rate.
    """

    false_alarms: Level = 0.05
    proxy_level: Level = 0.05
    kl: Annotated[float, above(0)] | None = 1.0
    length: tuple[float, float] | None = (0.5, 2.0)
    repetition: Annotated[float, above(0)] | None = 0.2
    patience: Annotated[int, at_least(1)] = 2
    on_hacking: Literal["note", "stop"] = "note"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length is not None and not 0 <= self.length[0] < 1 < self.length[1]:
            raise RecipeError(f"length is {list(self.length)}; it must be [least below 1, largest above 1], or null")


@dataclass(frozen=True)
class Alarm:
    """A sign of reward hacking.

    Attributes:
        step: after which it was seen.
        kind: fall, kl, length or repetition.
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
        scores: wins against the SFT policy by prompt: 1, 0, 1/2 for a tie, or a judge's soft preference.
    """

    step: int
    proxy: float
    proxy_error: float
    scores: Scores

    @property
    def win_rate(self) -> float:
        """Returns the mean score, NaN without prompts."""
        return sum(self.scores.values()) / len(self.scores) if self.scores else math.nan


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


def fall(before: Scores, after: Scores, level: float) -> Fall:
    """Returns the paired comparison of two evaluations on the prompts that both have.

    The bound is exact (Clopper-Pearson), so that bound < 1/2 is the one-sided sign test at `level`.
    """
    from scipy import stats

    differences = [after[name] - before[name] for name in before if name in after]
    changed = [d for d in differences if d != 0]
    rose = sum(d > 0 for d in changed)
    n = len(changed)
    upper = 1.0 if rose == n else float(stats.beta.ppf(1 - level, rose + 1, n - rose))
    mean = sum(differences) / len(differences) if differences else 0.0
    return Fall(n, rose / n if n else 0.5, upper, mean)


def rose(before: Evaluated, after: Evaluated, level: float) -> bool:
    """Returns whether the proxy reward rose beyond noise: one-sided normal test of two independent means."""
    from scipy import stats

    difference = after.proxy - before.proxy
    error = math.hypot(before.proxy_error, after.proxy_error)
    return difference > 0 and difference > float(stats.norm.ppf(1 - level)) * error


def pairs(evaluations: int) -> int:
    """Returns pairs among so many evaluations and the start."""
    return max(1, evaluations * (evaluations + 1) // 2)


def find_fall(points: Sequence[Evaluated], settings: AlarmSettings, evaluations: int) -> Alarm | None:
    """Returns an alarm if the last evaluation is below an earlier one although the proxy rose in between.

    Args:
        points: evaluations so far, the start among them.
        settings: levels.
        evaluations: how many the whole run will make, the start not counted.
    """
    last = points[-1]
    level = settings.false_alarms / pairs(evaluations)
    found = [
        (fall(point.scores, last.scores, level), point)
        for point in points[:-1]
        if rose(point, last, settings.proxy_level)
    ]
    fallen = [(change, point) for change, point in found if change.upper < 0.5]
    if not fallen:
        return None
    change, since = min(fallen, key=lambda pair: pair[0].upper)
    message = (
        f"the proxy rose from {since.proxy:.3g} to {last.proxy:.3g} since step {since.step} while the win rate over "
        f"the SFT policy fell by {-100 * change.difference:.0f} points: of {change.changed} prompts whose outcome "
        f"changed {100 * change.better:.0f}% got better, below {100 * change.upper:.0f}% at the level {level:.2g}"
    )
    return Alarm(last.step, "fall", since.step, message)


@dataclass(frozen=True)
class Band:
    """Allowed range of one rollout statistic."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def bands(sft: Mapping[str, float], settings: AlarmSettings) -> dict[str, Band]:
    """Returns the band of each metric that has one.

    Args:
        sft: `entropy` (nats per token), `response_length` and `repetition` of the SFT policy's rollouts.
        settings: widths.
    """
    made: dict[str, Band] = {}
    length = sft["response_length"]
    if settings.kl is not None and "entropy" in sft:
        made["kl"] = Band(-math.inf, settings.kl * sft["entropy"] * length)
    if settings.length is not None:
        made["response_length"] = Band(settings.length[0] * length, settings.length[1] * length)
    if settings.repetition is not None:
        made["repetition"] = Band(-math.inf, sft["repetition"] + settings.repetition)
    return made


_KINDS = {"kl": "kl", "response_length": "length", "repetition": "repetition"}
_VITALS = ("entropy", "response_length", "repetition")


class HackingAlarm:
    """Watches a run: `observe` after every step, `evaluated` after every evaluation on the run's prompts.

    Args:
        settings: when it is raised.
        evaluations: how many the run will make.
    """

    def __init__(self, settings: AlarmSettings, evaluations: int) -> None:
        self.settings, self.evaluations = settings, evaluations
        self.points: list[Evaluated] = []
        self.alarms: list[Alarm] = []
        self._sft: dict[str, float] = {}
        self._proxy: tuple[float, float] = (0.0, 0.0)
        self._first: tuple[float, float] = (0.0, 0.0)
        self._outside: dict[str, int] = {}

    @property
    def onset(self) -> int | None:
        """Returns the step of the first alarm."""
        return min((alarm.step for alarm in self.alarms), default=None)

    @property
    def best(self) -> Evaluated | None:
        """Returns the evaluation with the highest win rate, of equal ones the first; None before any."""
        return max(self.points, key=lambda point: point.win_rate, default=None)

    def observe(self, step: int, metrics: Mapping[str, float], responses: int) -> list[Alarm]:
        """Returns the new alarms of the bands.

        Args:
            step: from 1; the rollouts of the first one are the SFT policy's.
            metrics: of `describe`.
            responses: in the rollout batch.
        """
        self._proxy = metrics["proxy"], metrics["proxy_std"] / math.sqrt(max(1, responses - 1))
        if not self._sft:
            self._sft = {name: metrics[name] for name in _VITALS if name in metrics}
            self._first = self._proxy
            return []
        raised = []
        for name, band in bands(self._sft, self.settings).items():
            outside = 0 if band.holds(metrics[name]) else self._outside.get(name, 0) + 1
            self._outside[name] = outside
            if outside == self.settings.patience and not self._raised(_KINDS[name]):
                limit = f"above {band.high:.3g}" if metrics[name] > band.high else f"below {band.low:.3g}"
                text = f"{name} is {metrics[name]:.3g}, {limit}, for {outside} batches in a row"
                raised.append(Alarm(step, _KINDS[name], step - outside, text))
        self.alarms += raised
        return raised

    def evaluated(self, step: int, scores: Scores) -> list[Alarm]:
        """Returns the new alarms of a fall, given the scores of the policy after a step; the start scores 1/2 on each
        prompt."""
        if not scores:
            return []
        if not self.points:
            self.points.append(Evaluated(0, *self._first, dict.fromkeys(scores, 0.5)))
        self.points.append(Evaluated(step, *self._proxy, dict(scores)))
        alarm = None if self._raised("fall") else find_fall(self.points, self.settings, self.evaluations)
        if alarm is None:
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
            "proxy": list(self._proxy),
            "first": list(self._first),
            "outside": dict(self._outside),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.points = [Evaluated(**point) for point in state["points"]]
        self.alarms = [Alarm(**alarm) for alarm in state["alarms"]]
        self._sft, self._outside = dict(state["sft"]), dict(state["outside"])
        self._proxy, self._first = tuple(state["proxy"]), tuple(state["first"])
