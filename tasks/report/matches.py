"""Rows of a table against each other on the same prompts, as ALARM's tables have it.

A metric of a row map names what is asked of a row:
    wins/<by>/<other>    its win rate over another row, ties left out
    wins/<by>/others     the mean of its win rates over the table's other rows of the same task
    win-test/<by>        binomial test of the table's main row against it
    mean-test/<by>       paired t-test of the main row's values against its own
where <by> is a score of the runs' scores.jsonl (`holistic`, an aspect), or `judge`, who is asked both ways round and
counts where both verdicts agree. `EVALUATORS` are the papers' words for them. What is compared, and by which judge, the
runs say in judge.json. Source: ALARM, Eq. 2, §3.3, appendix B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from rlhf_core.evaluation.pairwise import (
    PairedTestResult,
    Record,
    compared,
    outcome_of_means,
    outcome_of_wins,
    record_of,
)
from rlhf_core.evaluation.protocols import PROTOCOLS
from rlhf_core.published.row_map import MappedRow, recipe_row
from tasks.report.outputs import ResultTree, StageOutput, mean_and_standard_error
from tasks.report.row_games import Judges, drawn_prompts
from tasks.report.significance import Comparison, compare_constant
from tasks.report.win_rates import Outputs
from tasks.running.doubtful_numbers import too_few_valid
from tasks.running.result_rows import Generation

KINDS = ("wins", "win-test", "mean-test")
#: Name of a score by a paper's word for its evaluator, in small letters and dashes.
EVALUATORS = {
    "holistic-reward": "holistic",
    "factuality-rate": "factuality",
    "grammar-error-rate": "grammar",
    "gpt-3.5-turbo": "judge",
}
BENCHMARK = "alpaca"
#: Of a judge's verdicts on two rows' answers.
PROTOCOL = PROTOCOLS["alarm"]
#: The other rows of a task together, in a metric's name.
OTHERS = "others"
#: Status of the cell of a row against itself.
ITSELF = "-"
#: First words of the reason of a cell whose games are all ties, or of which too few verdicts count.
UNDECIDED = "no game is decided"


@dataclass(frozen=True)
class Match:
    """A metric of this kind, taken apart."""

    kind: str
    by: str
    other: str | None = None


def match_of(metric: str) -> Match | None:
    """Returns the match that a metric's name means, None for any other metric."""
    kind, _, rest = metric.partition("/")
    if kind not in KINDS:
        return None
    by, _, other = rest.partition("/")
    return Match(kind, EVALUATORS.get(by, by), other or None)


