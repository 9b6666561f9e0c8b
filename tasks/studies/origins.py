"""Origins of a row's numbers: what it was trained from, and the data, SFT model and evaluation that it was measured on.

A digest of settings is of everything behind a row, of which no world's seed and no tuned value is a part: a row has one
digest in all worlds of a study, in its tuning as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.graph.dvc_files import stage_version
from tasks.graph.items import Item, result_of
from tasks.params.pages import Address, read_settings
from tasks.params.studies import Hypothesis, StudySpec
from tasks.params.tuning import FILE, tuning_spec
from tasks.params.yaml_files import is_there
from tasks.running.artifacts import read_json
from tasks.studies.tree import WorldTree

OPTIMISER = "optimiser"
#: Settings of stages that say which world it is: of generated data, and of the SFT model that twins share.
DRAWN = {"prepare": "world", "sft": "seed"}
#: Fields of a row that change no result.
WORDS = ("title", "notes")
#: Parts that compared rows have in common, and their names in messages.
SHARED = {"data": "data", "sft": "SFT models", "evaluation": "evaluation settings"}


def settings_digest(tree: Path, item: Item, items: Mapping[str, Item], tuned: Collection[str]) -> str:
    """Returns a digest of all settings that a row's last stage and the stages above it read, and of their versions.

    Args:
        tree: of a world.
        item: the row's last stage.
        items: stages of its cell by the folder of their result.
        tuned: settings of the row's optimiser that are left out.
    """
    reached: dict[str, Item] = {}
    ahead = [item]
    while ahead:
        one = ahead.pop()
        reached[one.out] = one
        values = (value if isinstance(value, tuple) else (value,) for value in one.arguments.values())
        needed = [items[str(value)] for several in values for value in several if str(value) in items]
        ahead += [above for above in needed if above.out not in reached]
    parts = []
    for one in reached.values():
        settings = [read_settings(address.under(tree)) for address in one.addresses]
        if one is item:
            settings = [_without(values, tuned) for values in settings]
        if one.module in DRAWN:
            settings = [{n: value for n, value in values.items() if n != DRAWN[one.module]} for values in settings]
        parts.append(json.dumps([one.module, stage_version(tree, one.module), settings], sort_keys=True, default=str))
    return _sha("\n".join(sorted(parts)))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(settings: Mapping[str, Any], tuned: Collection[str]) -> dict[str, Any]:
    """Returns settings without words for people and without tuned values of the optimiser."""
    kept = {name: value for name, value in settings.items() if name not in WORDS}
    if isinstance(kept.get(OPTIMISER), Mapping):
        kept[OPTIMISER] = {name: value for name, value in kept[OPTIMISER].items() if name not in tuned}
    return kept


def settings_of(world: WorldTree, cell: str) -> dict[str, dict[str, str]]:
    """Returns the stage of each row of a cell and digests of its settings and of its evaluation, by the row's name."""
    assert isinstance(world.spec, StudySpec)
    items = {result_of(item): item for item in world.items(cell)}
    spaces = tuning_spec(world.tree).spaces if is_there(world.tree / FILE) else {}
    found = {}
    for row, item in world.stages(cell).items():
        kind = _row(world.tree, item).get(OPTIMISER, {}).get("kind")
        tuned = {*spaces.get(kind, ())} - {*world.spec.fixed(row)}
        found[row] = {"stage": item.module, "settings": settings_digest(world.tree, item, items, tuned)}
        if "evaluation" in item.arguments:
            settings = read_settings(Address(str(item.arguments["evaluation"])).under(world.tree))
            found[row]["evaluation"] = _sha(json.dumps(settings, sort_keys=True, default=str))
    return found


def origins_of(world: WorldTree, cell: str) -> dict[str, dict[str, str]]:
    """Returns the origin of each row of a cell by its name, with digests of stages above it that have run."""
    found = settings_of(world, cell)
    for row, item in world.stages(cell).items():
        for name in ("data", "sft"):
            record = (world.tree / str(item.arguments.get(name))).parent / "record" / "record.json"
            if record.exists():
                found[row][name] = read_json(record)["result_digest"]
    return found


def _row(tree: Path, item: Item) -> dict[str, Any]:
    return read_settings(Address(str(item.arguments["row"])).under(tree)) if "row" in item.arguments else {}


def other_origins(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns what the rows of a hypothesis do not have in common, in words: data, SFT model, evaluation."""
    rows = hypothesis.row, hypothesis.than or spec.main
    places: dict[str, list[str]] = {}
    for record in records:
        for cell in spec.weighted_cells(hypothesis):
            known = [record["cells"][cell]["rows"][row].get("origin", {}) for row in rows]
            for name, word in SHARED.items():
                if known[0].get(name) != known[1].get(name):
                    said = f"'{rows[0]}' and '{rows[1]}' have different {word}"
                    places.setdefault(said, []).append(f"in world {record['world']}, cell '{cell}'")
    return [placed(said, where) for said, where in places.items()]


def placed(said: str, where: list[str]) -> str:
    """Returns a sentence with the first of the places where it holds, and how many more there are."""
    return f"{said} {where[0]}" + (f" and in {len(where) - 1} more" if len(where) > 1 else "")
