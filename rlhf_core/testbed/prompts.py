"""Prompts of the dialogue part and how its splits differ."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.testbed.dials import SHORT, DialogueLength
from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES, KnowledgeBase

SPLITS: tuple[str, ...] = ("train", "test", "ood", "arena", "mtbench")

PLAIN = (
    "Tell me {L} of the {E}.",
    "What is {L} of the {E}?",
    "Please give {L} of the {E}.",
    "I need to know {L} of the {E}.",
    "Can you tell me {L} of the {E}?",
    "For the {E}, give {L}.",
    "Say {L} of the {E}.",
    "List {L} of the {E}, please.",
    "My friend asks about {L} of the {E}.",
    "About the {E}, what is {L}?",
    "We need {L} of the {E}.",
    "As for the {E}, tell me {L}.",
)
SINGLE: dict[str, tuple[str, ...]] = {
    "color": ("What color is the {E}?", "Can you tell me what color the {E} has?"),
    "food": ("What does the {E} eat?", "Tell me what the {E} eats."),
    "home": ("Near what does the {E} live?", "Tell me what the {E} lives near."),
    "weight": ("What does the {E} weigh on a scale?", "Tell me what the {E} weighs."),
    "height": ("How tall is the {E}?", "Tell me how tall the {E} is."),
    "sound": ("What sound does the {E} make?", "Tell me what sound the {E} makes."),
}
HARD = (
    "I see the {X} and the {E}, tell me only {L} of the {E}.",
    "Not the {X}, but the {E}, tell me {L}.",
    "You know the {X} well, now give {L} of the {E}.",
    "My friend likes the {X}, but I need {L} of the {E}.",
)
UNSEEN = (
    "Do you know {L} of the {E}?",
    "Of the {E}, please list {L}.",
    "Let us find {L} of this {E}.",
    "People ask me about {L} of the {E}, so help me.",
    "Give me, as you can, {L} of one {E}.",
    "Help me with {L} of the {E}.",
)
FOLLOW_UPS = ("And its {N}?", "And what is its {N}?", "Now tell me its {N}.", "What about its {N}?")

HARD_SHARE = 0.1
"""Share of hard phrasings among ordinary prompts, so that the `arena` split is hard but not foreign."""


def listing(attributes: Sequence[str]) -> str:
    """Returns ["color", "food", "home"] -> "the color, the food and the home"."""
    names = [f"the {attribute}" for attribute in attributes]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _held_out(entity: str, attributes: Sequence[str], phrasing: str) -> bool:
    """Returns whether a combination belongs to the evaluation splits (one in five), by a stable checksum."""
    return zlib.crc32(f"{entity}|{','.join(attributes)}|{phrasing}".encode()) % 5 == 0


def _ask(
    entity: str, attributes: Sequence[str], also: Mapping[str, Sequence[str]], phrasing: str, rng: random.Random
) -> str:
    other = rng.choice([name for name in ENTITIES if name != entity])
    wanted = ", ".join([*(f"{listing(names)} of the {name}" for name, names in also.items()), listing(attributes)])
    text = phrasing.replace("{L}", wanted).replace("{E}", entity).replace("{X}", other)
    return text.replace("What is the", "What are the") if len(attributes) > 1 or also else text


def _phrasings(split: str, attributes: Sequence[str], rng: random.Random, several: bool) -> tuple[str, ...]:
    """Returns the phrasings of a split; of a request about several animals those that name the last one behind."""
    found: tuple[str, ...]
    if split == "ood":
        found = UNSEEN
    elif split == "arena" or rng.random() < HARD_SHARE:
        found = HARD
    elif len(attributes) == 1 and not several:
        return PLAIN + SINGLE[attributes[0]] * 2
    else:
        found = PLAIN
    return tuple(phrasing for phrasing in found if "{L} of the {E}" in phrasing) if several else found


def _attributes(
    split: str, entity: str, knowledge: KnowledgeBase, rng: random.Random, with_reserved: bool, length: DialogueLength
) -> list[str]:
    """Returns the attributes of an animal that a request asks for."""
    reserved = [name for name in ATTRIBUTES if (entity, name) in knowledge.reserved]
    usable = [name for name in ATTRIBUTES if with_reserved or name not in reserved]
    count = length.hard_count if split == "arena" else rng.choice(length.counts)
    attributes = rng.sample(usable, count)
    if split == "ood":
        attributes[rng.randrange(count)] = rng.choice(reserved)
    return attributes


def draw_request(
    split: str,
    knowledge: KnowledgeBase,
    rng: random.Random,
    with_reserved: bool = False,
    length: DialogueLength = SHORT,
) -> tuple[str, dict[str, Any]]:
    """Returns a prompt and its meta.

    Args:
        split: one of `SPLITS`. `train` and the evaluation splits share no combination of entity, attributes
            and phrasing; `ood` asks for a reserved fact with a phrasing of its own.
        knowledge: names the reserved facts.
        rng: source of the draw.
        with_reserved: let `train` ask for reserved facts too (supervised data, not preferences).
        length: how many animals and attributes are asked for.

    Returns:
        The prompt and `{entity, requested, split, phrasing}`, with `also` where several animals are asked about.

    Raises:
        RecipeError: for an unknown split.
    """
    if split not in SPLITS:
        raise RecipeError(f"unknown split '{split}', known are {', '.join(SPLITS)}")
    while True:
        entity = rng.choice(ENTITIES)
        attributes = _attributes(split, entity, knowledge, rng, with_reserved, length)
        others = rng.sample([name for name in ENTITIES if name != entity], length.animals - 1)
        also = {name: _attributes(split, name, knowledge, rng, with_reserved, length) for name in others}
        phrasing = rng.choice(_phrasings(split, attributes, rng, bool(also)))
        if split == "ood" or _held_out(entity, attributes, phrasing) == (split != "train"):
            break
    meta: dict[str, Any] = {"entity": entity, "requested": attributes, "split": split, "phrasing": phrasing}
    if also:
        meta["also"] = also
    return _ask(entity, attributes, also, phrasing, rng), meta


def draw_follow_up(
    meta: dict[str, Any], knowledge: KnowledgeBase, rng: random.Random, with_reserved: bool = False
) -> tuple[str, dict[str, Any]]:
    """Returns a second turn: another attribute of the same entity, and its own meta."""
    usable = [
        name
        for name in ATTRIBUTES
        if name not in meta["requested"] and (with_reserved or (meta["entity"], name) not in knowledge.reserved)
    ]
    attribute, phrasing = rng.choice(usable), rng.choice(FOLLOW_UPS)
    follow = {
        "entity": meta["entity"],
        "requested": [attribute],
        "split": meta["split"],
        "phrasing": phrasing,
    }
    return phrasing.replace("{N}", attribute), follow
