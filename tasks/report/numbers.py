"""A metric of every run of a table or of a paper's claims, as row -> seed -> value.

Most metrics are read from a run's `metrics.json`. Others are computed from its files by a function of `DERIVED`: the
part of a name before the first slash is the function's, the rest its argument (`mean/value_loss`). They need the SFT
model's answers, another row's, or the data set's calibration. Win rates are by true rewards where both sides have them,
else by the judge whom the evaluation asked. With true rewards or calibration rows the difficulties of instructions
depend on no run of the table, so that a run's number is the same beside any other rows; a judge's over the SFT model
are fitted over the paper's policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlhf_core.evaluation.judges.games import recorded_game
from rlhf_core.evaluation.protocols import Protocol, Tally, tally_of_values
from rlhf_core.published.row_map import data_set, recipe_row, rows_of_paper
from tasks.report.games import BENCHMARK, Matches, judged, match_of
from tasks.report.length_control import (
    Difficulties,
    JudgedRun,
    calibration_of,
    fitted_difficulties,
    length_controlled,
    preferences_of,
    standardised,
)
from tasks.report.outputs import Outputs, ResultTree, StageOutput
from tasks.report.worlds import BySeed

#: Row name -> seed -> value in the column's unit.
Measurements = Mapping[str, BySeed]
#: Value of `reference` in judgements on answers against the SFT model's, see `tasks.evaluating.sft_comparison`.
SFT = "sft"
#: Metrics that compare a row with another row, as in `win_rate_over/<row>`.
OVER = ("win_rate_over", "lc_win_rate_over")
#: Win rate over the SFT model -> benchmark that it is on.
OVER_SFT = {
    "win_rate_vs_sft": BENCHMARK,
    "peak_win_rate_vs_sft": BENCHMARK,
    "lc_win_rate_vs_sft": BENCHMARK,
    "peak_lc_win_rate_vs_sft": BENCHMARK,
    "ood_win_rate_vs_sft": "ood",
    "arena_win_rate_vs_sft": "arena",
}


@dataclass(frozen=True)
class TableRuns:
    """The runs behind a table or a paper's claims.

    Attributes:
        outputs: of each row.
        sft_outputs: for each row the outputs of the SFT model that it starts from.
        tasks: of the rows that are held against each other (`tasks.report.games`).
        mains: outputs of main rows that may be no rows of the table.
    """

    tree: ResultTree
    paper: str
    outputs: Outputs
    sft_outputs: Outputs
    tasks: Mapping[str, str | None] = field(default_factory=dict)
    mains: Outputs = field(default_factory=dict)

    @cached_property
    def matches(self) -> Matches:
        """Returns the rows against each other."""
        return Matches({**self.mains, **self.outputs}, self.tree, self.tasks)

    @cached_property
    def _measured(self) -> dict[str, Measurements]:
        return {}

    def of(self, row: str, metric: str) -> BySeed:
        """Returns a metric of a row by seed; empty where it was not measured."""
        if (match := match_of(metric)) is not None:
            return self.matches.measured(row, match)
        if metric not in self._measured:
            self._measured[metric] = measurements(self, metric)
        return self._measured[metric].get(row, {})

    def each(self) -> list[MeasuredRun]:
        """Returns every run."""
        rows = self.outputs.items()
        return [MeasuredRun(self, name, seed, output) for name, by_seed in rows for seed, output in by_seed.items()]

    def calibration(self, seed: int) -> list[dict[str, Any]]:
        """Returns the judged longer and shorter versions of AlpacaEval's baseline answers; empty without any."""
        data = data_set(self.paper)
        rows: list[dict[str, Any]] = self.tree.once(
            ("calibration rows", data, seed), lambda: self.tree.data_rows(data, seed, "alpaca_calibration.jsonl")
        )
        return rows


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a table, and the SFT model that it starts from."""

    runs: TableRuns
    name: str
    seed: int
    output: StageOutput

    @property
    def sft(self) -> StageOutput | None:
        return self.runs.sft_outputs.get(self.name, {}).get(self.seed)

    @property
    def is_sft(self) -> bool:
        return self.sft is not None and self.sft.path == self.output.path

    def over(self, other: str) -> tuple[Tally, StageOutput] | None:
        """Returns the verdicts on its answers over another row's, with that row's run; None without verdicts."""
        found: tuple[Tally, StageOutput] | None = self.runs.tree.once(
            ("over", self.output.path, other), lambda: self._over(other)
        )
        return found

    def _over(self, other: str) -> tuple[Tally, StageOutput] | None:
        against = self.runs.tree.of(recipe_row(self.runs.paper, other)).get(self.seed)
        if against is None or self.name == other:
            return None
        own, other_rewards = (true_rewards(side.generations, BENCHMARK) for side in (self.output, against))
        if own and other_rewards:
            return tally_of_values(own, other_rewards), against
        protocol = self.output.judge_settings.get("protocol")
        tally = protocol and judged(self.runs.tree, self.output, against, Protocol(**protocol))
        return (tally, against) if tally else None

    def __str__(self) -> str:
        return f"{self.name} at seed {self.seed}"


def true_rewards(answers: Sequence[Mapping[str, Any]], benchmark: str) -> dict[str, float]:
    """Returns the true rewards of a benchmark's answers by prompt, where they are known."""
    return {
        str(row["id"]): float(row["true_reward"])
        for row in answers
        if row["benchmark"] == benchmark and row["true_reward"] is not None
    }


