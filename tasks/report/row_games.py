"""Win rates of a table's rows over another row of the paper: `win_rate_over/<row>` and `lc_win_rate_over/<row>`.

True rewards decide where both rows' answers have them. Elsewhere the rows' judge does, asked when the table is made, by
the protocol that the rows' judge.json names; its answers come from the judge's cache when the table is made again. The
length-controlled rate takes the other row's true rewards as difficulties, or fits them over the table's rows.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.evaluation.protocols import Protocol, Tally, true_tally
from tasks.report.length_controlled_runs import Difficulties, Judged, length_controlled, standardised
from tasks.report.outputs import StageOutput
from tasks.report.win_rates import LC_OVER, OVER, TableRuns, fitted_difficulties, preferences_of, true_rewards
from tasks.running.result_rows import Generation

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.protocol import Judge

BENCHMARK = "alpaca"


def other_row(metric: str) -> str | None:
    """Returns the row that a metric compares with; None for any other metric."""
    found = [metric.removeprefix(start) for start in (OVER, LC_OVER) if metric.startswith(start)]
    return found[0] if found else None


def over_row(runs: TableRuns, metric: str) -> dict[str, dict[int, float]]:
    """Returns a win rate over another row in percent, by row and seed."""
    other = other_row(metric)
    tallies = {} if other is None else played(runs, other)
    found: dict[str, dict[int, float]] = {}
    for (name, seed), (tally, against) in tallies.items():
        rate = tally.win_rate
        if metric.startswith(LC_OVER) and rate is not None:
            answers = runs.outputs[name][seed].generations
            judged = preferences_of(tally, answers, against.generations, BENCHMARK)
            rate = length_controlled(f"{name} at seed {seed}", judged, _difficulties(tallies, runs, against, seed))
        if rate is not None:
            found.setdefault(name, {})[seed] = rate
    return found


Played = Mapping[tuple[str, int], tuple[Tally, StageOutput]]


def played(runs: TableRuns, other: str) -> Played:
    """Returns the verdicts on each row's answers over another row's, with that row's run, by row and seed; rows that
    cannot be compared are left out."""
    if other not in runs.played:
        found: dict[tuple[str, int], tuple[Tally, StageOutput]] = {}
        judges = None if runs.tree is None else Judges(runs.tree.root)
        for name, by_seed in runs.outputs.items():
            for seed, output in by_seed.items():
                against = None if name == other else runs.row(other, seed)
                tally = None if against is None else _tally(output, against, judges)
                if tally is not None and against is not None:
                    found[name, seed] = tally, against
        runs.played[other] = found
    return cast(Played, runs.played[other])


def _tally(own: StageOutput, other: StageOutput, judges: Judges | None) -> Tally | None:
    rewards = [true_rewards(side.generations, BENCHMARK) for side in (own, other)]
    if all(rewards):
        return true_tally(*rewards)
    settings = own.judge_settings
    judge = judges.get(settings) if judges is not None and "protocol" in settings else None
    if judge is None:
        return None
    from tasks.evaluating.policies import comparisons

    answers, others = (
        {str(row["id"]): row for row in side.generations if row["benchmark"] == BENCHMARK} for side in (own, other)
    )
    pairs = [
        cast(Generation, {**answers[p], "id": p, "baseline": others[p]["response"]})
        for p in drawn_prompts(answers.keys() & others.keys(), settings)
    ]
    protocol = Protocol(**settings["protocol"])
    return protocol.tally(protocol.play(judge, comparisons(pairs, str(settings.get("instruction", "")))))


def _difficulties(tallies: Played, runs: TableRuns, against: StageOutput, seed: int) -> Difficulties:
    rewards = true_rewards(against.generations, BENCHMARK)
    if rewards:
        return standardised(rewards)
    judged: list[Judged] = [
        preferences_of(tally, runs.outputs[name][at].generations, against.generations, BENCHMARK)
        for (name, at), (tally, _) in tallies.items()
        if at == seed
    ]
    return fitted_difficulties(judged, [str(row["id"]) for row in against.generations if row["benchmark"] == BENCHMARK])


class Judges:
    """The judge of each setting of a run's judge.json, built when first asked; heavy modules are imported only then.

    An endpoint's answers come from its cache, if it has one (`cache_path`), when a table is made again.

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


def drawn_prompts(prompts: Collection[str], settings: Mapping[str, Any]) -> list[str]:
    """Returns the ids of the prompts that two rows are compared on: all, or as many as `rows` of the settings says,
    drawn by a fixed seed, so that all pairs of rows with the same prompts have the same ones."""
    if settings["rows"] is None or settings["rows"] >= len(prompts):
        return sorted(prompts)
    return sorted(random.Random("pairs").sample(sorted(prompts), int(settings["rows"])))
