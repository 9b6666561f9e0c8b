"""Rows against each other on the same prompts.

A metric of a row map or of a claim names what is asked of a row:
    win_rate_over/<row>      win rate over another row of the paper, ties half: by true rewards, else by the row's judge
    wins/<by>/<other>        win rate over another row, ties left out
    wins/<by>/others         mean of the win rates over the table's other rows of the same task
    win-test/<by>            binomial test of the table's main row against it
    mean-test/<by>           paired t-test of the main row's values against its own
where <by> is a score of the runs' scores.jsonl (`holistic`, an aspect), or `judge`, who is asked both ways round and
counts where both verdicts agree; `EVALUATORS` are ALARM's words for them. The judge is the one of the rows' judge.json,
asked when the table is made; its answers come from its cache when the table is made again. Source: ALARM, Eq. 2, §3.3,
appendix B.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.evaluation.pairwise import (
    PairedTestResult,
    Record,
    compared,
    outcome_of_means,
    outcome_of_wins,
    record_of,
)
from rlhf_core.evaluation.protocols import PROTOCOLS, Protocol, Tally
from rlhf_core.published.row_map import MappedRow, recipe_row
from tasks.report.outputs import Outputs, ResultTree, StageOutput, mean_and_standard_error
from tasks.report.significance import Comparison, compare_constant
from tasks.running.doubtful_numbers import too_few_valid
from tasks.running.result_rows import Generation

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.protocol import Judge

BENCHMARK = "alpaca"
KINDS = ("wins", "win-test", "mean-test")
#: Name of a score by a paper's word for its evaluator, in small letters and dashes.
EVALUATORS = {
    "holistic-reward": "holistic",
    "factuality-rate": "factuality",
    "grammar-error-rate": "grammar",
    "gpt-3.5-turbo": "judge",
}
#: The other rows of a task together, in a metric's name.
OTHERS = "others"
#: Status of the cell of a row against itself.
ITSELF = "-"
#: First words of the reason of a cell whose games are all ties, or of which too few verdicts count.
UNDECIDED = "no game is decided"


class Judges:
    """The judge of each setting of a run's judge.json, built when first asked.

    Args:
        results: of a scale, such as results/testbed.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.known: dict[str, Judge | None] = {}

    def get(self, settings: Mapping[str, Any]) -> Judge | None:
        from tasks.running.loading import load_judge, load_world

        key = repr(sorted(settings.items(), key=str))
        if key not in self.known:
            spec = settings.get("judge")
            data = self.results / "shared" / "data" / str(settings.get("data")) / "result"
            self.known[key] = load_judge(spec, load_world(data)) if spec else None
        return self.known[key]


def answers_by_prompt(output: StageOutput) -> dict[str, Mapping[str, Any]]:
    """Returns a run's answers to AlpacaEval's prompts by id."""
    return {str(row["id"]): row for row in output.generations if row["benchmark"] == BENCHMARK}


def judged(own: StageOutput, other: StageOutput, judges: Judges, protocol: Protocol) -> Tally | None:
    """Returns the verdicts of a run's judge on its answers beside another run's; None without a judge."""
    from tasks.evaluating.policies import comparisons

    settings = own.judge_settings
    judge = judges.get(settings)
    if judge is None:
        return None
    answers, others = answers_by_prompt(own), answers_by_prompt(other)
    pairs = [
        cast(Generation, {**answers[p], "id": p, "baseline": others[p]["response"]})
        for p in drawn_prompts(answers.keys() & others.keys(), settings["rows"])
    ]
    return protocol.tally(protocol.play(judge, comparisons(pairs, str(settings.get("instruction", "")))))


def drawn_prompts(prompts: Collection[str], count: int | None) -> list[str]:
    """Returns the prompts that two rows are compared on: all, or `count`, drawn by a fixed seed, so that all pairs of
    rows with the same prompts have the same ones."""
    if count is None or count >= len(prompts):
        return sorted(prompts)
    return sorted(random.Random("pairs").sample(sorted(prompts), int(count)))