def _tally_over_sft(output: StageOutput, sft: StageOutput, benchmark: str, *, peak: bool = False) -> Tally:
    """Returns a run's verdicts over its SFT model, none where there is no judge and no true reward."""
    name = ("peak_" if peak else "") + ("" if benchmark == BENCHMARK else f"{benchmark}_") + "win_rate_vs_sft"
    if name in output.win_rate_facts:
        protocol = Protocol(**output.win_rate_facts[name]["protocol"])
        rows = output.rows("peak_judgements.jsonl") if peak else output.judgements
        games = [row for row in rows if row["benchmark"] == benchmark and row.get("reference") == SFT]
        return protocol.tally([recorded_game(row) for row in games])
    return tally_of_values(true_rewards(_answers(output, peak), benchmark), true_rewards(sft.generations, benchmark))


def _answers(output: StageOutput, peak: bool) -> Sequence[Mapping[str, Any]]:
    return output.rows("peak_generations.jsonl") if peak else output.generations


def _preferences(output: StageOutput, sft: StageOutput, *, peak: bool = False) -> JudgedRun:
    tally = _tally_over_sft(output, sft, BENCHMARK, peak=peak)
    return preferences_of(tally, _answers(output, peak), sft.generations, BENCHMARK)


def _difficulties(run: MeasuredRun, sft: StageOutput, rate: str) -> Difficulties:
    """Returns the difficulty of each prompt for a length-controlled win rate over the SFT model: by the SFT model's
    true rewards, else fitted over the paper's policies that the same judge compared with it."""
    if rate not in run.output.win_rate_facts:
        return standardised(true_rewards(sft.generations, BENCHMARK))
    facts, tree = run.output.win_rate_facts[rate], run.runs.tree

    def alike(peer: StageOutput) -> bool:
        own = peer.win_rate_facts.get("win_rate_vs_sft", {})
        return all(own.get(name) == facts[name] for name in ("sft", "judge", "protocol", "benchmark"))

    def fit() -> Difficulties:
        found = (tree.of(place).get(run.seed) for place in rows_of_paper(run.runs.paper) if place.kind == "policy")
        prompts = [str(row["id"]) for row in sft.generations if row["benchmark"] == BENCHMARK]
        return fitted_difficulties([_preferences(one, sft) for one in found if one is not None and alike(one)], prompts)

    difficulties: Difficulties = tree.once((sft.path, facts["judge"], repr(facts["protocol"])), fit)
    return difficulties


