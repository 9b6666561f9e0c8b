"""A metric of every run of a table or of a paper's claims.

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
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.evaluation.judges.games import recorded_game
from rlhf_core.evaluation.protocols import Protocol, Tally, true_tally
from rlhf_core.published.row_map import recipe_row, rows_of_paper
from tasks.report.games import BENCHMARK, Judges, judged
from tasks.report.length_control import (
    Difficulties,
    Judged,
    calibration_of,
    fitted_difficulties,
    length_controlled,
    preferences_of,
    standardised,
)
from tasks.report.outputs import BySeed, Outputs, ResultTree, StageOutput

#: Row name -> seed -> value in the column's unit.
Measurements = Mapping[str, BySeed]
#: Value of `reference` in judgements on answers against the SFT model's, see `tasks.evaluating.over_sft`.
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
    """The runs behind a table.

    Attributes:
        outputs: of each row.
        sft_outputs: for each row the outputs of the SFT model that it starts from.
        calibrations: rows of alpaca_calibration.jsonl by seed: longer and shorter versions of AlpacaEval's baseline
            answers, judged against these; a seed without any has no `alpaca_lc`.
        paper, tree: where the paper's other rows are; without them a judge's win rates over the SFT model have no
            difficulties.
    """

    outputs: Outputs
    sft_outputs: Outputs
    calibrations: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    paper: str | None = None
    tree: ResultTree | None = None
    _known: dict[Any, Any] = field(default_factory=dict, compare=False)

    def sft_output(self, name: str, seed: int) -> StageOutput | None:
        return self.sft_outputs.get(name, {}).get(seed)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned when it was first asked for by a key."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def games_over(self, other: str) -> Mapping[tuple[str, int], tuple[Tally, StageOutput]]:
        """Returns the verdicts on each row's answers over another row's, with that row's run, by row and seed; rows
        that cannot be compared are left out."""
        found: dict[tuple[str, int], tuple[Tally, StageOutput]] = self.once(("over", other), lambda: self._play(other))
        return found

    def _play(self, other: str) -> dict[tuple[str, int], tuple[Tally, StageOutput]]:
        judges: Judges | None = None
        others: Mapping[int, StageOutput] = self.outputs.get(other, {})
        if self.paper is not None and self.tree is not None:
            judges, others = Judges(self.tree.root), self.tree.of(recipe_row(self.paper, other))
        found = {}
        for name, seed, output in self.each():
            against = others.get(seed) if name != other else None
            tally = None if against is None else _tally(output, against, judges)
            if tally is not None and against is not None:
                found[name, seed] = tally, against
        return found

    def each(self) -> list[tuple[str, int, StageOutput]]:
        """Returns every run with its row and seed."""
        return [(name, seed, output) for name, by_seed in self.outputs.items() for seed, output in by_seed.items()]

    def difficulties(self, output: StageOutput, sft: StageOutput, rate: str) -> tuple[Difficulties, int]:
        """Returns the difficulties of a judge's win rate over the SFT model, and the number of policies behind them.

        From a single policy none can be fitted: they are 0.
        """
        facts = output.win_rate_facts[rate]

        def fit() -> tuple[Difficulties, int]:
            peers = [run for run in self._policies(output.seed) if _same_games(run, facts)]
            prompts = [str(row["id"]) for row in sft.generations if row["benchmark"] == BENCHMARK]
            return fitted_difficulties([preferences(peer, sft) for peer in peers], prompts), len(peers)

        found: tuple[Difficulties, int] = self.once((sft.path, facts["judge"], repr(facts["protocol"])), fit)
        return found

    def _policies(self, seed: int) -> list[StageOutput]:
        """Returns the runs of all the paper's policies at a seed."""
        if self.paper is None or self.tree is None:
            return []
        found = (self.tree.of(place).get(seed) for place in rows_of_paper(self.paper) if place.kind == "policy")
        return [run for run in found if run is not None]


def _same_games(output: StageOutput, facts: Mapping[str, Any]) -> bool:
    """Returns whether the same judge compared a run with the same SFT model, by the same protocol and prompts."""
    own = output.win_rate_facts.get("win_rate_vs_sft", {})
    return all(own.get(name) == facts[name] for name in ("sft", "judge", "protocol", "benchmark"))


def _tally(own: StageOutput, other: StageOutput, judges: Judges | None) -> Tally | None:
    rewards = [true_rewards(side.generations, BENCHMARK) for side in (own, other)]
    if all(rewards):
        return true_tally(*rewards)
    if judges is None or "protocol" not in own.judge_settings:
        return None
    return judged(own, other, judges, Protocol(**own.judge_settings["protocol"]))


