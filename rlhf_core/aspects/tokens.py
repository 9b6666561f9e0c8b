"""Character spans of tokens, the values of a token aspect on them, and the length of a response in tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.aspects.aspect import Density, Scored
from rlhf_core.typed import Checked, above

Span = tuple[int, int]

#: Character spans [start, end) of a text's tokens, in order; a tokenizer's, or `words`.
Offsets = Callable[[str], Sequence[Span]]

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[Span]:
    """Returns spans of words and of single marks."""
    return [match.span() for match in _WORD.finditer(text)]


def groups(offsets: Sequence[Span]) -> tuple[Span, ...]:
    """Returns spans in order and disjoint: empty ones are left out, tokens that share a character form one group."""
    found: list[Span] = []
    for start, end in offsets:
        if start >= end:
            continue
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


def marked(offsets: Sequence[Span], errors: Sequence[Span]) -> Scored:
    """Returns -1 on every token that shares a character with an error, 0 on the others."""
    spans = groups(offsets)
    values = tuple(
        -1.0 if any(start < to and at < end for at, to in errors if at < to) else 0.0 for start, end in spans
    )
    return Scored(spans, values)


@dataclass(frozen=True)
class Length(Checked):
    """Tokens of the response over `mean_tokens`; never negative. Source: ALARM, Appendix A.3.

    Attributes:
        mean_tokens: mean count of the training responses.
        offsets: character spans of the tokens of a text; words and marks without one.
    """

    mean_tokens: Annotated[float, above(0)] = 1.0
    offsets: Offsets | None = None
    name: str = "length"
    density: Density = Density.SEQUENCE
    higher_is_better: bool = True

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        counts = [len(groups((self.offsets or words)(text))) for text in responses]
        return [Scored(((0, len(t)),), (n / self.mean_tokens,)) for t, n in zip(responses, counts, strict=True)]
