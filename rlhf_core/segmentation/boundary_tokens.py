"""Boundary tokens: which token closes a sentence that ends at a character.

The boundary token is the last token whose character span starts before the boundary; several sentences closed by one
token share it, so what is paid to them accumulates there. Source: Sentence, §3.2 and appendix A.3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rlhf_core.errors import DataError

#: The end token: a special token inserted behind every sentence; not the end of the sequence (EOS).
END = "<END>"


def closing_positions(text: str, ends: Sequence[int]) -> list[int]:
    """Returns the ends of sentences for tokens: after the last character that is not white space.

    Segmenters leave the white space after a sentence with it, byte-level tokenizers put it into the next word's
    token; without it, the token that closes a sentence is the sentence's own. The last sentence ends with the text.

    Args:
        text: the text.
        ends: increasing end of each sentence, white space included; the last is `len(text)`.
    """
    closed = [len(text[:end].rstrip()) for end in ends]
    return [*closed[:-1], len(text)] if ends else []


def boundary_tokens(starts: Sequence[int], boundaries: Sequence[int]) -> list[int]:
    """Returns the token that closes each boundary.

    Args:
        starts: [n >= 1] first character of each token, never decreasing.
        boundaries: [m] characters before which sentences end, never decreasing.

    Returns:
        [m] token indices, never decreasing; a boundary at 0 belongs to the first token.
    """
    return [max(0, bisect_left(starts, boundary) - 1) for boundary in boundaries]


def check_end_token(text: str) -> None:
    """Refuses a text that holds `<END>` itself, which could not be told from an end token.

    Raises:
        DataError: the text holds it.
    """
    if END in text:
        place = text.index(END)
        raise DataError(
            f"the text already holds the end token {END}: ...{text[max(0, place - 20) : place + len(END)]!r}",
            remedy="Remove it from the data, or train the reward model without end tokens (end_token: false)",
        )
