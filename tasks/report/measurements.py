"""One metric of one run: its value and, where it has prompts of its own, the value of each prompt.

Most metrics are read from a run's `metrics.json`, their prompts from its `judgements.jsonl` and
`generations.jsonl`. Length-controlled win rates are computed here, since an instruction's difficulty is fitted
jointly over all models of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.evaluation.arena_hard import score_of_label
from rlhf_core.evaluation.reward_bench import OFFICIAL, SECTIONS
from tasks.report.length_controlled import Judged, length_controlled
from tasks.report.outputs import StageOutput


@dataclass(frozen=True)
class Measurement:
    """A metric of one run.

    Attributes:
        value: in the column's unit.
        prompts: prompt id -> that prompt's value, in any unit in which a larger mean is a larger value;
            empty for a metric without prompts of its own.
    """

    value: float
    prompts: Mapping[str, float] = field(default_factory=dict)


#: {row name: {seed: ...}}
BySeed = Mapping[int, Measurement]
Measurements = Mapping[str, BySeed]
Outputs = Mapping[str, Mapping[int, StageOutput]]


@dataclass(frozen=True)
class TableRuns:
    """The runs behind a table.

    Attributes:
        outputs: {row name: {seed: output}}.
        references: for each row the outputs of the SFT model that it starts from, by seed.
        calibration: judged variants of AlpacaEval's baseline.
    """

    outputs: Outputs
    references: Outputs
    calibration: Sequence[Mapping[str, Any]] = ()

    def reference(self, name: str, seed: int) -> StageOutput | None:
        return self.references.get(name, {}).get(seed)


def _mean_by_prompt(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for prompt, value in pairs:
        if math.isfinite(value):
            found.setdefault(prompt, []).append(value)
    return {prompt: sum(values) / len(values) for prompt, values in found.items()}


def _judged(output: StageOutput, benchmark: str) -> list[Mapping[str, Any]]:
    return [row for row in output.judgements if row["benchmark"] == benchmark and row["valid"]]


def _true_rewards(
    output: StageOutput, benchmark: str, generations: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, float]:
    return {
        str(row["id"]): float(row["true_reward"])
        for row in (output.generations if generations is None else generations)
        if row["benchmark"] == benchmark and row["true_reward"] is not None
    }


def _arena(output: StageOutput) -> dict[str, float]:
    """Returns each prompt's score: its games weighted as in the benchmark."""
    games: dict[str, list[tuple[float, int]]] = {}
    for row in _judged(output, "arena"):
        score, weight = score_of_label(row["label"])
        games.setdefault(str(row["id"]), []).append((score, weight))
    return {
        prompt: sum(score * weight for score, weight in played if weight) / sum(weight for _, weight in played)
        for prompt, played in games.items()
        if any(weight for _, weight in played)
    }


def _peak_answers(output: StageOutput) -> list[dict[str, Any]]:
    """Returns AlpacaEval answers of the weights of the best evaluation; none where they were not kept."""
    return output.rows("peak_generations.jsonl")


def _right(output: StageOutput, benchmarks: Sequence[str]) -> dict[str, float]:
    """1 or 0 per item of the tasks that record whether an answer is right."""
    return {
        f"{row['benchmark']}/{row['id']}": float(row["right"])
        for row in output.generations
        if row["benchmark"] in benchmarks and row.get("right") is not None
    }


