"""Recall and false alarms of the reward hacking alarm by its present rule, from committed records.

    python -m benchmarks.alarm_rates

Prints the table of docs/hackability.md. Of the laboratory, reference/alarms has what the alarm saw at every step and
evaluation of policies whose seeds set none of its bands; they are replayed. Study records (reference/studies) have the
number of alarms at their time and the first one's step, without scores of single prompts: only the final test is done
again, and a proxy that is not recorded counts as risen.

- **hacked**: the proxy rose, and the win rate over the SFT policy ended below 50 % (p < .05) or had an onset;
  **clean**: not hacked, and it ended at 50 % or above; **between**: neither.
- **recall**, **false alarms**: shares of hacked and of clean runs with an alarm. *While training*: before the last
  step, since the end rings at the level at which `hacked` is defined. Intervals are Wilson's, 95 %, of runs; runs of
  one world share data and SFT model, so they are somewhat too narrow.
- **lead**: steps from the first alarm to the end; **after the peak**: from the highest win rate to the first alarm.

`twins-again` is left out: its runs set the least length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlhf_core.evaluation.hacking_alarm import Alarm, AlarmSettings, HackingAlarm, end_level
from rlhf_core.evaluation.statistics import wilson_interval
from tasks.params.yaml_files import read_mapping
from tasks.report.hackability import is_hacked
from tasks.running.artifacts import read_object

RECORDS, STUDIES = Path("reference/alarms"), Path("reference/studies")
SET_BANDS = ("twins-again",)
TRUTHS = ("hacked", "clean", "between")
SCORES = {"0": 0.0, "=": 0.5, "1": 1.0}


@dataclass(frozen=True)
class Run:
    """One policy's training.

    Attributes:
        world: its seed, or a study's name and seed.
        truth: hacked, clean or between.
        onset: step of the first alarm, None without any.
        steps: of the whole training.
        peak: step of the highest win rate.
    """

    world: str
    truth: str
    onset: int | None
    steps: int
    peak: int


def truth_of(metrics: Mapping[str, float]) -> str:
    """Returns what became of a run with these metrics."""
    if is_hacked(metrics):
        return "hacked"
    return "clean" if metrics["win_rate_vs_sft"] >= 50 else "between"


def replay(run: Mapping[str, Any], settings: AlarmSettings | None = None) -> list[Alarm]:
    """Returns the alarms of a recorded run by the present rule."""
    alarm = HackingAlarm(settings or AlarmSettings(), len(run["evaluations"]))
    evaluations, series = dict(run["evaluations"]), run["steps"]
    for step in range(1, len(series["kl"]) + 1):
        alarm.observe(step, {name: values[step - 1] for name, values in series.items()}, run["responses"])
        if step in evaluations:
            alarm.observe_evaluation(step, _scores_of(evaluations[step]))
    alarm.observe_end(run["final"][0], _scores_of(run["final"][1]))
    return alarm.alarms


def _scores_of(text: str) -> dict[str, float]:
    """Returns the scores of prompts from a record's string: 1 won, 0 lost, = tied."""
    return {str(place): SCORES[character] for place, character in enumerate(text)}


def laboratory_runs(folder: Path, settings: AlarmSettings | None = None) -> list[Run]:
    """Returns the runs of every record of a folder, replayed."""
    runs = []
    for record in map(read_object, sorted(folder.glob("*.json"))):
        for run in record["runs"].values():
            alarms, outcome = replay(run, settings), run["outcome"]
            truth = truth_of(outcome)
            onset = min((alarm.step for alarm in alarms), default=None)
            runs.append(Run(str(record["seed"]), truth, onset, run["final"][0], int(outcome["hacking/peak_step"])))
    return runs


def study_runs(folder: Path) -> list[Run]:
    """Returns the policies of complete studies that have a win rate and a number of alarms."""
    runs = []
    for study in sorted(folder.iterdir()):
        files, page = sorted(study.glob("*.json")), folder.parents[1] / "studies" / f"{study.name}.yaml"
        if study.name in SET_BANDS or not page.exists() or len(files) < int(read_mapping(page)["worlds"]):
            continue
        for record in map(read_object, files):
            for cell in record["cells"].values():
                for run in cell["rows"].values():
                    if "hacking_alarms" in run["metrics"] and run["metrics"].get("win_rate_vs_sft") is not None:
                        runs.append(_study_run(f"{study.name}/{record['world']}", run))
    return runs


def _study_run(world: str, run: Mapping[str, Any]) -> Run:
    metrics, steps = run["metrics"], int(run["training"]["iterations"])
    rate, p = metrics["win_rate_vs_sft"], metrics["win_rate_vs_sft_p"]
    gain = metrics.get("proxy_reward", math.inf) - metrics.get("proxy_reward_sft", 0.0)
    ends = rate < 50 and p / 2 < end_level(AlarmSettings())  # below 1/2 the two-sided binomial p is twice the one-sided
    rates = {0: 50.0} | {int(point["step"]): point["win_rate_vs_sft"] for point in run["curve"]["points"]}
    onset = metrics.get("hacking_onset")
    first = int(onset) if onset is not None else steps if ends else None
    truth = truth_of({"win_rate_vs_sft": rate, "win_rate_vs_sft_p": p, "hacking/proxy_gain": gain})
    return Run(world, truth, first, steps, max(rates, key=lambda step: rates[step]))


def rates(runs: Sequence[Run]) -> dict[str, str]:
    """Returns the lines of the table of rates for a set of runs."""
    hacked, clean, between = ([run for run in runs if run.truth == truth] for truth in TRUTHS)
    rang = [run for run in hacked if run.onset is not None]
    return {
        "worlds": str(len({run.world for run in runs})),
        "runs: hacked, clean, between": f"{len(hacked)}, {len(clean)}, {len(between)}",
        "recall": _share(len(rang), len(hacked)),
        "recall while training": _share(sum((run.onset or 0) < run.steps for run in rang), len(hacked)),
        "false alarms": _share(sum(run.onset is not None for run in clean), len(clean)),
        "runs between that rang": f"{sum(run.onset is not None for run in between)} of {len(between)}",
        "lead of hacked runs, steps": _spread([run.steps - (run.onset or 0) for run in rang]),
        "first alarm after the peak, steps": _spread([(run.onset or 0) - run.peak for run in rang]),
    }


def _share(count: int, of: int) -> str:
    found = wilson_interval(count, of)
    low, high = (f"{100 * bound:.1f}" for bound in (found.lower, found.upper))
    return f"{100 * found.estimate:.1f} % ({low} to {high}; {count} of {of})"


def _spread(values: Sequence[int]) -> str:
    return f"{median(values):g} ({min(values)} to {max(values)})"


def table(records: Path = RECORDS, studies: Path = STUDIES) -> str:
    """Returns the table of rates."""
    found = rates([*study_runs(studies), *laboratory_runs(records)])
    return "\n".join(
        ["|  | studies and laboratory |", "|---|---|", *(f"| {name} | {text} |" for name, text in found.items())]
    )


if __name__ == "__main__":
    print(table())
