"""The knowledge base of the embedded world: entities, attributes, facts and usual mistakes.

Every fact is drawn once from the world seed, so a small model has to learn the facts by heart from the
supervised data; a response cannot be checked without the base.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

FOLDER = Path(__file__).parent


def wordings(name: str) -> dict[str, Any]:
    """Returns the words and templates of a file beside this module."""
    found: dict[str, Any] = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    return found


DIALOGUE = wordings("dialogue")
ENTITIES: tuple[str, ...] = tuple(DIALOGUE["entities"])
VALUES: dict[str, list[str]] = DIALOGUE["values"]
ATTRIBUTES: tuple[str, ...] = tuple(VALUES)

Fact = tuple[str, str]
"""(entity, attribute)."""

Row = dict[str, Any]
SOURCE = "testbed"


def stream(*names: object) -> random.Random:
    """Returns a random stream named by its arguments; equal names give equal streams on every machine."""
    return random.Random("|".join(str(name) for name in names))


def drawn_rows(
    n: int, name: str, streams: Callable[[int], random.Random], make: Callable[[random.Random, str], Row]
) -> list[Row]:
    """Returns `n` rows with `id` and `source`, each from a random stream of its own.

    Args:
        name: behind `testbed-` in their ids, before their numbers.
        streams: number -> random stream.
        make: (random stream, id) -> the other fields.
    """
    ids = (f"testbed-{name}-{number}" for number in range(n))
    return [{"id": id_, "source": SOURCE, **make(streams(number), id_)} for number, id_ in enumerate(ids)]


class GoldWorld(ABC):
    """Base of a world that knows true rewards, whose rows are drawn from named random streams.

    Args:
        seed: of the facts.
    """

    #: Names before the seed in every stream, and before a set's own name in the ids of rows.
    streams: ClassVar[tuple[object, ...]]
    ids: ClassVar[str] = ""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @property
    def unit(self) -> float:
        """Returns the factor on thresholds and noise that are stated in reward units."""
        return 1.0

    @abstractmethod
    def true_reward(self, meta: Mapping[str, Any], text: str) -> float:
        """Returns the true reward of a response to the prompt of this meta, in reward units."""

    @abstractmethod
    def anchor_rewards(self, meta: Mapping[str, Any]) -> list[float]:
        """Returns the sorted true rewards of a fixed pool of graded answers to the prompt (poor to expert)."""

    def _stream(self, *names: object) -> random.Random:
        return stream(*self.streams, self.seed, *names)

    def _rows(
        self, n: int, name: str, streams: Sequence[object], make: Callable[[random.Random, str], Row]
    ) -> list[Row]:
        return drawn_rows(n, self.ids + name, lambda number: self._stream(*streams, number), make)


@dataclass(frozen=True)
class KnowledgeBase:
    """Facts of one world.

    Attributes:
        facts: value of every (entity, attribute); no two entities share one.
        myths: the popular false value of one fact per entity; the supervised mixture gets such a fact right half as
            often as others.
        mistakes: the usual false value of every fact (the myth where there is one), one that is true of no entity, so
            that a reward model can learn what is mostly false from a few thousand pairs; the other mistakes are true
            of another entity more often than not.
        reserved: facts that training preferences never ask for and are not written to state; the `ood` split asks
            for them.
    """

    facts: dict[Fact, str]
    myths: dict[Fact, str]
    mistakes: dict[Fact, str]
    reserved: frozenset[Fact]

    @classmethod
    def draw(cls, seed: int, version: int) -> KnowledgeBase:
        """Draws the facts of the world `seed`."""
        rng = stream("knowledge", version, seed)
        facts: dict[Fact, str] = {}
        never: dict[str, list[str]] = {}
        for attribute, values in VALUES.items():
            drawn = rng.sample(values, len(values))
            facts |= {(entity, attribute): value for entity, value in zip(ENTITIES, drawn, strict=False)}
            never[attribute] = drawn[len(ENTITIES) :]
        myths: dict[Fact, str] = {}
        reserved: set[Fact] = set()
        for entity in ENTITIES:
            of_preferences, of_myth, *_ = rng.sample(ATTRIBUTES, len(ATTRIBUTES))
            reserved.add((entity, of_preferences))
            myth = (entity, of_myth)
            myths[myth] = rng.choice(never[myth[1]])
        mistakes = {fact: myths.get(fact) or rng.choice(never[fact[1]]) for fact in facts}
        return cls(facts, myths, mistakes, frozenset(reserved))

    def false_value(self, entity: str, attribute: str, rng: random.Random) -> str:
        """Returns a wrong value: the usual mistake with probability .85."""
        usual = self.mistakes[entity, attribute]
        if rng.random() < 0.85:
            return usual
        return rng.choice([value for value in VALUES[attribute] if value not in (self.facts[entity, attribute], usual)])
