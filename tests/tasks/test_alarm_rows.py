"""ALARM's rows as files: what they parse to, which stages they need, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.recipe import parse_recipe
from rlhf_core.rewards.combinations import Gate
from tasks.graph.matrix import suite_seeds
from tasks.graph.rows import load_row, load_rows, row_addresses
from tasks.graph.scale import Scale
from tasks.params.aspects import AspectSpec, SelectionEntry, SelectionScale
from tasks.params.pages import Address, entries, read_settings
from tasks.params.scales import scale_entries
from tasks.params.settings import typed
from tasks.params.stages import run_settings

ROOT = Path(__file__).parents[2]
ROWS = row_addresses(ROOT, "alarm").values()
#: Those with rows of ALARM.
SCALES = ("feedback", "paper", "small", "testbed")


@pytest.mark.parametrize("address", ROWS, ids=lambda address: address.name)
def test_every_row_weighs_the_holistic_reward_alike_and_clamps_nothing(address: Address) -> None:
    recipe = parse_recipe(read_settings(address.under(ROOT)), address)
    weights = {part.name: part.weight for part in recipe.components}
    assert weights.pop("holistic", None) in (None, 5 if address.name.startswith("qa") else 3)
    assert set(weights.values()) <= {1.0}
    assert recipe.clamp is None
    assert isinstance(recipe.combination, Gate) == ("alarm" in address.name)


@pytest.mark.parametrize("scale", SCALES)
def test_selections_and_aspects_of_a_scale_parse(scale: str) -> None:
    stages = scale_entries(ROOT, scale, "stages")
    sizes = [address for name, address in stages.items() if name.split("-")[0] == "selection"]
    aspects = scale_entries(ROOT, scale, "aspects").values()
    selections = entries(ROOT, "params/alarm", "selections").values()
    for cls, addresses in ((SelectionScale, sizes), (AspectSpec, aspects), (SelectionEntry, selections)):
        assert addresses
        for address in addresses:
            typed(cls, read_settings(address.under(ROOT)), address)
    rows = load_rows(ROOT, "alarm")
    own = Scale(ROOT, scale)
    found = {name: own.row(row, 0) for name, row in rows.items() if own.has(row)}
    assert {name for name in rows if not name.startswith("mt-t5")} <= set(found)
    (item,) = [item for item in found["qa-alarm"] if item.module == "selection"]
    assert len(item.arguments["aspect"]) == 4  # type: ignore[arg-type]
    policy = found["qa-alarm"][-1].arguments
    assert policy["selection"] == f"{item.out}/result"
    assert policy["holistic"] == item.arguments["reward_model"]
    assert policy["aspect_model"] == item.arguments["aspect_model"]
    assert "reward_model" not in found["qa-factuality"][-1].arguments


@pytest.mark.parametrize("scale", ["small", "feedback", "paper"])
def test_the_initial_policy_answers_as_long_as_policies_do_while_they_train(scale: str) -> None:
    """Or D_p would normalise by rewards of answers that training never sees."""
    rows = [*load_rows(ROOT, "alarm").values(), *load_rows(ROOT, "tatoeba").values()]
    own, compared = Scale(ROOT, scale), 0
    for row in (row for row in rows if row.selection is not None and own.has(row)):
        items = own.row(row, 0)
        (selection,) = [item for item in items if item.module == "selection"]
        drawn, trained = (
            read_settings(Address(str(item.arguments["scale"])).under(ROOT)) for item in (selection, items[-1])
        )
        assert drawn["max_new_tokens"] == trained["sampling"]["max_new_tokens"], row.name
        compared += 1
    assert compared > 15


def test_the_whole_matrix_is_run_with_three_seeds_at_every_scale_as_in_the_paper() -> None:
    suite = run_settings(ROOT).suite
    for scale in ("testbed", "small", "feedback", "paper"):
        assert suite_seeds(suite, scale, "alarm") == (0, 1, 2)
    assert suite_seeds(suite, "paper", "par") == (0,)


QA, SELECTION = "alarm/rows_qa.yaml:qa-alarm", "alarm/selections.yaml:qa"
ASPECT = "scales/testbed/aspects.yaml:factuality"
Change = Callable[[dict[str, Any]], None]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            QA,
            lambda row: row.update(selection="qaa"),
            "unknown selection 'qaa'; did you mean 'qa'",
        ),
        (QA, lambda row: row.update(selection="mt"), "selection 'mt' is of 'alarm-mt'"),
        (
            SELECTION,
            lambda spec: spec.update(aspects=["honesty"]),
            r"aspects\[0\] is 'honesty', which no scale has",
        ),
        (SELECTION, lambda spec: spec.update(aspects=[]), "list entries of params"),
        (SELECTION, lambda spec: spec.update(aspects=["length", "length"]), "each once"),
        (SELECTION, lambda spec: spec.update(holistic=None), "'holistic' is missing"),
        (
            ASPECT,
            lambda spec: spec.update(model="fact"),
            "unknown aspect model 'fact'",
        ),
    ],
)
def test_names_that_lead_nowhere_are_refused(file: str, change: Change, message: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    address = Address(tmp_path / "params" / file)
    content = yaml.safe_load(address.file.read_text(encoding="utf-8"))
    change(content[address.key])
    address.file.write_text(yaml.safe_dump(content), encoding="utf-8")

    def resolve() -> None:
        row = load_row(tmp_path, "alarm", row_addresses(tmp_path, "alarm")["qa-alarm"])
        Scale(tmp_path, "testbed").row(row, 0)

    with pytest.raises(RecipeError, match=message):
        resolve()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"aspect": {"kind": "length"}, "normaliser": "location_aware"},
            "normaliser is 'location_aware'; known: none, mean, z",
        ),
        ({"aspect": "length"}, "must be a mapping"),
    ],
)
def test_an_aspect_file_that_means_nothing_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        typed(AspectSpec, values, "aspect")