@dataclass
class Matches:
    """Results of the rows of one table against each other.

    Args:
        outputs: {row name: {seed: output}}, the main row among them.
        results: the scale's results, where the judge's data set is.
        tasks: the task of each row; rows of different tasks are never compared.
    """

    outputs: Outputs
    results: Path
    tasks: Mapping[str, str | None]
    _played: dict[tuple[str, str, str, int], dict[str, int]] = field(default_factory=dict)
    _lacking: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)

    def seeds(self, *names: str) -> list[int]:
        """Returns seeds that all of some rows have been run with, and their answers scored."""
        found = [{s for s, out in self.outputs.get(name, {}).items() if out.scores} for name in names]
        return sorted(set.intersection(*found)) if found else []

    def results_of(self, own: str, other: str, by: str, seed: int) -> dict[str, int]:
        """1, 0 or -1 per prompt for a row against another."""
        first, second = sorted((own, other))
        key = (first, second, by, seed)
        if key not in self._played:
            outputs = self.outputs[first][seed], self.outputs[second][seed]
            if by == "judge":
                self._played[key], self._lacking[first, second, seed] = self._judged(*outputs)
            else:
                self._played[key] = _scored(*outputs, by)
        sign = 1 if own == first else -1
        return {prompt: sign * result for prompt, result in self._played[key].items()}

    def lacking(self, own: str, other: str) -> dict[str, int]:
        """Returns how many prompts, over all seeds, are `unparsable` (no verdict) and `one_sided` (a verdict in one of
        two orders); they count for nobody."""
        first, second = sorted((own, other))
        found = [self._lacking.get((first, second, seed), (0, 0)) for seed in self.seeds(own, other)]
        return {"unparsable": sum(one for one, _ in found), "one_sided": sum(one for _, one in found)}

    def _told_nothing(self, own: str, other: str, by: str, seed: int) -> bool:
        """Returns whether a judge answered so badly that it decides nothing, or gave too few valid verdicts; ties that
        it declared itself are an answer."""
        first, second = sorted((own, other))
        results = self.results_of(own, other, by, seed)
        lost = sum(self._lacking.get((first, second, seed), (0, 0))) if by == "judge" else 0
        return lost > 0 and (not any(results.values()) or too_few_valid(len(results), len(results) + lost) is not None)

    def _judged(self, own: StageOutput, other: StageOutput) -> tuple[dict[str, int], tuple[int, int]]:
        """(1, 0 or -1 per prompt with a verdict that counts, how many have none and how many one in one order)."""
        from tasks.evaluating.policies import comparisons

        settings = own.judge_settings
        judge = self._judges.get(settings)
        if judge is None:
            return {}, (0, 0)
        answers, baselines = ({str(row["id"]): row for row in _answers(side)} for side in (own, other))
        prompts = drawn_prompts(answers.keys() & baselines.keys(), settings)
        pairs = comparisons(
            [cast(Generation, {**answers[p], "id": p, "baseline": baselines[p]["response"]}) for p in prompts],
            str(settings.get("instruction", "")),
        )
        tally = PROTOCOL.tally(PROTOCOL.play(judge, pairs))
        signs = {prompt: (score > 0.5) - (score < 0.5) for prompt, score in tally.scores.items()}
        return signs, (len(tally.unparsable), len(tally.one_sided))

    @cached_property
    def _judges(self) -> Judges:
        return Judges(self.results)

    def has(self, name: str, by: str) -> bool:
        """Returns whether a row's runs can be compared by a score or judge."""
        outputs = self.outputs.get(name, {}).values()
        return any(
            bool(out.judge_settings.get("judge")) if by == "judge" else any(by in row for row in out.scores.values())
            for out in outputs
        )

    def win_rates(self, own: str, other: str, by: str) -> dict[int, float]:
        """Returns the win rate in percent by seed; empty where one of the rows was not run or has no such score.

        A seed without a game is left out, and one whose judge gave too few valid verdicts or, some being unparsable,
        decides nothing: 50 % would be invented.
        """
        if not (self.has(own, by) and self.has(other, by)):
            return {}
        rates = {}
        for seed in self.seeds(own, other):
            rate = record_of(self.results_of(own, other, by, seed).values()).win_rate
            if rate is not None and not self._told_nothing(own, other, by, seed):
                rates[seed] = rate
        return rates

    def blank_reason(self, own: str, match: Match) -> str | None:
        """Returns why two rows that were run and scored have no win rate: no game between them is decided."""
        names = self._rivals(own) if match.other == OTHERS else [str(match.other)]
        for other in names:
            scored = self.seeds(own, other) and self.has(own, match.by) and self.has(other, match.by)
            if scored and not self.win_rates(own, other, match.by):
                return f"{UNDECIDED} between '{own}' and '{other}'"
        return None

    def record(self, own: str, other: str, by: str) -> Record:
        """Returns wins, ties and losses over all seeds whose judge told something."""
        seeds = (seed for seed in self.seeds(own, other) if not self._told_nothing(own, other, by, seed))
        records = (record_of(self.results_of(own, other, by, seed).values()) for seed in seeds)
        return sum(records, Record())

    def against_others(self, own: str, by: str) -> dict[int, float]:
        """Returns the mean of a row's win rates over the other rows of its task, by seed; all of them must have been
        run."""
        rates = [self.win_rates(own, other, by) for other in self._rivals(own)]
        if not rates:
            return {}
        seeds = sorted(set.intersection(*(set(found) for found in rates)))
        return {seed: sum(found[seed] for found in rates) / len(rates) for seed in seeds}

    def _rivals(self, own: str) -> list[str]:
        """Returns the other rows of a row's task."""
        return [name for name, task in self.tasks.items() if name != own and task == self.tasks.get(own)]

    def measured(self, own: str, match: Match) -> dict[int, float]:
        """Returns a row's win rate by seed, in percent."""
        if match.other is None or match.kind != "wins":
            raise ValueError(f"{match} is not a win rate")
        if match.other == OTHERS:
            return self.against_others(own, match.by)
        return self.win_rates(own, match.other, match.by)

    def outcome(self, main: str, other: str, match: Match) -> PairedTestResult | None:
        """Returns the test of the main row against another; None where one of them was not run or has no such score."""
        seeds = self.seeds(main, other)
        if not seeds or not (self.has(main, match.by) and self.has(other, match.by)):
            return None
        if match.kind == "win-test":
            record = self.record(main, other, match.by)
            if record.win_rate is None:
                return None
            return outcome_of_wins(record)
        own, theirs = [], []
        for seed in seeds:
            first, second = self.outputs[main][seed].scores, self.outputs[other][seed].scores
            prompts = sorted(first.keys() & second.keys())
            own += [float(first[prompt][match.by]) for prompt in prompts]
            theirs += [float(second[prompt][match.by]) for prompt in prompts]
        if not own:
            return None
        return outcome_of_means(own, theirs, higher_is_better=_higher(self.outputs[main][seeds[0]], match.by))


