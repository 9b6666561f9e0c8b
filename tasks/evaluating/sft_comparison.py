"""A policy's answers against those of its SFT model, on the same prompts.

True rewards decide where the data has them; elsewhere the judge does, by the protocol that the evaluation names
(`over_sft`). Tables, figures, claims and the hacking alarm read the same tally from either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rlhf_core import distributed
from rlhf_core.errors import DataError
from rlhf_core.evaluation.protocols import PROTOCOLS, Tally, tally_of_values
from tasks.evaluating.policies import comparisons, judgement_rows
from tasks.running.result_rows import Generation, Judgement, Metrics

if TYPE_CHECKING:
    from tasks.evaluating.policies import Evaluator

#: Reference of a judgement on an answer against the SFT model's.
SFT = "sft"
#: Benchmarks on which true rewards are compared; a judge's are in the evaluation's settings.
TRUE_BENCHMARKS = ("alpaca", "ood")


@dataclass(frozen=True)
class SftComparison:
    """A policy's answers against its SFT model's.

    Attributes:
        tallies: by benchmark.
        judgements: of the judge, with the SFT model as their reference; empty where true rewards decide.
        win_rate_facts: of each win rate that a judge decides, by its name among the metrics: reference, benchmark,
            protocol, judge and counts; its value is in `metrics`.
    """

    tallies: dict[str, Tally]
    judgements: list[Judgement] = field(default_factory=list)
    win_rate_facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def metrics(self) -> Metrics:
        """Returns the win rates in percent with standard errors and p-values."""
        found: Metrics = {}
        for benchmark, tally in self.tallies.items():
            name = win_rate_name(benchmark)
            found |= tally.metrics(name, judged=name in self.win_rate_facts)
        return found

    def for_prompts(self, benchmark: str, prompts: Collection[str]) -> SftComparison:
        """Returns the verdicts on some prompts of one benchmark, without the judge's words."""
        if benchmark not in self.tallies:
            return SftComparison({})
        name = win_rate_name(benchmark)
        facts = {name: self.win_rate_facts[name]} if name in self.win_rate_facts else {}
        return SftComparison({benchmark: self.tallies[benchmark].on(set(prompts))}, [], facts)

    def scores(self, benchmark: str) -> Mapping[str, float]:
        """Returns the score of each prompt of a benchmark that has a verdict."""
        return self.tallies[benchmark].scores if benchmark in self.tallies else {}


def win_rate_name(benchmark: str) -> str:
    """Returns the name of the win rate over the SFT model among a run's metrics."""
    return "win_rate_vs_sft" if benchmark == "alpaca" else f"{benchmark}_win_rate_vs_sft"


def true_rewards(generations: Sequence[Generation], benchmark: str) -> dict[str, float]:
    """Returns the true rewards of a benchmark's answers by prompt id, where they are known."""
    answers = (row for row in generations if row["benchmark"] == benchmark)
    return {row["id"]: reward for row in answers if (reward := row["true_reward"]) is not None}


def compare_with_sft(
    evaluator: Evaluator,
    rows: Sequence[Generation],
    sft: Sequence[Generation],
    benchmarks: Sequence[str] | None = None,
) -> SftComparison:
    """Returns the win rates of a policy's answers over its SFT model's, paired by prompt.

    Args:
        evaluator: its world or judge decides; without either there are no win rates.
        rows: the policy's generations.
        sft: the SFT model's.
        benchmarks: on whose prompts the judge is asked; None for those that the evaluation names.
    """
    if evaluator.world is not None:
        tallies = {name: tally_of_values(true_rewards(rows, name), true_rewards(sft, name)) for name in TRUE_BENCHMARKS}
        return SftComparison({name: tally for name, tally in tallies.items() if tally.scores})
    found = SftComparison({})
    if evaluator.judge is None:
        return found
    judge, protocol = evaluator.judge, PROTOCOLS[evaluator.config.over_sft]
    for name in evaluator.config.over_sft_benchmarks if benchmarks is None else benchmarks:
        answers = [row for row in rows if row["benchmark"] == name and row["turn"] == 1]
        if not answers:
            continue
        before = {row["id"]: row["response"] for row in sft if row["benchmark"] == name and row["turn"] == 1}
        check_answered(answers, before, name)
        against = comparisons([{**row, "baseline": before[row["id"]]} for row in answers], evaluator.instruction)
        games = distributed.on_main(partial(protocol.play, judge, against))
        found.tallies[name] = tally = protocol.tally(games)
        found.judgements.extend({**row, "reference": SFT} for row in judgement_rows(name, games))
        counts = {"prompts": len(answers), "unparsable": len(tally.unparsable), "one_sided": len(tally.one_sided)}
        asked = {"reference": SFT, "benchmark": name, "protocol": asdict(protocol), "judge": judge.name}
        found.win_rate_facts[win_rate_name(name)] = {**asked, **counts}
    return found


def over_baseline(evaluator: Evaluator, judgements: Sequence[Judgement]) -> dict[str, dict[str, Any]]:
    """Returns the facts of AlpacaEval's win rate over the benchmark's own answers, as `SftComparison.win_rate_facts`.

    They are empty where the judge was not asked or true rewards are known.
    """
    games = [row for row in judgements if row["benchmark"] == "alpaca"]
    if evaluator.world is not None or evaluator.judge is None or not games:
        return {}
    asked = {"reference": "baseline", "benchmark": "alpaca", "protocol": asdict(PROTOCOLS["alpaca_eval"])}
    counts = {"prompts": len(games), "unparsable": sum(not row["valid"] for row in games), "one_sided": 0}
    return {"alpaca_wr": {**asked, "judge": evaluator.judge.name, **counts}}


def check_answered(items: Sequence[Any], answers: Any, benchmark: str) -> None:
    """Refuses prompts of a benchmark that the SFT model did not answer.

    Raises:
        DataError: names the first.
    """
    missing = [str(item["id"]) for item in items if item["id"] not in answers]
    if missing:
        raise DataError(
            f"the SFT model has no answer to {len(missing)} of {len(items)} prompts of '{benchmark}', the first is "
            f"'{missing[0]}'",
            file="generations.jsonl",
            field="id",
            remedy="Run the SFT stage again with this evaluation, whose answers the policy is compared with",
        )
