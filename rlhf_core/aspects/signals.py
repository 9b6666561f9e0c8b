"""The signal that each density of an aspect becomes, and the credit that pays it where a recipe names none."""

from __future__ import annotations

from rlhf_core.aspects.aspect import Density
from rlhf_core.signals import Segments, Sequence, SignalType, Tokens

SIGNALS: dict[Density, tuple[SignalType, str]] = {
    Density.SEQUENCE: (Sequence, "last_token"),
    Density.SENTENCE: (Segments, "segment_end"),
    Density.SPAN: (Segments, "segment_end"),
    Density.TOKEN: (Tokens, "as_is"),
}
