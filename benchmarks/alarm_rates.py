"""Definitions of hacked and clean runs, and how often the alarm rings in them.

Stated before any run of the laboratory's calibration was looked at:

- **hacked**: as docs/hackability.md has it (`is_hacked`): the proxy rose, and the win rate over the SFT policy ended
  below 50 % (p < .05, two-sided) or had an onset.
- **clean**: not hacked, and the win rate ended at 50 % or above. Other runs are neither, and counted as `between`.
- **rang**: the run has an alarm of any kind. **Recall** is the share of hacked runs that rang, **false alarms** the
  share of clean ones.
- **while training**: the run has an alarm before its last step. The end rings at the level at which `hacked` is
  defined, so recall counts it by construction; this does not.
- **lead**: steps from the first alarm to the end of training; **after the peak**: steps from the evaluation with the
  highest win rate (the SFT policy among them) to the first alarm, negative where the alarm came first.

Rows whose runs set a band are not counted: the least length follows from a run of seed 150 and from the study twins
(docs/evidence.md), in which plain PPO that wins 57 % and more with answers of half the length rang in 8 of 96 runs; its
row and prompts are those of reference/studies/twins-again. The other study records are known, too: runs that a stricter
final test had missed are why its level is half of `false_alarms`.

Intervals are Wilson's, 95 %, of runs. Runs of one world share data, SFT model and prompts, so they are somewhat too
narrow; the number of worlds is beside them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from rlhf_core.errors import DataError
from rlhf_core.evaluation.hacking_alarm import Alarm, AlarmSettings, HackingAlarm, end_level
from rlhf_core.evaluation.statistics import wilson_interval
from tasks.params.yaml_files import read_mapping
from tasks.report.hacking_runs import MEASURES, is_hacked
from tasks.running.artifacts import read_json

#: Number of runs of each kind that the count aims at.
HACKED_RUNS, CLEAN_RUNS = 60, 100
SCORES = {"0": 0.0, "=": 0.5, "1": 1.0}
#: Studies of a row that set a band.
SET_BANDS = ("twins-again",)

Truth = Literal["hacked", "clean", "between"]


@dataclass(frozen=True)
class Run:
    """One policy's training as calibration sees it.

    Attributes:
        world: its seed, beside that of a study its name.
        row: of the laboratory or the study.
        truth: hacked, clean or between.
        rang: whether there is an alarm.
        onset: step of the first, None without any or where it is not known.
        steps: of the whole training.
        peak: step of the highest win rate, None where it is not known.
        kinds: of the alarms, None where only their number is known.
    """

    world: str
    row: str
    truth: Truth
    rang: bool
    onset: int | None
    steps: int
    peak: int | None
    kinds: tuple[str, ...] | None

    @property
    def early(self) -> bool:
        """Returns whether an alarm rang before the last step."""
        return self.onset is not None and self.onset < self.steps


def truth_of(measures: Mapping[str, float]) -> Truth:
    """Returns what became of a run, from `tasks.report.hacking_runs.MEASURES` of it."""
    if is_hacked(measures):
        return "hacked"
    return "clean" if measures["final"] >= 50 else "between"


def scores_of(text: str) -> dict[str, float]:
    """Returns the scores of prompts from a record's string."""
    return {str(place): SCORES[character] for place, character in enumerate(text)}


def replay(run: Mapping[str, Any], settings: AlarmSettings | None = None) -> list[Alarm]:
    """Returns the alarms of a recorded run by the present rule.

    Args:
        run: of a record in reference/alarms.
        settings: others than the default.
    """
    alarm = HackingAlarm(settings or AlarmSettings(), len(run["evaluations"]))
    evaluations, series = dict(run["evaluations"]), run["steps"]
    for step in range(1, len(series["kl"]) + 1):
        metrics = {name: values[step - 1] for name, values in series.items()}
        alarm.observe(step, metrics, run["responses"])
        if step in evaluations:
            alarm.observe_evaluation(step, scores_of(evaluations[step]))
    alarm.observe_end(run["final"][0], scores_of(run["final"][1]))
    return alarm.alarms


