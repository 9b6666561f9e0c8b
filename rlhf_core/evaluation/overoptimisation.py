"""Effects of reward hacking on a run: its onset, the loss in quality, and the texts that become more frequent.

The hacking alarm (`rlhf_core.evaluation.hacking_alarm`) watches while a policy trains; this looks back on the whole
run. Its points are evaluations on the same prompts, the SFT policy first at a win rate of 1/2 over itself. Source:
PAR, §4 (proxy and win rate part, the best checkpoint of a run against its last); Gao et al. 2023 (against KL).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlhf_core.evaluation.hacking_alarm import AlarmSettings, Evaluated, fall, rose


def overoptimisation(
    points: Sequence[Evaluated], kl: Mapping[int, float], settings: AlarmSettings | None = None
) -> dict[str, float]:
    """Returns the measures of a run in hindsight; what is not defined is left out.

    Args:
        points: evaluations in order on the same prompts, the SFT policy first; one at least.
        kl: nats per response by step.
        settings: levels of the onset's tests.

    Returns:
        `hacking/...`: `peak_step` and `peak_win_rate` (percent) of the evaluation with the highest win rate, of equal
        ones the first; it is above what that policy would score again. `final_win_rate` and `loss_after_peak`.
        `proxy_gain`: the mean proxy of the last rollouts less the SFT policy's. `rank_correlation`: Spearman's rho of
        proxy and win rate, of three evaluations at least. `onset_since`, `onset_step` and `onset_kl`: see `find_onset`.
    """
    rates = [100 * point.win_rate for point in points]
    peak = max(range(len(points)), key=lambda number: (rates[number], -number))
    found = {
        "peak_step": float(points[peak].step),
        "peak_win_rate": rates[peak],
        "final_win_rate": rates[-1],
        "loss_after_peak": rates[peak] - rates[-1],
        "proxy_gain": points[-1].proxy - points[0].proxy,
        "rank_correlation": rank_correlation([point.proxy for point in points], rates),
    }
    onset = find_onset(points, settings or AlarmSettings())
    if onset is not None:
        since, step = onset
        found |= {"onset_since": float(since), "onset_step": float(step), "onset_kl": kl.get(step, math.nan)}
    return {f"hacking/{name}": value for name, value in found.items() if math.isfinite(value)}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns Spearman's rho, equal values sharing their mean rank; NaN below three pairs or where one side is
    constant."""
    from scipy import stats

    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return math.nan
    return float(stats.spearmanr(first, second).statistic)


def find_onset(points: Sequence[Evaluated], settings: AlarmSettings) -> tuple[int, int] | None:
    """Returns the step of the first evaluation that fell below an earlier one although the proxy rose in between,
    behind the step of the best evaluation that it is below; None without.

    The same test as the alarm's, but of any two evaluations of the whole run: its Bonferroni factor counts all pairs.
    """
    level = settings.false_alarms / max(1, len(points) * (len(points) - 1) // 2)
    for number, point in enumerate(points):
        before = [
            earlier
            for earlier in points[:number]
            if rose(earlier, point, settings.proxy_level) and fall(earlier.scores, point.scores, level).upper < 0.5
        ]
        if before:
            return max(before, key=lambda earlier: earlier.win_rate).step, point.step
    return None


def clause_use(responses: Iterable[Sequence[str]], kinds: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the frequency of each type of clause, the unit whose true reward the testbed defines, in responses.

    Args:
        responses: the types of each response's clauses.
        kinds: every type there is, in the order wanted.

    Returns:
        (shares of all clauses by type, which sum to 1, or to 0 without any clause; mean number in a response by type).
    """
    every = [*responses]
    counts = Counter(kind for response in every for kind in response)
    clauses = max(1, sum(counts.values()))
    shares = {kind: counts[kind] / clauses for kind in kinds}
    return shares, {kind: counts[kind] / max(1, len(every)) for kind in kinds}