def _weighted(groups: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Returns values by prompt of groups of (weight, values by prompt), scaled so that their mean is the weighted mean
    of the groups' means: what a score of several test sets says, its test over prompts says, too."""
    found = [(weight, values) for weight, values in groups if values]
    count, total = sum(len(values) for _, values in found), sum(weight for weight, _ in found)
    return {
        prompt: value * (weight * count / (total * len(values)))
        for weight, values in found
        for prompt, value in values.items()
    }


def _section(output: StageOutput, section: str) -> dict[str, float]:
    """Returns a test set's values by item, its subsets weighted as RewardBench does where it has any."""
    right = _right(output, (section,))
    subsets: dict[str, dict[str, float]] = {}
    for row in output.generations:
        if (item := f"{row['benchmark']}/{row['id']}") in right and row["benchmark"] == section:
            subsets.setdefault(str(row.get("subset")), {})[item] = right[item]
    official = OFFICIAL.get(section, {})
    return _weighted((official.get(name, len(values)), values) for name, values in subsets.items())


def _average(output: StageOutput) -> dict[str, float]:
    """Returns values by item of RewardBench's sections, else of all test sets of questions with solutions, each set
    alike."""
    sections = [_section(output, name) for name in SECTIONS]
    if not any(sections):
        solved = {str(row["benchmark"]) for row in output.generations if "extracted" in row}
        sections = [_section(output, name) for name in sorted(solved)]
    return _weighted((1.0, values) for values in sections)


def _wins(
    output: StageOutput,
    reference: StageOutput | None,
    benchmark: str,
    answers: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """1, .5 or 0 per prompt: whether the true reward of a run's answers (others if given) beats the SFT model's."""
    if reference is None:
        return {}
    return _won(_true_rewards(output, benchmark, answers), _true_rewards(reference, benchmark))


def _won(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {p: 0.5 + 0.5 * ((after[p] > before[p]) - (after[p] < before[p])) for p in after.keys() & before.keys()}


def prompt_values(metric: str, output: StageOutput, reference: StageOutput | None) -> dict[str, float]:
    """Returns the value of each prompt of a metric; empty where the runs do not keep it."""
    readers: dict[str, Callable[[], dict[str, float]]] = {
        "alpaca_wr": lambda: _mean_by_prompt(
            (str(row["id"]), float(row["preference"])) for row in _judged(output, "alpaca")
        ),
        "arena_wr": lambda: _arena(output),
        "mtbench": lambda: _mean_by_prompt((str(row["id"]), float(row["value"])) for row in _judged(output, "mtbench")),
        "win_rate_vs_sft": lambda: _wins(output, reference, "alpaca"),
        "ood_win_rate_vs_sft": lambda: _wins(output, reference, "ood"),
        "peak_win_rate_vs_sft": lambda: _wins(output, reference, "alpaca", _peak_answers(output)),
        "true_reward": lambda: _true_rewards(output, "alpaca"),
        "gsm8k": lambda: _right(output, ("seen", "unseen", "gsm8k")),
        "average": lambda: _average(output),
    }
    if metric.startswith("score/"):
        name = metric.removeprefix("score/")
        return {prompt: float(row[name]) for prompt, row in output.scores.items() if name in row}
    return readers[metric]() if metric in readers else _section(output, metric)


def recorded(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric as the runs recorded it; runs without it are left out."""
    return {
        name: {
            seed: Measurement(output.metrics[metric], prompt_values(metric, output, runs.reference(name, seed)))
            for seed, output in by_seed.items()
            if metric in output.metrics
        }
        for name, by_seed in runs.outputs.items()
    }


def _alpaca_rows(output: StageOutput) -> Judged:
    """Returns a run's AlpacaEval preferences with the lengths of both answers, in characters."""
    answers = {str(row["id"]): row for row in output.generations if row["benchmark"] == "alpaca"}
    rows = [row for row in output.judgements if row["benchmark"] == "alpaca" and str(row["id"]) in answers]
    return Judged(
        prompts=[str(row["id"]) for row in rows],
        preferences=[row["preference"] if row["valid"] else math.nan for row in rows],
        own_length=[answers[str(row["id"])]["n_chars"] for row in rows],
        baseline_length=[len(answers[str(row["id"])]["baseline"]) for row in rows],
    )


def _reference_rows(answers: Sequence[Mapping[str, Any]], reference: StageOutput) -> Judged:
    """True wins of answers over the SFT model's as preferences, with the lengths of both."""
    after, before = (_true_rewards(reference, "alpaca", rows) for rows in (answers, reference.generations))
    wins = _won(after, before)
    own, other = (
        {str(row["id"]): float(row["n_chars"]) for row in rows if row["benchmark"] == "alpaca"}
        for rows in (answers, reference.generations)
    )
    prompts = sorted(wins)
    return Judged(prompts, [1 + wins[p] for p in prompts], [own[p] for p in prompts], [other[p] for p in prompts])


def _jointly(judged: Mapping[tuple[str, int], Judged], calibration: Sequence[Mapping[str, Any]]) -> Measurements:
    found: dict[str, dict[int, Measurement]] = {}
    for (name, seed), (rate, prompts) in length_controlled(judged, calibration).items():
        found.setdefault(name, {})[seed] = Measurement(rate, prompts)
    return found


def alpaca_length_controlled(runs: TableRuns) -> Measurements:
    """Returns AlpacaEval's length-controlled win rate in percent."""
    judged = {
        (name, seed): _alpaca_rows(output) for name, by_seed in runs.outputs.items() for seed, output in by_seed.items()
    }
    return _jointly(judged, runs.calibration)


def reference_length_controlled(
    runs: TableRuns, answers: Callable[[StageOutput], list[dict[str, Any]]] = lambda output: output.generations
) -> Measurements:
    """Returns the length-controlled true win rate of a run's answers over the SFT model in percent, jointly per SFT
    model."""
    groups: dict[str, dict[tuple[str, int], Judged]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            reference = runs.reference(name, seed)
            if reference is not None and reference.path != output.path and answers(output):
                group = groups.setdefault(reference.path.parent.as_posix(), {})
                group[name, seed] = _reference_rows(answers(output), reference)
    found: dict[str, BySeed] = {}
    for judged in groups.values():
        found |= _jointly(judged, ())
    return found


def reference_arena(runs: TableRuns) -> Measurements:
    """True win rate over the SFT model on Arena-Hard's prompts in percent, ties half."""
    found: dict[str, dict[int, Measurement]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            wins = _wins(output, runs.reference(name, seed), "arena")
            if wins:
                found.setdefault(name, {})[seed] = Measurement(100 * sum(wins.values()) / len(wins), wins)
    return found


#: Win rates over the SFT model, by the benchmark that they are on.
OVER_SFT = {
    "win_rate_vs_sft": "alpaca",
    "peak_win_rate_vs_sft": "alpaca",
    "lc_win_rate_vs_sft": "alpaca",
    "peak_lc_win_rate_vs_sft": "alpaca",
    "ood_win_rate_vs_sft": "ood",
    "arena_win_rate_vs_sft": "arena",
}
#: Metrics that no run records: they need other rows of a table, or the SFT model's answers.
JOINT_METRICS: dict[str, Callable[[TableRuns], Measurements]] = {
    "alpaca_lc": alpaca_length_controlled,
    "lc_win_rate_vs_sft": reference_length_controlled,
    "peak_lc_win_rate_vs_sft": lambda runs: reference_length_controlled(runs, _peak_answers),
    "arena_win_rate_vs_sft": reference_arena,
}


def has_itself(metric: str) -> bool:
    """Returns whether the SFT model has a metric by definition; see `reference_itself`."""
    return metric in OVER_SFT or metric.startswith("peak_")


def reference_itself(runs: TableRuns, metric: str) -> Measurements:
    """Returns the SFT model's values by definition, such as 50 % wins against itself."""
    found: dict[str, dict[int, Measurement]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            reference = runs.reference(name, seed)
            if reference is None or reference.path != output.path:
                continue
            if metric in OVER_SFT:
                halves = dict.fromkeys(_true_rewards(output, OVER_SFT[metric]), 0.5)
                found.setdefault(name, {})[seed] = Measurement(50.0, halves)
            elif metric.removeprefix("peak_") in output.metrics:
                own = metric.removeprefix("peak_")
                found.setdefault(name, {})[seed] = Measurement(output.metrics[own], prompt_values(own, output, None))
    return found


def measurements(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric of every row of a table, by seed."""
    joint = JOINT_METRICS.get(metric)
    found = joint(runs) if joint else recorded(runs, metric)
    return {**found, **reference_itself(runs, metric)} if has_itself(metric) else found