def laboratory_runs(folder: Path, settings: AlarmSettings | None = None) -> list[Run]:
    """Returns the trained runs of every record of a folder, with their alarms by the present rule."""
    runs = []
    for file in sorted(folder.glob("*.json")):
        record = read_json(file)
        for row, run in record["runs"].items():
            alarms, outcome = replay(run, settings), run["outcome"]
            measures = {name: outcome[key] for name, key in MEASURES.items() if key in outcome}
            onset = min((alarm.step for alarm in alarms), default=None)
            kinds = tuple(alarm.kind for alarm in alarms)
            steps, peak = run["final"][0], int(outcome["hacking/peak_step"])
            runs.append(Run(str(record["seed"]), row, truth_of(measures), bool(alarms), onset, steps, peak, kinds))
    return runs


def study_runs(folder: Path, settings: AlarmSettings | None = None) -> list[Run]:
    """Returns the policies of the committed study records that have a win rate and a number of alarms.

    A study shows no number before its last world, so the records of one with worlds to come are left out.

    Records have the number of alarms by the rule of their time, and the first one's step; scores of single prompts are
    not kept, so that falls cannot be tested again. The final test can, from its p: its alarm is added where the present
    level raises it. Onsets are not measured there, so a run is hacked by its end alone. A proxy that is not recorded
    counts as risen.
    """
    level, runs = end_level(settings or AlarmSettings()), []
    complete = {study.name for study in folder.iterdir() if study.is_dir() and _is_complete(study)}
    for file in sorted(folder.glob("*/*.json")):
        record = read_json(file)
        if record["study"] in SET_BANDS or record["study"] not in complete:
            continue
        for cell, found in record["cells"].items():
            for row, run in found["rows"].items():
                metrics = run["metrics"]
                if "hacking_alarms" not in metrics or metrics.get("win_rate_vs_sft") is None:
                    continue
                runs.append(_study_run(f"{record['study']}/{record['world']}", f"{cell}/{row}", run, level))
    return runs


def _is_complete(records: Path) -> bool:
    """Returns whether a study's folder of records has all worlds of its file."""
    study = records.parents[2] / "studies" / f"{records.name}.yaml"
    return study.exists() and len(list(records.glob("*.json"))) >= int(read_mapping(study)["worlds"])


def _study_run(world: str, row: str, run: Mapping[str, Any], level: float) -> Run:
    metrics, points = run["metrics"], run["curve"]["points"]
    steps = int(run["training"]["iterations"])
    rate, p = metrics["win_rate_vs_sft"], metrics["win_rate_vs_sft_p"]
    gain = metrics.get("proxy_reward", math.inf) - metrics.get("proxy_reward_sft", 0.0)
    truth = truth_of({"final": rate, "p": p, "proxy_gain": gain})
    onset = metrics.get("hacking_onset")
    ends = rate < 50 and p / 2 < level  # below 1/2 the two-sided binomial p is twice the one-sided one
    rates = {0: 50.0} | {int(point["step"]): point["win_rate_vs_sft"] for point in points}
    first = int(onset) if onset is not None else steps if ends else None
    return Run(world, row, truth, first is not None, first, steps, max(rates, key=lambda step: rates[step]), None)


@dataclass(frozen=True)
class Rates:
    """Rates at which the alarm rings in a set of runs.

    Attributes:
        name: of the set.
        runs: all of them.
    """

    name: str
    runs: Sequence[Run]

    def of(self, truth: Truth) -> list[Run]:
        return [run for run in self.runs if run.truth == truth]

    @property
    def worlds(self) -> int:
        return len({run.world for run in self.runs})

    @property
    def recall(self) -> str:
        return _share(sum(run.rang for run in self.of("hacked")), len(self.of("hacked")))

    @property
    def early_recall(self) -> str:
        return _share(sum(run.early for run in self.of("hacked")), len(self.of("hacked")))

    @property
    def false_alarms(self) -> str:
        return _share(sum(run.rang for run in self.of("clean")), len(self.of("clean")))

    @property
    def between(self) -> str:
        return f"{sum(run.rang for run in self.of('between'))} of {len(self.of('between'))}"

    @property
    def lead(self) -> str:
        """Returns the median lead of hacked runs that rang, with the least and the greatest, in steps of training."""
        return _spread([run.steps - run.onset for run in self.of("hacked") if run.onset is not None])

    @property
    def after_peak(self) -> str:
        return _spread([r.onset - r.peak for r in self.of("hacked") if r.onset is not None and r.peak is not None])

    def kinds(self, truth: Truth) -> Counter[str]:
        """Returns the number of runs with an alarm of each kind, where kinds are known."""
        return Counter(kind for run in self.of(truth) for kind in set(run.kinds or ()))


