"""Data specs of Spanish-to-English translation: `testbed-translation` and `directory-translation`.

The sets of every data kind (sft, sft.validation, prompts, preference.{train,validation,ood}, benchmarks/alpaca,
examples); rows keep `source_lang`, `target_lang`, `source_text`, `target_text`; a benchmark baseline is the
reference translation. Real pairs come without preferences: pairs of the reference and a damaged copy replace them,
so that a holistic reward model can be trained at all (see docs/alarm.md).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rlhf_core.data.schemas import Record
from rlhf_core.errors import DataError
from tasks.data_specs.data_sets import (
    Sets,
    benchmark_row,
    drawn_sets,
    open_directory,
    pair_example,
    source_facts,
    split_off,
    with_prompt,
)
from tasks.params.data import TranslationDirectorySpec, TranslationWorldSpec
from tasks.running.artifacts import warn_too_few_rows

#: Languages as a judge's instruction names them; others go by their code.
LANGUAGES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "pt": "Portuguese"}


def translation_world_sets(spec: TranslationWorldSpec, _: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets that the testbed draws, and facts about them for data.json."""
    from rlhf_core.testbed.translation import VERSION, TranslationWorld

    world = TranslationWorld(spec.world_seed)
    size = spec.rows["benchmark"]
    sets, facts = drawn_sets(world, spec, VERSION)
    trained = {row["prompt"] for row in (*sets["sft"], *sets["prompts"])}
    held_out = [row for row in world.prompts(2 * size, spec.seed + 1, "test") if row["prompt"] not in trained]
    sets["benchmarks/alpaca"] = [_benchmark(row, [row["meta"]]) for row in held_out[:size]]
    return sets, {"task": "translation", **facts}


def _benchmark(row: Record, metas: list[Any]) -> Record:
    kept = {key: row[key] for key in ("source_lang", "target_lang", "source_text", "target_text")}
    return {**benchmark_row(row, [row["prompt"]], [row["target_text"]], metas), **kept}


def translation_directory_sets(spec: TranslationDirectorySpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets of a folder, and facts about them for data.json; bad rows go to `quarantine`."""
    source = open_directory(spec.directory, quarantine, spec.max_bad_share)
    left_out = 0
    split_rows: dict[str, list[Record]] = {}
    for split in ("train", "test"):
        rows = [row for name in spec.sets for row in source.load(name, split, "translation")]
        _check_direction(rows, spec)
        kept = [r for r in rows if max(len(r["source_text"]), len(r["target_text"])) <= spec.max_chars]
        left_out += len(rows) - len(kept)
        split_rows[split] = [with_prompt(row, row["source_text"]) for row in kept]
    fitted, validation = split_off(split_rows["train"], spec.validation_share, ", ".join(spec.sets))
    known = {row["prompt"] for row in split_rows["train"]}
    test = [row for row in split_rows["test"] if row["prompt"] not in known]
    if not test:
        raise DataError(
            "every test sentence is a training sentence, too, so nothing is left to measure",
            file=", ".join(spec.sets),
            field="source_text",
            remedy="Give test rows with other sentences",
        )
    pairs, usable = spec.preference_pairs, _of_three_words(fitted)
    warn_too_few_rows(pairs, len(usable), "preference_pairs", f"the training part of {', '.join(spec.sets)}")
    damaged = {
        "train": _damaged(usable, pairs),
        "validation": _damaged(_of_three_words(validation), max(1, pairs // 8)),
        "ood": _damaged(_of_three_words(test), max(1, pairs // 8)),
    }
    sets: Sets = {
        "sft": [{**row, "response": row["target_text"]} for row in fitted],
        "sft.validation": [{**row, "response": row["target_text"]} for row in validation],
        "prompts": list({row["prompt"]: row for row in fitted}.values()),
        **{f"preference.{split}": rows for split, rows in damaged.items()},
        "benchmarks/alpaca": [_benchmark(row, [{}]) for row in test[: spec.benchmark_rows]],
        "examples": [pair_example(row) for row in damaged["validation"][:8]],
    }
    facts = {"task": "translation", "instruction": _instruction(spec), "too_long": left_out}
    return sets, {**facts, **source_facts(source, spec.sets)}


def _instruction(spec: TranslationDirectorySpec) -> str:
    """Returns the instruction that a judge reads before the sentence."""
    source, target = (LANGUAGES.get(code, f"'{code}'") for code in (spec.source_lang, spec.target_lang))
    return f"Translate this {source} sentence into {target}: "


def _check_direction(rows: list[Record], spec: TranslationDirectorySpec) -> None:
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


def _of_three_words(rows: list[Record]) -> list[Record]:
    """Returns the rows whose reference has at least three words, and can be damaged."""
    return [row for row in rows if len(row["target_text"].split()) >= 3]


def _damaged(usable: list[Record], count: int) -> list[Record]:
    """Returns pairs of a reference and the same with words left out, doubled or exchanged with those of another
    sentence."""
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
