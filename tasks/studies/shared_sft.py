"""Cells of a study that share the training of an SFT model, since their dials change labels alone.

What is shared is decided while a world runs, by the content that training reads (`tasks.running.shared_training`). Here
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

#: Settings of generated data that change labels and true rewards, but no text or prompt.
RELABELLING = (("annotator",), ("aspect_errors",), ("dials", "aggregation"), ("dials", "emphasis"))


@dataclass(frozen=True)
class SharedSft:
    """An SFT model that is trained once for several cells of a world.

    Attributes:
        stage: its name, as in records.
        cells: that share it, in each of which it is evaluated.
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


def shared_sft(world: WorldTree) -> list[SharedSft]:
    """Returns the SFT models that several cells of a written tree share."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in world.spec.cells:
        items = {result_of(item): item for item in world.items(cell)}
        for item in (item for item in items.values() if item.module == "sft"):
            above = [items[str(item.arguments[name])] for name in ("data", "tokenizer")]
            read = json.dumps([_settings(world.tree, one) for one in (item, *above)], sort_keys=True, default=str)
            groups.setdefault((f"{item.module}/{item.name}", read), []).append(cell)
    return [SharedSft(stage, tuple(cells)) for (stage, _), cells in groups.items() if len(cells) > 1]


def _settings(tree: Path, item: Item) -> Any:
    """Returns the settings of a stage without those of its evaluation, of data without what changes labels alone."""
    settings = deepcopy(dict(read_settings(Address(str(item.arguments["spec"])).under(tree))))
    for *outer, name in RELABELLING if item.module == "prepare" else ():
        inner: Any = settings
        for each in outer:
            inner = inner.get(each, {})
        inner.pop(name, None)
    return {name: value for name, value in settings.items() if value != {}}
