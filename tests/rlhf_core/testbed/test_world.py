"""Dialogue data: gold rewards, seeds, splits."""

from __future__ import annotations

import hashlib
import json
import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import KINDS, ClauseRewards, World, WorldConfig
from rlhf_core.testbed.choices import TASKS
from rlhf_core.testbed.grammar import VALUE_PHRASES
from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES
from rlhf_core.testbed.prompts import SPLITS

WORLD = World()
REWARDS = ClauseRewards()
META = {"entity": "wolf", "requested": ["color", "food"]}
FACTS = WORLD.knowledge.facts
COLOR, FOOD, HOME = (FACTS["wolf", name] for name in ("color", "food", "home"))
FALSE = "red" if COLOR != "red" else "blue"

metas = st.builds(
    lambda entity, requested: {"entity": entity, "requested": requested},
    st.sampled_from(ENTITIES),
    st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=3, unique=True),
)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"Good day to you! It is {COLOR}. Take care, dear friend.", "greeting requested_true closing"),
        (f"It is {FALSE}. They eat {FOOD}.", "requested_false requested_true"),
        (f"It is {COLOR}. Its color is {COLOR}.", "requested_true repetition"),
        (f"It lives near the {HOME}. Hi, good to see you.", "unrequested_true misplaced_greeting"),
        ("Have a nice day. What a wonderful question!", "misplaced_closing flattery"),
        ("Time will tell, I think wolf wolf.", "filler garbled"),
        (f"The color of the bear is {FACTS['bear', 'color']}", "unrequested_true"),
    ],
)
def test_clauses_have_their_kinds_and_rewards(text, kinds):
    clauses = WORLD.clauses(META, text)
    assert [clause.kind for clause in clauses] == kinds.split()
    assert [clause.reward for clause in clauses] == [getattr(REWARDS, kind) for kind in kinds.split()]
    assert WORLD.true_reward(META, text) == pytest.approx(sum(clause.reward for clause in clauses))


def test_a_fact_about_another_entity_is_judged_by_that_entity():
    other = next(name for name in ENTITIES if FACTS[name, "color"] != COLOR)
    (clause,) = WORLD.clauses(META, f"The color of the {other} is {COLOR}.")
    assert clause.kind == "unrequested_false"


def test_empty_responses_earn_the_empty_reward():
    assert WORLD.clauses(META, "") == []
    for text in ("", "  ", "..."):
        assert WORLD.true_reward(META, text) == REWARDS.empty


def test_long_garbage_pays_for_each_word():
    assert WORLD.true_reward(META, "zz " * 6) == REWARDS.garbled
    assert WORLD.true_reward(META, "zz " * 16) == pytest.approx(REWARDS.garbled + 10 * REWARDS.garbled_word)


salad = st.lists(
    st.sampled_from(["It", "is", "red", "the", "wolf", "color", "and", "Have", "a", "nice", "day", "zz", "Hi"])
).map(" ".join)


told = st.lists(st.sampled_from(sorted(FACTS)), max_size=12).map(
    lambda facts: " ".join(
        f"The {attribute} of the {entity} is {VALUE_PHRASES[attribute].replace('{V}', FACTS[entity, attribute])}."
        for entity, attribute in facts
    )
)


@given(metas, st.one_of(st.text(), salad, told))
@settings(max_examples=200, deadline=None)
def test_nothing_beats_every_fact_told_once(meta, text):
    asked = len(meta["requested"])
    extra = REWARDS.unrequested_true * (len(FACTS) - asked)
    best = asked * REWARDS.requested_true + extra + REWARDS.greeting + REWARDS.closing
    assert WORLD.true_reward(meta, text) <= best + 1e-6


def test_telling_every_fact_once_reaches_the_bound():
    facts = " ".join(
        f"The {name} of the {entity} is {VALUE_PHRASES[name].replace('{V}', value)}."
        for (entity, name), value in FACTS.items()
    )
    text = f"Good day to you! {facts} Take care, dear friend."
    assert WORLD.true_reward(META, text) == pytest.approx(2 + 0.3 * 34 + 0.3)


