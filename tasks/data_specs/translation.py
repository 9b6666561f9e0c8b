"""Data specs of Spanish-to-English translation: `testbed-translation` and `directory-translation`.

The sets of every data kind (sft, sft.validation, prompts, preference.{train,validation,ood}, benchmarks/alpaca,
examples); rows keep `source_lang`, `target_lang`, `source_text`, `target_text`; a benchmark baseline is the
reference translation. Real pairs come without preferences: pairs of the reference and a damaged copy of it stand in,
so that a holistic reward model can be trained at all (see docs/alarm.md).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data.schemas import record_type
from rlhf_core.errors import DataError, RecipeError
from tasks.data_specs.data_sets import DrawnSpec, Sets, benchmark_row, directory_facts, open_directory, split_off

Row = dict[str, Any]


@dataclass(frozen=True)
class TranslationRows:
    """Rows of each set that the testbed generates."""

    sft: int
    sft_validation: int
    prompts: int
    preference_train: int
    preference_validation: int
    preference_ood: int
    benchmark: int


@dataclass(frozen=True)
class TranslationWorldSpec(DrawnSpec):
    """Translation of the testbed; `source` is 'testbed-translation'."""

    Rows = TranslationRows

    def make(self, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
        return _testbed(self)


@dataclass(frozen=True)
class TranslationDirectorySpec:
    """Parallel sentences from a folder.

    Args:
        source: 'directory-translation'.
        template: chat template.
        limits: `Limits` in tokens.
        sets: names of the sets; their splits `train` and `test` are read.
        validation_share: share of the training rows, from the end, kept for validation.
        benchmark_rows: the most held-out sentences of the benchmark.
        preference_pairs: damaged copies of training references that stand in for preferences.
        source_lang, target_lang: every row must be of this direction.
        max_chars: longer sentences, on either side, are left out and counted.
        directory: folder; without one, the environment variable REWARDSMITH_DATA names it.
        max_bad_share: the largest tolerated share of bad rows of a file, those of another language included.
    """

    source: str
    template: str
    limits: Mapping[str, Any]
    sets: tuple[str, ...]
    validation_share: float
    benchmark_rows: int
    preference_pairs: int
    source_lang: str = "es"
    target_lang: str = "en"
    max_chars: int = 400
    directory: str | None = None
    max_bad_share: float = 0.1

    def __post_init__(self) -> None:
        if not self.sets:
            raise RecipeError("'sets' names no set")
        if not 0 < self.validation_share < 1:
            raise RecipeError(f"validation_share is {self.validation_share}; it must lie between 0 and 1")
        if self.benchmark_rows < 1 or self.preference_pairs < 1 or self.max_chars < 1:
            raise RecipeError("benchmark_rows, preference_pairs and max_chars must be at least 1")

    def make(self, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
        return _directory(self, quarantine)


#: Languages as a judge's instruction names them; others go by their code.
LANGUAGES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "pt": "Portuguese"}

TRANSLATION_SPECS: dict[str, type[Any]] = {
    "testbed-translation": TranslationWorldSpec,
    "directory-translation": TranslationDirectorySpec,
}


def _testbed(spec: TranslationWorldSpec) -> tuple[Sets, dict[str, Any]]:
    from rlhf_core.testbed import Annotator, bayes_ceiling
    from rlhf_core.testbed.translation import VERSION, TranslationConfig, TranslationWorld

    world = TranslationWorld(TranslationConfig(seed=spec.world_seed))
    annotator = Annotator(**spec.annotator)
    seed, rows = spec.seed, spec.rows
    sets: Sets = {
        "sft": world.sft_examples(rows["sft"], seed),
        "sft.validation": world.sft_examples(rows["sft_validation"], seed + 1),
        "prompts": world.prompts(rows["prompts"], seed, "train"),
    }
    for split, draw, offset in (("train", "train", 0), ("validation", "train", 1), ("ood", "ood", 2)):
        sets[f"preference.{split}"] = world.preference_pairs(
            rows[f"preference_{split}"], seed + offset, annotator, draw
        )
    trained = {row["prompt"] for row in (*sets["sft"], *sets["prompts"])}
    held_out = [row for row in world.prompts(2 * rows["benchmark"], seed + 1, "test") if row["prompt"] not in trained]
    sets["benchmarks/alpaca"] = [_benchmark(row, [row["meta"]]) for row in held_out[: rows["benchmark"]]]
    sets["examples"] = [
        {"id": r["id"], "prompt": r["prompt"], "response": r["chosen"], "true_clauses": r["meta"]["chosen_clauses"]}
        | {"kind": "normal"}
        for r in sets["preference.validation"][:8]
    ]
    ceilings = {
        split: bayes_ceiling(sets[f"preference.{split}"], annotator) for split in ("train", "validation", "ood")
    }
    return sets, {
        "task": "translation",
        "world": {"version": VERSION, "seed": spec.world_seed},
        "bayes_ceiling": ceilings,
    }


def _benchmark(row: Row, metas: list[Any]) -> Row:
    kept = {key: row[key] for key in ("source_lang", "target_lang", "source_text", "target_text")}
    return {**benchmark_row(row, [row["prompt"]], [row["target_text"]], metas), **kept}


def _directory(spec: TranslationDirectorySpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    source = open_directory(spec.directory, quarantine, spec.max_bad_share)
    left_out = 0
    split_rows: dict[str, list[Row]] = {}
    for split in ("train", "test"):
        rows = [row for name in spec.sets for row in source.load(name, split, record_type("translation").name)]
        _check_direction(rows, spec)
        kept = [r for r in rows if max(len(r["source_text"]), len(r["target_text"])) <= spec.max_chars]
        left_out += len(rows) - len(kept)
        split_rows[split] = [{**row, "prompt": row["source_text"]} for row in kept]
    fitted, validation = split_off(split_rows["train"], spec.validation_share, ", ".join(spec.sets))
    known = {row["prompt"] for row in split_rows["train"]}
    test = [row for row in split_rows["test"] if row["prompt"] not in known]
    damaged = {
        "train": _damaged(fitted, spec.preference_pairs),
        "validation": _damaged(validation, max(1, spec.preference_pairs // 8)),
        "ood": _damaged(test, max(1, spec.preference_pairs // 8)),
    }
    sets: Sets = {
        "sft": [{**row, "response": row["target_text"]} for row in fitted],
        "sft.validation": [{**row, "response": row["target_text"]} for row in validation],
        "prompts": list({row["prompt"]: row for row in fitted}.values()),
        **{f"preference.{split}": rows for split, rows in damaged.items()},
        "benchmarks/alpaca": [_benchmark(row, [{}]) for row in test[: spec.benchmark_rows]],
        "examples": [
            {"id": r["id"], "prompt": r["prompt"], "response": r["chosen"], "kind": "normal", "true_clauses": []}
            for r in damaged["validation"][:8]
        ],
    }
    facts = {"task": "translation", "instruction": _instruction(spec), "too_long": left_out}
    return sets, {**facts, **directory_facts(source, spec.sets)}


def _instruction(spec: TranslationDirectorySpec) -> str:
    """What a judge is told before the bare sentence that policies see."""
    source, target = (LANGUAGES.get(code, f"'{code}'") for code in (spec.source_lang, spec.target_lang))
    return f"Translate this {source} sentence into {target}: "


def _check_direction(rows: list[Row], spec: TranslationDirectorySpec) -> None:
    """Refuses sets in another direction."""
    wanted = (spec.source_lang, spec.target_lang)
    for number, row in enumerate(rows, start=1):
        found = (row["source_lang"], row["target_lang"])
        if found != wanted:
            raise DataError(
                f"translates {found[0]} to {found[1]}, not {wanted[0]} to {wanted[1]}",
                file=", ".join(spec.sets),
                row=number,
                field="source_lang",
                remedy="Name sets of one direction, or change source_lang and target_lang",
            )


def _damaged(rows: list[Row], count: int) -> list[Row]:
    """Pairs of a reference and the same with words left out, doubled or exchanged with those of another sentence."""
    usable = [row for row in rows if len(row["target_text"].split()) >= 3]
    pairs = []
    for place, row in enumerate(usable[:count]):
        rng = random.Random(f"damaged {row['id']}")
        words = row["target_text"].split()
        others = usable[(place + 1) % len(usable)]["target_text"].split()
        for _ in range(rng.randint(1, max(1, len(words) // 4))):
            at = rng.randrange(len(words))
            words[at : at + 1] = rng.choice(([], [words[at]] * 2, [rng.choice(others)]))
            words = words or [rng.choice(others)]
        text = " ".join(words)
        if text != row["target_text"]:
            pairs.append({**row, "chosen": row["target_text"], "rejected": text})
    return pairs