@dataclass(frozen=True)
class Match:
    """A metric of this kind, taken apart."""

    kind: str
    by: str
    other: str | None = None


def match_of(metric: str) -> Match | None:
    """Returns the match that a metric's name means, None for any other metric."""
    kind, _, rest = metric.partition("/")
    by, _, other = rest.partition("/")
    return Match(kind, EVALUATORS.get(by, by), other or None) if kind in KINDS else None


@dataclass(frozen=True)
class Results:
    """Results of a row's games over another row at a seed.

    Attributes:
        signs: 1, 0 or -1 by prompt.
        unparsable, one_sided: how many prompts have no verdict, and how many have one in one order only.
    """

    signs: Mapping[str, int]
    unparsable: int = 0
    one_sided: int = 0

    @property
    def decided(self) -> bool:
        """Returns whether the judge gave enough valid verdicts and decided a game; ties are an answer where every
        verdict is valid."""
        lost = self.unparsable + self.one_sided
        return not lost or (any(self.signs.values()) and too_few_valid(len(self.signs), len(self.signs) + lost) is None)


@dataclass
class Matches:
    """Results of the rows of one table against each other.

    Args:
        outputs: the main row among them.
        results: the scale's results, where the judge's data set is.
        tasks: the task of each row; rows of different tasks are never compared.
    """

    outputs: Outputs
    results: Path
    tasks: Mapping[str, str | None]
    _played: dict[tuple[str, str, str, int], Results] = field(default_factory=dict)

    def seeds(self, *names: str) -> list[int]:
        """Returns seeds that all of some rows have been run with, and their answers scored."""
        found = [{s for s, out in self.outputs.get(name, {}).items() if out.scores} for name in names]
        return sorted(set.intersection(*found)) if found else []

    def results_of(self, own: str, other: str, by: str, seed: int) -> Results:
        """Returns the results of a row over another; each pair of rows plays once."""
        first, second = sorted((own, other))
        key = (first, second, by, seed)
        if key not in self._played:
            sides = self.outputs[first][seed], self.outputs[second][seed]
            self._played[key] = self._judged(*sides) if by == "judge" else Results(_scored(*sides, by))
        found = self._played[key]
        turned = {prompt: sign if own == first else -sign for prompt, sign in found.signs.items()}
        return Results(turned, found.unparsable, found.one_sided)

    def _judged(self, own: StageOutput, other: StageOutput) -> Results:
        tally = judged(own, other, self._judges, PROTOCOLS["alarm"])
        if tally is None:
            return Results({})
        signs = {prompt: (score > 0.5) - (score < 0.5) for prompt, score in tally.scores.items()}
        return Results(signs, len(tally.unparsable), len(tally.one_sided))

    @cached_property
    def _judges(self) -> Judges:
        return Judges(self.results)

    def played(self, own: str, other: str, by: str) -> dict[int, Results]:
        """Returns the results by seed; empty where one of the rows was not run or has no such score."""
        known = self._has(own, by) and self._has(other, by)
        return {seed: self.results_of(own, other, by, seed) for seed in self.seeds(own, other)} if known else {}

    def _has(self, name: str, by: str) -> bool:
        """Returns whether a row's runs can be compared by a score or judge."""
        outputs = self.outputs.get(name, {}).values()
        return any(
            bool(out.judge_settings.get("judge")) if by == "judge" else any(by in row for row in out.scores.values())
            for out in outputs
        )

    def lacking(self, own: str, other: str, by: str) -> dict[str, int]:
        """Returns how many prompts, over all seeds, are `unparsable` and `one_sided`; empty unless a judge decides."""
        found = self.played(own, other, by).values() if by == "judge" else []
        counts = {name: sum(getattr(one, name) for one in found) for name in ("unparsable", "one_sided")}
        return counts if by == "judge" else {}

    def win_rates(self, own: str, other: str, by: str) -> dict[int, float]:
        """Returns the win rate in percent by seed, of the seeds whose games are decided: 50 % would be invented."""
        found = {
            seed: record_of(results.signs.values()).win_rate
            for seed, results in self.played(own, other, by).items()
            if results.decided
        }
        return {seed: rate for seed, rate in found.items() if rate is not None}

    def against_others(self, own: str, by: str) -> dict[int, float]:
        """Returns the mean of a row's win rates over the other rows of its task, by seed; all must have been run."""
        rates = [self.win_rates(own, other, by) for other in self._rivals(own)]
        seeds = sorted(set.intersection(*map(set, rates))) if rates else []
        return {seed: sum(found[seed] for found in rates) / len(rates) for seed in seeds}

    def _rivals(self, own: str) -> list[str]:
        return [name for name, task in self.tasks.items() if name != own and task == self.tasks.get(own)]

    def measured(self, own: str, match: Match) -> dict[int, float]:
        """Returns a row's win rate by seed, in percent."""
        if match.other is None or match.kind != "wins":
            raise ValueError(f"{match} is not a win rate")
        return (
            self.against_others(own, match.by) if match.other == OTHERS else self.win_rates(own, match.other, match.by)
        )

    def blank_reason(self, own: str, match: Match) -> str | None:
        """Returns why two rows that were run and scored have no win rate: no game between them is decided."""
        for other in self._rivals(own) if match.other == OTHERS else [str(match.other)]:
            if self.played(own, other, match.by) and not self.win_rates(own, other, match.by):
                return f"{UNDECIDED} between '{own}' and '{other}'"
        return None

    def outcome(self, main: str, other: str, match: Match) -> PairedTestResult | None:
        """Returns the test of the main row against another; None where one of them was not run or has no such score."""
        played = self.played(main, other, match.by)
        if match.kind == "win-test":
            records = (record_of(one.signs.values()) for one in played.values() if one.decided)
            record = sum(records, Record())
            return None if record.win_rate is None else outcome_of_wins(record)
        pairs = [
            (float(first[prompt][match.by]), float(second[prompt][match.by]))
            for seed in played
            for first, second in [(self.outputs[main][seed].scores, self.outputs[other][seed].scores)]
            for prompt in sorted(first.keys() & second.keys())
        ]
        if not pairs:
            return None
        own, theirs = zip(*pairs, strict=True)
        higher = _higher(self.outputs[main][min(played)], match.by)
        return outcome_of_means(own, theirs, higher_is_better=higher)


