"""Aspects of the testbed from its truth, with noise: what a trained model or a tool would say, and how wrong it may be.

Records are rows of the data stage, or of generations: their `meta` tells the truth. Noise is drawn from the text, the
prompt and a seed, so that the same response always has the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rlhf_core.aspects.aspect import Density, Scored
from rlhf_core.aspects.tokens import Offsets, marked, words
from rlhf_core.errors import DataError
from rlhf_core.testbed.knowledge import stream
from rlhf_core.testbed.longform import LongFormWorld, Slice
from rlhf_core.testbed.translation_grammar import grammar_errors
from rlhf_core.typed import Checked, Seed, between

_WORLD = LongFormWorld()
#: Share of slices or words that are told wrong.
Noise = Annotated[float, between(0, 0.5)]


def _meta(record: Mapping[str, Any], aspect: str, field: str) -> Mapping[str, Any]:
    meta = record.get("meta")
    if not isinstance(meta, Mapping) or field not in meta:
        raise DataError(
            f"the record has no '{field}' in its meta, which the testbed's aspect '{aspect}' reads",
            field="meta",
            remedy="Use records of the testbed, or an aspect model or tool for real data",
        )
    return meta


@dataclass(frozen=True)
class _SliceTruth(Checked):
    """An aspect of slices: `right` on those that are right, `wrong` on the others; a share `noise` is told wrong."""

    name: str
    density: Density
    slices: Callable[[Mapping[str, Any], str], list[Slice]]
    right: float
    wrong: float
    noise: Noise
    seed: Seed
    higher_is_better: bool = True
    needs_facts: ClassVar[bool] = True

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [self._one(record, text) for record, text in zip(records, responses, strict=True)]

    def _one(self, record: Mapping[str, Any], text: str) -> Scored:
        meta = _meta(record, self.name, "facts")
        rng = stream("aspect", self.name, self.seed, record.get("prompt", ""), text)
        slices = [s for s in self.slices(meta, text) if s.start < s.end]
        told = [s.right != (rng.random() < self.noise) for s in slices]
        values = tuple(self.right if right else self.wrong for right in told)
        return Scored(tuple((s.start, s.end) for s in slices), values)


def true_relevance(right: float = 0.3, wrong: float = -0.3, noise: Noise = 0.0, seed: Seed = 0) -> _SliceTruth:
    """Returns the relevance of each sub-sentence (ALARM, Appendix A.3: +-.3)."""
    return _SliceTruth("relevance", Density.SPAN, _WORLD.relevance, right, wrong, noise, seed)


def true_factuality(right: float = 0.5, wrong: float = -0.5, noise: Noise = 0.0, seed: Seed = 0) -> _SliceTruth:
    """Returns the factuality of each sentence (ALARM, Appendix A.1: +-.5)."""
    return _SliceTruth("factuality", Density.SENTENCE, _WORLD.factuality, right, wrong, noise, seed)


@dataclass(frozen=True)
class TrueCompleteness(Checked):
    """Share of the requested attributes that the answer states truly, plus Gaussian noise.

    Attributes:
        noise: its standard deviation.
        seed: of the noise.
    """

    noise: Annotated[float, between(0, 10)] = 0.0
    seed: Seed = 0
    name: str = "completeness"
    density: Density = Density.SEQUENCE
    higher_is_better: bool = True
    needs_facts: ClassVar[bool] = True

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        scored = []
        for record, text in zip(records, responses, strict=True):
            meta = _meta(record, self.name, "facts")
            rng = stream("aspect", self.name, self.seed, record.get("prompt", ""), text)
            value = _WORLD.completeness(meta, text) + self.noise * rng.gauss(0, 1)
            scored.append(Scored(((0, len(text)),), (value,)))
        return scored


@dataclass(frozen=True)
class TrueGrammar(Checked):
    """Errors of the testbed's small English: -1 on wrong tokens, 0 on others.

    Attributes:
        offsets: character spans of the tokens of a text; words and marks without one.
        noise: share of errors that are overlooked, and of right words, a tenth of it, that are called wrong.
        seed: of the noise.
    """

    offsets: Offsets | None = None
    noise: Noise = 0.0
    seed: Seed = 0
    name: str = "grammar"
    density: Density = Density.TOKEN
    higher_is_better: bool = False

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [marked((self.offsets or words)(text), self._errors(text)) for text in responses]

    def _errors(self, text: str) -> list[tuple[int, int]]:
        rng = stream("aspect", self.name, self.seed, text)
        errors = grammar_errors(text)
        if not self.noise:
            return errors
        drawn = [(span, rng.random()) for span in words(text)]
        return [s for s, draw in drawn if (draw >= self.noise if s in errors else draw < 0.1 * self.noise)]
