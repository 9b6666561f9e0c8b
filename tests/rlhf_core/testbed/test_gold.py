"""The truth about any text: clauses, their rewards, and the slices and errors of the other worlds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.segmenters import build_segmenter
from rlhf_core.testbed import KINDS, ClauseRewards, Dials, World
from rlhf_core.testbed.grammar import LATE_PHRASES, VALUE_PHRASES
from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES
from rlhf_core.testbed.longform import LongFormWorld
from rlhf_core.testbed.rewards import Clause, shares, total
from rlhf_core.testbed.translation_grammar import grammar_errors
from rlhf_core.typed import typed

WORLD, LATE = World(), World(dials=Dials(late=1.0))
REWARDS = ClauseRewards()
META = {"entity": "wolf", "requested": ["color", "food"]}
FACTS = WORLD.knowledge.facts
COLOR, FOOD, HOME = (FACTS["wolf", name] for name in ("color", "food", "home"))
FALSE = "red" if COLOR != "red" else "blue"
OTHER = next(name for name in ENTITIES if FACTS[name, "color"] != COLOR)

metas = st.builds(
    lambda entity, requested: {"entity": entity, "requested": requested},
    st.sampled_from(ENTITIES),
    st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=3, unique=True),
)
salad = st.lists(
    st.sampled_from(["It", "is", "red", "the", "wolf", "color", "and", "Have", "a", "nice", "day", "zz", "Hi"])
).map(" ".join)
told = st.lists(st.sampled_from(sorted(FACTS)), max_size=12).map(
    lambda facts: " ".join(
        f"The {attribute} of the {entity} is {VALUE_PHRASES[attribute].replace('{V}', FACTS[entity, attribute])}."
        for entity, attribute in facts
    )
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
        (f"The color of the {OTHER} is {COLOR}.", "unrequested_false"),
        (f"It is {COLOR}. In short, all of that was wrong.", "requested_true garbled"),
    ],
)
def test_clauses_have_their_kinds_and_rewards(text, kinds):
    clauses = WORLD.clauses(META, text)
    rewards = [
        getattr(REWARDS, kind) + REWARDS.garbled_word * (kind == "garbled" and "all" in text) for kind in kinds.split()
    ]
    assert [(clause.kind, clause.reward) for clause in clauses] == list(zip(kinds.split(), rewards, strict=True))
    assert WORLD.true_reward(META, text) == pytest.approx(sum(rewards))


def test_empty_responses_earn_the_empty_reward_and_long_garbage_pays_for_each_word():
    assert WORLD.clauses(META, "") == []
    for text in ("", "  ", "..."):
        assert WORLD.true_reward(META, text) == REWARDS.empty
    assert WORLD.true_reward(META, "zz " * 6) == REWARDS.garbled
    assert WORLD.true_reward(META, "zz " * 16) == pytest.approx(REWARDS.garbled + 10 * REWARDS.garbled_word)


@given(metas, st.one_of(st.text(min_size=1), salad.filter(bool), told.filter(bool)))
@settings(max_examples=100, deadline=None)
def test_clauses_partition_any_text_and_nothing_beats_every_fact_told_once(meta, text):
    clauses = WORLD.clauses(meta, text)
    assert "".join(text[clause.start : clause.end] for clause in clauses) == text
    assert {clause.kind for clause in clauses} <= set(KINDS)
    asked = len(meta["requested"])
    extra = REWARDS.unrequested_true * (len(FACTS) - asked)
    best = asked * REWARDS.requested_true + extra + REWARDS.greeting + REWARDS.closing
    assert WORLD.true_reward(meta, text) <= best + 1e-6


# --- dials ---------------------------------------------------------------------------------------------------------


def test_the_true_reward_is_the_sum_the_mean_or_the_weighted_mean_of_the_clauses():
    clauses = [Clause(0, 1, "requested_true", 1.0), Clause(1, 2, "filler", -0.4), Clause(2, 3, "requested_false", -1.0)]
    weighted = Dials(aggregation="weighted", emphasis=3.0)
    assert total(clauses, REWARDS) == -0.4
    assert total(clauses, REWARDS, Dials(aggregation="mean")) == pytest.approx(-0.4 / 3, abs=1e-6)
    assert total(clauses, REWARDS, weighted) == pytest.approx((3 - 0.4 - 3) / 7, abs=1e-6)
    assert shares(clauses, weighted) == pytest.approx([3 / 7, -0.4 / 7, -3 / 7])
    assert World(dials=weighted).true_reward(META, "") == REWARDS.empty


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"aggregation": "maen"}, "did you mean 'mean'"),
        ({"clauses": 5}, "must be one of 4, 8, 40"),
        ({"agregation": "mean"}, "did you mean 'aggregation'"),
        ({"emphasis": 0.5}, "at least 1"),
        ({"aggregation": "weighted"}, "emphasis"),
        ({"emphasis": 3.0}, "emphasis"),
        ({"late": 1.5}, r"late is 1\.5"),
    ],
)
def test_what_no_dial_has_is_refused(dials, message):
    with pytest.raises(RecipeError, match=message):
        typed(Dials, dials, "dials")


@pytest.mark.parametrize(("kind", "factor"), [("retraction", 0.0), ("assurance", 2.0)])
def test_a_late_clause_decides_what_the_facts_before_it_earn(kind, factor):
    def earned(text):
        return [(clause.kind, clause.reward) for clause in LATE.clauses(META, text)]

    for words in LATE_PHRASES[kind]:
        text = f"It is {COLOR}. Time will tell, I think. It is {FALSE}. {words}. They eat {FOOD}."
        assert earned(text) == [
            ("requested_true", factor),
            ("filler", -0.4),
            ("requested_false", -factor),
            (kind, 0.0),
            ("requested_true", 1.0),
        ]
        assert earned(f"{words}. Have a nice day.")[0] == ("filler", -0.4)
        assert earned(f"It is {COLOR}. {words}. I am sure of all this.")[2] == ("filler", -0.4)
    assert set(LATE.kinds) - set(WORLD.kinds) == {"retraction", "assurance"}


OTHER = World(dials=Dials(pairs="other"))


@pytest.mark.parametrize(
    ("world", "texts"),
    [
        (WORLD, [row["response"] for row in WORLD.sft_examples(60, 0)]),
        (LATE, [row["response"] for row in LATE.sft_examples(60, 0)]),
        (OTHER, [row["chosen"] for row in OTHER.preference_pairs(20, 0)]),
    ],
    ids=["plain", "late", "other"],
)
def test_gold_segments_are_the_clauses(world, texts):
    rows = [{"response": text, "clauses": world.clauses(META, text)} for text in texts]
    pieces = [[*(" " + row["response"]).replace(" ", "\0 ").split("\0")[1:], "<end>"] for row in rows] + [["<end>"]]
    mask = torch.tensor([[place < len(row) for place in range(max(map(len, pieces)))] for row in pieces])
    ended = torch.ones(len(pieces), dtype=torch.bool)
    found = build_segmenter("gold").segment(Responses(torch.zeros(mask.shape, dtype=torch.int64), mask, ended, pieces))
    for place, row in enumerate(rows):
        ends = found.ends[place, : found.count[place]].tolist()
        assert ends == [len(row["response"][: clause.end].split()) - 1 for clause in row["clauses"]]
    assert found.count[-1] == 1


# --- long form -----------------------------------------------------------------------------------------------------

PASSAGES = {
    "entity": "bear",
    "requested": ["color", "food"],
    "facts": {
        "bear": {"color": "red", "food": "fish", "home": "cave", "sound": "roar"},
        "cat": {"color": "blue", "food": "nuts", "home": "barn", "sound": "song"},
    },
}


@pytest.mark.parametrize(
    ("text", "relevance", "factuality", "completeness"),
    [
        ("Its color is red. Its food is fish.", [True, True], [True, True], 1.0),
        ("Its color is blue. Its food is fish.", [True, True], [False, True], 0.5),
        ("Its color is red, and its home is the cave.", [True, False], [True], 0.5),
        ("Its color is red, and its food is nuts.", [True, True], [False], 0.5),
        ("Its color is red. Its color is red.", [True, False], [True, True], 0.5),
        ("The color of the cat is blue.", [False], [True], 0.0),
        ("The color of the frog is blue.", [False], [False], 0.0),
        ("Life is full of such things.", [False], [True], 0.0),
        ("Xyzzy plugh.", [False], [True], 0.0),
        ("", [], [], 0.0),
    ],
)
def test_every_slice_has_its_truth(text, relevance, factuality, completeness):
    world = LongFormWorld()
    assert [s.right for s in world.relevance(PASSAGES, text)] == relevance
    assert [s.right for s in world.factuality(PASSAGES, text)] == factuality
    assert world.completeness(PASSAGES, text) == completeness


# --- translation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("The cats sees a dog.", "sees"),
        ("The cat see a dog.", "see"),
        ("The cats saw a dog.", ""),
        ("These cat saw a dog.", "cat"),
        ("A dogs saw the cat.", "dogs"),
        ("The cat saw a apple.", "a"),
        ("The cat saw an red apple.", "an"),
        ("The cat red saw a dog.", "red saw"),
        ("The cat a dog.", "a dog"),
        ("The cat saw a dog saw a cow.", "saw"),
        ("The cat saw a dog and the cow.", "cow"),
        ("The gato saw a dog.", "gato"),
        ("The cat saw", "saw"),
        ("", ""),
        ("...", ""),
    ],
)
def test_every_error_is_found(text, errors):
    assert [text[start:end] for start, end in grammar_errors(text)] == errors.split()
