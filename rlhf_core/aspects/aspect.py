"""Aspect rewards: values over character spans of a response, with a declared density and direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from rlhf_core.data.slices import Span, sentences, sub_sentences
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.signals import Segments, SignalType, Tokens
from rlhf_core.signals import Sequence as SequenceSignal


class Density(StrEnum):
    """Unit of text that one value of an aspect describes."""

    TOKEN = "token"
    SPAN = "span"
    SENTENCE = "sentence"
    SEQUENCE = "sequence"


#: Functions that cut the slices of a density.
SLICERS: dict[Density, Callable[[str], list[Span]]] = {Density.SPAN: sub_sentences, Density.SENTENCE: sentences}
#: The signal that each density becomes, and the credit that pays it where a recipe names none.
SIGNALS: dict[Density, tuple[SignalType, str]] = {
    Density.SEQUENCE: (SequenceSignal, "last_token"),
    Density.SENTENCE: (Segments, "segment_end"),
    Density.SPAN: (Segments, "segment_end"),
    Density.TOKEN: (Tokens, "as_is"),
}


@dataclass(frozen=True)
class Scored:
    """One response's values.

    Attributes:
        spans: character spans [start, end) of the response, in order and disjoint. A sequence aspect has exactly one,
            over the whole response; a token aspect one per character group that the tokenizer's offsets give; a span
            or sentence aspect leaves out what it says nothing about.
        values: one per span.
        errors: of a token aspect, how many errors there are, where one may cover several tokens; None counts tokens.
    """

    spans: tuple[tuple[int, int], ...]
    values: tuple[float, ...]
    errors: int | None = None


@runtime_checkable
class Aspect(Protocol):
    """One respect in which responses are scored.

    Values are rewards: more is always better. An aspect that asks a tool may also have `prefetch(responses)`, which
    starts asking and returns at once, and `usage` (`services.Usage`), what the tool was asked so far.

    Attributes:
        name: as shown in tables.
        density: of its values.
        higher_is_better: of `rate`, by which whole responses are compared; False for error rates.
    """

    @property
    def name(self) -> str: ...
    @property
    def density(self) -> Density: ...
    @property
    def higher_is_better(self) -> bool: ...

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        """Returns values of each response to its record (a row of the data stage: question and passages, or source
        text).

        Raises:
            ToolError: a tool that cannot be reached or answers nonsense; never an invented score.
        """


def checked_scores(aspect: Aspect, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
    """Returns an aspect's scores of responses, which are what it declares.

    Raises:
        RecipeError: a number of records, scores or spans that differs, spans outside the text, out of order or
            overlapping, or, of a sequence aspect, not one over the whole response.
        NumericsError: a value that is not finite.
    """
    if len(records) != len(responses):
        raise RecipeError(f"aspect '{aspect.name}': {len(records)} records for {len(responses)} responses")
    scored = list(aspect.score(records, responses))
    if len(scored) != len(responses):
        raise RecipeError(f"aspect '{aspect.name}' scored {len(scored)} of {len(responses)} responses")
    for row, (text, one) in enumerate(zip(responses, scored, strict=True)):
        where, last = f"aspect '{aspect.name}', response {row}", 0
        if len(one.spans) != len(one.values):
            raise RecipeError(f"{where}: {len(one.values)} values for {len(one.spans)} spans")
        if aspect.density is Density.SEQUENCE and one.spans != ((0, len(text)),):
            raise RecipeError(
                f"{where}: a sequence aspect has one span over the whole response, (0, {len(text)}), "
                f"not {list(one.spans[:3])}; declare the density it has"
            )
        for (start, end), value in zip(one.spans, one.values, strict=True):
            if not (last <= start <= end <= len(text)):
                raise RecipeError(
                    f"{where}: span ({start}, {end}) is outside the response of {len(text)} characters "
                    "or before the end of the span ahead of it"
                )
            if not math.isfinite(value):
                raise NumericsError(f"{where}: value {value} is not finite")
            last = end
    return scored


def prefetch(aspects: Sequence[Aspect], responses: Sequence[str]) -> None:
    """Lets the tools behind aspects start on responses, beside what comes next; other aspects do nothing."""
    for aspect in aspects:
        getattr(aspect, "prefetch", lambda _responses: None)(responses)


def rate(aspect: Aspect, scored: Scored) -> float:
    """Returns one number for a whole response, by which responses are compared.

    A sequence aspect's value; for span and sentence aspects the share of slices that are right (value above 0), .5
    when there are none; for a token aspect its errors over tokens (lower is better), every value below 0 being one
    unless it says how many there are, 0 without tokens. Source: ALARM, §3.2 (factuality rate) and §4.2 (grammar error
    rate).
    """
    if aspect.density is Density.SEQUENCE:
        return scored.values[0]
    if aspect.density is Density.TOKEN:
        errors = sum(value < 0 for value in scored.values) if scored.errors is None else scored.errors
        return errors / max(len(scored.values), 1)
    if not scored.values:
        return 0.5
    return sum(value > 0 for value in scored.values) / len(scored.values)
