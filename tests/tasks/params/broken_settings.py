"""Settings broken one field at a time: the project's own pages, copied, changed and checked in this process.

For each kind of entry the first one that states a field is taken; the field gets a value of the wrong type, out of its
range, not finite or unknown, and its name is misspelt. The check must refuse the page's entry.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.recipe import ComponentRecipe, Recipe
from rlhf_core.typed import init_fields
from tasks.graph.check import PAPER_TYPES, SCALE_TYPES, STAGE_TYPES, Check
from tasks.params.data import DATA_SPECS
from tasks.params.pages import Address, entries, read_settings
from tasks.params.questions import QuestionsSpec
from tasks.params.reward_model import reward_model_scale, reward_model_spec
from tasks.params.row_parser import COMPARING, MEASURING, ComparingRow, MeasuringRow, parse_row
from tasks.params.scales import STAGES, scale_entries, scale_names

PROJECT = Path(__file__).parents[3]
HEAVY = ("torch", "transformers", "scipy", "sklearn", "pandas", "pandera", "datasets")
#: Fields that are text for people, or a name that the graph resolves.
FREE = ("title", "notes", "name", "source", "model")


@dataclass
class Outcome:
    """Outcome of breaking settings.

    Attributes:
        accepted: those that were not refused.
        unclear: refusals that do not name the file and the field.
        untouched: fields of a kind that no entry states and no break reached.
        tried: how many were broken.
    """

    accepted: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)
    tried: int = 0


def kind_of(make: Any, values: Mapping[str, Any]) -> list[type[Any]]:
    """The dataclasses whose fields an entry may state."""
    if make is parse_row:
        kind = values.get("kind", "reward")
        if kind in MEASURING or kind in COMPARING:
            return [MeasuringRow if kind in MEASURING else ComparingRow]
        return [Recipe] if "components" in values or kind == "supervised" else [Recipe, ComponentRecipe]
    if make is SCALE_TYPES["data"]:
        return [QuestionsSpec if "task" in values else DATA_SPECS[values["source"]]]
    if make in (reward_model_spec, reward_model_scale):
        return [type(make(values, ""))]
    return [make.args[0]]


def hints_of(kinds: list[type[Any]]) -> dict[str, Any]:
    """Annotations of the fields of some dataclasses."""
    found: dict[str, Any] = {}
    for cls in kinds:
        hints = get_type_hints(cls, include_extras=True)
        found |= {name: hints[name] for name in init_fields(cls)}
    return found


def alternatives(hint: Any) -> list[Any]:
    """The types that an annotation allows, without constraints."""
    if get_origin(hint) is Annotated:
        return alternatives(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [one for part in get_args(hint) for one in alternatives(part)]
    return [get_origin(hint) or hint]


def breaks(name: str, hint: Any) -> Iterator[Any]:
    """Values that a field cannot have."""
    allowed = alternatives(hint)
    if Any in allowed:
        yield from ({"kind": "no such kind"}, 1.5) if name == "shaping" else ()
        return
    numeric = float in allowed or int in allowed
    if str not in allowed:
        yield "ten"
    if not numeric:
        yield 12345
    if bool not in allowed:
        yield True
    if NoneType not in allowed:
        yield None
    if numeric:
        yield from (float("nan"), float("inf"))
        if int in allowed and float not in allowed:
            yield 1.5
        if name not in ("negative", "positive", "weight"):  # a row's weight of -1 turns its reward round
            yield -12345
        if name == "weight":
            yield 0
    if not any(isinstance(one, type) and issubclass(one, Mapping) for one in allowed):
        yield {"no such setting": 1}
    if str in allowed and name not in FREE and _constrained(hint):
        yield "no such name"
    if any(one in (tuple, list) for one in allowed):
        yield [None]


def _constrained(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_constrained(part) for part in get_args(hint))
    return get_origin(hint) is Annotated


def pages(root: Path) -> Iterator[tuple[Any, Address]]:
    """Yields the function that types each entry of every page, and the address of the entry."""
    for paper in sorted(path.name for path in (root / "params").glob("*/") if path.name != "scales"):
        for kind, make in PAPER_TYPES.items():
            for address in entries(root, Path("params") / paper, kind).values():
                yield make, address
    for scale in scale_names(root):
        for kind, make in SCALE_TYPES.items():
            for address in scale_entries(root, scale, kind).values():
                yield make, address
        for name, address in scale_entries(root, scale, STAGES).items():
            stage = name.partition("-")[0]
            if stage != "resources":
                yield STAGE_TYPES[stage], address


def run(root: Path) -> Outcome:
    """Breaks every field of every kind, once for each kind and field, in the first entry that has the kind."""
    outcome, seen = Outcome(), set()
    for make, address in pages(root):
        values = read_settings(address.under(root))
        kinds = kind_of(make, values)
        names = tuple(cls.__name__ for cls in kinds)
        for name, hint in hints_of(kinds).items():
            if (names, name) not in seen:
                seen.add((names, name))
                for value in breaks(name, hint):
                    _try(outcome, root, make, address, {**values, name: value}, name, value)
        for name in values:
            if (names, name, "misspelt") not in seen:
                seen.add((names, name, "misspelt"))
                misspelt = {key if key != name else f"{name}x": value for key, value in values.items()}
                _try(outcome, root, make, address, misspelt, f"{name}x", None)
    return outcome


def _try(
    outcome: Outcome, root: Path, make: Any, address: Address, values: Mapping[str, Any], name: str, value: Any
) -> None:
    outcome.tried += 1
    file = root / address.file
    before = file.read_text(encoding="utf-8")
    content = deepcopy(yaml.safe_load(before))
    if "variants" in content:
        return
    content = {"base": {}, str(address.key): dict(values)}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    try:
        problem = Check(root).entry(make, address)
    finally:
        file.write_text(before, encoding="utf-8")
    said = f"{address}: {name} = {value!r}"
    if problem is None:
        outcome.accepted.append(said)
    elif str(address) not in problem or name.rstrip("x").rstrip("s") not in problem:
        outcome.unclear.append(f"{said} -> {problem}")


def report() -> None:
    """Prints as JSON what became of the project's settings, broken in a copy below the working directory."""
    root = Path.cwd() / "tree"
    shutil.copytree(PROJECT / "params", root / "params")
    shutil.copyfile(PROJECT / "params.yaml", root / "params.yaml")
    try:
        outcome = run(root)
    except (RecipeError, DataError) as error:
        outcome = Outcome(accepted=[str(error)])
    heavy = [name for name in HEAVY if name in sys.modules]
    written = [path.name for path in root.iterdir() if path.name not in ("params", "params.yaml")]
    print(json.dumps({**vars(outcome), "tried": [str(outcome.tried)], "heavy": heavy, "written": written}))
