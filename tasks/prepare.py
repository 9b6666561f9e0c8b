"""Stage `prepare`: every data set of a scale, validated, with bad rows in quarantine.

Writes into result/: sft.jsonl, preference.{train,validation,...}.jsonl, prompts.jsonl, benchmarks/<name>.jsonl,
choices/<task>.jsonl, arithmetic.<name>.jsonl, functions.<name>.jsonl, quarantine/, data.json (template, limits,
source, counts, columns that nothing reads, overlap of held-out prompts with those trained on).

Quarantined rows of a run that is refused stay in `<out>/quarantine/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from tasks.data_specs.data_sets import Sets
from tasks.data_specs.dialogue import real_sets, world_sets
from tasks.data_specs.long_form import long_form_directory_sets, long_form_world_sets
from tasks.data_specs.questions import question_sets
from tasks.data_specs.translation import translation_directory_sets, translation_world_sets
from tasks.params.data import (
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
from tasks.running.artifacts import write_json, write_jsonl
from tasks.running.stage import stage

VERSION = 5


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
