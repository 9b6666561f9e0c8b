"""Cells of a study that share the training of a model, since their dials change what that training does not read.

What is shared is decided while a world runs, by the content that training reads (`tasks.running.reused_training`). Here
it is foreseen from settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tasks.graph.items import Item, result_of
from tasks.params.pages import Address, read_settings
from tasks.studies.tree import WorldTree

#: Settings of generated data that change preferences and true rewards, and those that change labels of aspects or how
#: many answers have any; neither changes a text or prompt that other stages read.
PREFERENCES = (("annotator",), ("dials", "aggregation"), ("dials", "emphasis"))
ASPECTS = (("aspect_errors",), ("rows", "labelled_train"))
RELABELLING = (*PREFERENCES, *ASPECTS)
#: Settings of data that the training of a stage does not read.
NOT_READ = {"sft": RELABELLING, "reward_model": ASPECTS, "aspect_model": PREFERENCES}


@dataclass(frozen=True)
class SharedStage:
    """A stage whose model is trained once for several cells of a world.

    Attributes:
        stage: its name, as in records.
        cells: that share it, in each of which it is measured.
    """

    stage: str
    cells: tuple[str, ...]

    @property
    def saved(self) -> int:
        """Returns how many trainings a world saves."""
        return len(self.cells) - 1

    def saved_hours(self, records: Iterable[Mapping[str, Any]]) -> float | None:
        """Returns the core-hours that a world saves at most, by the longest stage of each record; None without one."""
        longest = [
            max(record["cells"][cell]["above"][self.stage]["seconds"] for cell in self.cells)
            * record["machine"]["threads"]
            for record in records
            if all(self.stage in record["cells"].get(cell, {"above": ()})["above"] for cell in self.cells)
        ]
        return self.saved * fmean(longest) / 3600 if longest else None


def shared_stages(world: WorldTree) -> list[SharedStage]:
    """Returns the stages whose training several cells of a written tree share."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in world.spec.cells:
        items = {result_of(item): item for item in world.items(cell)}
        for item in (item for item in items.values() if item.module in NOT_READ):
            read = json.dumps(_read(world.tree, items, item), sort_keys=True, default=str)
            groups.setdefault((f"{item.module}/{item.name}", read), []).append(cell)
    return [SharedStage(stage, tuple(cells)) for (stage, _), cells in groups.items() if len(cells) > 1]


def _read(tree: Path, items: Mapping[str, Item], item: Item, not_read: Iterable[tuple[str, ...]] = ()) -> list[Any]:
    """Returns the settings that a stage's training reads, its own and those of the stages above it."""
    settings = [deepcopy(dict(read_settings(one.under(tree)))) for one in item.addresses if _of_training(item, one)]
    for *outer, name in not_read if item.module == "prepare" else ():
        inner: Any = settings[0]
        for each in outer:
            inner = inner.get(each, {})
        inner.pop(name, None)
    values = (value if isinstance(value, tuple) else (value,) for value in item.arguments.values())
    above = [items[str(one)] for several in values for one in several if str(one) in items]
    skipped = NOT_READ.get(item.module, not_read)
    return [{name: value for name, value in one.items() if value != {}} for one in settings] + [
        _read(tree, items, one, skipped) for one in above
    ]


def _of_training(item: Item, address: Address) -> bool:
    """Returns whether an entry of pages is read by the training of a stage, not by its evaluation alone."""
    return address != item.arguments.get("evaluation")