def _higher(output: StageOutput, by: str) -> bool:
    return by not in output.judge_settings.get("lower_is_better", [])


def _scored(own: StageOutput, other: StageOutput, by: str) -> dict[str, int]:
    """Returns results by score; the same answer is a tie, also where its batch gave it another last digit."""
    first, second = ({p: float(row[by]) for p, row in side.scores.items()} for side in (own, other))
    answers, others = answers_by_prompt(own), answers_by_prompt(other)
    same = {p for p in answers.keys() & others.keys() if answers[p]["response"] == others[p]["response"]}
    results = compared(first, second, higher_is_better=_higher(own, by))
    return {p: 0 if p in same else result for p, result in results.items()}


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
    first, other = (own, str(match.other)) if match.kind == "wins" else (str(row.main), own)
    if first == other and match.kind == "wins":
        return {"status": ITSELF}, None
    counted = matches.lacking(first, other, match.by)
    if match.kind == "wins":
        if rates := matches.win_rates(own, other, match.by):
            mean, error = mean_and_standard_error([rates[seed] for seed in sorted(rates)])
            seeds = {str(seed): rate for seed, rate in sorted(rates.items())}
            fields = {"status": "measured", "mean": mean, "se": error, "seeds": seeds, "against": "50 %", **counted}
            return fields, compare_constant(rates, 50.0)
    elif (found := matches.outcome(first, own, match)) is not None:
        seeds = {str(seed): found.p_value for seed in matches.seeds(first, own)}
        return {"status": "measured", "mean": found.p_value, "seeds": seeds, "outcome": found.text, **counted}, None
    asked = Match(match.kind, match.by, first if match.kind == "win-test" else other)
    why = None if match.kind == "mean-test" else matches.blank_reason(own, asked)
    return {"status": "not measured", "why": why, **counted}, None