def _alpaca_length_controlled(run: MeasuredRun, _: str) -> float | None:
    """Returns AlpacaEval's length-controlled win rate in percent; None where no variants of the baseline were judged,
    from which the difficulties are."""
    rows, output = run.runs.calibration(run.seed), run.output
    if not rows or "alpaca_lc" in output.blank:
        return None
    answers = {str(row["id"]): row for row in output.generations if row["benchmark"] == BENCHMARK}
    verdicts = [
        (answers[str(row["id"])], row["preference"] if row["valid"] and row["preference"] is not None else math.nan)
        for row in output.judgements
        if row["benchmark"] == BENCHMARK and str(row["id"]) in answers and "reference" not in row
    ]
    if not verdicts:
        return None
    own = JudgedRun(
        [str(answer["id"]) for answer, _ in verdicts],
        [preference for _, preference in verdicts],
        [answer["n_chars"] for answer, _ in verdicts],
        [len(answer["baseline"]) for answer, _ in verdicts],
    )
    key = ("calibration", data_set(run.runs.paper), run.seed)
    return length_controlled(str(run), own, *run.runs.tree.once(key, lambda: calibration_of(rows)))


def _length_controlled_over_sft(run: MeasuredRun, _: str, *, peak: bool = False) -> float | None:
    """Returns the length-controlled win rate of a run's answers over the SFT model in percent."""
    if run.sft is None or run.is_sft:
        return None
    own = _preferences(run.output, run.sft, peak=peak)
    if not any(map(math.isfinite, own.preferences)):
        return None
    rate = "peak_win_rate_vs_sft" if peak else "win_rate_vs_sft"
    return length_controlled(str(run), own, _difficulties(run, run.sft, rate))


def _arena_over_sft(run: MeasuredRun, _: str) -> float | None:
    """Returns the win rate over the SFT model on Arena-Hard's prompts in percent, ties half."""
    scores = {} if run.sft is None else _tally_over_sft(run.output, run.sft, "arena").scores
    return 100 * sum(scores.values()) / len(scores) if scores else None


def _over_row(run: MeasuredRun, other: str) -> float | None:
    found = run.over(other)
    return found[0].win_rate if found else None


def _length_controlled_over_row(run: MeasuredRun, other: str) -> float | None:
    """Returns a length-controlled win rate over another row. The difficulties are that row's true rewards, or fitted
    over the table's rows."""
    found = run.over(other)
    if found is None or found[0].win_rate is None:
        return None
    against = found[1]

    def of(one: MeasuredRun, tally: Tally) -> JudgedRun:
        return preferences_of(tally, one.output.generations, against.generations, BENCHMARK)

    if rewards := true_rewards(against.generations, BENCHMARK):
        difficulties = standardised(rewards)
    else:
        prompts = [str(row["id"]) for row in against.generations if row["benchmark"] == BENCHMARK]
        peers = [(one, games[0]) for one in run.runs.each() if one.seed == run.seed and (games := one.over(other))]
        difficulties = fitted_difficulties([of(*each) for each in peers], prompts)
    return length_controlled(str(run), of(run, found[0]), difficulties)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _of_history(run: MeasuredRun, name: str) -> list[float]:
    return [float(row[name]) for row in run.output.history if row.get(name) is not None]


def _percent(run: MeasuredRun, metric: str) -> float | None:
    return 100 * run.output.metrics[metric] if metric in run.output.metrics else None


def _calibration_gap(run: MeasuredRun, _: str) -> float | None:
    """Returns the mean distance of preference score and win rate over the evaluations of a run, in points."""
    rows = run.output.rows("checkpoints.jsonl")
    known = [row for row in rows if {"preference_score", "win_rate_vs_sft"} <= row.keys()]
    return _mean([abs(100 * float(row["preference_score"]) - float(row["win_rate_vs_sft"])) for row in known])


