"""The hyperparameters that the papers print, beside what the scale `paper` has.

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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.published import printed_tables
from rlhf_core.recipe import parse_recipe
from rlhf_core.typed import Checked
from tasks.graph.items import Item
from tasks.graph.rows import load_rows
from tasks.graph.scale import Scale
from tasks.graph.typed_settings import TYPES
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.settings import typed
from tasks.params.yaml_files import read_mapping

FOLDER = printed_tables.FOLDER / "settings_map"
SCALE = "paper"
#: The settings argument of a stage that is meant where a cell names none.
ARGUMENTS = {"sft": "spec", "prepare": "spec", "tokenizer": "spec", "samples": "spec", "teacher": "spec"}


@dataclass(frozen=True)
class StatedCell(Checked):
    """A cell of a settings map; see the module."""

    printed: str | None = None
    row: str | None = None
    backbone: str | None = None
    stage: str = "policy"
    name: str | None = None
    argument: str | None = None
    setting: str | None = None
    passes: int | None = None
    table: tuple[str, str, str] | None = None
    reason: str | None = None
    instead: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        compared = self.setting is not None or self.passes is not None
        if (self.instead is None) != compared or compared != (self.printed is not None):
            raise RecipeError("give either 'instead', or 'printed' with 'setting' or 'passes'")
        if compared and (self.row is None) == (self.backbone is None):
            raise RecipeError("give either 'row' or 'backbone'")


@dataclass(frozen=True)
class SettingCell:
    """A printed hyperparameter and this project's value.

    Attributes:
        hyperparameter: as the registry calls it.
        stated: the cell of the map.
        ours: the value at scale `paper`; None where there is nothing to compare.
    """

    hyperparameter: str
    stated: StatedCell
    ours: Any

    @property
    def agrees(self) -> bool:
        """Returns whether our value is the printed one: as a number, else as text."""
        return same(str(self.stated.printed), self.ours)

    @property
    def shown(self) -> str:
        """Returns our value, or the reason why there is none, as the report shows it."""
        if self.stated.instead is not None:
            return self.stated.instead
        value = f"{self.ours:g}" if isinstance(self.ours, float) else str(self.ours)
        return f"{value} ({self.stated.reason})" if self.stated.reason else value


def same(printed: str, ours: Any) -> bool:
    """Returns whether a value is the printed one: as a number, else as text whatever its capitals."""
    text = printed.strip().removesuffix("%").replace(",", "")
    if isinstance(ours, bool) or not isinstance(ours, int | float):
        return str(ours).casefold() == printed.strip().casefold()
    try:
        return abs(float(text) - ours) <= 1e-9 * max(1e-9, abs(ours))
    except ValueError:
        return False


class PaperScale:
    """Settings at the scale `paper` of the rows of one paper."""

    def __init__(self, root: Path, paper: str) -> None:
        self.root, self.paper, self.scale = root, paper, Scale(root, SCALE)
        self.rows = load_rows(root, paper)
        self._items: dict[str, list[Item]] = {}

    def value(self, cell: StatedCell) -> Any:
        """Returns the value that a cell names.

        Raises:
            RecipeError: no such row, stage or setting.
        """
        item = self._item(cell)
        argument = cell.argument or ARGUMENTS.get(cell.stage, "scale")
        settings = self._settings(item, argument)
        if cell.passes is not None:
            optimiser = settings["optimiser"]
            prompts = optimiser.iterations * optimiser.rollout_batch / optimiser.group_size
            return round(prompts / cell.passes)
        return followed(settings, str(cell.setting), f"{item.stage}: {argument}")

    def _item(self, cell: StatedCell) -> Item:
        name = str(cell.row or cell.backbone)
        if name not in self._items:
            if cell.row is not None and cell.row not in self.rows:
                raise RecipeError(f"{self.paper}: unknown row '{cell.row}'{hint(cell.row, self.rows)}")
            whole = self.scale.row(self.rows[name], 0) if cell.row else self.scale.backbone(name, 0, self.paper)
            self._items[name] = whole
        known = [one for one in self._items[name] if one.module == cell.stage and cell.name in (None, one.name)]
        if not known:
            raise RecipeError(f"{self.paper}: '{name}' has no stage '{cell.stage}' of the name {cell.name!r}")
        return known[-1]

    def _settings(self, item: Item, argument: str) -> Any:
        """Returns the typed settings of a stage's argument; a policy's with its row's own in place.

        `aspect.length` is the setting of that name among several.
        """
        kind, _, name = argument.partition(".")
        given = item.arguments[kind]
        several = given if isinstance(given, tuple) else (str(given),)
        address = next(Address(one) for one in several if not name or Address(one).name == name).under(self.root)
        if item.module == "policy" and kind == "row":
            return parse_recipe(read_settings(address), str(address))
        found = TYPES[(item.module, kind)](read_settings(address), str(address))
        if not isinstance(found, PolicyScale):
            return found
        recipe = parse_recipe(read_settings(Address(str(item.arguments["row"])).under(self.root)), item.name)
        if recipe.kind == "supervised":
            supervised, learned = found.supervised_config(recipe.optimiser, item.name)
            return {"optimiser": supervised, "recipe": learned, "scale": found}
        training = reward_training(recipe, found, item.name)
        parts = {name: getattr(training, name) for name in ("optimiser", "sampling", "imitation")}
        return {**parts, "scale": found}


def followed(settings: Any, path: str, where: str) -> Any:
    """Returns the value at a dotted path of fields, keys and places.

    Raises:
        RecipeError: there is none.
    """
    found = settings
    for step in path.split("."):
        try:
            if isinstance(found, Mapping):
                found = found[step]
            elif isinstance(found, tuple | list):
                found = found[int(step)]
            else:
                found = getattr(found, step)
        except (KeyError, IndexError, ValueError, AttributeError):
            raise RecipeError(f"{where} has no setting '{path}': '{step}' is not there") from None
    return found


def stated_cells(paper: str) -> Iterator[tuple[str, StatedCell]]:
    """Yields the cells of a paper's settings map with the hyperparameter of each.

    Raises:
        RecipeError: a cell that is not well formed.
    """
    file = FOLDER / f"{paper}.yaml"
    for name, cells in read_mapping(file).items():
        for place, cell in enumerate(cells):
            yield name, typed(StatedCell, cell, f"{file.name}: {name}[{place}]")


@cache
def setting_cells(root: Path, paper: str) -> tuple[SettingCell, ...]:
    """Returns every printed hyperparameter of a paper beside the value at scale `paper`."""
    known = PaperScale(root, paper)
    return tuple(
        SettingCell(name, cell, None if cell.instead is not None else known.value(cell))
        for name, cell in stated_cells(paper)
    )


def problems(paper: str, cells: Iterable[SettingCell]) -> list[str]:
    """Returns what is wrong with a paper's cells: differences without a reason, reasons without a difference,
    hyperparameters without a cell, and printed values that the registry does not have."""
    registry = {str(one["name"]): str(one["value"]) for one in printed_tables.paper(paper).hyperparameters}
    cells = list(cells)
    mapped = {cell.hyperparameter for cell in cells}
    found = [f"{name}: the map has no cell of it" for name in registry if name not in mapped]
    for cell in cells:
        stated, where = cell.stated, f"{cell.hyperparameter}, {cell.stated.setting or cell.stated.passes}"
        if cell.hyperparameter not in registry:
            found.append(f"{cell.hyperparameter}: the registry has no such hyperparameter")
        elif stated.instead is None:
            if str(stated.printed) not in registry[cell.hyperparameter]:
                found.append(f"{where}: the registry does not print '{stated.printed}'")
            if cell.agrees and stated.reason:
                found.append(f"{where}: listed as different, but {cell.ours!r} is what is printed; leave 'reason' out")
            if not cell.agrees and not stated.reason:
                found.append(f"{where}: printed {stated.printed}, ours {cell.ours!r}, without a reason")
    return found