def true_rewards(answers: Sequence[Mapping[str, Any]], benchmark: str) -> dict[str, float]:
    """Returns the true rewards of a benchmark's answers by prompt, where they are known."""
    return {
        str(row["id"]): float(row["true_reward"])
        for row in answers
        if row["benchmark"] == benchmark and row["true_reward"] is not None
    }


def knows_true_rewards(output: StageOutput) -> bool:
    """Returns whether the answers of a run have true rewards."""
    return any(row.get("true_reward") is not None for row in output.generations)


def tally_over_sft(output: StageOutput, sft: StageOutput, benchmark: str, *, peak: bool = False) -> Tally:
    """Returns a run's verdicts over its SFT model, none where there is no judge and no true reward.

    Args:
        peak: whether AlpacaEval's answers are those of the peak's weights.
    """
    name = ("peak_" if peak else "") + ("" if benchmark == BENCHMARK else f"{benchmark}_") + "win_rate_vs_sft"
    if name in output.win_rate_facts:
        protocol = Protocol(**output.win_rate_facts[name]["protocol"])
        rows = output.rows("peak_judgements.jsonl") if peak else output.judgements
        games = [row for row in rows if row["benchmark"] == benchmark and row.get("reference") == SFT]
        return protocol.tally([recorded_game(row) for row in games])
    return true_tally(*(true_rewards(rows, benchmark) for rows in (_answers(output, peak), sft.generations)))


def _answers(output: StageOutput, peak: bool) -> Sequence[Mapping[str, Any]]:
    return output.rows("peak_generations.jsonl") if peak else output.generations


def preferences(output: StageOutput, sft: StageOutput, *, peak: bool = False) -> Judged:
    """Returns a run's verdicts over its SFT model as preferences, with the lengths of both answers."""
    tally = tally_over_sft(output, sft, BENCHMARK, peak=peak)
    return preferences_of(tally, _answers(output, peak), sft.generations, BENCHMARK)


def difficulties_of(
    runs: TableRuns, output: StageOutput, sft: StageOutput, rate: str
) -> tuple[Difficulties, str | None]:
    """Returns the difficulty of each prompt for a run's length-controlled win rate over the SFT model, and a note on
    its source; no note where true rewards are the source.

    Args:
        rate: name of the win rate without length control.
    """
    if rate not in output.win_rate_facts:
        return standardised(true_rewards(sft.generations, BENCHMARK)), None
    found, policies = runs.difficulties(output, sft, rate)
    if policies < 2:
        return found, "length control without difficulties of instructions, which take at least two judged policies"
    return found, f"length control by difficulties fitted over {policies} policies against the same SFT model"


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a table, and the SFT model that it starts from."""

    runs: TableRuns
    name: str
    seed: int
    output: StageOutput

    @property
    def sft(self) -> StageOutput | None:
        return self.runs.sft_output(self.name, self.seed)

    @property
    def is_sft(self) -> bool:
        return self.sft is not None and self.sft.path == self.output.path

    def __str__(self) -> str:
        return f"{self.name} at seed {self.seed}"


def _alpaca_length_controlled(run: MeasuredRun, _: str) -> float | None:
    """Returns AlpacaEval's length-controlled win rate in percent; None where no variants of the baseline were judged,
    from which the difficulties are."""
    rows, output = run.runs.calibrations.get(run.seed), run.output
    if not rows or "alpaca_lc" in output.blank:
        return None
    answers = {str(row["id"]): row for row in output.generations if row["benchmark"] == BENCHMARK}
    verdicts = [
        (answers[str(row["id"])], row["preference"] if row["valid"] and row["preference"] is not None else math.nan)
        for row in output.judgements
        if row["benchmark"] == BENCHMARK and str(row["id"]) in answers and "reference" not in row
    ]
    for answer, name in ((answer, name) for answer, _ in verdicts for name in ("n_chars", "baseline")):
        if name not in answer:
            file = str(output.result / "generations.jsonl")
            what = f"the answer to prompt {answer['id']} has no '{name}'"
            raise DataError(what, file=file, field=name, remedy="Run its stage again")
    if not verdicts:
        return None
    own = Judged(
        [str(answer["id"]) for answer, _ in verdicts],
        [preference for _, preference in verdicts],
        [answer["n_chars"] for answer, _ in verdicts],
        [len(answer["baseline"]) for answer, _ in verdicts],
    )
    return length_controlled(str(run), own, *run.runs.once(("calibration", run.seed), lambda: calibration_of(rows)))


def _length_controlled_over_sft(run: MeasuredRun, _: str, *, peak: bool = False) -> float | None:
    """Returns the length-controlled win rate of a run's answers over the SFT model in percent."""
    if run.sft is None or run.is_sft:
        return None
    own = preferences(run.output, run.sft, peak=peak)
    if not any(map(math.isfinite, own.preferences)):
        return None
    rate = "peak_win_rate_vs_sft" if peak else "win_rate_vs_sft"
    return length_controlled(str(run), own, difficulties_of(run.runs, run.output, run.sft, rate)[0])


