"""Stage `prepare`: every data set of a scale, validated, with bad rows in quarantine.

Writes into result/: sft.jsonl, preference.{train,validation,...}.jsonl, prompts.jsonl, benchmarks/<name>.jsonl,
choices/<task>.jsonl, arithmetic.<name>.jsonl, functions.<name>.jsonl, quarantine/, data.json (template, limits,
source, counts).

Source `testbed` generates everything from the world; `directory` reads preference sets of real data and uses the
chosen responses for supervised fine-tuning, held-out prompts with their chosen responses as the benchmark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.schemas import record_type
from rlhf_core.data.sources import DirectorySource, HubSet, HuggingFaceSource, Screening
from rlhf_core.errors import DataError, RecipeError
from tasks.artifacts import check_version, digest, stage_output, write_json, write_jsonl
from tasks.settings import read_settings
from tasks.stage import argument_parser, run_stage

VERSION = 1
STAGE = "prepare"

CHOICE_TASKS = ("arc", "truthfulqa", "winograd", "hellaswag", "mmlu")
#: Directory that a `directory` source reads when its spec names none.
DATA_VARIABLE = "REWARDSMITH_DATA"


def prepare(spec_path: Path, out: Path, version: int | None = None) -> None:
    """Writes the data sets that a data spec describes."""
    check_version(STAGE, VERSION, version)
    spec = read_settings(spec_path)
    makers = {"testbed": _testbed, "directory": _real, "huggingface": _real}
    if spec.get("source") not in makers:
        raise RecipeError(f"{spec_path}: source is '{spec.get('source')}'; known: {', '.join(makers)}")
    with stage_output(out, stage=STAGE, version=VERSION, inputs=[spec_path]) as result:
        sets, facts = makers[spec["source"]](spec, result / "quarantine")
        for name, rows in sets.items():
            path = result / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_jsonl(path, rows)
        common = {key: spec[key] for key in ("source", "template", "limits")}
        write_json(result / "data.json", {**common, **facts, "rows": {name: len(r) for name, r in sets.items()}})


def benchmark_row(row: Mapping[str, Any], turns: list[str], baseline: list[str], metas: list[Any]) -> dict[str, Any]:
    """One benchmark item: user turns, the baseline's answer per turn, and what the gold judge knows of each."""
    history = {"messages": row["messages"]} if "messages" in row else {}
    return {"id": row["id"], "turns": turns, "baseline": baseline, "metas": metas, "source": row["source"], **history}