def steps_to_answer(generations: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the steps between the first error of each wrong solution and its answer. Source: RLMEC, Figure 5."""
    wrong = [row for row in generations if row.get("right") is False and row.get("first_error") is not None]
    return [max(0, int(row["steps"]) - 1 - int(row["first_error"])) for row in wrong]


def _holistic_distance(run: MeasuredRun, aspect: str) -> float | None:
    """Returns the points between the win rates of greedy answers by an aspect and by the holistic reward."""
    own, holistic = (run.output.metrics.get(f"win_rate/{name}") for name in (aspect, "holistic"))
    return None if own is None or holistic is None else abs(own - holistic)


#: Metrics that no run records, of tables: they need the SFT model's answers or the data set's calibration.
JOINT_METRICS: dict[str, Callable[[MeasuredRun, str], float | None]] = {
    "alpaca_lc": _alpaca_length_controlled,
    "lc_win_rate_vs_sft": _length_controlled_over_sft,
    "peak_lc_win_rate_vs_sft": lambda run, _: _length_controlled_over_sft(run, "", peak=True),
    "arena_win_rate_vs_sft": _arena_over_sft,
}
#: Metrics of claims with what their argument is; of those with '' there is none.
OF_CLAIMS: dict[str, tuple[str, Callable[[MeasuredRun, str], float | None]]] = {
    "mean": ("field of the history", lambda run, name: _mean(_of_history(run, name))),
    "last": ("field of the history", lambda run, name: next(reversed(_of_history(run, name)), None)),
    "percent": ("share of metrics.json", _percent),
    "calibration_gap": ("", _calibration_gap),
    "steps_to_answer": ("", lambda run, _: _mean(steps_to_answer(run.output.generations))),
    "inconsistency": ("aspect", lambda run, aspect: run.output.metrics.get(f"inconsistency/{aspect}")),
    "greedy_wins": ("aspect", lambda run, aspect: run.output.metrics.get(f"win_rate/{aspect}")),
    "holistic_distance": ("aspect", _holistic_distance),
}
DERIVED: dict[str, Callable[[MeasuredRun, str], float | None]] = {
    **JOINT_METRICS,
    "win_rate_over": _over_row,
    "lc_win_rate_over": _length_controlled_over_row,
    **{name: function for name, (_, function) in OF_CLAIMS.items()},
}


def has_itself(metric: str) -> bool:
    """Returns whether the SFT model has a metric by definition, such as 50 % wins against itself."""
    return metric in OVER_SFT or metric.startswith("peak_")


def measurements(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric of every row of a table, by seed; judged numbers that are blank in a run are left out."""
    name, _, argument = metric.partition("/")
    value = DERIVED.get(name)
    found: dict[str, dict[int, float]] = {}
    for run in runs.each():
        number = value(run, argument) if value else run.output.metrics.get(metric)
        if number is not None:
            found.setdefault(run.name, {})[run.seed] = number
    if not has_itself(metric) or (metric in OVER_SFT and not (found or _sft_has_true_rewards(runs))):
        return found
    for run in runs.each():
        own = 50.0 if metric in OVER_SFT else run.output.metrics.get(metric.removeprefix("peak_"))
        if run.is_sft and own is not None:
            found[run.name] = {**found.get(run.name, {}), run.seed: own}
    return found


def _sft_has_true_rewards(runs: TableRuns) -> bool:
    """Returns whether the SFT model's answers have true rewards, so that its own 50 % means something."""
    outputs = (output for by_seed in runs.sft_outputs.values() for output in by_seed.values())
    return any(row.get("true_reward") is not None for output in outputs for row in output.generations)


def broken(outputs: Mapping[int, StageOutput]) -> bool:
    """Returns whether a row is below the SFT model that it started from even at its best evaluation, in the mean over
    worlds. The best is measured on all test prompts where a run keeps its weights, else the highest evaluation."""
    best = []
    for output in outputs.values():
        rates = [output.metrics[name] for name in ("win_rate_vs_sft", "peak_win_rate_vs_sft") if name in output.metrics]
        if "peak_win_rate_vs_sft" not in output.metrics:
            rows = output.rows("checkpoints.jsonl")
            rates += [float(row["win_rate_vs_sft"]) for row in rows if row.get("win_rate_vs_sft") is not None]
        best += [max(rates)] if rates else []
    return bool(best) and sum(best) / len(best) < 50


def win_rate_source(tree: ResultTree, paper: str) -> str:
    """Returns what decides the win rates of a paper's policies, for captions and axes: 'true' or 'judged'."""
    return verdicts_word({row.name: tree.of(row) for row in rows_of_paper(paper) if row.kind == "policy"})


def verdicts_word(outputs: Outputs) -> str:
    """Returns the source of the win rates of some runs: 'judged' where a judge decided one, else 'true'."""
    return "judged" if any(out.win_rate_facts for by_seed in outputs.values() for out in by_seed.values()) else "true"
