"""Every setting that a stage would refuse, refused before anything runs, and without torch.

A row is checked at every scale that has its backbone: each stage above it is found as the graph finds it, its
settings are typed as the stage types them (`tasks.graph.stage_checks`), and what contradicts is refused as the stage
would. A row
that is wrong says nothing about others; what is wrong with settings that several rows read is said once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core.errors import DataError, RecipeError
from tasks.graph.items import Item
from tasks.graph.policy_checks import check_policy, check_selection
from tasks.graph.rows import RowSpec
from tasks.graph.scale import Scale
from tasks.graph.stage_checks import CHECKS, Reached, TypedSettings, by_result, stated_settings

#: Where re-evaluation is set up.
REEVALUATION = Path("params", "reevaluation.yaml")
ALL_CHECKS: Mapping[str, Callable[[Reached], None]] = {
    **CHECKS,
    "policy": check_policy,
    "selection": check_selection,
}


@dataclass
class Check:
    """A check of some rows; settings that several stages read are typed once.

    Attributes:
        root: the repository.
        problems: what was found, each once, in order.
    """

    root: Path
    problems: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = TypedSettings(self.root)
        self._checked: dict[str, list[str]] = {}

    def rows(self, scale: str, rows: Iterable[RowSpec]) -> list[str]:
        """Returns what is wrong with rows at a scale; those without a backbone there are passed over."""
        found: list[str] = []
        here = Scale(self.root, scale)
        for row in rows:
            try:
                items = here.row(row, 0) if here.has(row) else []
            except (RecipeError, DataError) as error:
                found.append(str(error))
                continue
            above = by_result(items)
            for item in dict.fromkeys(item.out for item in items):
                found += self._stage(next(one for one in items if one.out == item), above)
        return list(dict.fromkeys(found))

    def _stage(self, item: Item, above: Mapping[str, Item]) -> list[str]:
        """Returns what is wrong with a stage's settings, looked at once."""
        if item.out not in self._checked:
            self._checked[item.out] = self._look(item, above)
        return self._checked[item.out]

    def _look(self, item: Item, above: Mapping[str, Item]) -> list[str]:
        problems = []
        for make, address in stated_settings(item):
            try:
                self.settings.get(make, address)
            except (RecipeError, DataError) as error:
                problems.append(str(error))
        if problems or item.module not in ALL_CHECKS:
            return problems
        try:
            ALL_CHECKS[item.module](Reached(item, above, self.settings))
        except (RecipeError, DataError) as error:
            problems.append(str(error))
        return problems
