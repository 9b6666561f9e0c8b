"""Mistakes of the testbed's translators: slips at random places, and habits, which recur with the same words.

What only falls anywhere averages out: a greedy policy that imitates it hardly errs. A habit is most translators' way
with a word, so such a policy takes it over, and a reward that knows better has something to mend.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.testbed.translation_grammar import ADJECTIVES, BEINGS, DETERMINERS, FORMS, NOUNS, THINGS, VERBS, article

HABITUAL = 4
"""One noun, one verb and one adjective of so many has a habit."""

_PAIRS = [
    *(noun.english for noun in NOUNS),
    *((verb[4], verb[5]) for verb in VERBS),
    *((row[4], row[5]) for row in DETERMINERS if row[4] != row[5]),
]
_OTHER_NUMBER: Mapping[str, str] = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])} | {"an": "a"}
_OTHERS: Mapping[str, Sequence[str]] = {
    "noun": [noun.english[0] for noun in NOUNS],
    "adjective": [row[4] for row in ADJECTIVES],
    "verb": [verb[4] for verb in VERBS],
}


@dataclass(frozen=True)
class Habits:
    """Words with a habit. Besides, `an` is said as `a`.

    Attributes:
        behind: adjectives that stay behind their noun, as in Spanish.
        unagreeing: verb forms of the present that are said for each other.
        taken_for: nouns, of both numbers, with the noun, of their sort, that they are taken for.
    """

    behind: frozenset[str]
    unagreeing: Mapping[str, str]
    taken_for: Mapping[str, str]

    @staticmethod
    def draw(rng: random.Random) -> Habits:
        """Habits of one world."""
        nouns, verbs, adjectives = (
            rng.sample(range(len(words)), len(words) // HABITUAL) for words in (NOUNS, VERBS, ADJECTIVES)
        )
        taken_for: dict[str, str] = {}
        for noun in nouns:
            others = [other for other in (BEINGS if NOUNS[noun] in BEINGS else THINGS) if other != NOUNS[noun]]
            taken_for |= dict(zip(NOUNS[noun].english, rng.choice(others).english, strict=True))
        return Habits(
            behind=frozenset(ADJECTIVES[place][4] for place in adjectives),
            unagreeing={VERBS[place][a]: VERBS[place][b] for place in verbs for a, b in ((4, 5), (5, 4))},
            taken_for=taken_for,
        )

    def said(self, words: Sequence[str], rng: random.Random, chance: float) -> list[str]:
        """Returns a sentence's words (small letters) as translators say them who follow each habit with a chance."""
        words = list(words)
        for place, word in enumerate(words):
            if word in self.taken_for and rng.random() < chance:
                words[place] = self.taken_for[word]
            elif word in self.unagreeing and rng.random() < chance:
                words[place] = self.unagreeing[word]
        place = 0
        while place < len(words) - 1:
            if words[place] in self.behind and rng.random() < chance:
                words[place : place + 2] = [words[place + 1], words[place]]
                place += 1
            place += 1
        for place, word in enumerate(words[:-1]):
            if word in ("a", "an"):
                words[place] = "a" if rng.random() < chance else article("a", words[place + 1])
        return words


def slip(words: Sequence[str], rng: random.Random) -> list[str]:
    """Returns the words with one slip: another number, another word, one left out or doubled."""
    words = list(words)
    kind = rng.choices(("number", "other", "leave out", "double"), (5, 3, 1.5, 0.5))[0]
    places = [i for i, word in enumerate(words) if word in _OTHER_NUMBER] if kind == "number" else range(len(words))
    if not places or len(words) < 3:
        return words
    place = rng.choice(places)
    if kind == "number":
        words[place] = _OTHER_NUMBER[words[place]]
    elif kind == "other":
        form = FORMS.get(words[place])
        if form is not None and form.kind in _OTHERS:
            words[place] = rng.choice(_OTHERS[form.kind])
    elif kind == "leave out":
        del words[place]
    else:
        words.insert(place, words[place])
    return words
