"""The language of responses: statements, their templates, and how they are written and read.

A response is a sequence of statements. Each kind of statement has a dozen or more templates with different
first words, so a language model is uncertain where a statement begins and certain inside it. Slots:
`{E}` an entity, `{V}` a value of the template's attribute. Reading ignores case and the marks `, . ! ?`,
so a missing full stop or a joining ", and" does not hide where a statement begins.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rlhf_core.testbed.knowledge import ATTRIBUTES, DIALOGUE, ENTITIES, VALUES

#: The word that a keyword-biased annotator likes; it occurs in some templates only.
KEYWORD = "indeed"
VALUE_PHRASES: dict[str, str] = DIALOGUE["value_phrases"]
PHRASES: dict[str, list[str]] = DIALOGUE["phrases"]["usual"]
#: Clauses that decide what the facts before them earn; only a world with late payoffs has them.
LATE_PHRASES: dict[str, list[str]] = DIALOGUE["phrases"]["late"]


def _templates(attribute: str, frames: Sequence[str]) -> list[str]:
    return [frame.replace("{P}", VALUE_PHRASES[attribute]).replace("{N}", attribute) for frame in frames]


FACT_TEMPLATES = {
    attribute: _templates(attribute, [*DIALOGUE["facts"]["usual"], *about])
    for attribute, about in DIALOGUE["facts_about"].items()
}


@dataclass(frozen=True)
class Family:
    """Wordings of clauses.

    Attributes:
        phrases: of each kind without a slot.
        templates: of the facts about each attribute.
    """

    phrases: Mapping[str, Sequence[str]]
    templates: Mapping[str, Sequence[str]]


FAMILIES: Mapping[str, Family] = {
    "usual": Family(PHRASES, FACT_TEMPLATES),
    "late": Family(LATE_PHRASES, {}),
    "other": Family(
        DIALOGUE["phrases"]["other"], {name: _templates(name, DIALOGUE["facts"]["other"]) for name in ATTRIBUTES}
    ),
}
"""Families of wordings by name. A world's responses are read in the families that it writes; others are garbled."""

USUAL = ("usual",)

WORD = re.compile(r"\d+(?:\.\d+)?|[A-Za-z]+|[^\sA-Za-z0-9,.!?]+|[,.!?]{4,}")
"""Words of a response; everything else belongs to the statement before it."""


@dataclass(frozen=True)
class Statement:
    """Content of one clause, before it is rewarded.

    Attributes:
        kind: greeting | closing | flattery | filler | retraction | assurance | fact | garbled.
        entity, attribute, value: of a fact; an empty entity stands for "it", the entity asked about.
        words: number of words (of a garbled stretch).
    """

    kind: str
    entity: str = ""
    attribute: str = ""
    value: str = ""
    words: int = 0


@dataclass(frozen=True)
class Located:
    """A statement and its character span [start, end) in the text."""

    start: int
    end: int
    statement: Statement


_CLASSES: dict[str, str] = dict.fromkeys(ENTITIES, "{E}") | {
    value: "{" + attribute + "}" for attribute, values in VALUES.items() for value in values
}

_Node = dict  # word or slot class -> _Node; "" -> (kind, attribute)


@lru_cache
def _root(families: tuple[str, ...]) -> _Node:
    root: _Node = {}
    for family in (FAMILIES[name] for name in families):
        entries = [(phrase, kind, "") for kind, phrases in family.phrases.items() for phrase in phrases]
        entries += [
            (template.replace("{V}", "{" + attribute + "}"), "fact", attribute)
            for attribute, templates in family.templates.items()
            for template in templates
        ]
        for text, kind, attribute in entries:
            node = root
            for word in re.findall(r"\{\w+\}|[A-Za-z]+", text):
                node = node.setdefault(word if word.startswith("{") else word.lower(), {})
            node[""] = (kind, attribute)
    return root


