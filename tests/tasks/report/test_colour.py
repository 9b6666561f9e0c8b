"""Coloured text: every token once, values kept, text escaped."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError
from tasks.report.colour import coloured_text, coloured_tokens, pieces

texts = st.lists(st.text(max_size=6), min_size=1, max_size=12)


@given(texts, st.data())
def test_the_text_survives(tokens: list[str], data: st.DataObject) -> None:
    rewards = data.draw(st.lists(st.none() | st.floats(-3, 3), min_size=len(tokens), max_size=len(tokens)))
    cut = data.draw(st.integers(1, len(tokens)))
    for segments in (None, [(0, cut, 0.5)]):
        text = re.sub(r"<span[^>]*>|</span>", "", str(coloured_tokens(tokens, rewards, segments)))
        assert html.unescape(text) == "".join(tokens).replace("\n", "↵\n")
        assert "".join(piece.text for piece in pieces(tokens, rewards, segments)) == "".join(tokens)


def test_the_terminal_shows_the_text_with_segments_divided() -> None:
    assert coloured_text(["a", " b", " c"], [0.1, None, -0.2]).plain == "a b c"
    assert coloured_text(["a", " b", " c"], [0.1, 0.1, -0.2], [(0, 2, 0.1)]).plain == "a b▏ c"


def test_a_script_in_a_generation_is_text() -> None:
    page = str(coloured_tokens(["<script>", "alert(1)", "</script>", '" onclick="x'], [0.1, -0.2, None, 0.3]))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert 'onclick="' not in page.replace("&#34;", "")


def test_segments_colour_as_one_piece_with_their_reward() -> None:
    found = pieces(["a", "b", "c", "d"], [None, 0.7, None, 0.2], [(0, 2, 0.7)])
    assert [(p.text, p.reward, p.start, p.end) for p in found] == [
        ("ab", 0.7, 0, 2),
        ("c", None, 2, 3),
        ("d", 0.2, 3, 4),
    ]
    assert "tokens 0 to 1: +0.700" in found[0].tooltip


@pytest.mark.parametrize("segments", [[(0, 3, 1.0)], [(0, 2, 1.0), (1, 2, 0.5)], [(1, 1, 0.0)]])
def test_segments_that_do_not_fit_are_refused(segments: list[tuple[int, int, float]]) -> None:
    with pytest.raises(DataError, match="does not fit"):
        pieces(["a", "b"], [0.0, 0.0], segments)
