"""Reading finds exactly what writing wrote, and reads any text at all."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.testbed.grammar import PHRASES, Statement, read, write
from rlhf_core.testbed.knowledge import ENTITIES, VALUES

statements = st.one_of(
    st.sampled_from(sorted(PHRASES)).map(Statement),
    st.sampled_from(sorted(VALUES)).flatmap(
        lambda attribute: st.builds(
            Statement,
            kind=st.just("fact"),
            entity=st.sampled_from(ENTITIES),
            attribute=st.just(attribute),
            value=st.sampled_from(VALUES[attribute]),
        )
    ),
)


@given(st.lists(statements, min_size=1, max_size=8), st.sampled_from(ENTITIES), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_reading_finds_what_was_written(said, subject, seed):
    text, located = write(said, subject, random.Random(seed), untidy=0.6)
    assert read(text) == located
    assert [(item.statement.kind, item.statement.value) for item in located] == [(s.kind, s.value) for s in said]
    pairs = zip(located, said, strict=True)
    assert all((item.statement.entity or subject) == wanted.entity for item, wanted in pairs if wanted.entity)


def test_full_stops_are_not_boundaries():
    found = read("It grows to approx. 4 m It weighs 3.5 kg, and its color is red.")
    assert [item.statement.attribute for item in found] == ["height", "weight", "color"]
    assert [item.start for item in found] == [0, 24, 42]


def test_unknown_words_join_one_garbled_stretch():
    found = read("It is red. red red the wolf, what Its food is corn")
    assert [item.statement.kind for item in found] == ["fact", "garbled", "fact"]
    assert found[1].statement.words == 5
