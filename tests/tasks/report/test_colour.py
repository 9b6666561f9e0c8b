"""Coloured text: every token once, values kept, text escaped."""

from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from tasks.report.colour import coloured_text, coloured_tokens, pieces

texts = st.lists(st.text(max_size=6), min_size=1, max_size=12)


@given(texts, st.data())
def test_the_text_survives(tokens: list[str], data: st.DataObject) -> None:
    rewards = data.draw(st.lists(st.none() | st.floats(-3, 3), min_size=len(tokens), max_size=len(tokens)))
    cut = data.draw(st.integers(1, len(tokens)))
    for segments in ((), [(0, cut, 0.5)]):
        found = pieces(tokens, rewards, segments)
        text = re.sub(r"<span[^>]*>|</span>", "", str(coloured_tokens(found)))
        assert html.unescape(text) == "".join(tokens).replace("\n", "↵\n")
        assert "".join(piece.text for piece in found) == "".join(tokens)


def test_the_terminal_shows_the_text_with_segments_divided() -> None:
    assert coloured_text(pieces(["a", " b", " c"], [0.1, None, -0.2])).plain == "a b c"
    found = pieces(["a", " b", " c"], [0.1, 0.1, -0.2], [(0, 2, 0.1)])
    assert coloured_text(found, divided=True).plain == "a b▏ c"


def test_a_script_in_a_generation_is_text() -> None:
    tokens = ["<script>", "alert(1)", "</script>", '" onclick="x']
    page = str(coloured_tokens(pieces(tokens, [0.1, -0.2, None, 0.3])))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert 'onclick="' not in page.replace("&#34;", "")


def test_segments_colour_as_one_piece_with_their_reward() -> None:
    found = pieces(
        ["a", "b", "c", "d"], [None, 0.7, None, 0.2], [(0, 2, 0.7), (2, 2, 0.1)], [False, True, False, False]
    )
    assert [(p.text, p.reward, p.start, p.end, p.marked) for p in found] == [
        ("ab", 0.7 + 0.1, 0, 2, True),
        ("c", None, 2, 3, False),
        ("d", 0.2, 3, 4, False),
    ]
    assert "tokens 0 to 1: +0.800" in coloured_tokens(found)
