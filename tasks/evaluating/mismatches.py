"""An evaluation's metrics from its answers and judgements, and what of an answer follows from its text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.evaluation.benchmark_scores import mt_bench_scores, win_rate
from rlhf_core.evaluation.protocols import true_tally
from tasks.evaluating.over_sft import TRUE_BENCHMARKS, win_rate_name
from tasks.params.evaluation import EvaluationConfig
from tasks.running.loading import load_encoder, load_world
from tasks.running.mismatches import FinishedStage, Rows, mean

#: Largest share of answers that are as long as the longest, below the limit, and have no token beyond those of the
#: text: a text rarely has more tokens than were drawn for it.
MOST_CUT = 0.1
#: Stands in a text for tokens that are not a character.
UNREADABLE = "\ufffd"


def answer_mismatches(finished: FinishedStage, file: str = "generations.jsonl", prefix: str = "") -> Iterator[str]:
    """Yields what of a model's answers, and of metrics of them, does not follow from the answers.

    Args:
        finished: a stage that evaluates.
        file: of the answers.
        prefix: of the metrics' names.
    """
    answers = finished.rows(file)
    yield from finished.metric_mismatches({f"{prefix}{name}": value for name, value in _means(answers).items()})
    given = [row for row in answers if "response" in row and "n_chars" in row]
    yield from finished.row_mismatches(file, given, [{"n_chars": len(row["response"])} for row in given])
    yield from _true_rewards(finished, file, answers)
    yield from _cut(finished, file, answers)
    for name, value in finished.metrics.items():
        lower, upper = (finished.metrics.get(f"{name}_{end}") for end in ("lower", "upper"))
        if lower is not None and upper is not None and not lower <= value <= upper:
            yield f"metrics.json has {name} {value:.6g} outside its own bounds, {lower:.6g} to {upper:.6g}"


def win_rate_mismatches(finished: FinishedStage, file: str = "generations.jsonl", prefix: str = "") -> Iterator[str]:
    """Yields win rates over the SFT model that are not those of the true rewards of both models' answers."""
    sft = finished.input_from("sft")
    of_sft = [] if sft is None else FinishedStage(sft.parent, finished.root).rows("generations.jsonl")
    for benchmark in TRUE_BENCHMARKS:
        tally = true_tally(*(rewards(rows, benchmark) for rows in (finished.rows(file), of_sft)))
        if tally.scores:
            yield from finished.metric_mismatches(tally.metrics(f"{prefix}{win_rate_name(benchmark)}", judged=False))


def judgement_mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields a judge's win rates and marks that are not those of its judgements."""
    rows = finished.rows("judgements.jsonl")
    for benchmark in TRUE_BENCHMARKS:
        games = [
            row
            for row in rows
            if (row.get("benchmark"), row.get("template")) == (benchmark, "alpaca_eval")
            and not {"reference", "opponent"} & row.keys()
        ]
        judged = [float(row["preference"]) if row["valid"] else math.nan for row in games]
        if not all(math.isnan(preference) for preference in judged):
            rate = win_rate(judged)
            found = {"": rate["win_rate"], "_se": rate["standard_error"]}
            yield from finished.metric_mismatches({f"{benchmark}_wr{end}": value for end, value in found.items()})
            yield from finished.metric_mismatches({f"{benchmark}_invalid": float(rate["n_invalid"])})
        valid = [row for row in games if row["valid"] and "value" in row]
        turned = [{"preference": row["value"] if row["first"] == "baseline" else 3 - row["value"]} for row in valid]
        yield from finished.row_mismatches("judgements.jsonl", valid, turned)
    turns = [row["turn"] for row in finished.rows("generations.jsonl") if row.get("benchmark") == "mtbench"]
    marks = [row["value"] for row in rows if row.get("benchmark") == "mtbench"]
    if marks and len(marks) == len(turns):
        found = mt_bench_scores(list(zip(turns, marks, strict=True)))
        yield from finished.metric_mismatches(
            {name: found[name] for name in ("mtbench", "mtbench_turn1", "mtbench_turn2")}
        )


def rewards(answers: Rows, benchmark: str) -> dict[str, float]:
    """Returns the true rewards of a benchmark's answers by prompt id, where they are known."""
    of_benchmark = (row for row in answers if row.get("benchmark") == benchmark)
    return {row["id"]: row["true_reward"] for row in of_benchmark if row.get("true_reward") is not None}


def _means(answers: Rows) -> dict[str, float]:
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in answers:
        by_name.setdefault(str(row.get("benchmark")), []).append(row)
    found: dict[str, float] = {}
    for name, rows in by_name.items():
        for field, metric in (("n_chars", f"{name}_chars"), ("n_tokens", f"{name}_tokens")):
            if values := [row[field] for row in rows if field in row]:
                found[metric] = mean(values)
        if known := [row["true_reward"] for row in rows if row.get("true_reward") is not None]:
            found["true_reward" if name == "alpaca" else f"{name}_true_reward"] = mean(known)
        if marks := [bool(row["right"]) for row in rows if "right" in row]:
            found |= dict.fromkeys((name, f"arithmetic_{name}"), 100 * mean(marks))
    return found


def _true_rewards(finished: FinishedStage, file: str, answers: Rows) -> Iterator[str]:
    """Yields true rewards that are not those of the answers' texts."""
    data = finished.input_from("prepare")
    known = [row for row in answers if row.get("true_reward") is not None and "meta" in row]
    world = load_world(data) if data is not None and known else None
    if world is not None:
        values = [{"true_reward": world.true_reward(row["meta"], row["response"])} for row in known]
        yield from finished.row_mismatches(file, known, values)


def _cut(finished: FinishedStage, file: str, answers: Rows) -> Iterator[str]:
    """Yields that answers end before the limit without the end token, which is one token beyond those of the text."""
    spec, data, model = finished.settings(EvaluationConfig), finished.input_from("prepare"), finished.result / "model"
    drawn = [row for row in answers if "n_tokens" in row and "meta" in row]
    if spec is None or data is None or not drawn or not model.exists():
        return
    longest = max(row["n_tokens"] for row in drawn)
    if longest > spec.max_new_tokens:
        yield f"{file} has an answer of {longest} tokens, but max_new_tokens is {spec.max_new_tokens}"
    encode = load_encoder(data, model).tokenizer.encode
    at_end = [
        row for row in drawn if row["n_tokens"] == longest < spec.max_new_tokens and UNREADABLE not in row["response"]
    ]
    cut = sum(longest <= len(encode(row["response"], add_special_tokens=False)) for row in at_end)
    if cut > MOST_CUT * len(drawn):
        yield f"{file} has {cut} answers cut before {spec.max_new_tokens} tokens, the longest at {longest}"
