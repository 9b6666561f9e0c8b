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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.evaluation.protocols import (
    PROTOCOLS,
    PairedTestResult,
    Protocol,
    Tally,
    outcome_of_means,
    outcome_of_wins,
    tally_of_values,
)
from tasks.report.outputs import Outputs, ResultTree, StageOutput
from tasks.running.doubtful_numbers import too_few_valid
from tasks.running.result_rows import Generation

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.templates import Judge

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


def _judge_of(tree: ResultTree, settings: Mapping[str, Any]) -> Judge | None:
    """Returns the judge of a run's judge.json."""
    from tasks.running.loading import load_judge, load_world

    def load() -> Judge | None:
        data = tree.root / "shared" / "data" / str(settings.get("data")) / "result"
        return load_judge(settings["judge"], load_world(data)) if settings.get("judge") else None

    judge: Judge | None = tree.once(("judge", repr(sorted(settings.items(), key=str))), load)
    return judge


def _answers_by_prompt(output: StageOutput) -> dict[str, Mapping[str, Any]]:
    return {str(row["id"]): row for row in output.generations if row["benchmark"] == BENCHMARK}


def judged(tree: ResultTree, own: StageOutput, other: StageOutput, protocol: Protocol) -> Tally | None:
    """Returns the verdicts of a run's judge on its answers beside another run's; None without a judge.

    Of more prompts than the judge's settings allow, the same ones are drawn for all pairs of rows.
    """
    from tasks.evaluating.policies import comparisons

    settings = own.judge_settings
    judge = _judge_of(tree, settings)
    if judge is None:
        return None
    answers, others = _answers_by_prompt(own), _answers_by_prompt(other)
    prompts, count = sorted(answers.keys() & others.keys()), settings["rows"]
    drawn = prompts if count is None or count >= len(prompts) else sorted(random.Random("pairs").sample(prompts, count))
    pairs = [cast(Generation, {**answers[p], "id": p, "baseline": others[p]["response"]}) for p in drawn]
    return protocol.tally(protocol.play(judge, comparisons(pairs, str(settings.get("instruction", "")))))


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


def is_decided(tally: Tally) -> bool:
    """Returns whether enough verdicts are valid and a game is decided; where all are valid, ties are an answer."""
    lost, valid = len(tally.unparsable) + len(tally.one_sided), len(tally.scores)
    return not lost or (tally.wins + tally.losses > 0 and too_few_valid(valid, valid + lost) is None)


@dataclass(frozen=True)
class Matches:
    """Results of the rows of one table against each other.

    Args:
        outputs: the main row among them.
        tree: the scale's results, where the judge's data set is.
        tasks: the task of each row; rows of different tasks are never compared.
    """

    outputs: Outputs
    tree: ResultTree
    tasks: Mapping[str, str | None]

    def played(self, own: str, other: str, by: str) -> dict[int, Tally]:
        """Returns the results of a row over another by seed; empty where one was not run or has no such score."""
        sides = [self.outputs.get(name, {}) for name in (own, other)]
        if not all(any(_can_compare(out, by) for out in side.values()) for side in sides):
            return {}
        seeds = [seed for seed, out in sorted(sides[0].items()) if out.scores and seed in sides[1]]
        return {seed: self._results(own, other, by, seed) for seed in seeds if sides[1][seed].scores}

    def _results(self, own: str, other: str, by: str, seed: int) -> Tally:
        """Returns the results at a seed; each pair of rows plays once."""
        first, second = (self.outputs[name][seed] for name in sorted((own, other)))

        def play() -> Tally | None:
            if by == "judge":
                return judged(self.tree, first, second, PROTOCOLS["alarm"])
            return _scored(first, second, by)

        found: Tally = self.tree.once(("match", first.path, second.path, by), play) or Tally({})
        return found if own <= other else replace(found, scores={p: 1 - score for p, score in found.scores.items()})

    def win_rates(self, own: str, other: str, by: str) -> dict[int, float]:
        """Returns the win rate in percent by seed, of the seeds whose games are decided: 50 % would be invented."""
        played = self.played(own, other, by).items()
        rates = {seed: tally.win_rate for seed, tally in played if is_decided(tally)}
        return {seed: rate for seed, rate in rates.items() if rate is not None}

    def measured(self, own: str, match: Match) -> dict[int, float]:
        """Returns a row's win rate by seed, in percent; over several other rows the mean of those with all of them."""
        if match.other != OTHERS:
            return self.win_rates(own, str(match.other), match.by)
        rivals = [name for name, task in self.tasks.items() if name != own and task == self.tasks.get(own)]
        rates = [self.win_rates(own, other, match.by) for other in rivals]
        seeds = sorted(set.intersection(*map(set, rates))) if rates else []
        return {seed: sum(found[seed] for found in rates) / len(rates) for seed in seeds}

    def outcome(self, main: str, other: str, match: Match) -> PairedTestResult | None:
        """Returns the test of the main row against another; None where one of them was not run or has no such score."""
        played = self.played(main, other, match.by)
        if match.kind == "win-test":
            decided = [tally for tally in played.values() if is_decided(tally) and tally.scores]
            wins, losses = sum(tally.wins for tally in decided), sum(tally.losses for tally in decided)
            return outcome_of_wins(wins, losses) if decided else None
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


def _can_compare(output: StageOutput, by: str) -> bool:
    if by == "judge":
        return bool(output.judge_settings.get("judge"))
    return any(by in row for row in output.scores.values())


def _higher(output: StageOutput, by: str) -> bool:
    return by not in output.judge_settings.get("lower_is_better", [])


def _scored(own: StageOutput, other: StageOutput, by: str) -> Tally:
    """Returns results by score; the same answer is a tie, also where its batch gave it another last digit."""
    first, second = ({p: float(row[by]) for p, row in side.scores.items()} for side in (own, other))
    answers, others = _answers_by_prompt(own), _answers_by_prompt(other)
    same = {p for p in answers.keys() & others.keys() if answers[p]["response"] == others[p]["response"]}
    tally = tally_of_values(first, second, "the value", higher_is_better=_higher(own, by), ties="left_out")
    return replace(tally, scores={p: 0.5 if p in same else score for p, score in tally.scores.items()})
