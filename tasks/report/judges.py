"""Judges that are asked while a table is made, and the prompts that they are asked about.

Their settings are those of a run's judge.json. An endpoint's answers come from its cache, if it has one (`cache_path`),
when the table is made again.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.protocol import Judge


class Judges:
    """The judge of each setting, built when it is first asked; heavy modules are imported only then.

    Args:
        results: of a scale, such as results/testbed.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.known: dict[str, Judge | None] = {}

    def get(self, settings: Mapping[str, Any]) -> Judge | None:
        from tasks.running.loading import load_judge, load_world

        key = repr(sorted(settings.items(), key=str))
        if key not in self.known:
            spec = settings.get("judge")
            data = self.results / "shared" / "data" / str(settings.get("data")) / "result"
            self.known[key] = load_judge(spec, load_world(data)) if spec else None
        return self.known[key]


def drawn_prompts(prompts: Collection[str], settings: Mapping[str, Any]) -> list[str]:
    """Returns the ids of the prompts that two rows are compared on: all, or as many as `rows` of the settings says,
    drawn by a fixed seed, so that all pairs of rows with the same prompts have the same ones."""
    if settings["rows"] is None or settings["rows"] >= len(prompts):
        return sorted(prompts)
    return sorted(random.Random("pairs").sample(sorted(prompts), int(settings["rows"])))
