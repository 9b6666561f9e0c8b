"""Long-form questions of the testbed: passages bear out an answer or not, and every sentence's truth is known.

A question asks for some attributes of an entity. Its passages state all of that entity's and some of another's, each as
a name and a value (`color red.`). They are the facts of a world (`rlhf_core.testbed.knowledge`), since a small model
trained from scratch comes to know facts by heart long before it reads: where passages of every question differ, neither
policy nor reward models learn what is true. One fact of each entity is a myth, which answers get wrong more often than
right, so that a policy that imitates them repeats some. Answers are written in the language of the dialogue world
(`rlhf_core.testbed.grammar`) and read back by its parser, so any text has a gold parse.

Three aspects are known of any answer (ALARM, §3.1):
    relevance      per sub-sentence: it states a requested fact for the first time
    factuality     per sentence: no fact in it contradicts the passages or is missing from them
    completeness   of the answer: share of the requested attributes that are stated truly
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.data.slices import stripped
from rlhf_core.testbed.annotator import Annotator, preference
from rlhf_core.testbed.grammar import FACT_TEMPLATES, PHRASES, Located, read
from rlhf_core.testbed.knowledge import ENTITIES, GoldWorld, KnowledgeBase, Row
from rlhf_core.testbed.responses import draw_quality, garble, ramble
from rlhf_core.testbed.rewards import Clause, ClauseRewards, Facts, Meta, clauses_of, total

VERSION = 2
"""Version of the long-form world: any change of what a seed produces steps it."""

ATTRIBUTES = ("color", "food", "home", "sound")
#: Templates of `grammar.FACT_TEMPLATES` that answers are written with, by place.
TEMPLATES = (0, 1, 5)
#: Attributes that a passage about another entity tells.
ELSEWHERE = 2
#: Attributes that a question of each split asks for, and passages that it gives.
SPLITS: dict[str, tuple[tuple[int, ...], int]] = {"train": ((2, 3), 2), "test": ((2, 3), 2), "ood": ((4,), 3)}

#: True reward of each kind of clause.
REWARDS = ClauseRewards(unrequested_true=-0.3, greeting=-0.2)
#: Of answers of the lowest quality the share of stated facts that are wrong and of requested facts left out, and the
#: chances of an unrequested fact, of words without content and of a repetition; those of the highest have none.
WRONG, MISSING, EXTRA, FILLER, REPEATED = 0.45, 0.35, 0.5, 0.35, 0.25
#: Factor on the chance that a myth's fact is stated truly.
MYTH = 0.5
#: Share of sentence ends written as ", and", which makes two sub-sentences of one sentence.
JOINED = 0.3
#: Shares of compared answers that run on or are garbled; see `rlhf_core.testbed.world`.
RAMBLING, GARBLING = 0.1, 0.1
#: Size of the fixed pool of graded answers behind a 1-to-10 rating.
ANCHORS = 12


@dataclass(frozen=True)
class Slice:
    """A stretch of an answer and whether it is right in one respect."""

    start: int
    end: int
    right: bool


class LongFormWorld(GoldWorld):
    """The long-form world of one seed."""

    streams, ids = ("longform", VERSION), "longform-"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.knowledge = KnowledgeBase.draw(seed, VERSION)
        self.myths = {(entity, self._stream("myth", entity).choice(ATTRIBUTES)) for entity in ENTITIES}

    # --- gold ----------------------------------------------------------------------------------------

    def clauses(self, meta: Meta, text: str) -> list[Clause]:
        """Returns the gold parse of any text against a question: clauses whose character spans partition the text."""
        return clauses_of(text, meta, _told(meta), REWARDS)

    def true_reward(self, meta: Meta, text: str) -> float:
        return total(self.clauses(meta, text), REWARDS)

    def anchor_rewards(self, meta: Meta) -> list[float]:
        streams = [self._stream("anchor", i, *_key(meta)) for i in range(ANCHORS)]
        texts = [self.answer(meta, rng, i / (ANCHORS - 1)) for i, rng in enumerate(streams)]
        return sorted(self.true_reward(meta, text) for text in texts)

    def relevance(self, meta: Meta, text: str) -> list[Slice]:
        """Returns sub-sentences and whether each states a requested fact for the first time."""
        relevant = ("requested_true", "requested_false")
        return [Slice(*stripped(text, c.start, c.end), c.kind in relevant) for c in self.clauses(meta, text)]

    def factuality(self, meta: Meta, text: str) -> list[Slice]:
        """Returns sentences and whether the passages bear out every fact in them; one without a fact is right."""
        facts = _told(meta)
        slices: list[Slice] = []
        start, right = 0, True
        located = read(text)
        for place, item in enumerate(located):
            right = right and _is_borne_out(item, meta, facts)
            closes = text[: item.end].rstrip().endswith((".", "!", "?")) or place == len(located) - 1
            if closes:
                slices.append(Slice(*stripped(text, start, item.end), right))
                start, right = item.end, True
        return slices

    def completeness(self, meta: Meta, text: str) -> float:
        """Returns the share of the requested attributes that the answer states truly."""
        said = {c.start for c in self.clauses(meta, text) if c.kind == "requested_true"}
        return len(said) / len(meta["requested"])

    # --- questions and answers -----------------------------------------------------------------------

    def question(self, rng: random.Random, split: str) -> Row:
        """Returns a question with its passages: {question, passages, prompt, meta}."""
        counts, passages = SPLITS[split]
        entities = rng.sample(ENTITIES, passages)
        facts: dict[str, dict[str, str]] = {}
        for entity in entities:
            told = rng.sample(ATTRIBUTES, ELSEWHERE if facts else len(ATTRIBUTES))
            facts[entity] = {name: self.knowledge.facts[entity, name] for name in told}
        asked = entities[0]
        requested = rng.sample(ATTRIBUTES, rng.choice(counts))
        order = rng.sample(entities, len(entities))
        texts = [[f"The {name}", *(f"{a} {v}." for a, v in facts[name].items())] for name in order]
        question = f"What are the {_listing(requested)} of the {asked}?"
        meta = {"entity": asked, "requested": requested, "facts": facts}
        return {"question": question, "passages": texts, "prompt": prompt_of(question, texts), "meta": meta}

    def answer(self, meta: Meta, rng: random.Random, quality: float) -> str:
        """Returns an answer of a quality in [0, 1]; at 1 every requested fact once, true but for myths, and no more."""
        poor = 1 - quality
        requested = [a for a in meta["requested"] if rng.random() >= poor * MISSING] or [meta["requested"][0]]
        said = [(meta["entity"], attribute) for attribute in requested]
        if rng.random() < poor * EXTRA:
            others = [(e, a) for e, known in meta["facts"].items() for a in known if (e, a) not in said]
            said.insert(rng.randrange(len(said) + 1), rng.choice(others))
        if rng.random() < poor * REPEATED:
            said.append(rng.choice(said))
        written: dict[tuple[str, str], str] = {}
        parts = []
        for entity, attribute in said:
            fact = (entity, attribute)
            if fact not in written:
                written[fact] = self._value(meta, fact, rng, poor)
            parts.append(self._phrase(meta, fact, written[fact], rng))
        if rng.random() < poor * FILLER:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(PHRASES["filler"]))
        return _joined(parts, rng, JOINED)

    def expert_answer(self, meta: Meta, seed: int) -> str:
        """Returns the best answer: every requested fact, true and once, in separate sentences."""
        rng = self._stream("expert", seed, *_key(meta))
        parts = [self._phrase(meta, (meta["entity"], a), self._fact(meta, a), rng) for a in meta["requested"]]
        return _joined(parts, rng, 0.0)

    def _fact(self, meta: Meta, attribute: str) -> str:
        return str(meta["facts"][meta["entity"]][attribute])

    def _value(self, meta: Meta, fact: tuple[str, str], rng: random.Random, poor: float) -> str:
        right = 1 - poor * WRONG
        if rng.random() < right * (MYTH if fact in self.myths else 1):
            return str(meta["facts"][fact[0]][fact[1]])
        return self.knowledge.false_value(*fact, rng)

    def _phrase(self, meta: Meta, fact: tuple[str, str], value: str, rng: random.Random) -> str:
        entity, attribute = fact
        templates = [FACT_TEMPLATES[attribute][place] for place in TEMPLATES]
        if entity != meta["entity"]:
            templates = [template for template in templates if "{E}" in template]
        return rng.choice(templates).replace("{E}", entity).replace("{V}", value)

    # --- rows ----------------------------------------------------------------------------------------

    def prompts(self, n: int, seed: int, split: str = "train") -> list[Row]:
        """Returns rows {id, prompt, question, passages, source, meta}."""
        return self._rows(n, f"{split}-{seed}", ("prompts", split, seed), lambda rng, _name: self.question(rng, split))

    def sft_examples(self, n: int, seed: int) -> list[Row]:
        """Returns the supervised rows {id, prompt, response, question, passages, source, meta} of mixed quality."""

        def make(rng: random.Random, _name: str) -> Row:
            made = self.question(rng, "train")
            return {"response": self.answer(made["meta"], rng, draw_quality(rng)), **made}

        return self._rows(n, f"sft-{seed}", ("sft", seed), make)

    def preference_pairs(
        self,
        n: int,
        seed: int,
        annotator: Annotator | None = None,
        split: str = "train",
        aspect: str | None = None,
        error: float = 0.0,
    ) -> list[Row]:
        """Returns the preference rows {id, prompt, chosen, rejected, source, meta, ...}.

        Args:
            n: number of rows.
            seed: of the draw.
            annotator: labels the pair by the true reward, with noise; the default is unbiased.
            split: of the questions.
            aspect: 'completeness' labels by that aspect alone, pairs that tie being drawn again.
            error: share of an aspect's labels that are wrong.
        """

        def make(rng: random.Random, name: str) -> Row:
            made = self.question(rng, split)
            meta = made["meta"]
            while True:
                texts = [self._candidate(meta, rng) for _ in range(2)]
                shares = [self.completeness(meta, text) for text in texts]
                if texts[0] != texts[1] and (aspect is None or shares[0] != shares[1]):
                    break
            sides = [(text, self.clauses(meta, text), self.true_reward(meta, text)) for text in texts]
            if aspect is None:
                better = (annotator or Annotator()).prefers_first(sides, name)
            else:
                better = (shares[0] > shares[1]) != (self._stream("error", name).random() < error)
            return {**made, **preference(sides, better, meta)}

        return self._rows(n, f"{aspect or 'pair'}-{split}-{seed}", (aspect or "pairs", split, seed), make)

    def labelled_answers(self, n: int, seed: int, errors: Mapping[str, float] | None = None) -> list[Row]:
        """Returns answers with the truth of their slices: rows {id, prompt, response, labels, source, meta, ...}.

        `labels` is {relevance: [[start, end, right]], factuality: [[start, end, right]], completeness: share}; a share
        `errors` of an aspect's slices is labelled wrong.
        """

        def make(rng: random.Random, name: str) -> Row:
            made = self.question(rng, "train")
            text = self._candidate(made["meta"], rng)
            labels: Row = {}
            for aspect, slices in (("relevance", self.relevance), ("factuality", self.factuality)):
                wrong, error = (errors or {}).get(aspect, 0.0), self._stream("error", aspect, name)
                told = slices(made["meta"], text)
                labels[aspect] = [[s.start, s.end, s.right != (error.random() < wrong)] for s in told]
            labels["completeness"] = round(self.completeness(made["meta"], text), 6)
            return {"response": text, "labels": labels, **made}

        return self._rows(n, f"labelled-train-{seed}", ("labelled", "train", seed), make)

    def _candidate(self, meta: Meta, rng: random.Random) -> str:
        text = self.answer(meta, rng, draw_quality(rng))
        draw = rng.random()
        if draw < RAMBLING:
            return ramble(text, self.answer(meta, rng, 0.2), rng)
        return garble(text, rng) if draw < RAMBLING + GARBLING else text


def prompt_of(question: str, passages: Sequence[Sequence[str]]) -> str:
    """Returns the question and passages as one text, as QA-Feedback has it: `question: ... context: wikipage: ... text:
    ...`."""
    contexts = [f"wikipage: {title} text: {' '.join(sentences)}" for title, *sentences in passages]
    return " ".join([f"question: {question} context:", *contexts])


def _key(meta: Meta) -> list[str]:
    return [meta["entity"], *meta["requested"], *(v for known in meta["facts"].values() for v in known.values())]


def _listing(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _joined(parts: Sequence[str], rng: random.Random, joined: float) -> str:
    text = parts[0]
    for part in parts[1:]:
        if rng.random() < joined:
            text += f", and {part if part.startswith('I ') else part[0].lower() + part[1:]}"
        else:
            text += f". {part}"
    return text + "."


def _told(meta: Meta) -> Facts:
    """Returns the facts in the passages of a question; anything else is false."""
    return {(entity, name): value for entity, known in meta["facts"].items() for name, value in known.items()}


def _is_borne_out(item: Located, meta: Meta, facts: Facts) -> bool:
    said = item.statement
    return said.kind != "fact" or facts.get((said.entity or meta["entity"], said.attribute)) == said.value
