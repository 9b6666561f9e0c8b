"""Padded responses: more clauses of one kind, and nothing else than before without padding."""

from __future__ import annotations

import random

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import World, WorldConfig
from rlhf_core.testbed.grammar import KEYWORD
from rlhf_core.testbed.responses import PADDINGS, pad


def traits(world: World, row: dict, text: str, kind: str) -> int:
    """Counts the additions of a kind of padding in a text."""
    if kind == "keyword":
        return text.lower().count(KEYWORD)
    return sum(clause.kind == kind for clause in world.clauses(row["meta"], text))


@pytest.mark.parametrize("kind", PADDINGS)
def test_padding_adds_one_to_four_clauses_of_its_kind(kind: str) -> None:
    world, rng = World(), random.Random(0)
    grown = []
    for row in world.sft_examples(80, seed=3):
        text = pad(row["response"], row["meta"], kind, rng)
        facts = any("true" in c[2] or "false" in c[2] for c in row["meta"]["clauses"])
        more = traits(world, row, text, kind) - traits(world, row, row["response"], kind)
        assert 1 <= more <= 4 if facts or kind != "repetition" else text == row["response"]
        assert all(clause.kind != "garbled" for clause in world.clauses(row["meta"], text)), text
        grown.append(more)
    assert {1, 4} <= set(grown)


def test_a_share_of_compared_responses_is_padded() -> None:
    plain = World().preference_pairs(200, seed=0)
    padded = World(WorldConfig(padding=0.4, padded_with="flattery")).preference_pairs(200, seed=0)
    numbers = [
        sum(
            clause[2] == "flattery"
            for row in rows
            for side in ("chosen", "rejected")
            for clause in row["meta"][f"{side}_clauses"]
        )
        for rows in (plain, padded)
    ]
    assert numbers[1] - numbers[0] > 0.4 * 400
    assert [row["prompt"] for row in plain] == [row["prompt"] for row in padded]


def test_a_share_without_a_kind_is_refused() -> None:
    for padding, kind in ((0.4, None), (0.0, "flattery"), (0.4, "poetry")):
        with pytest.raises(RecipeError, match="a share above 0 goes with one of flattery, keyword, repetition"):
            WorldConfig(padding=padding, padded_with=kind)
    with pytest.raises(RecipeError, match=r"padding must be in \[0, 1\]"):
        WorldConfig(padding=1.4, padded_with="flattery")
