"""Long-form questions: passages decide what is true, and every slice of any answer has a truth."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import Annotator, GoldJudge, bayes_ceiling
from rlhf_core.testbed.grammar import read
from rlhf_core.testbed.longform import VERSION, LongFormConfig, LongFormWorld

WORLD = LongFormWorld()
META = {
    "entity": "bear",
    "requested": ["color", "food"],
    "facts": {
        "bear": {"color": "red", "food": "fish", "home": "cave", "sound": "roar"},
        "cat": {"color": "blue", "food": "nuts", "home": "barn", "sound": "song"},
    },
}


def test_facts_stand_in_the_passages_and_are_the_world_s() -> None:
    rows = WORLD.prompts(400, 0)
    for row in rows:
        told = {passage[0]: passage[1:] for passage in row["passages"]}
        for entity, known in row["meta"]["facts"].items():
            assert told[f"The {entity}"] == [f"{name} {value}." for name, value in known.items()]
            assert all(WORLD.knowledge.facts[entity, name] == value for name, value in known.items())
        assert row["question"] in row["prompt"]


def test_answers_repeat_myths_more_often_than_not() -> None:
    said: Counter[tuple[bool, bool]] = Counter()
    for row in WORLD.labelled_answers(2000, 0):
        meta = row["meta"]
        for item in read(row["response"]):
            fact = (item.statement.entity or meta["entity"], item.statement.attribute)
            if item.statement.kind == "fact" and fact[0] == meta["entity"]:
                said[fact in WORLD.myths, item.statement.value == meta["facts"][fact[0]][fact[1]]] += 1
    assert 0.3 < said[True, True] / (said[True, True] + said[True, False]) < 0.45
    assert 0.7 < said[False, True] / (said[False, True] + said[False, False]) < 0.85


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
def test_every_slice_has_its_truth(
    text: str, relevance: list[bool], factuality: list[bool], completeness: float
) -> None:
    assert [s.right for s in WORLD.relevance(META, text)] == relevance
    assert [s.right for s in WORLD.factuality(META, text)] == factuality
    assert WORLD.completeness(META, text) == completeness


def test_slices_lie_within_the_text_in_order() -> None:
    for row in WORLD.labelled_answers(200, 0):
        for name in ("relevance", "factuality"):
            places = [p for start, end, _ in row["labels"][name] for p in (start, end)]
            assert places == sorted(places)
            assert not places or places[-1] <= len(row["response"])


def test_the_expert_earns_most_and_quality_pays() -> None:
    rows = WORLD.prompts(100, 1, "test")
    expert = [WORLD.true_reward(r["meta"], WORLD.expert_answer(r["meta"], 0)) for r in rows]
    assert expert == [len(r["meta"]["requested"]) for r in rows]
    means = [
        sum(
            WORLD.true_reward(r["meta"], WORLD.answer(r["meta"], random.Random(i), quality)) for i, r in enumerate(rows)
        )
        for quality in (0.0, 0.5, 1.0)
    ]
    assert means == sorted(means)


def test_pairs_are_labelled_by_the_annotator_of_the_true_reward() -> None:
    rows = WORLD.preference_pairs(300, 0, Annotator(temperature=0.5))
    better = sum(row["meta"]["true_chosen"] > row["meta"]["true_rejected"] for row in rows)
    worse = sum(row["meta"]["true_chosen"] < row["meta"]["true_rejected"] for row in rows)
    assert better > 4 * worse > 0
    assert 0.7 < bayes_ceiling(rows, Annotator(temperature=0.5)) < 1
    assert len(WORLD.preference_pairs(5, 0, Annotator(temperature=0.5))) == 5
    assert WORLD.preference_pairs(5, 0, Annotator(temperature=0.5)) == rows[:5]


def test_pairs_of_completeness_differ_in_it_and_the_chosen_one_has_more() -> None:
    for row in WORLD.preference_pairs(100, 0, aspect="completeness"):
        shares = [WORLD.completeness(row["meta"], row[side]) for side in ("chosen", "rejected")]
        assert shares[0] > shares[1]


def test_the_gold_judge_knows_this_world() -> None:
    row = WORLD.prompts(1, 0, "test")[0]

    class Request:
        id, template, meta = "a", "pairwise", {"prompt": row["meta"]}
        answers = (WORLD.expert_answer(row["meta"], 0), "Life is full of such things.")

    assert GoldJudge(WORLD).answer([Request()]) == ["Better: A"]
    assert WORLD.anchor_rewards(row["meta"]) == sorted(WORLD.anchor_rewards(row["meta"]))


def test_a_split_or_share_that_is_none_is_refused() -> None:
    with pytest.raises(RecipeError, match="unknown split 'tset'"):
        WORLD.prompts(1, 0, "tset")
    with pytest.raises(RecipeError, match="wrong must be in"):
        LongFormConfig(wrong=1.5)


def test_a_seed_makes_the_same_rows_until_the_version_changes() -> None:
    made = [
        WORLD.sft_examples(20, 0),
        WORLD.prompts(20, 0, "test"),
        WORLD.preference_pairs(20, 0),
        WORLD.labelled_answers(20, 0),
    ]
    digest = hashlib.sha256(json.dumps(made, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    assert (VERSION, digest[:16]) == (2, "46fe4d1380aaefaa")
