"""Stage `prepare`: every data set of a scale, validated, with bad rows in quarantine.

Writes into result/: sft.jsonl, preference.{train,validation,...}.jsonl, prompts.jsonl, benchmarks/<name>.jsonl,
choices/<task>.jsonl, arithmetic.<name>.jsonl, functions.<name>.jsonl, quarantine/, data.json (template, limits,
source, counts).

A spec with a `task` is of questions with step-by-step solutions (`tasks.data_specs.questions`). Otherwise `testbed`
generates everything from the world. `directory` and `huggingface` read real preference sets: the chosen
responses serve supervised fine-tuning, the split `test` is held out, and its prompts with their chosen
responses are the benchmark unless the spec names others. Quarantined rows of a run that is refused stay in
`<out>/quarantine/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.data.schemas import record_type
from rlhf_core.evaluation.benchmark_names import CHOICE_TASKS
from tasks.data_specs.benchmarks import code_benchmarks, dialogue_benchmarks, harness_rows
from tasks.data_specs.data_sets import (
    Sets,
    alpaca_calibration,
    benchmark_row,
    drawn_pairs,
    moved_dials,
    source_facts,
    source_of,
    split_off,
    together,
)
from tasks.data_specs.long_form import long_form_directory_sets, long_form_world_sets
from tasks.data_specs.questions import question_sets
from tasks.data_specs.translation import translation_directory_sets, translation_world_sets
from tasks.params.data import (
    Filters,
    LongFormDirectorySpec,
    LongFormWorldSpec,
    RealSpec,
    TranslationDirectorySpec,
    TranslationWorldSpec,
    WorldSpec,
    data_spec,
    settings_of_world,
)
from tasks.params.pages import Address, read_settings
from tasks.params.questions import DataSpec, QuestionsSpec
from tasks.running.amounts import first_rows
from tasks.running.artifacts import write_json, write_jsonl
from tasks.running.stage import stage

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 4


def prepare(
    spec_path: Annotated[Address, "data spec (YAML)"],
    out: Path,
    result: Path,
    world: Annotated[int | None, "draw generated data in this world"] = None,
) -> None:
    """Writes the data sets that a data spec describes."""
    spec = data_spec(settings_of_world(read_settings(spec_path), world, str(spec_path)), str(spec_path))
    quarantine = out / "quarantine"
    shutil.rmtree(quarantine, ignore_errors=True)
    sets, facts = make_sets(spec, quarantine)
    for name, rows in sets.items():
        path = result / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, rows)
    common = {"source": spec.source, "template": spec.template, "limits": dict(spec.limits)}
    write_json(result / "data.json", {**common, **facts, "rows": {name: len(r) for name, r in sets.items()}})
    if quarantine.exists():
        quarantine.rename(result / "quarantine")


def world_sets(spec: WorldSpec, _: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets that the testbed draws, and facts about them for data.json."""
    from rlhf_core.testbed import World, WorldConfig

    kind, share = next(iter(spec.padding.items()), (None, 0.0))
    config = WorldConfig(seed=spec.world_seed, padding=share, padded_with=kind, dials=spec.dials)
    world = World(replace(config, wrong_share=spec.wrong_share))
    seed, rows = spec.seed, spec.rows
    pairs, facts = drawn_pairs(world, spec)
    sets: dict[str, list[dict[str, Any]]] = {
        "sft": [
            *world.sft_examples(rows["sft"], seed, spec.follow_up_share),
            *world.task_examples(rows["tasks"], seed),
        ],
        "sft.validation": world.sft_examples(rows["sft_validation"], seed + 1, spec.follow_up_share),
        "prompts": world.prompts(rows["prompts"], seed, "train"),
        "arithmetic.seen": world.arithmetic(rows["arithmetic"], seed + 1, "seen"),
        "arithmetic.unseen": world.arithmetic(rows["arithmetic"], seed + 1, "unseen"),
        **pairs,
    }
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
    return sets, {
        "world": {"version": world.config.version, "seed": spec.world_seed, **moved_dials(spec.dials)},
        **facts,
    }


