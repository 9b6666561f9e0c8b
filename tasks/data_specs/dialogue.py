"""Data specs of dialogues: `testbed`, which draws them, and `directory` and `huggingface`, real preference pairs.

Of real pairs the chosen responses serve supervised fine-tuning, the split `test` is held out, and its prompts with
their chosen responses are the benchmark unless the spec names others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.dialogue import dialogue_key
from rlhf_core.data.sources import HuggingFaceSource, Source
from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS
from tasks.data_specs.benchmarks import code_benchmarks, dialogue_benchmarks, harness_rows
from tasks.data_specs.data_sets import (
    Sets,
    alpaca_calibration,
    benchmark_row,
    drawn_sets,
    source_facts,
    source_of,
    split_off,
    together,
    unread_columns,
)
from tasks.params.data import Filters, RealSpec, WorldSpec
from tasks.running.artifacts import first_rows

#: Responses of each kind that reward models colour, the same for all of them.
PICTURES = {"normal": 8, "repetition": 4, "code": 4}


def world_sets(spec: WorldSpec, _: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets that the testbed draws, and facts about them for data.json."""
    from rlhf_core.testbed import World

    world = World(spec.world_seed, dials=spec.dials, padding=spec.padding, wrong_share=spec.wrong_share)
    seed, rows = spec.seed, spec.rows
    sets, facts = drawn_sets(world, spec, world.version, spec.follow_up_share)
    sets["sft"] += world.task_examples(rows["tasks"], seed)
    for split in ("seen", "unseen"):
        sets[f"arithmetic.{split}"] = world.arithmetic(rows["arithmetic"], seed + 1, split)
    for name, split in (("alpaca", "test"), ("arena", "arena"), ("ood", "ood"), ("mtbench", "mtbench")):
        items = []
        for row in world.prompts(rows["benchmark"], seed + 1, split):
            metas = row["meta"].get("turns", [row["meta"]])
            quality = spec.baseline_quality.get(name)
            baseline = [
                world.expert_answer(m, seed) if quality is None else world.mixture_answer(m, seed, quality)
                for m in metas
            ]
            items.append(benchmark_row(row, row.get("turns", [row["prompt"]]), baseline, metas))
        sets[f"benchmarks/{name}"] = items
    for task in CHOICE_TASKS:
        sets[f"choices/{task}"] = world.multiple_choice(task, rows["choices"], seed + 1)
    for name, split in (("mbpp_base", "test"), ("mbpp_plus", "plus"), ("livecode", "live")):
        sets[f"functions.{name}"] = world.functions(rows["functions"], seed + 1, split)
    sets["examples"] = _testbed_examples(sets["preference.validation"], sets["functions.mbpp_base"])
    sets["alpaca_calibration"] = _gamed_baselines(world, sets["benchmarks/alpaca"], seed)
    facts["world"] |= {"dials": moved} if (moved := spec.dials.moved()) else {}
    return sets, facts


