"""Spanish-to-English translation of the testbed: the true reward of every word of a translation is known.

A translation earns what it says of the source (words in order, their number and tense) and loses for every error of
English grammar. Two readers may differ in taste (ALARM, §4): the annotator's noise models that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from rlhf_core.testbed.annotator import Annotator, preference
from rlhf_core.testbed.knowledge import GoldWorld, Row
from rlhf_core.testbed.responses import garble
from rlhf_core.testbed.rewards import Clause, Meta
from rlhf_core.testbed.translation_grammar import (
    Form,
    Habits,
    Word,
    draw_sentence,
    grammar_errors,
    slip,
    words_of,
    written,
)

VERSION = 2
"""Version of the translation world: any change of what a seed produces steps it."""

#: Chance of a second clause in each split.
SPLITS = {"train": 0.35, "test": 0.35, "ood": 1.0}


#: Reward of a noun, verb, adjective or adverb, and of a determiner or "and", that the reference has there; added to a
#: word in another number or tense; of a word that the reference has not; of each word that the translation has not, on
#: its last word; added to an error of grammar; of a translation without a word.
CONTENT, FUNCTION, NUMBER, TENSE, EXTRA, MISSING, GRAMMAR, EMPTY = 0.5, 0.2, -0.3, -0.3, -0.5, -0.4, -0.6, -3.0
#: Mean number of slips (number, article, agreement, another word, a word left out) per clause in translations of the
#: lowest quality; those of the highest have none.
SLIPS = 1.5
#: Chance that a translation of any quality follows a habit where it has an occasion.
HABIT = 0.6
#: Share of compared translations that are garbled.
GARBLING = 0.1
#: Size of the fixed pool of graded translations behind a 1-to-10 rating.
ANCHORS = 12


class TranslationWorld(GoldWorld):
    """The translation world of one seed."""

    streams, ids = ("translation", VERSION), "translation-"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.habits = Habits.draw(self._stream("habits"))

    # --- gold ----------------------------------------------------------------------------------------

    def clauses(self, meta: Meta, text: str) -> list[Clause]:
        """Returns the gold parse: one clause for each word, whose spans partition the text; kinds are right, number,
        tense, extra, with `_error` where the word has an error of grammar."""
        words = words_of(text)
        if not words:
            return [Clause(0, len(text), "extra", EMPTY)] if text else []
        reference = _reference(str(meta["reference"]))
        matched = _aligned([w.form for w in words], reference)
        wrong = {start for start, _ in grammar_errors(text)}
        ends = [*(word.start for word in words[1:]), len(text)]
        found = []
        for place, (word, end) in enumerate(zip(words, ends, strict=True)):
            kind, reward = self._worth(word, None if matched[place] < 0 else reference[matched[place]])
            if word.start in wrong:
                kind, reward = f"{kind}_error", reward + GRAMMAR
            if place == len(words) - 1:
                reward += MISSING * (len(reference) - sum(m >= 0 for m in matched))
            found.append(Clause(0 if not place else word.start, end, kind, round(reward, 6)))
        return found

    def _worth(self, word: Word, target: Form | None) -> tuple[str, float]:
        form = word.form
        if form is None or target is None:
            return "extra", EXTRA
        base = FUNCTION if form.kind in ("determiner", "and") else CONTENT
        if form.kind == "noun" and form.number != target.number:
            return "number", base + NUMBER
        if form.kind == "verb" and form.past != target.past:
            return "tense", base + TENSE
        return "right", base

    def true_reward(self, meta: Meta, text: str) -> float:
        clauses = self.clauses(meta, text)
        return round(sum(clause.reward for clause in clauses), 6) if clauses else EMPTY

    def anchor_rewards(self, meta: Meta) -> list[float]:
        reference = str(meta["reference"])
        streams = [self._stream("anchor", i, reference) for i in range(ANCHORS)]
        texts = [self.translate(reference, rng, i / (ANCHORS - 1)) for i, rng in enumerate(streams)]
        return sorted(self.true_reward(meta, text) for text in texts)

    def expert_answer(self, meta: Meta, seed: int) -> str:
        """Returns the reference translation."""
        return str(meta["reference"])

    # --- rows ----------------------------------------------------------------------------------------

    def sentence(self, rng: random.Random, split: str) -> Row:
        """Returns a pair {source_lang, target_lang, source_text, target_text, prompt, meta}."""
        spanish, english = draw_sentence(rng, SPLITS[split])
        source, target = written(spanish), written(english)
        languages = {"source_lang": "es", "target_lang": "en"}
        return {**languages, "source_text": source, "target_text": target, "prompt": source} | {
            "meta": {"reference": target, "words": len(english)}
        }

    def translate(self, reference: str, rng: random.Random, quality: float) -> str:
        """Returns a translation of a quality in [0, 1]: the reference with slips and habits."""
        words = self.habits.said([word.text.lower() for word in words_of(reference)], rng, HABIT)
        clauses = 1 + words.count("and")
        expected = SLIPS * (1 - quality) * clauses
        slips = int(expected) + (rng.random() < expected - int(expected))
        for _ in range(slips):
            words = slip(words, rng)
        return written(words)

    def prompts(self, n: int, seed: int, split: str = "train") -> list[Row]:
        """Returns rows {id, prompt, source_lang, target_lang, source_text, target_text, source, meta}."""
        return self._rows(n, f"{split}-{seed}", ("prompts", split, seed), lambda rng, _name: self.sentence(rng, split))

    def sft_examples(self, n: int, seed: int) -> list[Row]:
        """Returns the supervised rows of mixed quality: rows of `prompts` with `response`."""

        def make(rng: random.Random, _name: str) -> Row:
            made = self.sentence(rng, "train")
            return {"response": self.translate(made["target_text"], rng, rng.betavariate(2.0, 1.0)), **made}

        return self._rows(n, f"sft-{seed}", ("sft", seed), make)

    def preference_pairs(
        self, n: int, seed: int, annotator: Annotator | None = None, split: str = "train"
    ) -> list[Row]:
        """Returns the preference rows {id, prompt, chosen, rejected, source, meta, ...}, labelled by the true reward
        with noise."""

        def make(rng: random.Random, name: str) -> Row:
            made = self.sentence(rng, split)
            meta = made["meta"]
            first = second = self._candidate(made["target_text"], rng)
            while second == first:
                second = self._candidate(made["target_text"], rng)
            sides = [(text, self.clauses(meta, text), self.true_reward(meta, text)) for text in (first, second)]
            return {**made, **preference(sides, (annotator or Annotator()).prefers_first(sides, name), meta)}

        return self._rows(n, f"pair-{split}-{seed}", ("pairs", split, seed), make)

    def _candidate(self, reference: str, rng: random.Random) -> str:
        text = self.translate(reference, rng, rng.random())
        return garble(text, rng) if rng.random() < GARBLING else text


@lru_cache(maxsize=4096)
def _reference(text: str) -> tuple[Form, ...]:
    return tuple(word.form for word in words_of(text) if word.form is not None)


def _aligned(said: Sequence[Form | None], reference: Sequence[Form]) -> list[int]:
    """For each word said the place of the reference word that it stands for, -1 for none: a longest common subsequence
    of lemmas."""
    n, m = len(said), len(reference)
    best = [[0] * (m + 1) for _ in range(n + 1)]

    def same(i: int, j: int) -> bool:
        form = said[i]
        return form is not None and (form.kind, form.lemma) == (reference[j].kind, reference[j].lemma)

    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            best[i][j] = best[i + 1][j + 1] + 1 if same(i, j) else max(best[i + 1][j], best[i][j + 1])
    places, i, j = [-1] * n, 0, 0
    while i < n and j < m:
        if same(i, j):
            places[i], i, j = j, i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return places
