"""A small Spanish and English grammar with agreement, a checker for its English, and mistakes of translators.

A sentence is one clause or two joined by "and": subject, verb, object and sometimes an adverb. Spanish agrees in gender
and number, English in number (`this cat`, `these cats`; `the cat eats`, `the cats eat`) and in `a` or `an`. So every
error that a translation makes can be found and named.

Mistakes are slips at random places, and habits, which recur with the same words. What only falls anywhere averages out:
a greedy policy that imitates it hardly errs. A habit is most translators' way with a word, so such a policy takes it
over, and a reward that knows better has something to mend.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from rlhf_core.testbed.knowledge import wordings


class Noun(NamedTuple):
    """A noun in both languages, singular and plural; `gender` is the Spanish gender."""

    spanish: tuple[str, str]
    gender: str
    english: tuple[str, str]


_WORDS = wordings("translation")


def _rows(name: str) -> list[list[str]]:
    return [row.split() for row in _WORDS[name]]


BEINGS, THINGS = ([Noun((a, b), gender, (c, d)) for a, b, gender, c, d in _rows(name)] for name in ("beings", "things"))
NOUNS = BEINGS + THINGS
#: Spanish masculine singular, feminine singular, masculine plural, feminine plural; English.
ADJECTIVES = _rows("adjectives")
#: Spanish singular and plural, present and past; English third person singular, plural, past.
VERBS = _rows("verbs")
ADVERBS: list[tuple[str, str]] = list(_WORDS["adverbs"].items())
#: Spanish as adjectives are; English singular and plural.
DETERMINERS = _rows("determiners")


def article(determiner: str, following: str) -> str:
    """Returns `a` as `an` before a vowel; other determiners as they are."""
    return "an" if determiner == "a" and following[0] in "aeiou" else determiner


def _noun_phrase(rng: random.Random, nouns: Sequence[Noun]) -> tuple[list[str], list[str], int]:
    """Returns a noun phrase in Spanish and in English, and its number, 1 for the plural."""
    adjective = rng.choice(ADJECTIVES) if rng.random() < 0.45 else None
    determiner, noun, plural = rng.choice(DETERMINERS), rng.choice(nouns), int(rng.random() < 0.45)
    form = 2 * plural + (noun.gender == "f")
    spanish = [determiner[form], noun.spanish[plural], *([adjective[form]] if adjective else [])]
    english = [*([adjective[4]] if adjective else []), noun.english[plural]]
    return spanish, [article(determiner[4 + plural], english[0]), *english], plural


def draw_sentence(rng: random.Random, second: float) -> tuple[list[str], list[str]]:
    """Returns the words of a sentence in Spanish and in English, small letters: a clause, or two with probability
    `second`."""
    spanish: list[str] = []
    english: list[str] = []
    for _ in range(1 + (rng.random() < second)):
        (own, own_english, plural), verb, past = _noun_phrase(rng, BEINGS), rng.choice(VERBS), rng.random() < 0.35
        thing, thing_english, _ = _noun_phrase(rng, NOUNS)
        adverb = rng.choice(ADVERBS) if rng.random() < 0.3 else ()
        spanish += [*(["y"] if spanish else []), *own, verb[2 * past + plural], *thing, *adverb[:1]]
        verb_english = verb[6 if past else 4 + plural]
        english += [*(["and"] if english else []), *own_english, verb_english, *thing_english, *adverb[1:]]
    return spanish, english


def written(words: Sequence[str]) -> str:
    """Returns words as a sentence: a capital at the beginning, a full stop at the end."""
    text = " ".join(words)
    return text[:1].upper() + text[1:] + "."


@dataclass(frozen=True)
class Form:
    """Grammatical form of an English word.

    Attributes:
        kind: determiner | adjective | noun | verb | adverb | and.
        lemma: by which words of two sentences are the same.
        number: 's', 'p' or '' where both fit.
        past: of a verb.
    """

    kind: str
    lemma: str
    number: str = ""
    past: bool = False


def _forms() -> dict[str, Form]:
    forms = {"and": Form("and", "and"), "an": Form("determiner", "a", "s")}
    for row in DETERMINERS:
        same = row[4] == row[5]
        forms |= {row[5]: Form("determiner", row[4], "p"), row[4]: Form("determiner", row[4], "" if same else "s")}
    for noun in NOUNS:
        forms |= {word: Form("noun", noun.english[0], number) for word, number in zip(noun.english, "sp", strict=True)}
    forms |= {row[4]: Form("adjective", row[4]) for row in ADJECTIVES}
    for verb in VERBS:
        forms |= {verb[4]: Form("verb", verb[5], "s"), verb[5]: Form("verb", verb[5], "p")}
        forms[verb[6]] = Form("verb", verb[5], "", past=True)
    return forms | {row[1]: Form("adverb", row[1]) for row in ADVERBS}


FORMS: dict[str, Form] = _forms()
"""Every English word of the language."""

WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
"""Words and marks of a text."""


@dataclass(frozen=True)
class Word:
    """A word of a text: its span [start, end), and its form, None for a word that the language has not."""

    start: int
    end: int
    text: str
    form: Form | None


def words_of(text: str) -> list[Word]:
    """Returns words and marks of any text; full stops and commas are left out."""
    found = [Word(m.start(), m.end(), m[0], FORMS.get(m[0].lower())) for m in WORD.finditer(text)]
    return [word for word in found if word.text not in (".", ",")]


#: Kinds of word that may follow each kind.
_FOLLOWS: dict[str, tuple[str, ...]] = {
    "determiner": ("adjective", "noun"),
    "adjective": ("noun",),
    "noun": ("verb", "adverb", "and"),
    "verb": ("determiner",),
    "adverb": ("and",),
    "and": ("determiner",),
}


def grammar_errors(text: str) -> list[tuple[int, int]]:
    """Returns the spans [start, end) of the words of any text that are at fault, in order.

    A word is unknown or in a wrong place, `a` for `an`, a noun of another number than its determiner, a verb of another
    number than its subject, the second verb of a clause, or the last noun of a clause without a verb.
    """
    words = words_of(text)
    forms = [word.form for word in words]
    wrong = {place for place, form in enumerate(forms) if form is None} | _disagreements(forms)
    for place, (first, second) in enumerate(pairwise(forms)):
        if first is None or second is None:
            continue
        if second.kind not in _FOLLOWS[first.kind]:
            wrong.add(place + 1)
        if first.kind == "determiner" and first.lemma == "a" and first.number == "s":
            said, following = (word.text.lower() for word in words[place : place + 2])
            if said != article("a", following):
                wrong.add(place)
    if forms and forms[0] is not None and forms[0].kind != "determiner":
        wrong.add(0)
    if forms and forms[-1] is not None and forms[-1].kind not in ("noun", "adverb"):
        wrong.add(len(forms) - 1)
    return [(words[place].start, words[place].end) for place in sorted(wrong)]


def _disagreements(forms: Sequence[Form | None]) -> set[int]:
    """Returns the places of errors of number, and of clauses with no verb or two."""
    wrong: set[int] = set()
    determiner, subject, verb, last = "", None, False, -1
    for place, form in enumerate([*forms, Form("and", "and")]):
        if form is None:
            continue
        if form.kind == "determiner":
            determiner = form.number
        elif form.kind == "noun":
            if determiner and form.number != determiner:
                wrong.add(place)
            subject, determiner, last = form.number, "", place
        elif form.kind == "verb":
            if verb or (subject is not None and form.number and form.number != subject):
                wrong.add(place)
            verb = True
        elif form.kind == "and":
            if not verb and last >= 0:
                wrong.add(last)
            determiner, subject, verb, last = "", None, False, -1
    return wrong


# --- mistakes ------------------------------------------------------------------------------------------------------

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
        """Returns the habits of one world."""
        nouns = rng.sample(NOUNS, len(NOUNS) // HABITUAL)
        verbs, adjectives = (rng.sample(words, len(words) // HABITUAL) for words in (VERBS, ADJECTIVES))
        taken_for: dict[str, str] = {}
        for noun in nouns:
            others = [other for other in (BEINGS if noun in BEINGS else THINGS) if other != noun]
            taken_for |= dict(zip(noun.english, rng.choice(others).english, strict=True))
        return Habits(
            behind=frozenset(row[4] for row in adjectives),
            unagreeing={verb[a]: verb[b] for verb in verbs for a, b in ((4, 5), (5, 4))},
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
