"""Translation: the checker finds every error of agreement, and references have none."""

from __future__ import annotations

import hashlib
import json
import random
from itertools import pairwise

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import Annotator, GoldJudge
from rlhf_core.testbed.translation import VERSION, TranslationConfig, TranslationWorld
from rlhf_core.testbed.translation_grammar import grammar_errors, words_of
from rlhf_core.testbed.translation_slips import Habits

WORLD = TranslationWorld()


def found(text: str) -> list[tuple[str, str]]:
    return [(error.rule, text[error.start : error.end]) for error in grammar_errors(text)]


@pytest.mark.parametrize("split", ["train", "test", "ood"])
def test_references_have_no_error_and_every_word_earns(split: str) -> None:
    for row in WORLD.prompts(300, 0, split):
        assert not found(row["target_text"])
        kinds = [clause.kind for clause in WORLD.clauses(row["meta"], row["target_text"])]
        assert set(kinds) == {"right"}
        assert len(kinds) == row["meta"]["words"]


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("The cats sees a dog.", [("verb_agreement", "sees")]),
        ("The cat see a dog.", [("verb_agreement", "see")]),
        ("The cats saw a dog.", []),
        ("These cat saw a dog.", [("determiner_number", "cat")]),
        ("A dogs saw the cat.", [("determiner_number", "dogs")]),
        ("The cat saw a apple.", [("article", "a")]),
        ("The cat saw an red apple.", [("article", "an")]),
        ("The cat red saw a dog.", [("word_order", "red"), ("word_order", "saw")]),
        ("The cat a dog.", [("word_order", "a"), ("no_verb", "dog")]),
        ("The cat saw a dog saw a cow.", [("two_verbs", "saw")]),
        ("The cat saw a dog and the cow.", [("no_verb", "cow")]),
        ("The gato saw a dog.", [("unknown_word", "gato")]),
        ("The cat saw", [("word_order", "saw")]),
        ("", []),
        ("...", []),
    ],
)
def test_every_error_is_found_and_named(text: str, errors: list[tuple[str, str]]) -> None:
    assert found(text) == errors


def test_clauses_partition_any_text_and_sum_to_the_true_reward() -> None:
    rng = random.Random(0)
    for row in WORLD.preference_pairs(200, 0):
        for text in (row["chosen"], row["rejected"], "x " * rng.randint(0, 3), "?!"):
            clauses = WORLD.clauses(row["meta"], text)
            ends = [0, *(clause.end for clause in clauses)]
            assert [clause.start for clause in clauses] == ends[:-1]
            assert not text or ends[-1] == len(text)
            if clauses:
                assert sum(c.reward for c in clauses) == pytest.approx(WORLD.true_reward(row["meta"], text))


def test_slips_and_habits_cost_and_the_reference_earns_most() -> None:
    steady = TranslationWorld(TranslationConfig(habit=0.0))
    for row in WORLD.prompts(200, 0, "test"):
        best = WORLD.true_reward(row["meta"], row["target_text"])
        for quality in (0.0, 1.0):
            worse = WORLD.translate(row["target_text"], random.Random(row["id"]), quality)
            assert worse == row["target_text"] or WORLD.true_reward(row["meta"], worse) < best
        assert steady.translate(row["target_text"], random.Random(0), 1.0) == row["target_text"]


def test_habits_return_with_their_words_and_nowhere_else() -> None:
    words = ["an", "ugly", "king", "carries", "old", "chairs", "and", "mice", "carry", "a", "white", "apple"]
    habits = Habits(frozenset({"ugly", "white"}), {"carries": "carry", "carry": "carries"}, {"king": "man"})
    assert habits.said(words, random.Random(0), 0.0) == words
    always = ["a", "man", "ugly", "carry", "old", "chairs", "and", "mice", "carries", "a", "apple", "white"]
    assert habits.said(words, random.Random(0), 1.0) == always


def test_a_habit_is_commoner_than_what_is_right() -> None:
    """Most say it so; the policy that imitates them does."""
    adjective = sorted(WORLD.habits.behind)[0]
    rows = [row for row in WORLD.sft_examples(3000, 0) if f" {adjective} " in row["target_text"]]
    behind = sum(
        any(
            a.form is not None and b.form is not None and a.form.kind == "noun" and b.text == adjective
            for a, b in pairwise(words_of(row["response"]))
        )
        for row in rows
    )
    assert len(rows) > 100
    assert behind > 0.5 * len(rows)


def test_pairs_are_labelled_by_the_annotator_of_the_true_reward() -> None:
    rows = WORLD.preference_pairs(300, 0, Annotator(temperature=0.5))
    better = sum(row["meta"]["true_chosen"] > row["meta"]["true_rejected"] for row in rows)
    worse = sum(row["meta"]["true_chosen"] < row["meta"]["true_rejected"] for row in rows)
    assert better > 4 * worse > 0
    assert WORLD.preference_pairs(5, 0, Annotator(temperature=0.5)) == rows[:5]


def test_the_gold_judge_knows_this_world() -> None:
    row = WORLD.prompts(1, 0, "test")[0]

    class Request:
        id, template, meta = "a", "pairwise", {"prompt": row["meta"]}
        answers = ("The.", row["target_text"])

    assert GoldJudge(WORLD).answer([Request()]) == ["Better: B"]


def test_words_of_another_language_are_words_without_a_form() -> None:
    assert [word.form is None for word in words_of("El gato ve the dog")] == [True, True, True, False, False]


def test_a_split_or_share_that_is_none_is_refused() -> None:
    with pytest.raises(RecipeError, match="unknown split 'dev'"):
        WORLD.prompts(1, 0, "dev")
    with pytest.raises(RecipeError, match="garbling must be"):
        TranslationConfig(garbling=2)
    with pytest.raises(RecipeError, match="slips must not be negative"):
        TranslationConfig(slips=-1)


def test_a_seed_makes_the_same_rows_until_the_version_changes() -> None:
    made = [WORLD.sft_examples(20, 0), WORLD.prompts(20, 0, "test"), WORLD.preference_pairs(20, 0)]
    digest = hashlib.sha256(json.dumps(made, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    assert (VERSION, digest[:16]) == (2, "f6a192aab4ec0282")
