"""The scale `paper` against every hyperparameter that the five papers print, cell by cell.

`rlhf_core/published/settings_map/<paper>.yaml` lists for each hyperparameter of the registry its cells:

    RM batch size (global):
    - {printed: '128', row: segment, stage: reward_model, setting: batch, table: [Table 8, Batch Size, value]}
    framework:
    - {instead: 'PPO is the project''s own'}

`printed` is part of the registry's text. `row` (or `backbone`) and `stage` name a stage of the scale, `setting` a value
among its settings; `passes` asks instead how often the rollouts of a policy go through so many prompts. `reason` says
why the value differs from the printed one; it is required where they differ and refused where they agree. `instead`
says why there is nothing to compare. `table` names the cell of a table that prints the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.published import printed_tables
from rlhf_core.recipe import parse_recipe
from tasks.graph.items import Item
from tasks.graph.rows import read_rows
from tasks.graph.scale import Scale
from tasks.graph.typed_settings import type_of
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.yaml_files import read_mapping

ROOT = Path(__file__).resolve().parents[2]
#: Tables whose cells are settings.
TABLES = ("segment/8", "segment/9", "sentence/4", "sentence/5")
#: The settings argument of a stage that is meant where a cell names none.
ARGUMENTS = {"sft": "spec", "prepare": "spec", "tokenizer": "spec", "samples": "spec", "teacher": "spec"}
FIELDS = {
    "printed", "row", "backbone", "stage", "name", "argument", "setting", "passes", "table", "reason", "instead",
}  # fmt: skip


def cells_of(paper: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the cells of a paper's settings map with the hyperparameter of each."""
    for name, cells in read_mapping(printed_tables.FOLDER / "settings_map" / f"{paper}.yaml").items():
        yield from ((name, cell) for cell in cells)


def same(printed: str, ours: Any) -> bool:
    """Returns whether a value is the printed one: as a number, else as text whatever its capitals."""
    if isinstance(ours, bool) or not isinstance(ours, int | float):
        return str(ours).casefold() == printed.strip().casefold()
    try:
        number = float(printed.strip().removesuffix("%").replace(",", ""))
    except ValueError:
        return False
    return abs(number - ours) <= 1e-9 * max(1e-9, abs(ours))


class PaperScale:
    """Settings at the scale `paper` of the rows of one paper."""

    def __init__(self, paper: str) -> None:
        self.paper, self.scale, self.rows = paper, Scale(ROOT, "paper"), read_rows(ROOT, paper)[0]
        self._items: dict[str, list[Item]] = {}

    def value(self, cell: Mapping[str, Any]) -> Any:
        """Returns the value that a cell names."""
        stage, name = cell.get("stage", "policy"), str(cell.get("row") or cell["backbone"])
        if name not in self._items:
            row = cell.get("row")
            self._items[name] = (
                self.scale.row(self.rows[name], 0) if row else self.scale.backbone(name, 0, self.paper).with_all_above()
            )
        item = [one for one in self._items[name] if one.module == stage and cell.get("name") in (None, one.name)][-1]
        found = self._settings(item, cell.get("argument") or ARGUMENTS.get(stage, "scale"))
        if "passes" in cell:
            optimiser = found["optimiser"]
            return round(optimiser.iterations * optimiser.rollout_batch / optimiser.group_size / cell["passes"])
        for step in str(cell["setting"]).split("."):
            listed = isinstance(found, tuple | list)
            found = found[int(step)] if listed else found[step] if isinstance(found, Mapping) else getattr(found, step)
        return found

    def _settings(self, item: Item, argument: str) -> Any:
        """Returns the typed settings of a stage's argument (`aspect.length`: of that name among several); a policy's
        with its row's own in place."""
        kind, _, name = argument.partition(".")
        given = item.arguments[kind]
        several = given if isinstance(given, tuple) else (str(given),)
        address = next(Address(one) for one in several if not name or Address(one).name == name).under(ROOT)
        if item.module == "policy" and kind == "row":
            return parse_recipe(read_settings(address), str(address))
        found = type_of(address)(read_settings(address), str(address))
        if not isinstance(found, PolicyScale):
            return found
        recipe = parse_recipe(read_settings(Address(str(item.arguments["row"])).under(ROOT)), item.name)
        if recipe.kind == "supervised":
            supervised, learned = found.supervised_config(recipe.optimiser, item.name)
            return {"optimiser": supervised, "recipe": learned, "scale": found}
        training = reward_training(recipe, found, item.name)
        return {name: getattr(training, name) for name in ("optimiser", "sampling", "imitation")} | {"scale": found}


@pytest.mark.parametrize("paper", printed_tables.PAPERS)
def test_the_paper_scale_has_what_is_printed_or_says_why_not(paper: str) -> None:
    registry = {str(one["name"]): str(one["value"]) for one in printed_tables.paper(paper).raw["hyperparameters"]}
    cells, known = list(cells_of(paper)), PaperScale(paper)
    assert {name for name, _ in cells} == {*registry}
    for name, cell in cells:
        assert {*cell} <= FIELDS, name
        if "instead" in cell:
            assert "printed" not in cell, name
            continue
        assert str(cell["printed"]) in registry[name], name
        ours = known.value(cell)
        agrees = same(str(cell["printed"]), ours)
        assert agrees != ("reason" in cell), f"{name}: printed {cell['printed']}, ours {ours!r}"


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_a_table_of_settings_is_compared_once(name: str) -> None:
    table = printed_tables.table(name)
    printed = {(row.condition, key): str(cell) for row in table.rows for key, cell in row.values.items()}
    cells = [cell for _, cell in cells_of(table.paper) if "table" in cell and cell["table"][0] == table.id]
    assert sorted((cell["table"][1], cell["table"][2]) for cell in cells) == sorted(printed)
    for cell in cells:
        assert cell.get("printed") in (None, printed[cell["table"][1], cell["table"][2]])