def _testbed(spec: Mapping[str, Any], quarantine: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    from rlhf_core.testbed import VERSION as WORLD_VERSION
    from rlhf_core.testbed import Annotator, World, WorldConfig, bayes_ceiling

    world = World(WorldConfig(seed=spec["world_seed"]))
    annotator = Annotator(**spec["annotator"])
    seed, rows = spec["seed"], spec["rows"]
    sets: dict[str, list[dict[str, Any]]] = {
        "sft": [
            *world.sft_examples(rows["sft"], seed, spec["follow_up_share"]),
            *world.task_examples(rows["tasks"], seed),
        ],
        "sft.validation": world.sft_examples(rows["sft_validation"], seed + 1, spec["follow_up_share"]),
        "prompts": world.prompts(rows["prompts"], seed, "train"),
        "arithmetic.seen": world.arithmetic(rows["arithmetic"], seed + 1, "seen"),
        "arithmetic.unseen": world.arithmetic(rows["arithmetic"], seed + 1, "unseen"),
    }
    for split, draw, offset in (("train", "train", 0), ("validation", "train", 1), ("ood", "ood", 2)):
        sets[f"preference.{split}"] = world.preference_pairs(
            rows[f"preference_{split}"], seed + offset, annotator, draw
        )
    for name, split in (("alpaca", "test"), ("arena", "arena"), ("ood", "ood"), ("mtbench", "mtbench")):
        items = []
        for row in world.prompts(rows["benchmark"], seed + 1, split):
            metas = row["meta"].get("turns", [row["meta"]])
            quality = spec["baseline_quality"].get(name)
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
    facts = {
        "world": {"version": WORLD_VERSION, "seed": spec["world_seed"]},
        "bayes_ceiling": {
            split: bayes_ceiling(sets[f"preference.{split}"], annotator) for split in ("train", "validation", "ood")
        },
    }
    return sets, facts


#: Responses of each kind that reward models colour, the same for all of them.
PICTURES = {"normal": 8, "repetition": 4, "code": 4}


def _testbed_examples(pairs: list[dict[str, Any]], functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Responses whose rewards are drawn: dialogue with and without repetition, and code by line."""
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
    """Calibration rows of the length-controlled win rate: a verbose and a concise variant of the baseline, judged
    against the baseline itself (preference in [1, 2], 2 = the variant wins)."""
    from rlhf_core.evaluation.judges.games import Comparison, play_games
    from rlhf_core.testbed.judge import GoldJudge

    rows = []
    for variant in ("verbose", "concise"):
        comparisons = [
            Comparison(
                item["id"],
                item["turns"][0],
                _variant(item["baseline"][0], variant, world.mixture_answer(item["metas"][0], seed, 0.0)),
                item["baseline"][0],
                {"prompt": item["metas"][0]},
            )
            for item in items
        ]
        games = play_games(GoldJudge(world), comparisons, "alpaca_eval", orders=("baseline",))
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
    """The baseline answer with a poor answer appended, or without its last sentence."""
    if variant == "verbose":
        return f"{answer} {padding}"
    head, _, _ = answer.rstrip(".").rpartition(". ")
    return f"{head}." if head else answer


def _source(spec: Mapping[str, Any], quarantine: Path) -> DirectorySource | HuggingFaceSource:
    screening = Screening(quarantine, spec.get("max_bad_share", 0.1))
    if spec["source"] == "huggingface":
        return HuggingFaceSource({name: HubSet(**options) for name, options in spec["sets"].items()}, screening)
    root = spec.get("directory") or os.environ.get(DATA_VARIABLE)
    if not root:
        raise DataError(
            "the data spec names no directory",
            remedy=f"Set the environment variable {DATA_VARIABLE} to the folder with <name>.<split>.jsonl.gz files",
        )
    return DirectorySource(root, screening)


def _real(spec: Mapping[str, Any], quarantine: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    source = _source(spec, quarantine)
    kind = record_type("preference").name
    names = list(spec["preference"])
    train = [row for name in names for row in source.load(name, "train", kind)]
    test = [row for name in names for row in source.load(name, "test", kind)]
    held_out = max(1, round(spec["validation_share"] * len(train)))
    fitted, validation = train[:-held_out], train[-held_out:]
    answers = [
        {key: row[key] for key in ("id", "prompt", "source", "messages") if key in row} | {"response": row["chosen"]}
        for row in fitted
    ]
    sets = {
        "sft": answers,
        "sft.validation": [{**row, "response": row["chosen"]} for row in validation],
        "preference.train": fitted,
        "preference.validation": validation,
        "preference.ood": test,
        "prompts": _distinct_prompts(fitted),
        "benchmarks/alpaca": [
            benchmark_row(row, [row["prompt"]], [row["chosen"]], [{}])
            for row in _distinct_prompts(test)[: spec["benchmark_rows"]]
        ],
    }
    sets["examples"] = [
        {"id": row["id"], "prompt": row["prompt"], "response": row["chosen"], "kind": "normal", "true_clauses": []}
        | ({"messages": row["messages"]} if "messages" in row else {})
        for row in validation[: PICTURES["normal"]]
    ]
    facts: dict[str, Any] = {"quarantine": [str(summary) for summary in source.summaries], "sets": names}
    if isinstance(source, DirectorySource):
        facts["digests"] = {
            path.name: digest(path) for path in sorted(Path(source.root).iterdir()) if path.name.split(".")[0] in names
        }
    return sets, facts


def _distinct_prompts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for row in rows:
        seen.setdefault(row["prompt"], row)
    return list(seen.values())


def main(arguments: list[str] | None = None) -> None:
    parser = argument_parser("tasks.prepare", prepare.__doc__ or "", spec="data spec (YAML)")
    given = parser.parse_args(arguments)
    prepare(given.spec, given.out, given.stage_version)


if __name__ == "__main__":
    run_stage(main)
