"""The tokens of a text as an endpoint echoes them, and which of them are the answer's at its end.

Tokens are found by their spelling, from the end of the text, since endpoints count `text_offset` differently: vLLM
counts tokens before the text, such as `<s>`, and each token of a character that has several. Such a token is a part,
spelled as U+FFFD, as nothing or as `bytes:...`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Divides the parts of characters from the text of a token.
_PARTS = re.compile("(\ufffd+)")


class OtherTokens(Exception):
    """Tokens that are not those of a text."""


def first_behind(tokens: Sequence[str], text: str, start: int) -> int:
    """Returns the number of the first token that ends behind a place of a text, which the last token ends.

    Raises:
        OtherTokens: a token that the text does not have there, or too few tokens.
    """
    at, parts = len(text), 0
    for number in range(len(tokens) - 1, -1, -1):
        token, behind = tokens[number], False
        for piece in _pieces(token):
            if not piece.strip("\ufffd"):
                parts, behind = parts + (len(piece) or 1), True
                continue
            end = _end_of(piece, text, at, parts) if at > start else start
            if end is None:
                raise OtherTokens(f"the token {token!r} is not what {text[start:at][-40:]!r} ends in")
            if end <= start:
                return number if behind else number + 1
            at, parts, behind = end - len(piece), 0, True
        if at < start or (at == start and not text[start - 1 : start].isascii()):
            return number  # parts before it are those of the place's own character
    missing = text[start:at]
    if missing and (len(missing) > parts or any(char.isascii() for char in missing)):
        raise OtherTokens(f"{missing[:40]!r} has no token")
    return 0


def _pieces(token: str) -> list[str]:
    """Returns the texts of a token and the parts of characters between them, from its end."""
    spelled = "" if token[:6] == "bytes:" else token
    return [piece for piece in reversed(_PARTS.split(spelled)) if piece] or [""]


def _end_of(piece: str, text: str, at: int, parts: int) -> int | None:
    """Returns where a piece ends that is the last before a place of a text; None where another text is there.

    Args:
        parts: parts of characters between them, each of at most one character. A blank may be between them, too, since
            some tokenizers leave it out of a single token.
    """
    for end in range(at, max(at - parts - 2, -1), -1):
        if text.endswith(piece, 0, end):
            return end
        skipped = text[end - 1 : end]
        if (skipped.isascii() or not parts) and (skipped != " " or end == len(text)):
            return None
    return None
