"""Sentences and sub-sentences: spans without white space that leave nothing out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.slices import relabelled, sentences, sub_sentences


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        ("One, two. Three!", ["One, two.", "Three!"], ["One,", "two.", "Three!"]),
        ("It weighs 1.25 kg. Yes", ["It weighs 1.25 kg.", "Yes"], ["It weighs 1.25 kg.", "Yes"]),
        ("Dr. No met J. Smith. Then he left.", ["Dr. No met J. Smith.", "Then he left."], None),
        ('He said "no." Then\nhe left', ['He said "no."', "Then", "he left"], None),
        ("1,000 men; 2 women: all", ["1,000 men; 2 women: all"], ["1,000 men;", "2 women:", "all"]),
        ("", [], []),
        ("  \n ", [], []),
    ],
)
def test_texts_are_cut_where_sentences_and_their_parts_end(
    text: str, whole: list[str], parts: list[str] | None
) -> None:
    assert [text[a:b] for a, b in sentences(text)] == whole
    if parts is not None:
        assert [text[a:b] for a, b in sub_sentences(text)] == parts


@given(st.text(alphabet="ab .,;!?\n\"'", max_size=40))
def test_slices_are_in_order_and_hold_every_character_but_white_space(text: str) -> None:
    for cut in (sentences, sub_sentences):
        spans = cut(text)
        places = [place for span in spans for place in span]
        assert places == sorted(places)
        covered = {i for a, b in spans for i in range(a, b)}
        assert all(character.isspace() for i, character in enumerate(text) if i not in covered)


def test_a_slice_is_wrong_where_it_shares_a_character_with_a_wrong_stretch() -> None:
    assert relabelled([(0, 4), (5, 9), (10, 12)], [(0, 5, True), (6, 10, False)]) == [True, False, True]
