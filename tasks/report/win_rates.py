"""Win rates of runs over an opponent's answers: the SFT model's, another row's or AlpacaEval's baseline.

Over the SFT model and other rows true rewards decide where they are known; else a judge's games do, counted by the
protocol that win_rates.json names (judge.json where two rows are compared). Over AlpacaEval's baseline a judge always
decides.

A length-controlled win rate needs a difficulty of each prompt. It is a feature of a regression, which learns whether
higher means easier or harder. With true rewards it is the true reward of the opponent's answer, standardised. With a
judge it is fitted,

- over the SFT model, jointly over every policy of the paper that the same judge compared with it in that world;
- over another row, over the rows of the table;
- over AlpacaEval's baseline, to the data's calibration rows, unless these are published ones with difficulties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.evaluation.judges.games import recorded_game
from rlhf_core.evaluation.protocols import Protocol, Tally, true_tally
from rlhf_core.published.row_map import recipe_row, rows_of_paper
from tasks.report.length_controlled_runs import Difficulties, Judged, standardised
from tasks.report.outputs import ResultTree, StageOutput

#: Of generations.jsonl or another JSONL file of a result.
Rows = Sequence[Mapping[str, Any]]
#: Row name -> seed -> output.
Outputs = Mapping[str, Mapping[int, StageOutput]]
#: Value of `reference` in judgements on answers against the SFT model's, see `tasks.evaluating.over_sft`.
SFT = "sft"
#: Beginning of the metrics that compare a row with another row, as in `win_rate_over/<row>`.
OVER, LC_OVER = "win_rate_over/", "lc_win_rate_over/"
#: Win rate over the SFT model -> benchmark that it is on.
OVER_SFT = {
    "win_rate_vs_sft": "alpaca",
    "peak_win_rate_vs_sft": "alpaca",
    "lc_win_rate_vs_sft": "alpaca",
    "peak_lc_win_rate_vs_sft": "alpaca",
    "ood_win_rate_vs_sft": "ood",
    "arena_win_rate_vs_sft": "arena",
}
#: Other judged metric -> the metric with the number of its unparsable verdicts: of prompts, of Arena-Hard's games, of
#: MT-Bench's turns.
UNPARSABLE_COUNTS = {
    "alpaca_wr": "alpaca_invalid",
    "alpaca_lc": "alpaca_invalid",
    "arena_wr": "arena_invalid",
    "mtbench": "mtbench_missing",
    "mtbench_turn1": "mtbench_missing",
    "mtbench_turn2": "mtbench_missing",
    "peak_mtbench": "peak_mtbench_missing",
}


@dataclass(frozen=True)
class TableRuns:
    """The runs behind a table.

    Attributes:
        outputs: {row name: {seed: output}}.
        sft_outputs: for each row the outputs of the SFT model that it starts from, by seed.
        calibrations: rows of alpaca_calibration.jsonl by seed: longer and shorter versions of AlpacaEval's baseline
            answers, judged against these; a seed without any has no `alpaca_lc`.
        paper, tree: where the paper's other rows are; without them a judge's win rates over the SFT model have no
            difficulties.
        played: cache of `tasks.report.row_games`: {other row: {(row, seed): (tally, the other row's output)}}.
    """

    outputs: Outputs
    sft_outputs: Outputs
    calibrations: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    paper: str | None = None
    tree: ResultTree | None = None
    played: dict[str, Any] = field(default_factory=dict, compare=False)
    _fitted: dict[tuple[Any, ...], tuple[Difficulties, int]] = field(default_factory=dict, compare=False)

    def sft_output(self, name: str, seed: int) -> StageOutput | None:
        return self.sft_outputs.get(name, {}).get(seed)

    def row(self, name: str, seed: int) -> StageOutput | None:
        """Returns the run of a row of the paper, in this table or not."""
        if self.paper is None or self.tree is None:
            return self.outputs.get(name, {}).get(seed)
        return self.tree.of(recipe_row(self.paper, name)).get(seed)

    def difficulties(self, output: StageOutput, sft: StageOutput, rate: str) -> tuple[Difficulties, int]:
        """Returns the difficulties of a judge's win rate over the SFT model, and the number of policies behind them.

        From a single policy none can be fitted: they are 0.
        """
        facts = output.win_rate_facts[rate]
        key = sft.path, facts["judge"], repr(facts["protocol"])
        if key not in self._fitted:
            self._fitted[key] = _fit([one for one in self._peers(output.seed) if _same_games(one, facts)], sft)
        return self._fitted[key]

    def _peers(self, seed: int) -> list[StageOutput]:
        """Returns the runs of all the paper's policies at a seed."""
        places = [] if self.paper is None or self.tree is None else rows_of_paper(self.paper)
        found = [self.tree.of(place).get(seed) for place in places if place.kind == "policy"] if self.tree else []
        return [output for output in found if output is not None]


def _same_games(output: StageOutput, facts: Mapping[str, Any]) -> bool:
    """Returns whether the same judge compared a run with the same SFT model, by the same protocol and prompts."""
    own = output.win_rate_facts.get("win_rate_vs_sft", {})
    return all(own.get(name) == facts[name] for name in ("sft", "judge", "protocol", "benchmark"))


def _fit(peers: Sequence[StageOutput], sft: StageOutput) -> tuple[Difficulties, int]:
    prompts = [str(row["id"]) for row in sft.generations if row["benchmark"] == "alpaca"]
    return fitted_difficulties([preferences(peer, sft, "alpaca") for peer in peers], prompts), len(peers)


def fitted_difficulties(judged: Sequence[Judged], prompts: Sequence[str]) -> Difficulties:
    """Returns the difficulty of each prompt, fitted jointly over policies against one opponent; 0 with one policy."""
    from rlhf_core.evaluation.alpaca_calibration import fit_difficulty

    known = dict.fromkeys(prompts, 0.0)
    if len(judged) < 2:
        return known
    rows = [
        (policy, *row)
        for policy, one in enumerate(judged)
        for row in zip(one.prompts, one.preferences, one.own_length, one.opponent_length, strict=True)
    ]
    return known | dict(fit_difficulty(*(list(column) for column in zip(*rows, strict=True))))


def true_rewards(answers: Rows, benchmark: str) -> dict[str, float]:
    """Returns the true rewards of a benchmark's answers by prompt, where they are known."""
    return {
        str(row["id"]): float(row["true_reward"])
        for row in answers
        if row["benchmark"] == benchmark and row["true_reward"] is not None
    }


def knows_true_rewards(output: StageOutput) -> bool:
    """Returns whether the answers of a run have true rewards."""
    return any(row.get("true_reward") is not None for row in output.generations)


def answers_of(output: StageOutput, *, peak: bool = False) -> Rows:
    """Returns a run's answers; with `peak` the answers to AlpacaEval by the peak's weights, if they were kept."""
    return output.rows("peak_generations.jsonl") if peak else output.generations


def tally_over_sft(output: StageOutput, sft: StageOutput, benchmark: str, *, peak: bool = False) -> Tally | None:
    """Returns a run's verdicts over its SFT model; None where there is no judge and no true reward."""
    name = ("peak_" if peak else "") + ("" if benchmark == "alpaca" else f"{benchmark}_") + "win_rate_vs_sft"
    if name in output.win_rate_facts:
        protocol = Protocol(**output.win_rate_facts[name]["protocol"])
        rows = output.rows("peak_judgements.jsonl") if peak else output.judgements
        games = [row for row in rows if row["benchmark"] == benchmark and row.get("reference") == SFT]
        return protocol.tally([recorded_game(row) for row in games])
    rewards = (true_rewards(rows, benchmark) for rows in (answers_of(output, peak=peak), sft.generations))
    tally = true_tally(*rewards)
    return tally if tally.scores else None


def preferences(output: StageOutput, sft: StageOutput, benchmark: str, *, peak: bool = False) -> Judged:
    """Returns a run's verdicts over its SFT model as preferences, with the lengths of both answers."""
    tally = tally_over_sft(output, sft, benchmark, peak=peak)
    return preferences_of(tally or Tally({}), answers_of(output, peak=peak), sft.generations, benchmark)


def preferences_of(tally: Tally, answers: Rows, opponents: Rows, benchmark: str) -> Judged:
    """Returns verdicts as preferences from 1 (the opponent wins) to 2, NaN without a verdict, with the lengths of both
    answers in characters."""
    own, opponent = (
        {str(row["id"]): float(row["n_chars"]) for row in rows if row["benchmark"] == benchmark}
        for rows in (answers, opponents)
    )
    undecided = dict.fromkeys((*tally.unparsable, *tally.one_sided), math.nan)
    preferred = {**{prompt: 1 + score for prompt, score in tally.scores.items()}, **undecided}
    prompts = sorted(preferred)
    return Judged(prompts, [preferred[p] for p in prompts], [own[p] for p in prompts], [opponent[p] for p in prompts])


def difficulties_of(
    runs: TableRuns, output: StageOutput, sft: StageOutput, rate: str
) -> tuple[Difficulties, str | None]:
    """Returns the difficulty of each prompt for a run's length-controlled win rate over the SFT model, and a note on
    its source; no note where true rewards are the source.

    Args:
        rate: name of the win rate without length control.
    """
    if rate not in output.win_rate_facts:
        return standardised(true_rewards(sft.generations, "alpaca")), None
    found, policies = runs.difficulties(output, sft, rate)
    if policies < 2:
        return found, "length control without difficulties of instructions, which take at least two judged policies"
    return found, f"length control by difficulties fitted over {policies} policies against the same SFT model"


def length_note(runs: TableRuns, name: str, metric: str) -> str | None:
    """Returns a note on the source of the difficulties behind a row's length-controlled win rate over the SFT model or
    AlpacaEval's baseline.

    None for other metrics, for the SFT model itself, and where the difficulties come from true rewards or from the
    data's own calibration.
    """
    for seed, output in runs.outputs.get(name, {}).items():
        sft = runs.sft_output(name, seed)
        if metric in ("lc_win_rate_vs_sft", "peak_lc_win_rate_vs_sft"):
            if sft is None or sft.path == output.path:
                return None
            return difficulties_of(runs, output, sft, metric.replace("lc_win_rate", "win_rate"))[1]
        if metric == "alpaca_lc" and "instruction_difficulty" in next(iter(runs.calibrations.get(seed, ())), {}):
            judge = output.win_rate_facts.get("alpaca_wr", {}).get("judge")
            here = f"; the judge here is {judge}" if judge else ""
            return f"length control by AlpacaEval's published difficulties, of GPT-4 Turbo's verdicts{here}"
    return None


def undecided_prompts(runs: TableRuns, name: str, metric: str) -> tuple[int, int]:
    """Returns how many prompts (or games, or turns, see `UNPARSABLE_COUNTS`) behind a row's metric are unparsable and
    how many one-sided (`Tally`), over seeds."""
    for start in (OVER, LC_OVER):
        if metric.startswith(start):
            played = runs.played.get(metric.removeprefix(start), {})
            tallies = [tally for (row, _), (tally, _) in played.items() if row == name]
            return sum(len(one.unparsable) for one in tallies), sum(len(one.one_sided) for one in tallies)
    rate, outputs = metric.replace("lc_win_rate", "win_rate"), runs.outputs.get(name, {}).values()
    over_sft = f"{rate}_unparsable", f"{rate}_one_sided"
    counts = over_sft if metric in OVER_SFT else (UNPARSABLE_COUNTS.get(metric, ""), "")
    unparsable, one_sided = (sum(int(output.metrics.get(count, 0)) for output in outputs) for count in counts)
    return unparsable, one_sided


#: Order rule of a protocol -> its words.
ORDERS = {
    "drawn": "one game in a drawn order",
    "summed": "both orders summed",
    "agreed": "games in which both orders agree",
}


def judge_notes(outputs: Outputs) -> list[str]:
    """Returns a line for each way in which a judge decided win rates: opponent, prompts, judge, orders and ties."""
    found: dict[str, None] = {}
    for output in (output for by_seed in outputs.values() for output in by_seed.values()):
        for facts in output.win_rate_facts.values():
            protocol = facts["protocol"]
            opponent = f"the SFT model {facts['sft']}" if facts["reference"] == SFT else "the benchmark's own answers"
            kind = "mean soft preference" if protocol["soft"] else f"ties {protocol['ties'].replace('_', ' ')}"
            found[
                f"Win rates over {opponent} on {facts['prompts']} prompts of '{facts['benchmark']}' are judged by "
                f"{facts['judge']}: prompt '{protocol['template']}', {ORDERS[protocol['orders']]}, {kind}"
            ] = None
    return list(found)


def verdicts_word(outputs: Outputs) -> str:
    """Returns the source of the win rates of some runs: 'judged' where a judge decided one, else 'true'."""
    return "judged" if any(out.win_rate_facts for by_seed in outputs.values() for out in by_seed.values()) else "true"


def win_rate_source(tree: ResultTree, paper: str) -> str:
    """Returns the source of the win rates of a paper's policies, for captions and axes: 'true' or 'judged'."""
    return verdicts_word({row.name: tree.of(row) for row in rows_of_paper(paper) if row.kind == "policy"})


def blank_reason(outputs: Mapping[int, StageOutput], metric: str, calibrated: bool) -> str | None:
    """Returns why a row that was run lacks a judged metric or one of true rewards; None where nothing says why.

    Args:
        outputs: the row's runs.
        metric: of the column.
        calibrated: whether the data has calibration rows of AlpacaEval's baseline.
    """
    for start in (OVER, LC_OVER):
        if metric.startswith(start):
            return f"no verdict on the answers beside those of '{metric.removeprefix(start)}'"
    output = next(iter(outputs.values()))
    true = knows_true_rewards(output)
    benchmark = OVER_SFT.get(metric) or {"alpaca_wr": "alpaca", "alpaca_lc": "alpaca", "arena_wr": "arena"}.get(metric)
    if benchmark is None and metric.removeprefix("peak_").startswith("mtbench"):
        benchmark = "mtbench"
    if benchmark is None:
        return "true rewards are not known" if metric == "true_reward" and not true else None
    if not any(row["benchmark"] == benchmark for row in output.generations):
        return f"the data has no benchmark '{benchmark}'"
    if metric.startswith("peak_") and not (output.result / "peak_generations.jsonl").exists():
        return "the best evaluation's weights were not kept"
    rate = metric.replace("lc_win_rate", "win_rate")
    if metric in OVER_SFT and rate in output.win_rate_facts:
        facts = output.win_rate_facts[rate]
        counts = f"{facts['unparsable']} unparsable, {facts['one_sided']} in one order only"
        decided = facts["prompts"] - facts["unparsable"] - facts["one_sided"]
        return f"{decided} of {facts['prompts']} prompts have a verdict ({counts})"
    if metric in OVER_SFT:
        return None if true else "no judge compared the answers with the SFT model's"
    judged = [row for row in output.judgements if row["benchmark"] == benchmark and "reference" not in row]
    if not judged:
        return "no judge was asked"
    if not any(row["valid"] for row in judged):
        return f"none of {len(judged)} verdicts can be read"
    return "the data has no calibration rows of its baseline" if metric == "alpaca_lc" and not calibrated else None