def _testbed_examples(pairs: list[dict[str, Any]], functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns responses whose rewards are drawn: dialogue with and without repetition, and code by line."""
    examples: dict[str, list[dict[str, Any]]] = {kind: [] for kind in PICTURES}
    for row in pairs:
        clauses = row["meta"]["chosen_clauses"]
        kind = "repetition" if any(name == "repetition" for _, _, name, _ in clauses) else "normal"
        examples[kind].append(
            {key: row[key] for key in ("id", "prompt")} | {"response": row["chosen"], "true_clauses": clauses}
        )
    for row in functions:
        lines, start = [], 0
        for line in row["solution"].splitlines(keepends=True):
            lines.append([start, start + len(line), "line", None])
            start += len(line)
        examples["code"].append(
            {"id": row["id"], "prompt": row["question"], "response": row["solution"], "true_clauses": lines}
        )
    return [{**row, "kind": kind} for kind, count in PICTURES.items() for row in examples[kind][:count]]


def _gamed_baselines(world: Any, items: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Returns the calibration rows of the length-controlled win rate: a verbose and a concise variant of the baseline,
    judged against the baseline itself (preference in [1, 2], 2 = the variant wins)."""
    from rlhf_core.evaluation.judges.games import JudgedPair, play_games
    from rlhf_core.testbed.judge import GoldJudge

    rows = []
    for variant in ("verbose", "concise"):
        pairs = []
        for item in items:
            baseline, meta = item["baseline"][0], item["metas"][0]
            if variant == "verbose":
                text = f"{baseline} {world.mixture_answer(meta, seed, 0.0)}"
            else:
                shorter, _, _ = baseline.rstrip(".").rpartition(". ")
                text = f"{shorter}." if shorter else baseline
            pairs.append(JudgedPair(item["id"], item["turns"][0], text, baseline, {"prompt": meta}))
        games = play_games(GoldJudge(world), pairs, "alpaca_eval", orders="drawn")
        rows += [
            {
                "id": game.id,
                "variant": variant,
                "preference": game.preference_for_model,
                "model_chars": len(pair.model_answer),
                "baseline_chars": len(pair.baseline_answer),
            }
            for game, pair in zip(games, pairs, strict=True)
        ]
    return rows


def real_sets(spec: RealSpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets of a folder or a hub, and facts about them for data.json; bad rows go to `quarantine`."""
    source, named = source_of(spec, quarantine), ", ".join(spec.preference)
    kind = "preference"
    train, test = (together(source, spec.preference, split, kind) for split in ("train", "test"))
    unread, removed = _unread(spec, source, [*train, *test]), dict[str, dict[str, int]]()
    if spec.filters is not None:
        train, test, removed = _filtered(spec, spec.filters, train, test)
    fitted, validation = split_off(train, spec.validation_share, named)
    prompts = [row for name in spec.prompts for row in source.load(name, "train", "prompt")]
    benchmarks, items = dialogue_benchmarks(spec, source)
    code, programs = code_benchmarks(spec, source)
    tasks, rows_of_tasks = harness_rows(spec)
    held_out = [_answered(row) for row in _distinct_prompts(test)]
    if not benchmarks:
        benchmarks["benchmarks/alpaca"] = _held_out_items(held_out[: spec.benchmark_rows])
    pictured = [_answered(row) for row in validation[: PICTURES["normal"]]]
    sets = {
        "sft": [_answered(row) for row in fitted],
        "sft.validation": [_answered(row) for row in validation],
        "preference.train": fitted,
        "preference.validation": validation,
        "preference.ood": test,
        "prompts": _distinct_prompts(prompts or fitted),
        "examples": [{**row, "kind": "normal", "true_clauses": []} for row in pictured],
        **benchmarks,
        **code,
        **tasks,
    }
    if spec.alpaca_calibration:
        first = 1 if spec.source == "huggingface" else 0  # a hub's rows are numbered from 1
        sets["alpaca_calibration"] = alpaca_calibration(spec.alpaca_calibration, sets["benchmarks/alpaca"], first)
    others = (*spec.prompts, *spec.benchmarks.values(), *spec.references.values(), *spec.code.values())
    facts = source_facts(source, [*spec.preference, *others])
    measured = items | programs | rows_of_tasks
    facts |= {"benchmarks": measured} if measured else {}
    facts |= {"unread": unread} if unread else {}
    facts |= {"filtered": removed} if spec.filters is not None else {}
    if spec.held_out:
        rows = first_rows(held_out, spec.held_out, "held_out", f"the test split of {named}")
        sets["benchmarks/held_out"] = _held_out_items(rows)
    held_out_sets = {
        name: rows
        for name, rows in sets.items()
        if name in ("preference.validation", "preference.ood") or name.startswith("benchmarks/")
    }
    return sets, facts | _overlap([*fitted, *prompts], held_out_sets)


def _unread(spec: RealSpec, source: Source, pairs: list[dict[str, Any]]) -> list[str]:
    """Returns the columns of the pairs that nothing reads, and of a hub those that their mappings leave out."""
    if isinstance(source, HuggingFaceSource):
        return [f"{name}.{column}" for name in spec.preference for column in source.unmapped[name]]
    return list(dict.fromkeys([*spec.unread, *unread_columns(pairs)]))


def _overlap(training: list[dict[str, Any]], held_out: Sets) -> dict[str, Any]:
    """Returns {overlap: rows of each held-out set whose first prompt is trained on}, empty without any."""
    seen, counts = set(map(dialogue_key, training)), dict[str, int]()
    for name, rows in held_out.items():
        items = name.startswith("benchmarks/")
        asked = ({"prompt": row["turns"][0], **row} if items else row for row in rows)
        counts[name] = sum(dialogue_key(row) in seen for row in asked)
    found = {name: count for name, count in counts.items() if count}
    return {"overlap": found} if found else {}


def _held_out_items(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns held-out prompts with their chosen responses as items of a benchmark."""
    return [benchmark_row(row, [row["prompt"]], [row["response"]], [{}]) for row in rows]


def _filtered(
    spec: RealSpec, rule: Filters, train: list[Any], test: list[Any]
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Returns pairs that pass the spec's filters, and {split: {reason: pairs removed}}. Source: PAR, §8."""
    from rlhf_core.models.loading import load_tokenizer

    words = load_tokenizer(str(rule.tokenizer))

    def count(text: str) -> int:
        return len(words(text, add_special_tokens=False)["input_ids"])

    kept, removed = zip(
        *(rule.apply(rows, count, file=", ".join(spec.preference)) for rows in (train, test)), strict=True
    )
    return kept[0], kept[1], {split: dict(counts) for split, counts in zip(("train", "test"), removed, strict=True)}


def _answered(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a preference row as a prompt with its chosen response."""
    kept = {key: row[key] for key in ("id", "prompt", "source", "messages") if key in row}
    return kept | {"response": row["chosen"]}


def _distinct_prompts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for row in rows:
        seen.setdefault(row["prompt"], row)
    return list(seen.values())
