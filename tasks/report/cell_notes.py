"""Notes beside the numbers of cells and tables: lacking verdicts, reasons of blanks, judges, benchmarks in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_core.evaluation.benchmark_names import OFFICIAL_QUESTIONS
from rlhf_core.evaluation.harness.choice import LEADERBOARD
from tasks.report.games import BENCHMARK
from tasks.report.numbers import OVER, OVER_SFT, SFT, TableRuns, difficulties_of, knows_true_rewards
from tasks.report.outputs import Outputs, StageOutput

#: Judged metric -> its benchmark, and the metric with the number of its unparsable verdicts: of prompts, of
#: Arena-Hard's games, of MT-Bench's turns.
JUDGED = {
    "alpaca_wr": (BENCHMARK, "alpaca_invalid"),
    "alpaca_lc": (BENCHMARK, "alpaca_invalid"),
    "arena_wr": ("arena", "arena_invalid"),
    "mtbench": ("mtbench", "mtbench_missing"),
    "mtbench_turn1": ("mtbench", "mtbench_missing"),
    "mtbench_turn2": ("mtbench", "mtbench_missing"),
    "peak_mtbench": ("mtbench", "peak_mtbench_missing"),
}
#: Order rule of a protocol -> its words.
ORDERS = {
    "drawn": "one game in a drawn order",
    "summed": "both orders summed",
    "agreed": "games in which both orders agree",
}
#: Metrics that are means over tasks or test sets.
AVERAGES = ("average", "seen", "unseen")


def undecided_prompts(runs: TableRuns, name: str, metric: str) -> tuple[int, int]:
    """Returns how many prompts (or games, or turns, see `JUDGED`) behind a row's metric are unparsable and how many
    one-sided (`Tally`), over seeds."""
    kind, _, other = metric.partition("/")
    if kind in OVER:
        tallies = [tally for (row, _), (tally, _) in runs.games_over(other).items() if row == name]
        return sum(len(one.unparsable) for one in tallies), sum(len(one.one_sided) for one in tallies)
    rate = metric.replace("lc_win_rate", "win_rate")
    unparsable, one_sided = JUDGED[metric][1] if metric in JUDGED else "", ""
    if metric in OVER_SFT:
        unparsable, one_sided = f"{rate}_unparsable", f"{rate}_one_sided"
    every = [output.metrics for output in runs.outputs.get(name, {}).values()]
    return sum(int(one.get(unparsable, 0)) for one in every), sum(int(one.get(one_sided, 0)) for one in every)


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


def blank_reason(output: StageOutput, metric: str, *, calibrated: bool) -> str | None:
    """Returns why a run lacks a judged metric or one of true rewards; None where nothing says why.

    Args:
        output: the row's first run.
        metric: of the column.
        calibrated: whether the data has calibration rows of AlpacaEval's baseline.
    """
    kind, _, other = metric.partition("/")
    true = knows_true_rewards(output)
    benchmark = OVER_SFT.get(metric) or JUDGED.get(metric, ("", ""))[0]
    if kind in OVER:
        return f"no verdict on the answers beside those of '{other}'"
    if not benchmark:
        return "true rewards are not known" if metric == "true_reward" and not true else None
    if not any(row["benchmark"] == benchmark for row in output.generations):
        return f"the data has no benchmark '{benchmark}'"
    if metric.startswith("peak_") and not (output.result / "peak_generations.jsonl").exists():
        return "the best evaluation's weights were not kept"
    if facts := output.win_rate_facts.get(metric.replace("lc_win_rate", "win_rate")) if metric in OVER_SFT else None:
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


def partial_text(metric: str, outputs: Iterable[StageOutput]) -> str | None:
    """Returns how a metric's benchmark differs from the published one, such as '722 of 805'; None if it does not.

    Args:
        metric: of a column; its benchmark is the one that its name begins with, AlpacaEval of win rates over the SFT
            model, and of means every task and test set.
        outputs: of the runs behind the cell.
    """
    found = dict.fromkeys(text for output in outputs for text in _partial_texts(metric, output.benchmarks))
    return "; ".join(found) or None


def _partial_texts(metric: str, benchmarks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if metric in AVERAGES:
        named = [name for name in benchmarks if name in {*LEADERBOARD, *OFFICIAL_QUESTIONS}]
        return [f"{name}: {text}" for name in named if (text := _partial_text(name, benchmarks[name]))]
    named = sorted((name for name in benchmarks if f"{metric}_".startswith(f"{name}_")), key=len)
    if not named and "win_rate_vs_sft" in metric and BENCHMARK in benchmarks:
        named = [BENCHMARK]
    text = _partial_text(named[-1], benchmarks[named[-1]]) if named else ""
    return [text] if text else []


def _partial_text(name: str, facts: Mapping[str, Any]) -> str:
    rows, of = int(facts["rows"]), facts.get("of")
    parts = [] if rows == of else [f"{rows:,} of {of:,}" if of else f"{rows:,} {facts.get('set', 'local rows')}"]
    official = LEADERBOARD.get(name)
    if official is not None and "task" in facts:
        parts += [facts["task"]] if facts["task"] != official.task else []
        parts += [f"{facts['shots']}-shot"] if facts["shots"] != official.shots else []
        parts += ["in a chat template"] if facts["chat_template"] else []
    if facts.get("window"):
        parts.append(f"from {facts['window'][0] or 'the first'} to {facts['window'][1] or 'the last'}")
    if facts.get("cut"):
        parts.append(f"{facts['cut']:,} requests cut")
    return ", ".join(parts)
