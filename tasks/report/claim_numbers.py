"""The numbers that claims compare: recorded metrics, metrics derived from a run's histories, and win rates over rows.

A metric's name is one of `metrics.json`, a match such as `wins/judge/others` (`matches`), or one of `DERIVED`: the
part before the first slash names the function, the rest is its argument (`mean/value_loss`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.published.row_map import data_set, metrics_of_paper, recipe_row
from tasks.report.matches import EVALUATORS, OTHERS, Matches, match_of
from tasks.report.measurements import BySeed, Measurements, broken, measurements
from tasks.report.outputs import ResultTree, StageOutput
from tasks.report.win_rates import Outputs, TableRuns


def mean_over_updates(output: StageOutput, name: str) -> float | None:
    """Returns the mean of a field of the history over the updates of a run, such as `value_loss`."""
    values = [float(row[name]) for row in output.history if row.get(name) is not None]
    return sum(values) / len(values) if values else None


def last_of_history(output: StageOutput, name: str) -> float | None:
    """Returns the last value of a field of the history, such as `train_accuracy`."""
    found = [float(row[name]) for row in output.history if row.get(name) is not None]
    return found[-1] if found else None


def percent(output: StageOutput, metric: str) -> float | None:
    """Returns a share of metrics.json in percent."""
    return 100 * output.metrics[metric] if metric in output.metrics else None


def calibration_gap(output: StageOutput, _: str) -> float | None:
    """Returns the mean distance of preference score and win rate over the evaluations of a run, in points."""
    rows = [row for row in output.rows("checkpoints.jsonl") if {"preference_score", "win_rate_vs_sft"} <= row.keys()]
    gaps = [abs(100 * float(row["preference_score"]) - float(row["win_rate_vs_sft"])) for row in rows]
    return sum(gaps) / len(gaps) if gaps else None


def steps_to_answer(output: StageOutput, _: str = "") -> float | None:
    """Returns the mean steps between the first error of wrong solutions and their answer. Source: RLMEC, Figure 5."""
    wrong = [row for row in output.generations if row.get("right") is False and row.get("first_error") is not None]
    distances = [max(0, int(row["steps"]) - 1 - int(row["first_error"])) for row in wrong]
    return sum(distances) / len(distances) if distances else None


def inconsistency(output: StageOutput, aspect: str) -> float | None:
    """Returns the percentage of decided pairs where an aspect prefers the answer that the holistic reward does not."""
    return output.metrics.get(f"inconsistency/{aspect}")


def greedy_wins(output: StageOutput, aspect: str) -> float | None:
    """Returns the win rate in percent of greedy over sampled answers by an aspect."""
    return output.metrics.get(f"win_rate/{aspect}")


def holistic_distance(output: StageOutput, aspect: str) -> float | None:
    """Returns the points between the win rates of greedy answers by an aspect and by the holistic reward."""
    own, holistic = (output.metrics.get(f"win_rate/{name}") for name in (aspect, "holistic"))
    return None if own is None or holistic is None else abs(own - holistic)


#: Metrics that are computed from the files of one run and an argument; None where the run does not have them.
DERIVED: dict[str, Callable[[StageOutput, str], float | None]] = {
    "mean": mean_over_updates,
    "last": last_of_history,
    "percent": percent,
    "calibration_gap": calibration_gap,
    "steps_to_answer": steps_to_answer,
    "inconsistency": inconsistency,
    "greedy_wins": greedy_wins,
    "holistic_distance": holistic_distance,
}
#: Derived metrics without an argument.
WHOLE = ("calibration_gap", "steps_to_answer")


def has_metric(paper: str, metric: str, rows: Collection[str]) -> bool:
    """Returns whether claims of a paper can name a metric; `rows` are the rows of its matches."""
    name, _, argument = metric.partition("/")
    if name in DERIVED:
        return not argument if name in WHOLE else bool(argument)
    match = match_of(metric)
    if match is not None:
        return match.kind == "wins" and match.by in EVALUATORS.values() and match.other in (OTHERS, *rows)
    return metric in metrics_of_paper(paper)


@dataclass(frozen=True)
class ClaimsFile:
    """The top level of a claims file.

    Args:
        numbers_sentence: what the numbers are; `{verdicts}` is replaced by 'true' or 'judged': true rewards or a
            judge decide win rates.
        alike_sentence: when two of them count as alike; `{margin}` is replaced by the margin.
        needs: what has to be run for any claim to have a verdict.
        metric: of parts that name none; the page calls it by the row's name alone.
        claims: {id: {says, source, parts}}.
        margin: of parts that give none.
        titles: what the page calls a metric.
        sft_by_prefix: the SFT model of rows by the prefix of their names; the longest that fits holds.
        rival_groups: rows that are each other's `others` in a match, by the name of their task.
    """

    numbers_sentence: str
    needs: str
    metric: str
    claims: Mapping[str, Any]
    alike_sentence: str = ""
    margin: float = 0.0
    titles: Mapping[str, str] = field(default_factory=dict)
    sft_by_prefix: Mapping[str, str] = field(default_factory=dict)
    rival_groups: Mapping[str, Any] = field(default_factory=dict)

    def title(self, metric: str) -> str:
        """Returns the page's name of a metric."""
        return self.titles.get(metric, metric)

    def label(self, row: str, metric: str) -> str:
        """Returns the page's name of a metric of a row."""
        return row if metric == self.metric else f"{row}, {self.title(metric)}"

    def model_of(self, row: str) -> str | None:
        """Returns the SFT model that a row starts from; None where the file does not say."""
        fitting = [prefix for prefix in self.sft_by_prefix if row.startswith(prefix)]
        return self.sft_by_prefix[max(fitting, key=len)] if fitting else None


class Numbers:
    """The measured numbers of a paper's rows, and what its claims file says of all of them.

    Args:
        paper: its key.
        file: the claims file.
        rows: every row that is compared.
        tree: the results.

    Attributes:
        broken: rows that are below their own SFT model even at their best evaluation.
    """

    def __init__(self, paper: str, file: ClaimsFile, rows: Sequence[str], tree: ResultTree) -> None:
        self.file = file
        places = {row: recipe_row(paper, row) for row in rows}
        self.outputs: Outputs = {row: tree.of(place) for row, place in places.items()}
        models = {name: tree.of(recipe_row(paper, name)) for name in file.sft_by_prefix.values()}
        sft_outputs = {row: models[name] for row in rows if (name := file.model_of(row))}
        self.runs = TableRuns(self.outputs, sft_outputs, tree.alpaca_calibrations(data_set(paper)), paper, tree)
        task_of = {row: task for task, members in file.rival_groups.items() for row in members}
        self.matches = Matches(self.outputs, tree.root, task_of)
        self._known: dict[str, Measurements] = {}
        self.broken = {row for row in rows if places[row].kind == "policy" and broken(self.outputs[row])}

    def of(self, row: str, metric: str) -> BySeed:
        """Returns a metric of a row by seed; empty where it was not measured."""
        name, _, argument = metric.partition("/")
        if name in DERIVED:
            found = {seed: DERIVED[name](output, argument) for seed, output in self.outputs[row].items()}
            return {seed: value for seed, value in found.items() if value is not None}
        match = match_of(metric)
        if match is not None:
            return self.matches.measured(row, match)
        if metric not in self._known:
            self._known[metric] = measurements(self.runs, metric)
        return self._known[metric].get(row, {})
