"""Late payoffs: a clause behind the facts decides what they earn; and the gold boundaries of clauses."""

from __future__ import annotations

from statistics import mean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation import build_segmenter
from rlhf_core.testbed import KINDS, Annotator, Dials, World, WorldConfig, bayes_ceiling, calibrated_temperature
from rlhf_core.testbed.grammar import FACT_TEMPLATES, LATE_PHRASES, PHRASES, read

PLAIN = World()
LATE = World(WorldConfig(dials=Dials(late=1.0)))
META = {"entity": "wolf", "requested": ["color", "food"]}
COLOR, FOOD = (LATE.knowledge.facts["wolf", name] for name in META["requested"])
FALSE = next(value for value in ("red", "blue") if value != COLOR)


def earned(world: World, text: str) -> list[tuple[str, float]]:
    return [(clause.kind, clause.reward) for clause in world.clauses(META, text)]


@pytest.mark.parametrize(("kind", "factor"), [("retraction", 0.0), ("assurance", 2.0)])
def test_a_late_clause_decides_what_the_facts_before_it_earn(kind, factor):
    for words in LATE_PHRASES[kind]:
        text = f"It is {COLOR}. Time will tell, I think. It is {FALSE}. {words}. They eat {FOOD}."
        assert earned(LATE, text) == [
            ("requested_true", factor),
            ("filler", -0.4),
            ("requested_false", -factor),
            (kind, 0.0),
            ("requested_true", 1.0),
        ]


def test_only_the_first_late_clause_behind_a_fact_counts():
    assert earned(LATE, "I am sure of all this. Have a nice day.")[0] == ("filler", -0.4)
    text = f"It is {COLOR}. I am sure of all this. In short, all of that was wrong."
    assert earned(LATE, text) == [("requested_true", 2.0), ("assurance", 0.0), ("filler", -0.4)]


def test_a_world_without_late_payoffs_does_not_know_late_clauses():
    text = f"It is {COLOR}. In short, all of that was wrong."
    assert [kind for kind, _ in earned(PLAIN, text)] == ["requested_true", "garbled"]
    assert PLAIN.kinds == KINDS
    assert set(LATE.kinds) - set(KINDS) == {"retraction", "assurance"}


def test_the_share_of_responses_with_a_late_clause_is_the_dial():
    def share(world: World) -> float:
        rows = [row["meta"]["clauses"] for row in world.sft_examples(600, 0)]
        told = [row for row in rows if any(kind.startswith(("requested", "unrequested")) for _, _, kind, _ in row)]
        return mean(any(c[2] in ("retraction", "assurance") for c in row) for row in told)

    assert share(PLAIN) == 0
    assert share(World(WorldConfig(dials=Dials(late=0.5)))) == pytest.approx(0.5, abs=0.08)
    assert share(LATE) > 0.9


def test_late_responses_parse_back_into_their_clauses():
    for row in LATE.sft_examples(300, 3):
        clauses = LATE.clauses(row["meta"], row["response"])
        assert [[c.start, c.end, c.kind, c.reward] for c in clauses] == row["meta"]["clauses"]
        assert LATE.true_reward(row["meta"], row["response"]) == row["meta"]["true"]


def test_late_payoffs_keep_the_ceiling_of_a_calibrated_annotator():
    annotator = Annotator(temperature=calibrated_temperature(LATE))
    assert bayes_ceiling(LATE.preference_pairs(4000, 0, annotator), annotator) == pytest.approx(0.83, abs=0.01)


def test_late_phrases_are_no_other_clauses():
    others = {words for phrases in (*PHRASES.values(), *FACT_TEMPLATES.values()) for words in phrases}
    for kind, phrases in LATE_PHRASES.items():
        for words in phrases:
            assert words not in others
            assert [item.statement.kind for item in read(words, ("usual", "late"))] == [kind]
            assert all(item.statement.kind == "garbled" for item in read(words))


@given(st.text(alphabet="Itis redblue.,andwolf sureofth", max_size=60))
@settings(max_examples=100, deadline=None)
def test_texts_without_late_phrases_are_read_alike(text):
    assert read(text) == read(text, ("usual", "late"))


def test_a_share_beyond_one_is_refused():
    with pytest.raises(RecipeError, match=r"late is 1\.5"):
        Dials(late=1.5)


def responses_of(texts: list[str]) -> Responses:
    """Words with the blank before them as tokens, and EOS."""
    pieces = []
    for text in texts:
        words = text.split(" ")
        pieces.append([words[0], *(f" {word}" for word in words[1:]), "<end>"])
    longest = max(map(len, pieces))
    mask = torch.tensor([[place < len(row) for place in range(longest)] for row in pieces])
    return Responses(torch.zeros(mask.shape, dtype=torch.int64), mask, torch.ones(len(texts), dtype=torch.bool), pieces)


@pytest.mark.parametrize("world", [PLAIN, LATE], ids=["plain", "late"])
def test_gold_segments_are_the_clauses(world):
    rows = world.sft_examples(60, 0)
    found = build_segmenter("gold").segment(responses_of([row["response"] for row in rows]))
    for place, row in enumerate(rows):
        text, clauses = row["response"], row["meta"]["clauses"]
        ends = found.ends[place, : found.count[place]].tolist()
        words = [len(text[:end].split()) - 1 for _, end, _, _ in clauses]
        assert ends == words


def test_an_empty_response_is_one_gold_segment():
    mask = torch.ones(1, 1, dtype=torch.bool)
    empty = Responses(torch.zeros(1, 1, dtype=torch.int64), mask, mask[:, 0], [["<end>"]])
    assert build_segmenter("gold").segment(empty).count.tolist() == [1]