def _arena_over_sft(run: MeasuredRun, _: str) -> float | None:
    """Returns the win rate over the SFT model on Arena-Hard's prompts in percent, ties half."""
    scores = {} if run.sft is None else tally_over_sft(run.output, run.sft, "arena").scores
    return 100 * sum(scores.values()) / len(scores) if scores else None


def _over_row(run: MeasuredRun, other: str) -> float | None:
    tally, _ = run.runs.games_over(other).get((run.name, run.seed), (None, None))
    return None if tally is None else tally.win_rate


def _length_controlled_over_row(run: MeasuredRun, other: str) -> float | None:
    """Returns a length-controlled win rate over another row. The difficulties are that row's true rewards, or fitted
    over the table's rows."""
    if _over_row(run, other) is None:
        return None
    games = run.runs.games_over(other)
    against = games[run.name, run.seed][1]

    def of(name: str) -> Judged:
        answers = run.runs.outputs[name][run.seed].generations
        return preferences_of(games[name, run.seed][0], answers, against.generations, BENCHMARK)

    if rewards := true_rewards(against.generations, BENCHMARK):
        difficulties: Difficulties = standardised(rewards)
    else:
        prompts = [str(row["id"]) for row in against.generations if row["benchmark"] == BENCHMARK]
        difficulties = fitted_difficulties([of(name) for name, seed in games if seed == run.seed], prompts)
    return length_controlled(str(run), of(run.name), difficulties)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _of_history(run: MeasuredRun, name: str) -> list[float]:
    return [float(row[name]) for row in run.output.history if row.get(name) is not None]


def _last(run: MeasuredRun, name: str) -> float | None:
    values = _of_history(run, name)
    return values[-1] if values else None


def _percent(run: MeasuredRun, metric: str) -> float | None:
    return 100 * run.output.metrics[metric] if metric in run.output.metrics else None


def _calibration_gap(run: MeasuredRun, _: str) -> float | None:
    """Returns the mean distance of preference score and win rate over the evaluations of a run, in points."""
    rows = run.output.rows("checkpoints.jsonl")
    known = [row for row in rows if {"preference_score", "win_rate_vs_sft"} <= row.keys()]
    return _mean([abs(100 * float(row["preference_score"]) - float(row["win_rate_vs_sft"])) for row in known])


def _steps_to_answer(run: MeasuredRun, _: str) -> float | None:
    """Returns the mean steps between the first error of wrong solutions and their answer. Source: RLMEC, Figure 5."""
    rows = run.output.generations
    wrong = [row for row in rows if row.get("right") is False and row.get("first_error") is not None]
    return _mean([max(0, int(row["steps"]) - 1 - int(row["first_error"])) for row in wrong])


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
    "last": ("field of the history", _last),
    "percent": ("share of metrics.json", _percent),
    "calibration_gap": ("", _calibration_gap),
    "steps_to_answer": ("", _steps_to_answer),
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


def _of_itself(run: MeasuredRun, metric: str) -> float | None:
    return 50.0 if metric in OVER_SFT else run.output.metrics.get(metric.removeprefix("peak_"))


def measurements(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric of every row of a table, by seed; judged numbers that are blank in a run are left out."""
    name, _, argument = metric.partition("/")
    value = DERIVED.get(name)
    found = _values(runs, metric, lambda run, of: value(run, argument) if value else run.output.metrics.get(of))
    if not has_itself(metric) or (metric in OVER_SFT and not (found or _sft_has_true_rewards(runs))):
        return found
    return {**found, **_values(runs, metric, lambda run, of: _of_itself(run, of) if run.is_sft else None)}


def _values(
    runs: TableRuns, metric: str, of: Callable[[MeasuredRun, str], float | None]
) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for name, seed, output in runs.each():
        value = of(MeasuredRun(runs, name, seed, output), metric)
        if value is not None:
            found.setdefault(name, {})[seed] = value
    return found


def _sft_has_true_rewards(runs: TableRuns) -> bool:
    """Returns whether the SFT model's answers have true rewards, so that its own 50 % means something."""
    return any(knows_true_rewards(output) for by_seed in runs.sft_outputs.values() for output in by_seed.values())


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