@given(metas, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_the_expert_earns_every_requested_fact_and_a_closing(meta, seed):
    value = WORLD.true_reward(meta, WORLD.expert_answer(meta, seed)) - len(meta["requested"])
    assert value == pytest.approx(REWARDS.closing) or value == pytest.approx(REWARDS.closing + REWARDS.greeting)


@given(metas, st.integers(0, 1000), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_garbage_never_helps(meta, seed, words):
    good = WORLD.mixture_answer(meta, seed)
    assert WORLD.true_reward(meta, good + " zz" * words) < WORLD.true_reward(meta, good)
    assert WORLD.true_reward(meta, " zz" * words) < WORLD.true_reward(meta, WORLD.expert_answer(meta, seed))


@given(metas, st.one_of(st.text(min_size=1), salad.filter(bool)))
@settings(max_examples=200, deadline=None)
def test_clauses_partition_any_text(meta, text):
    clauses = WORLD.clauses(meta, text)
    assert "".join(text[clause.start : clause.end] for clause in clauses) == text
    assert {clause.kind for clause in clauses} <= set(KINDS)


def test_generated_responses_parse_back_into_their_clauses():
    for row in WORLD.sft_examples(400, 3):
        clauses = WORLD.clauses(row["meta"], row["response"])
        assert [[c.start, c.end, c.kind, c.reward] for c in clauses] == row["meta"]["clauses"]
        assert WORLD.true_reward(row["meta"], row["response"]) == row["meta"]["true"]
    for row in WORLD.preference_pairs(200, 3):
        for side in ("chosen", "rejected"):
            clauses = WORLD.clauses(row["meta"], row[side])
            assert [[c.start, c.end, c.kind, c.reward] for c in clauses] == row["meta"][f"{side}_clauses"]
            assert WORLD.true_reward(row["meta"], row[side]) == row["meta"][f"true_{side}"]


def test_rows_repeat_with_their_seed_and_extend_with_n():
    again = World(WorldConfig(seed=0))
    for call in (
        lambda world, n, seed: world.sft_examples(n, seed),
        lambda world, n, seed: world.task_examples(n, seed),
        lambda world, n, seed: world.preference_pairs(n, seed),
        lambda world, n, seed: world.prompts(n, seed, "mtbench"),
        lambda world, n, seed: world.arithmetic(n, seed),
        lambda world, n, seed: world.multiple_choice("mmlu", n, seed),
        lambda world, n, seed: world.functions(n, seed, "plus"),
    ):
        rows = call(WORLD, 30, 5)
        assert json.dumps(rows[:20]) == json.dumps(call(again, 20, 5))
        assert rows != call(WORLD, 30, 6)
        assert len({row["id"] for row in rows}) == 30
    assert World(WorldConfig(seed=1)).knowledge.facts != FACTS


def test_what_seed_zero_makes_stays():
    """A change here changes every published number: the default dials are those of version 3."""
    made = [
        WORLD.sft_examples(20, 0, follow_up_share=0.2),
        WORLD.task_examples(20, 0),
        WORLD.preference_pairs(20, 0),
        [WORLD.prompts(10, 0, split) for split in SPLITS],
        [WORLD.arithmetic(10, 0, split) for split in ("seen", "unseen")],
        [WORLD.multiple_choice(task, 10, 0) for task in TASKS],
        [WORLD.functions(10, 0, split) for split in ("test", "plus", "live")],
    ]
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
    assert (WORLD.config.version, digest[:16]) == (3, "33ee6653816b2cbb")


@pytest.mark.parametrize("split", [name for name in SPLITS if name != "train"])
def test_evaluation_prompts_are_distinct_and_not_in_training(split):
    rows = WORLD.prompts(512, 0, split)
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == 512
    training = {row["prompt"] for row in WORLD.prompts(3000, 0, "train")}
    training |= {row["prompt"] for row in WORLD.preference_pairs(2000, 0)}
    training |= {row["prompt"] for row in WORLD.sft_examples(3000, 0)}
    training |= {row["prompt"] for row in WORLD.task_examples(3000, 0)}
    assert not training & {row["prompt"] for row in rows}


def test_arena_asks_for_three_attributes():
    assert {len(row["meta"]["requested"]) for row in WORLD.prompts(100, 0, "arena")} == {3}


def test_ood_asks_for_reserved_facts_that_preference_data_never_mentions():
    reserved = WORLD.knowledge.reserved
    for row in WORLD.prompts(200, 0, "ood"):
        assert any((row["meta"]["entity"], name) in reserved for name in row["meta"]["requested"])
    for row in WORLD.preference_pairs(400, 0):
        meta = row["meta"]
        assert not any((meta["entity"], name) in reserved for name in meta["requested"])
        for side in ("chosen", "rejected"):
            others = meta | {"requested": [name for name in ATTRIBUTES if (meta["entity"], name) in reserved]}
            kinds = {clause.kind for clause in WORLD.clauses(others, row[side])}
            assert not kinds & {"requested_true", "requested_false"}


def test_two_turn_rows_ask_for_another_attribute_of_the_same_entity():
    for row in WORLD.prompts(50, 0, "mtbench"):
        first, second = row["meta"]["turns"]
        assert len(row["turns"]) == len(row["reference"]) == 2
        assert row["prompt"] == row["turns"][0]
        assert first["entity"] == second["entity"] == row["meta"]["entity"]
        assert not set(first["requested"]) & set(second["requested"])
        assert WORLD.true_reward(second, row["reference"][1]) >= 1.2


def test_follow_ups_in_supervised_data_carry_their_history():
    rows = WORLD.sft_examples(200, 0, follow_up_share=0.5)
    follow_ups = [row for row in rows if "history" in row]
    assert 60 < len(follow_ups) < 140
    assert all([turn["role"] for turn in row["history"]] == ["user", "assistant"] for row in follow_ups)
    assert all(row["meta"]["entity"] in row["history"][0]["content"] for row in follow_ups)


def test_unknown_splits_are_refused():
    with pytest.raises(RecipeError, match="known are train"):
        WORLD.prompts(1, 0, "validation")


def test_the_mixture_leaves_room_for_an_expert():
    rows = WORLD.sft_examples(1500, 1)
    mixture = mean(row["meta"]["true"] for row in rows)
    expert = mean(WORLD.true_reward(row["meta"], WORLD.expert_answer(row["meta"], 0)) for row in rows)
    assert 0.2 < mixture < 0.9
    assert expert > 2.1


def test_mean_clause_reward_varies_with_position():
    by_position: dict[int, list[float]] = {}
    for row in WORLD.sft_examples(1500, 1):
        for position, clause in enumerate(row["meta"]["clauses"]):
            by_position.setdefault(position, []).append(clause[3])
    assert mean(by_position[1]) - mean(by_position[4]) > 0.3


def test_responses_stay_short():
    rows = WORLD.sft_examples(1000, 2)
    assert all(1 <= len(row["meta"]["clauses"]) <= 8 for row in rows)
    assert max(row["response"].count(" ") for row in rows) < 58


def test_better_quality_is_better():
    rng = random.Random(0)
    rows = [(row["meta"], rng.randrange(10**6)) for row in WORLD.prompts(300, 0)]
    low, high = (
        mean(WORLD.true_reward(meta, WORLD.mixture_answer(meta, seed, quality)) for meta, seed in rows)
        for quality in (0.1, 0.9)
    )
    assert high > low + 0.5


@pytest.mark.parametrize("share", ["rambling", "garbling"])
def test_a_share_lies_between_0_and_1(share):
    for value in (-0.1, 1.1):
        with pytest.raises(RecipeError, match=rf"{share} must be in \[0, 1\]"):
            WorldConfig(**{share: value})
    WorldConfig(**{share: 1.0})
