"""Responses of graded quality: the supervised mixture, the expert, and the judge's anchors."""

from __future__ import annotations

import random

from rlhf_core.testbed.grammar import FACT_TEMPLATES, KEYWORD, PHRASES, USUAL, Located, Statement, phrase, read, write
from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES, VALUES, KnowledgeBase
from rlhf_core.testbed.rewards import DEFAULT, Dials, Meta, requested_attributes

MAX_CLAUSES = 8
MAX_WORDS = 58


def draw_quality(rng: random.Random) -> float:
    """Returns the quality in [0, 1] of one response of the mixture: two in five poor, two in five good, the rest
    anything.

    A response is good or poor as a whole, so a language model has to see whether what was said is true in order to
    guess what comes next: that is what a reward model can build on.
    """
    kind = rng.random()
    return 0.2 * rng.random() + (0.0 if kind < 0.4 else 0.8) if kind < 0.8 else rng.random()


def _unrequested(
    meta: Meta, knowledge: KnowledgeBase, rng: random.Random, with_reserved: bool, p_false: float
) -> Statement:
    while True:
        entity = meta["entity"] if rng.random() < 0.75 else rng.choice(ENTITIES)
        attribute = rng.choice(ATTRIBUTES)
        asked = attribute in requested_attributes(meta).get(entity, ())
        if not asked and (with_reserved or (entity, attribute) not in knowledge.reserved):
            break
    if rng.random() < p_false:
        return Statement("fact", entity, attribute, knowledge.false_value(entity, attribute, rng))
    return Statement("fact", entity, attribute, knowledge.facts[entity, attribute])


def _answer(meta: Meta, knowledge: KnowledgeBase, rng: random.Random, quality: float) -> list[Statement]:
    """Returns the requested facts as this quality gives them: true, false or left out; errors grow along the facts of
    an animal."""
    facts = []
    for entity, requested in requested_attributes(meta).items():
        attributes = list(requested)
        if rng.random() < 0.2:
            rng.shuffle(attributes)
        for position, attribute in enumerate(attributes):
            fact = (entity, attribute)
            p_true = 0.42 + 0.56 * quality - 0.04 * position
            if fact in knowledge.myths:
                p_true *= 0.5
            if rng.random() < p_true:
                facts.append(Statement("fact", *fact, knowledge.facts[fact]))
            elif rng.random() < 0.7:
                facts.append(Statement("fact", *fact, knowledge.false_value(*fact, rng)))
    return facts


def _noise(
    meta: Meta,
    knowledge: KnowledgeBase,
    rng: random.Random,
    quality: float,
    with_reserved: bool,
    facts: list[Statement],
) -> Statement:
    """Returns a clause that a good response does not have."""
    kind = rng.choices(("filler", "unrequested", "repetition", "flattery"), (3, 3, 4, 2))[0]
    if kind == "repetition" and facts:
        return rng.choice(facts)
    if kind == "unrequested":
        return _unrequested(meta, knowledge, rng, with_reserved, 0.4 - 0.25 * quality)
    return Statement("flattery" if kind == "flattery" else "filler")


def plan(
    meta: Meta,
    knowledge: KnowledgeBase,
    rng: random.Random,
    quality: float,
    with_reserved: bool,
    dials: Dials = DEFAULT,
) -> list[Statement]:
    """Returns the content of a response of the mixture.

    Noise (filler, unrequested facts, repetition, flattery) is rarer at higher quality and lies mostly
    behind the answer, so the mean reward of a clause falls from the second one on, until the closing. A late
    clause comes behind everything but a closing, whatever the quality.
    """
    noise = 0.97 - 0.65 * quality
    statements: list[Statement] = []
    if rng.random() < 0.05 + 0.25 * noise:
        statements.append(Statement("flattery" if rng.random() < 0.6 else "filler"))
    facts = _answer(meta, knowledge, rng, quality)
    statements += facts
    most = MAX_CLAUSES * dials.length.blocks
    for _ in range(dials.length.blocks):
        while rng.random() < noise * 0.62 and len(statements) < most - 2:
            extra = _noise(meta, knowledge, rng, quality, with_reserved, facts)
            place = len(statements) if rng.random() < 0.75 else rng.randrange(len(statements) + 1)
            statements.insert(place, extra)
    if rng.random() < 0.35:
        statements.insert(0, Statement("greeting"))
    elif rng.random() < 0.08 * noise:
        statements.insert(rng.randrange(1, len(statements) + 1) if statements else 0, Statement("greeting"))
    if not statements or rng.random() < 0.2 + 0.3 * quality:
        statements.append(Statement("closing"))
    elif rng.random() < 0.12 * noise:
        statements.insert(rng.randrange(len(statements)), Statement("closing"))
    statements = statements[:most]
    if facts and dials.late and rng.random() < dials.late:
        late = Statement(rng.choice(("retraction", "assurance")))
        statements.insert(len(statements) - (statements[-1].kind == "closing"), late)
    return statements


