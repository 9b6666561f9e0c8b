"""Settings from mappings: every value is held against its annotation, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.typed import (
    Checked,
    above,
    accepted_by,
    at_least,
    between,
    one_of,
    typed,
)

COLOURS = Choices("colour", {"red": float, "green": float})


def even(value: int) -> None:
    if value % 2:
        raise RecipeError("it must be even")


@dataclass(frozen=True)
class Part(Checked):
    size: Annotated[float, above(0)]
    colour: Annotated[str, one_of(COLOURS)] = "red"


@dataclass(frozen=True)
class Whole(Checked):
    count: Annotated[int, at_least(1), accepted_by(even)]
    share: Annotated[float, between(0, 1, open_high=True)] | None = 0.5
    mode: Literal["fast", "slow"] = "fast"
    pair: tuple[float, float] = (0.0, 1.0)
    names: tuple[str, ...] = ()
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    table: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)
    flag: bool = False

    def _check_together(self) -> None:
        if self.flag and self.part is None:
            raise RecipeError("flag is true, but part is null")


def test_a_mapping_becomes_nested_settings() -> None:
    made = typed(
        Whole,
        {"count": 2, "pair": [1, 2], "names": ["a"], "part": {"size": 1}, "parts": [{"size": 2, "colour": "green"}]},
        "x.yaml",
    )
    assert made == Whole(2, pair=(1, 2), names=("a",), part=Part(1), parts=(Part(2, "green"),))
    assert typed(Whole, {"count": 2, "free": {"a": [1]}}, "x.yaml").free == {"a": [1]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"count": 0}, "x.yaml: count is 0; it must be at least 1"),
    ({"count": 3}, "x.yaml: count is 3; it must be even"),
    ({"count": True}, "x.yaml: count is true; it must be a whole number"),
    ({"count": 2.0}, "x.yaml: count is 2.0; it must be a whole number"),
    ({"count": "2"}, "x.yaml: count is the text '2' (write a number without quotes); it must be a whole number"),
    ({"counts": 2}, "x.yaml: unknown setting 'counts'; did you mean 'count'?"),
    ({5: 2}, "x.yaml: unknown setting '5'; known: count"),
    ({"share": 1.0}, "x.yaml: share is 1.0; it must be at least 0 and below 1"),
    ({"share": float("nan")}, "x.yaml: share is nan; it must be a finite number"),
    ({"share": "half"}, "x.yaml: share is 'half'; it must be a number or null"),
    ({"mode": "fasst"}, "x.yaml: mode is 'fasst'; did you mean 'fast'?"),
    ({"mode": True}, "x.yaml: mode is true; it must be one of fast, slow"),
    ({"pair": [1]}, "x.yaml: 'pair[1]' is missing"),
    ({"pair": [1, "a"]}, "x.yaml: pair[1] is 'a'; it must be a number"),
    ({"names": ["a", 1]}, "x.yaml: names[1] is 1; it must be text"),
    ({"names": "a"}, "x.yaml: names is 'a'; it must be a list"),
    ({"part": {"size": 0}}, "x.yaml: part.size is 0; it must be above 0"),
    ({"part": {"sise": 1}}, "x.yaml: unknown setting 'part.sise'; did you mean 'size'?"),
    ({"part": {}}, "x.yaml: 'part.size' is missing"),
    ({"part": {"size": 1, "colour": "gren"}}, "x.yaml: part.colour is 'gren'; did you mean 'green'?"),
    ({"part": 1}, "x.yaml: part is 1; it must be a mapping or null"),
    ({"parts": [{"size": 1}, {"size": -1}]}, "x.yaml: parts[1].size is -1; it must be above 0"),
    ({"table": {"a": "b"}}, "x.yaml: table.a is 'b'; it must be a whole number"),
    ({"flag": True}, "x.yaml: flag is true, but part is null"),
    ({"flag": 1}, "x.yaml: flag is 1; it must be true or false"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_an_annotation_does_not_allow_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        typed(Whole, {"count": 2} | change, "x.yaml")
    assert str(caught.value).startswith(message)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(RecipeError, match=r"x.yaml: 'count' is missing"):
        typed(Whole, {}, "x.yaml")


def test_what_is_made_directly_is_held_to_the_same() -> None:
    with pytest.raises(RecipeError, match="size is 0; it must be above 0"):
        Part(0)
    with pytest.raises(RecipeError, match="count is 3; it must be even"):
        Whole(3)