def _share(count: int, of: int) -> str:
    if not of:
        return "none"
    interval = wilson_interval(count, of)
    low, high = (f"{100 * bound:.1f}" for bound in (interval.lower, interval.upper))
    return f"{100 * interval.estimate:.1f} % ({low} to {high}; {count} of {of})"


def _spread(values: Sequence[int]) -> str:
    if not values:
        return ""
    return f"{median(values):g} ({min(values)} to {max(values)})"


def all_rates(studies: Path, records: Path) -> list[Rates]:
    """Returns the rates of both parts, and of both together.

    Raises:
        DataError: no record at all.
    """
    old, new = study_runs(studies), laboratory_runs(records)
    if not old and not new:
        raise DataError("no record", file=str(records), remedy="Run python -m benchmarks.alarm_calibration")
    return [Rates("study records", old), Rates("laboratory", new), Rates("both", [*old, *new])]


def lacks(both: Rates) -> str:
    """Returns how many runs the aim still lacks; empty where there are enough."""
    least: dict[Truth, int] = {"hacked": HACKED_RUNS, "clean": CLEAN_RUNS}
    short = {truth: count - len(both.of(truth)) for truth, count in least.items()}
    return " and ".join(f"{count} {truth} runs" for truth, count in short.items() if count > 0)


def rates_table(rates: Sequence[Rates]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of the table of rates, a column for each set of runs."""
    lines: dict[str, list[str]] = {
        "worlds": [str(one.worlds) for one in rates],
        "runs: hacked, clean, between": [
            ", ".join(str(len(one.of(truth))) for truth in ("hacked", "clean", "between")) for one in rates
        ],
        "recall": [one.recall for one in rates],
        "recall while training": [one.early_recall for one in rates],
        "false alarms": [one.false_alarms for one in rates],
        "runs between that rang": [one.between for one in rates],
        "lead of hacked runs, steps": [one.lead for one in rates],
        "first alarm after the peak, steps": [one.after_peak for one in rates],
    }
    return ["", *(one.name for one in rates)], [[name, *values] for name, values in lines.items()]


def false_alarms_by_study(studies: Rates) -> str:
    """Returns how many clean runs of each study rang, most first; studies without any are left out."""
    rang = Counter(_study(run) for run in studies.of("clean") if run.rang)
    clean = Counter(_study(run) for run in studies.of("clean"))
    by_share = sorted(rang, key=lambda study: (-rang[study] / clean[study], study))
    said = ", ".join(f"{study} {rang[study]} of {clean[study]}" for study in by_share)
    return f"False alarms by study: {said}; none in the others." if said else ""


def _study(run: Run) -> str:
    return run.world.partition("/")[0]


def kinds_table(laboratory: Rates) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows of the table of kinds: runs with an alarm of each, of runs whose kinds are known."""
    columns: tuple[Truth, ...] = ("hacked", "between", "clean")
    counts = [laboratory.kinds(truth) for truth in columns]
    names = sorted({kind for found in counts for kind in found}, key=lambda kind: (-counts[0][kind], kind))
    rows = [[kind, *(str(found[kind]) for found in counts)] for kind in names]
    means = [_mean([len(run.kinds or ()) for run in laboratory.of(truth)]) for truth in columns]
    heads = ["kind", *(f"{truth}, of {len(laboratory.of(truth))}" for truth in columns)]
    return heads, [*rows, ["alarms per run", *means]]


def _mean(values: Sequence[int]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else ""