def _answers(output: StageOutput) -> Sequence[Mapping[str, Any]]:
    return [row for row in output.generations if row["benchmark"] == BENCHMARK]


def _higher(output: StageOutput, by: str) -> bool:
    return by not in output.judge_settings.get("lower_is_better", [])


def _scored(own: StageOutput, other: StageOutput, by: str) -> dict[str, int]:
    """Results by score; the same answer is a tie, also where its batch gave it another last digit."""
    first, second = ({p: float(row[by]) for p, row in side.scores.items()} for side in (own, other))
    texts, others = ({str(row["id"]): row["response"] for row in _answers(side)} for side in (own, other))
    results = compared(first, second, higher_is_better=_higher(own, by))
    return {p: 0 if p in texts and texts[p] == others.get(p) else result for p, result in results.items()}


def table_matches(paper: str, rows: Sequence[MappedRow], outputs: Outputs, tree: ResultTree) -> Matches:
    """Returns the matches of a table's rows, with their main rows where the table does not print those."""
    mains = {row.main: tree.of(recipe_row(paper, row.main)) for row in rows if row.main and row.main not in outputs}
    tasks = {row.recipe.name: row.published.extra.get("task") for row in rows if row.recipe}
    return Matches({**outputs, **mains}, tree.root, tasks)


def matched(matches: Matches, row: MappedRow, match: Match) -> tuple[dict[str, Any], Comparison | None]:
    """Returns the fields of a cell that says how a row does against another: a win rate, or what a test says of the
    main row.

    Returns:
        (fields, a win rate against 50 % over worlds; None for other cells).
    """
    own = row.recipe.name if row.recipe else None
    if own is None or not matches.outputs.get(own):
        return {"status": "not run"}, None
    if match.kind != "wins":
        return _tested(matches, str(row.main), own, match), None
    other = str(match.other)
    if other == own:
        return {"status": ITSELF}, None
    rates = matches.win_rates(own, other, match.by)
    counted = matches.lacking(own, other) if match.by == "judge" else {}
    if not rates:
        return {"status": "not measured", "why": matches.blank_reason(own, match), **counted}, None
    mean, error = mean_and_standard_error([rates[seed] for seed in sorted(rates)])
    seeds = {str(seed): rate for seed, rate in sorted(rates.items())}
    fields = {"status": "measured", "mean": mean, "se": error, "seeds": seeds, "against": "50 %", **counted}
    return fields, compare_constant(own, rates, 50.0)


def _tested(matches: Matches, main: str, own: str, match: Match) -> dict[str, Any]:
    """Returns the fields of a cell with a test of a row against its main row."""
    counted = matches.lacking(main, own) if match.by == "judge" else {}
    found = matches.outcome(main, own, match)
    if found is None:
        why = matches.blank_reason(own, Match(match.kind, match.by, main)) if match.kind == "win-test" else None
        return {"status": "not measured", "why": why, **counted}
    return {
        **counted,
        "status": "measured",
        "mean": found.p_value,
        "seeds": {str(seed): found.p_value for seed in matches.seeds(main, own)},
        "outcome": found.text,
    }