def _match(
    root: _Node, words: Sequence[str], classes: Sequence[str | None], begin: int
) -> tuple[int, Statement] | None:
    """Returns the longest template that matches at word `begin`: (index after it, statement)."""
    node, entity, value = root, "", ""
    best: tuple[int, Statement] | None = None
    for index in range(begin, len(words)):
        child = node.get(words[index])
        if child is None:
            slot = classes[index]
            child = None if slot is None else node.get(slot)
            if child is None:
                break
            if slot == "{E}":
                entity = words[index]
            else:
                value = words[index]
        node = child
        end = node.get("")
        if end is not None:
            best = index + 1, Statement(end[0], entity, end[1], value)
    return best


def read(text: str, families: tuple[str, ...] = USUAL) -> list[Located]:
    """Read any text as statements whose spans partition it.

    At each word the longest matching template wins, with an optional "and" before it; a word where nothing
    matches joins a garbled stretch. White space and marks attach to the statement before them (to the
    first one at the beginning of the text).

    Args:
        text: any text.
        families: names of `FAMILIES` whose wordings are clauses.

    Returns:
        Located statements in order; empty for a text without any word.
    """
    spans = [(m.start(), m.group().lower()) for m in WORD.finditer(text)]
    words = [word for _, word in spans]
    classes = [_CLASSES.get(word) for word in words]
    found: list[tuple[int, Statement]] = []
    root = _root(families)
    index, garbled = 0, -1
    while index < len(words):
        matched = _match(root, words, classes, index)
        if matched is None and words[index] == "and":
            matched = _match(root, words, classes, index + 1)
        if matched is None:
            garbled = index if garbled < 0 else garbled
            index += 1
            continue
        if garbled >= 0:
            found.append((garbled, Statement("garbled", words=index - garbled)))
            garbled = -1
        found.append((index, matched[1]))
        index = matched[0]
    if garbled >= 0:
        found.append((garbled, Statement("garbled", words=index - garbled)))
    starts = [0, *(spans[first][0] for first, _ in found[1:]), len(text)]
    return [Located(starts[i], starts[i + 1], statement) for i, (_, statement) in enumerate(found)]


def _lower_first(text: str) -> str:
    return text if text.startswith("I ") else text[0].lower() + text[1:]


def phrase(statement: Statement, subject: str, rng: random.Random, family: str = "usual") -> tuple[str, Statement]:
    """Returns words for a statement, from a random template, and the statement as a reader would find it.

    Args:
        statement: what to say; a fact names its entity.
        subject: the entity asked about, the only one that may be called "it".
        rng: source of the template.
        family: one of `FAMILIES`; late clauses have wordings of their own.
    """
    if statement.kind != "fact":
        plain = FAMILIES["late" if statement.kind in LATE_PHRASES else family].phrases
        return rng.choice(plain[statement.kind]), Statement(statement.kind)
    templates = FAMILIES[family].templates[statement.attribute]
    template = rng.choice(templates)
    while statement.entity != subject and "{E}" not in template:
        template = rng.choice(templates)
    entity = statement.entity if "{E}" in template else ""
    text = template.replace("{E}", statement.entity).replace("{V}", statement.value)
    return text, Statement("fact", entity, statement.attribute, statement.value)


def write(
    statements: Sequence[Statement], subject: str, rng: random.Random, untidy: float = 0.22, family: str = "usual"
) -> tuple[str, list[Located]]:
    """Write statements as text.

    Args:
        statements: what to say, in order.
        subject: the entity asked about.
        rng: source of templates and punctuation.
        untidy: share of boundaries that are not a mark and a capital: half ", and", half nothing at all.
        family: one of `FAMILIES`.

    Returns:
        The text and the located statements, exactly as `read` finds them.
    """
    text, starts, said = "", [], []
    joined = False
    for position, statement in enumerate(statements):
        words, found = phrase(statement, subject, rng, family)
        starts.append(len(text))
        said.append(found)
        text += ("and " + _lower_first(words)) if joined else words
        last = position == len(statements) - 1
        draw = rng.random()
        joined = not last and draw < untidy / 2
        if joined:
            text += ","
        elif not draw < untidy:
            text += "!" if statement.kind in ("greeting", "flattery") and rng.random() < 0.5 else "."
        text += "" if last else " "
    ends = [*starts[1:], len(text)]
    return text, [Located(s, e, f) for s, e, f in zip(starts, ends, said, strict=True)]
