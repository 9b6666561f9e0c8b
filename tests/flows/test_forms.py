"""The forms of the deployments offer what the tree has, and nothing that is not for people."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.schema_tools import validate

from flows.deployments import deployments, form
from tests.test_documentation import ROOT

#: Fields without a list of choices: names that are made up, other settings of a row, and what a server or DVC knows.
FREE = {"name", "changes", "pool", "remote", "models"}


def of(module: str) -> dict[str, Any]:
    return form(ROOT, load_flow_from_entrypoint(module), ["segment-policy-segment@champion"])


def choices(field: dict[str, Any]) -> list[Any]:
    one = field.get("anyOf", [field])[0]
    found: list[Any] = one.get("items", one).get("enum", [])
    return found


@pytest.mark.parametrize("one", deployments(ROOT), ids=lambda one: one.name)
def test_every_field_has_a_line_of_help_and_a_list_where_the_tree_has_one(one: Any) -> None:
    fields = of(one.module)["properties"]
    assert "root" not in fields
    for name, field in fields.items():
        assert 0 < len(field["description"].splitlines()[0]) <= 100, name
        assert "\n" not in field["description"], name
        assert name in FREE or field.get("type") == "boolean" or len(choices(field)) > 1, name


def test_lists_are_of_the_tree() -> None:
    par, recipe = of("flows.paper.par")["properties"], of("flows.recipe.recipe")["properties"]
    assert {"vanilla", "par", "gemma2-2b"} <= set(choices(par["rows"]))
    assert {"testbed", "hh", "paper"} <= set(choices(par["scale"]))
    assert {0, 1, 2} <= set(choices(par["seeds"]))
    assert {"segment/segment", "par/par"} <= set(choices(recipe["start"]))
    assert {"", "segment/bandit"} <= set(choices(recipe["reward_model"]))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, ""),
        ({"rows": ["par"], "seeds": [0], "scale": "testbed", "root": "/a/tree"}, ""),
        ({"rows": None, "seeds": None}, ""),
        ({"rows": ["prr"]}, "prr"),
        ({"scale": "huge"}, "huge"),
        ({"seeds": [99]}, "99"),
    ],
)
def test_the_server_takes_what_is_in_a_list(given: dict[str, Any], field: str) -> None:
    errors = validate(given, of("flows.paper.par"))
    assert bool(errors) == bool(field)
    assert all(field in str(error) for error in errors)
