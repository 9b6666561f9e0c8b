"""The knowledge base of the embedded world: entities, attributes, facts and popular myths.

Every fact is drawn once from the world seed, so a small model has to learn the facts by heart from the
supervised data; a response cannot be checked without the base.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rlhf_core.errors import RecipeError

ENTITIES: tuple[str, ...] = (
    "falcon", "fox", "bear", "wolf", "deer", "frog", "crow", "hare", "otter", "mole", "lynx", "seal",
    "toad", "goose", "duck", "owl", "goat", "cat", "dog", "hen", "pig", "cow", "bat", "rat",
)  # fmt: skip

VALUES: dict[str, tuple[str, ...]] = {
    "color": ("red", "blue", "green", "black", "white", "gray", "brown", "gold"),
    "food": ("fish", "corn", "seeds", "grass", "nuts", "mice", "honey", "fruit"),
    "home": ("river", "forest", "cave", "hill", "lake", "barn", "desert", "swamp"),
    "weight": ("1.2", "2.5", "3.5", "4.8", "5.1", "6.4", "7.9", "9.3"),
    "height": ("2", "3", "4", "5", "6", "7", "8", "9"),
    "sound": ("howl", "hiss", "song", "roar", "buzz", "croak", "bark", "cry"),
}
ATTRIBUTES: tuple[str, ...] = tuple(VALUES)

Fact = tuple[str, str]
"""(entity, attribute)."""


def stream(*names: object) -> random.Random:
    """A random stream named by its arguments; equal names give equal streams on every machine."""
    return random.Random("|".join(str(name) for name in names))


@dataclass(frozen=True)
class KnowledgeBase:
    """Facts of one world.

    Attributes:
        facts: value of every (entity, attribute).
        myths: a popular false value for some facts (one per entity), over-represented in the data's errors.
        reserved: facts that preference data never asks for or states; the `ood` split asks for them.
    """

    facts: dict[Fact, str]
    myths: dict[Fact, str]
    reserved: frozenset[Fact]

    @classmethod
    def draw(cls, seed: int, version: int, reserved_per_entity: int = 1) -> KnowledgeBase:
        """Draw the facts of the world `seed`.

        Raises:
            RecipeError: if `reserved_per_entity` leaves fewer than four attributes to ask for.
        """
        if not 0 < reserved_per_entity <= len(ATTRIBUTES) - 4:
            raise RecipeError(
                f"reserved_per_entity must be between 1 and {len(ATTRIBUTES) - 4}, not {reserved_per_entity}"
            )
        rng = stream("knowledge", version, seed)
        facts = {(entity, attribute): rng.choice(values) for entity in ENTITIES for attribute, values in VALUES.items()}
        myths: dict[Fact, str] = {}
        reserved: set[Fact] = set()
        for entity in ENTITIES:
            order = rng.sample(ATTRIBUTES, len(ATTRIBUTES))
            reserved.update((entity, attribute) for attribute in order[:reserved_per_entity])
            myth = (entity, order[reserved_per_entity])
            myths[myth] = rng.choice([value for value in VALUES[myth[1]] if value != facts[myth]])
        return cls(facts, myths, frozenset(reserved))

    def is_true(self, entity: str, attribute: str, value: str) -> bool:
        return self.facts[entity, attribute] == value

    def false_value(self, entity: str, attribute: str, rng: random.Random, myth_share: float = 0.75) -> str:
        """A wrong value; the popular myth with probability `myth_share` where there is one."""
        myth = self.myths.get((entity, attribute))
        if myth is not None and rng.random() < myth_share:
            return myth
        return rng.choice([value for value in VALUES[attribute] if value not in (self.facts[entity, attribute], myth)])