#: Responses of each kind that reward models colour, the same for all of them.
PICTURES = {"normal": 8, "repetition": 4, "code": 4}


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
        comparisons = [
            JudgedPair(
                item["id"],
                item["turns"][0],
                _variant(item["baseline"][0], variant, world.mixture_answer(item["metas"][0], seed, 0.0)),
                item["baseline"][0],
                {"prompt": item["metas"][0]},
            )
            for item in items
        ]
        games = play_games(GoldJudge(world), comparisons, "alpaca_eval", orders="drawn")
        rows += [
            {
                "id": game.id,
                "variant": variant,
                "preference": game.preference_for_model,
                "model_chars": len(comparison.model_answer),
                "baseline_chars": len(comparison.baseline_answer),
            }
            for game, comparison in zip(games, comparisons, strict=True)
        ]
    return rows


def _variant(answer: str, variant: str, padding: str) -> str:
    """Returns the baseline answer with a poor answer appended, or without its last sentence."""
    if variant == "verbose":
        return f"{answer} {padding}"
    head, _, _ = answer.rstrip(".").rpartition(". ")
    return f"{head}." if head else answer


def real_sets(spec: RealSpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets of a folder or a hub, and facts about them for data.json; bad rows go to `quarantine`."""
    source = source_of(spec, quarantine)
    kind = record_type("preference").name
    train, test = (together(source, spec.preference, split, kind) for split in ("train", "test"))
    removed: dict[str, dict[str, int]] = {}
    if spec.filters is not None:
        train, test, removed = _filtered(spec, spec.filters, train, test)
    fitted, validation = split_off(train, spec.validation_share, ", ".join(spec.preference))
    prompts = [row for name in spec.prompts for row in source.load(name, "train", record_type("prompt").name)]
    benchmarks, items = dialogue_benchmarks(spec, source)
    code, programs = code_benchmarks(spec, source)
    tasks, rows_of_tasks = harness_rows(spec)
    if not benchmarks:
        held_out = [_answered(row) for row in _distinct_prompts(test)][: spec.benchmark_rows]
        benchmarks["benchmarks/alpaca"] = [
            benchmark_row(row, [row["prompt"]], [row["response"]], [{}]) for row in held_out
        ]
    sets = {
        "sft": [_answered(row) for row in fitted],
        "sft.validation": [_answered(row) for row in validation],
        "preference.train": fitted,
        "preference.validation": validation,
        "preference.ood": test,
        "prompts": _distinct_prompts(prompts or fitted),
        "examples": [
            {**_answered(row), "kind": "normal", "true_clauses": []} for row in validation[: PICTURES["normal"]]
        ],
        **benchmarks,
        **code,
        **tasks,
    }
    if spec.alpaca_calibration:
        first = 1 if spec.source == "huggingface" else 0  # a hub's rows are numbered from 1
        sets["alpaca_calibration"] = alpaca_calibration(spec.alpaca_calibration, sets["benchmarks/alpaca"], first)
    named = [*spec.preference, *spec.prompts, *spec.benchmarks.values(), *spec.references.values(), *spec.code.values()]
    facts = source_facts(source, named)
    measured = items | programs | rows_of_tasks
    facts |= {"benchmarks": measured} if measured else {}
    facts |= {"filtered": removed} if spec.filters is not None else {}
    if spec.held_out:
        distinct = [_answered(row) for row in _distinct_prompts(test)]
        rows = first_rows(distinct, spec.held_out, "held_out", f"the test split of {', '.join(spec.preference)}")
        made = [benchmark_row(row, [row["prompt"]], [row["response"]], [{}]) for row in rows]
        sets["benchmarks/held_out"] = made
    return sets, facts


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


#: Functions that make the sets of each kind of data.
MAKERS: Mapping[type[Any], Callable[[Any, Path], tuple[Sets, dict[str, Any]]]] = {
    WorldSpec: world_sets,
    RealSpec: real_sets,
    LongFormWorldSpec: long_form_world_sets,
    LongFormDirectorySpec: long_form_directory_sets,
    TranslationWorldSpec: translation_world_sets,
    TranslationDirectorySpec: translation_directory_sets,
    QuestionsSpec: question_sets,
}


def make_sets(spec: DataSpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets of a data spec, and facts about them for data.json; bad rows go to `quarantine`."""
    return MAKERS[type(spec)](spec, quarantine)


main = stage(prepare, models=False)
