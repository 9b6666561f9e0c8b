"""Prompts of the dialogue part and how its splits differ."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.testbed.knowledge import ATTRIBUTES, DIALOGUE, ENTITIES, KnowledgeBase
from rlhf_core.testbed.rewards import SHORT, DialogueLength

SPLITS: tuple[str, ...] = ("train", "test", "ood", "arena", "mtbench")

REQUESTS: dict[str, Any] = DIALOGUE["requests"]

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


def _phrasings(split: str, attributes: Sequence[str], rng: random.Random, several: bool) -> list[str]:
    """Returns the phrasings of a split; of a request about several animals those that name the last one behind."""
    found: list[str]
    if split == "ood":
        found = REQUESTS["unseen"]
    elif split == "arena" or rng.random() < HARD_SHARE:
        found = REQUESTS["hard"]
    elif len(attributes) == 1 and not several:
        return [*REQUESTS["plain"], *REQUESTS["single"][attributes[0]] * 2]
    else:
        found = REQUESTS["plain"]
    return [phrasing for phrasing in found if "{L} of the {E}" in phrasing] if several else found


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
    """
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
    attribute, phrasing = rng.choice(usable), rng.choice(REQUESTS["follow_up"])
    follow = {
        "entity": meta["entity"],
        "requested": [attribute],
        "split": meta["split"],
        "phrasing": phrasing,
    }
    return phrasing.replace("{N}", attribute), follow