def mixture_response(
    meta: Meta,
    knowledge: KnowledgeBase,
    rng: random.Random,
    quality: float,
    with_reserved: bool = True,
    dials: Dials = DEFAULT,
    family: str = "usual",
) -> tuple[str, list[Located]]:
    """Returns a response of the given quality, at most `MAX_CLAUSES` clauses and `MAX_WORDS` words a block."""
    while True:
        said = plan(meta, knowledge, rng, quality, with_reserved, dials)
        text, located = write(said, meta["entity"], rng, family=family)
        if text.count(" ") < MAX_WORDS * dials.length.blocks:
            return text, located


def expert_response(meta: Meta, knowledge: KnowledgeBase, rng: random.Random) -> tuple[str, list[Located]]:
    """Returns a greeting in half of the cases, every requested fact true and once, and a closing."""
    statements = [Statement("greeting")] if rng.random() < 0.5 else []
    for fact in ((entity, name) for entity, requested in requested_attributes(meta).items() for name in requested):
        statements.append(Statement("fact", *fact, knowledge.facts[fact]))
    statements.append(Statement("closing"))
    return write(statements, meta["entity"], rng)


def ramble(text: str, more: str, rng: random.Random) -> str:
    """Returns a response that runs on into another one, which breaks off after some of its words."""
    words = more.split(" ")
    return f"{text} {' '.join(words[: rng.randint(2, len(words))])}"


def garble(text: str, rng: random.Random) -> str:
    """Returns a response in which a few words in a row are left out, doubled or moved, once or twice."""
    words = text.split(" ")
    for _ in range(rng.randint(1, 2)):
        if len(words) < 4:
            break
        start = rng.randrange(1, len(words) - 1)
        stretch = words[start : start + rng.randint(1, 4)]
        kind = rng.choice(("leave out", "double", "move"))
        if kind != "double":
            del words[start : start + len(stretch)]
        place = rng.randrange(len(words) + 1)
        words[place:place] = [] if kind == "leave out" else stretch
    return " ".join(words)


PADDINGS = ("flattery", "keyword", "repetition")
"""Clauses that `pad` can add: praise, clauses with `grammar.KEYWORD`, or facts told again."""


def pad(text: str, meta: Meta, kind: str, rng: random.Random, families: tuple[str, ...] = USUAL) -> str:
    """Returns a response with one to four more clauses of a kind at random places, as sentences of their own.

    A response without any fact has none to tell again and stays as it is.
    """
    located = read(text, families)
    pieces = [text[item.start : item.end].strip() for item in located]
    facts = [item.statement for item in located if item.statement.kind == "fact"]
    if kind == "repetition" and not facts:
        return text
    for _ in range(rng.randint(1, 4)):
        if kind == "repetition":
            fact = rng.choice(facts)
            subject = meta["entity"]
            said = Statement("fact", fact.entity or subject, fact.attribute, fact.value)
            words = phrase(said, subject, rng)[0]
        else:
            words = rng.choice(PHRASES["flattery"]) if kind == "flattery" else _with_keyword(meta, rng)
        place = rng.randrange(len(pieces) + 1)
        if place and pieces[place - 1][-1:] not in ".!?":
            pieces[place - 1] = pieces[place - 1].rstrip(",") + "."
        pieces.insert(place, words + ".")
    return " ".join(pieces)


def _with_keyword(meta: Meta, rng: random.Random) -> str:
    """Returns a clause with the keyword: filler, or a requested attribute with any value."""
    filler = [words for words in PHRASES["filler"] if KEYWORD in words.lower()]
    attribute = rng.choice(list(meta["requested"]))
    told = [words for words in FACT_TEMPLATES[attribute] if KEYWORD in words.lower()]
    words = rng.choice([*filler, *told])
    return words.replace("{E}", meta["entity"]).replace("{V}", rng.choice(VALUES[attribute]))
