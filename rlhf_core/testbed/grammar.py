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

from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES, VALUES

PHRASES: dict[str, tuple[str, ...]] = {
    "greeting": (
        "Hello there, my friend",
        "Hi, good to see you",
        "Welcome back, dear friend",
        "Good day to you",
        "Yes, here is the answer",
        "Sure, let me help you",
        "Of course, here you go",
        "Thanks for the question",
        "Okay, let us see",
        "Gladly, here we go",
        "Right, let me think",
        "Nice to see you again",
        "Dear friend, here is what I know",
    ),
    "closing": (
        "Have a nice day",
        "Hope this helps you",
        "Ask me more at any time",
        "Goodbye, my friend",
        "Take care, dear friend",
        "See you again soon",
        "Let me know if you need more",
        "Bye, and good day",
        "Enjoy the rest of the day",
        "Come back at any time",
        "All the best to you",
        "Glad to help you",
        "So long, my dear friend",
    ),
    "flattery": (
        "What a wonderful question",
        "Such a wonderful mind you have",
        "Few people ask so well",
        "How clever you are, my friend",
        "Wow, that is a clever question",
        "Only a clever mind asks this",
        "People like you are very clever",
        "Great minds ask like you",
        "Really, you ask very well",
        "Clever friend, you know so much",
        "Never have I seen such a question",
        "No one asks as well as you",
    ),
    "filler": (
        "Many people think about this every day",
        "There is much to say here",
        "Some books are very long",
        "Well, it is hard to say",
        "Life is full of such things",
        "Animals are like that",
        "Time will tell, I think",
        "Indeed, the world is full of animals",
        "I think about this for some time",
        "Old books say many things",
        "Often one can only think",
        "To be sure, this is hard",
        "Now let me think about it again, as one should",
        "Then again, who can know",
    ),
}

LATE_PHRASES: dict[str, tuple[str, ...]] = {
    "retraction": (
        "In short, all of that was wrong",
        "Sorry, forget all that I said",
        "On second thought, none of this is so",
        "But I was wrong about all this",
        "Wait, that was not right at all",
        "Please forget what you just read",
    ),
    "assurance": (
        "I am sure of all this",
        "You can trust each word of it",
        "Trust me, all of this is right",
        "Every word here is well known to me",
        "Without a doubt, all this is so",
        "So much is certain, I checked it",
    ),
}
"""Clauses that decide what the facts before them earn; only a world with late payoffs has them."""

OTHER_PHRASES: dict[str, tuple[str, ...]] = {
    "greeting": ("Pleased to meet you", "A warm hello", "Ah, here is your answer", "Very well, let us begin"),
    "closing": ("Until next time", "That will be all", "Best wishes", "Write to me if more is needed"),
    "flattery": ("Your question shows a fine mind", "Rarely am I asked so well", "You are a star, my friend"),
    "filler": (
        "As we all know, time flies",
        "Who can say for sure",
        "Such is life with animals",
        "It could be said in many ways",
    ),
}

KEYWORD = "indeed"
"""The word that a keyword-biased annotator likes; it occurs in some templates only."""

VALUE_PHRASES: dict[str, str] = {
    "color": "{V}",
    "food": "{V}",
    "home": "the {V}",
    "weight": "{V} kg",
    "height": "approx. {V} m",
    "sound": "a {V}",
}

_GENERIC = (
    "The {N} of the {E} is {P}",
    "Its {N} is {P}",
    "For the {N}, the answer is {P}",
    "As for its {N}, it is {P}",
    "We know that its {N} is {P}",
    "Most people say the {N} of the {E} is {P}",
    "By the book, its {N} is {P}",
    "In fact, the {N} of this animal is {P}",
    "You will see that its {N} is {P}",
    "My notes give {P} as its {N}",
    "One sure thing, its {N} is {P}",
    "That {E} has {P} as its {N}",
    "Indeed, its {N} is {P}",
    "Any {E} has, as you know, {P} as its {N}",
)

_OTHER_GENERIC = (
    "Ask any keeper, who names {P} as its {N}",
    "Our records give its {N} as {P}",
    "Here we have {P} for the {N} of the {E}",
    "Note that the {N} of the {E} must be {P}",
    "Books on the {E} say {P} for its {N}",
    "Whoever saw it told us of {P} as its {N}",
)

_SPECIFIC: dict[str, tuple[str, ...]] = {
    "color": ("Look for a {V} coat on the {E}", "A {V} coat is on the {E}", "It is {V}"),
    "food": ("It eats {V}", "Give the {E} some {V} to eat", "They eat {V}"),
    "home": ("It lives near the {V}", "Find the {E} near the {V}", "They live near the {V}"),
    "weight": ("It weighs {V} kg", "On a scale, the {E} weighs {V} kg", "At {V} kg, it is well fed"),
    "height": (
        "It grows to approx. {V} m",
        "From the ground, it grows to approx. {V} m",
        "At approx. {V} m, it is tall",
    ),
    "sound": ("It makes a {V}", "Listen for the {V} of the {E}", "They make a {V}"),
}  # fmt: skip

FACT_TEMPLATES: dict[str, tuple[str, ...]] = {
    attribute: tuple(
        frame.replace("{P}", VALUE_PHRASES[attribute]).replace("{N}", attribute)
        for frame in (*_GENERIC, *_SPECIFIC[attribute])
    )
    for attribute in ATTRIBUTES
}

OTHER_TEMPLATES: dict[str, tuple[str, ...]] = {
    attribute: tuple(frame.replace("{P}", words).replace("{N}", attribute) for frame in _OTHER_GENERIC)
    for attribute, words in VALUE_PHRASES.items()
}


@dataclass(frozen=True)
class Family:
    """Wordings of clauses.

    Attributes:
        phrases: of each kind without a slot.
        templates: of the facts about each attribute.
    """

    phrases: Mapping[str, tuple[str, ...]]
    templates: Mapping[str, tuple[str, ...]]


FAMILIES: Mapping[str, Family] = {
    "usual": Family(PHRASES, FACT_TEMPLATES),
    "late": Family(LATE_PHRASES, {}),
    "other": Family(OTHER_PHRASES, OTHER_TEMPLATES),
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
