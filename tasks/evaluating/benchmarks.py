"""Benchmarks of a data set as a policy meets them: tasks of lm-evaluation-harness, code, and MT-Bench's requests.

What a benchmark was measured on is written beside its numbers, into benchmarks.json: items, of how many, and of a task
its version, examples, chat template, BOS and answer filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.encoding import Encoder
from rlhf_core.evaluation.benchmark_names import OFFICIAL_QUESTIONS
from rlhf_core.evaluation.harness.choice import HarnessTask
from rlhf_core.evaluation.judges.templates import JudgeRequest
from rlhf_core.models.policy import Policy
from rlhf_core.typed import typed
from tasks.params.evaluation import EvaluationConfig
from tasks.running.artifacts import read_json, read_jsonl, write_json
from tasks.running.result_rows import Generation, Metrics

#: File of a result that says what its benchmarks were measured on.
FILE = "benchmarks.json"
#: Sources of real preference pairs.
ON_PAIRS = ("directory", "huggingface")


def measure_tasks(
    data: Path, policy: Policy, encoder: Encoder, config: EvaluationConfig, generations: list[Generation]
) -> tuple[Metrics, dict[str, Any]]:
    """Returns the metrics of every task of a data set in percent, and how each was measured; `generations` gets a row
    for every question."""
    metrics: Metrics = {}
    protocols: dict[str, Any] = {}
    for column, facts in read_json(data / "data.json").get("benchmarks", {}).items():
        if "task" not in facts:
            continue
        from rlhf_core.evaluation.harness.evaluation import measure

        rows = given_rows(data / "tasks" / f"{column}.jsonl")
        choice = typed(HarnessTask, facts["task"], f"{data / 'data.json'}: benchmarks.{column}.task")
        measured, protocol, samples = measure(policy, encoder, choice, rows, batch=config.batch, limit=config.rows)
        metrics |= {f"{column}{suffix}": value for suffix, value in measured.items()}
        protocols[column] = {**protocol, "of": facts["of"], "from": facts["from"]}
        for row in samples:
            right = row["by"].get(choice.filter, 0.0) == 1.0
            generations.append(Generation(benchmark=column, id=row["id"], turn=1, right=right))
            if row["response"] is not None:
                generations[-1]["response"] = row["response"]
    return metrics, protocols


def given_rows(path: Path) -> Any:
    """Returns what gives the rows of tasks/<column>.jsonl by data set, configuration and split."""
    found: dict[tuple[str, str | None, str], list[Any]] = {}
    for row in read_jsonl(path):
        found.setdefault((row["data_set"], row["configuration"], row["split"]), []).append(row["row"])
    return lambda *place: found[place]


def items_measured(data: Path, generations: Sequence[Generation]) -> dict[str, Any]:
    """Returns {benchmark: rows, of, set} of the published benchmarks among some generations, and of held-out prompts of
    real dialogues, which take AlpacaEval's place where no benchmark is named."""
    facts = read_json(data / "data.json")
    held_out = {"alpaca": {"set": "held-out prompts", "of": None}} if facts["source"] in ON_PAIRS else {}
    tests = facts.get("tests", {}) if facts["source"] == "directory" else {}
    questions = {name: {"set": "local questions", "of": OFFICIAL_QUESTIONS.get(name)} for name in tests}
    known = {**questions, **facts.get("benchmarks", held_out)}
    answered: dict[str, set[str]] = {}
    for row in generations:
        if row["benchmark"] in known:
            answered.setdefault(row["benchmark"], set()).add(row["id"])
    return {name: {**known[name], "rows": len(ids)} for name, ids in answered.items()}


def write_benchmarks(result: Path, benchmarks: Mapping[str, Any]) -> None:
    """Writes benchmarks.json into a result; nothing where no published benchmark was measured."""
    if benchmarks:
        write_json(result / FILE, dict(benchmarks))


def graded_answers(rows: Sequence[Generation]) -> list[JudgeRequest]:
    """Returns MT-Bench's answers as a judge grades them: by turn, and beside references where the item has them."""
    first = {row["id"]: row for row in rows if row["turn"] == 1}
    return [_graded(row, first[row["id"]]) for row in rows]


def _graded(row: Generation, first: Generation) -> JudgeRequest:
    name, answers = f"{row['id']}/{row['turn']}", (row["response"],)
    meta: dict[str, Any] = {"prompt": row["meta"]}
    if "category" not in row:
        return JudgeRequest(name, so_far(row, first), answers, "mt_bench", meta)
    references = row.get("references")
    template = "mt_bench_reference" if references else "mt_bench"
    if references:
        meta["references"] = references
    if row["turn"] == 1:
        return JudgeRequest(name, row["prompt"], answers, template, meta)
    meta["first"] = [first["prompt"], first["response"]]
    return JudgeRequest(name, row["prompt"], answers, f"{template}_turns", meta)


def so_far(row: Generation, first: Generation) -> str:
    """Returns the prompt that a judge of one turn sees: a second turn comes with the first before it."""
    if row["turn"] == 1:
        return str(row["prompt"])
    return f"User: {first['prompt']}\n\nAssistant: {first['response']}\n\nUser: {row['prompt']}"
