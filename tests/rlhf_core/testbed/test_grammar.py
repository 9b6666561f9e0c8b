"""Reading finds exactly what writing wrote, and reads any text at all."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.testbed.grammar import FACT_TEMPLATES, PHRASES, Statement, read, write
from rlhf_core.testbed.knowledge import ENTITIES, VALUES

TEMPLATES = [(kind, "", text) for kind, phrases in PHRASES.items() for text in phrases] + [
    ("fact", attribute, template.replace("{V}", VALUES[attribute][0]).replace("{E}", "wolf"))
    for attribute, templates in FACT_TEMPLATES.items()
    for template in templates
]
VOCABULARY = sorted({word for _, _, text in TEMPLATES for word in text.split(" ")} | set(ENTITIES))

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
word_salad = st.lists(st.sampled_from([*VOCABULARY, "zz", "and", "3.5", "...."])).map(" ".join)


@given(st.lists(statements, min_size=1, max_size=8), st.sampled_from(ENTITIES), st.integers(0, 10**6))
@settings(max_examples=300, deadline=None)
def test_reading_finds_what_was_written(said, subject, seed):
    text, located = write(said, subject, random.Random(seed), untidy=0.6)
    assert read(text) == located
    assert [(item.statement.kind, item.statement.value) for item in located] == [(s.kind, s.value) for s in said]
    pairs = zip(located, said, strict=True)
    assert all((item.statement.entity or subject) == wanted.entity for item, wanted in pairs if wanted.entity)


@given(st.one_of(st.text(), word_salad))
@settings(max_examples=300, deadline=None)
def test_spans_partition_any_text(text):
    located = read(text)
    assert "".join(text[item.start : item.end] for item in located) in (text, "")
    assert all(item.end > item.start for item in located)
    if located:
        assert located[0].start == 0
        assert located[-1].end == len(text)


@pytest.mark.parametrize("joint", [" ", ", and ", ". "])
def test_no_two_templates_run_into_each_other(joint):
    for (kind, attribute, first), (next_kind, next_attribute, second) in product(TEMPLATES, TEMPLATES):
        found = read(first + joint + second)
        assert [(f.statement.kind, f.statement.attribute) for f in found] == [
            (kind, attribute),
            (next_kind, next_attribute),
        ], first + joint + second


def test_full_stops_are_not_boundaries():
    found = read("It grows to approx. 4 m It weighs 3.5 kg, and its color is red.")
    assert [item.statement.attribute for item in found] == ["height", "weight", "color"]
    assert [item.start for item in found] == [0, 24, 42]


def test_unknown_words_join_one_garbled_stretch():
    found = read("It is red. red red the wolf, what Its food is corn")
    assert [item.statement.kind for item in found] == ["fact", "garbled", "fact"]
    assert found[1].statement.words == 5


def test_case_is_ignored():
    assert [item.statement.kind for item in read("have a NICE day")] == ["closing"]
