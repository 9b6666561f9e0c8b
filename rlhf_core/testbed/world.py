"""The embedded world: dialogue data whose true reward is known for every clause.

Everything is drawn from named random streams (world seed, version, call, seed, index), so a call with a
larger `n` begins with the rows of the smaller one, and rows are the same on every machine. Version 4 draws from the
streams of version 3: with its dials at their defaults it is version 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rlhf_core.testbed import tasks
from rlhf_core.testbed.annotator import Annotator, Candidate, calibrated_temperature, preference
from rlhf_core.testbed.grammar import Located
from rlhf_core.testbed.knowledge import GoldWorld, KnowledgeBase, Row
from rlhf_core.testbed.prompts import draw_follow_up, draw_request
from rlhf_core.testbed.responses import draw_quality, expert_response, garble, mixture_response, pad, ramble
from rlhf_core.testbed.rewards import (
    DEFAULT,
    KINDS,
    LATE_FACTORS,
    Clause,
    ClauseRewards,
    Dials,
    Meta,
    clause_rows,
    clauses_of,
    requested_attributes,
    score,
    total,
)

VERSION = 4
"""Version of the world: any change of what a seed and dials produce steps it."""

DRAWS = 3
"""Version that names the streams, and that a world is whose dials are at their defaults."""

#: Shares of compared responses that run on into a poor second answer cut short, or have words left out, doubled or
#: moved: what a policy may come to write, so that a reward model has seen it.
RAMBLING, GARBLING = 0.15, 0.15
#: Size of the fixed pool of graded answers behind a 1-to-10 rating.
ANCHORS = 18
REWARDS = ClauseRewards()
ARITHMETIC = tasks.ArithmeticConfig()


@lru_cache
def _calibrated(dials: Dials) -> float:
    return calibrated_temperature(World(dials=dials))


class World(GoldWorld):
    """The embedded world of one seed.

    Args:
        seed: of the facts.
        dials: settings that a study varies.
        padding: {kind of `responses.PADDINGS`: share of compared responses with more clauses of it}, of one kind at
            most: what a policy writes that has found a flaw.
        wrong_share: share of wrong solutions among the task examples.
    """

    streams = (DRAWS,)

    def __init__(
        self, seed: int = 0, *, dials: Dials = DEFAULT, padding: Mapping[str, float] | None = None,
        wrong_share: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(seed)
        self.dials, self.wrong_share = dials, wrong_share
        self.padded_with, self.padding = next(iter((padding or {}).items()), ("", 0.0))
        self.knowledge = KnowledgeBase.draw(seed, DRAWS)
        self._anchor_rewards: dict[tuple[str, ...], list[float]] = {}

    @property
    def version(self) -> int:
        """Returns the version of the world: 3 where no dial is moved, since the rows are those of version 3."""
        return VERSION if self.dials.moved() else DRAWS

    @property
    def kinds(self) -> tuple[str, ...]:
        """Returns every kind of clause that a response of this world can have."""
        return (*KINDS, *LATE_FACTORS) if self.dials.late else KINDS

    @property
    def unit(self) -> float:
        """Returns the unit of margins, in reward units: 1 in the default world.

        It is the ratio of the temperatures that give this world's and the default world's pairs the same Bayes
        ceiling, both with the facts of seed 0. Thresholds and noise that a judge, a benchmark or an annotator's bias
        states for the default world are multiplied by it.
        """
        dials = replace(self.dials, pairs="usual")
        return _calibrated(dials) / _calibrated(Dials()) if dials.moved() else 1.0

    # --- gold ----------------------------------------------------------------------------------------

    def clauses(self, meta: Meta, text: str) -> list[Clause]:
        """Returns the gold parse of any text against a request: clauses whose character spans partition the text."""
        return clauses_of(text, meta, self.knowledge.facts, REWARDS, self.dials.families)

    def true_reward(self, meta: Meta, text: str) -> float:
        return self.total(self.clauses(meta, text))

    def total(self, clauses: Sequence[Clause]) -> float:
        """True reward of a response with these clauses."""
        return total(clauses, REWARDS, self.dials)

    def clause_rows(self, clauses: Sequence[Clause]) -> list[list[Any]]:
        """Returns `rewards.clause_rows` of this world."""
        return clause_rows(clauses, self.dials)

    def _scored(self, located: Sequence[Located], meta: Meta) -> list[Clause]:
        return score(located, meta, self.knowledge.facts, REWARDS)

    def expert_answer(self, meta: Meta, seed: int) -> str:
        """Returns a very good answer: every requested fact, true and once, and a closing; no extra facts, which would
        pay."""
        return expert_response(meta, self.knowledge, self._stream("expert", seed, *_request_names(meta)))[0]

    def mixture_answer(self, meta: Meta, seed: int, quality: float | None = None) -> str:
        """Returns an answer of the supervised mixture, at a given quality in [0, 1] or a drawn one."""
        rng = self._stream("mixture", seed, *_request_names(meta))
        drawn = draw_quality(rng)
        return self._respond(meta, rng, drawn if quality is None else quality)[0]

    def _respond(
        self, meta: Meta, rng: Any, quality: float, with_reserved: bool = True, family: str = "usual"
    ) -> tuple[str, list[Located]]:
        """Returns a response of the mixture as text and as what it says."""
        return mixture_response(meta, self.knowledge, rng, quality, with_reserved, self.dials, family)

    # --- dialogue ------------------------------------------------------------------------------------

    def sft_examples(self, n: int, seed: int, follow_up_share: float = 0.0) -> list[Row]:
        """Returns the supervised dialogue rows {id, prompt, response, source, meta}, of mixed quality.

        A share of rows may be second turns, as `mtbench` has them: their prompt is a follow-up question
        and `history` holds the first turn as messages [{role, content}].
        """

        def make(rng: Any, _name: str) -> Row:
            prompt, meta = draw_request("train", self.knowledge, rng, with_reserved=True, length=self.dials.length)
            earlier: Row = {}
            if rng.random() < follow_up_share:
                text, _ = self._respond(meta, rng, draw_quality(rng))
                turns = (("user", prompt), ("assistant", text))
                earlier = {"history": [{"role": role, "content": content} for role, content in turns]}
                prompt, meta = draw_follow_up(meta, self.knowledge, rng, with_reserved=True)
            text, located = self._respond(meta, rng, draw_quality(rng))
            clauses = self._scored(located, meta)
            meta |= {"clauses": self.clause_rows(clauses), "true": self.total(clauses)}
            return {"prompt": prompt, "response": text, **earlier, "meta": meta}

        return self._rows(n, f"sft-{seed}", ("sft", seed), make)

    def prompts(self, n: int, seed: int, split: str = "train") -> list[Row]:
        """Returns the prompt rows {id, prompt, source, meta}.

        `mtbench` rows add `category`, `turns` (two prompts) and `reference` (two expert answers); their
        meta is the first turn's, with both under `turns`. Prompts of an evaluation split are distinct as
        long as the split has enough of them.
        """
        seen: set[str] = set()

        def make(rng: Any, _name: str) -> Row:
            for _ in range(20):
                prompt, meta = draw_request(split, self.knowledge, rng, length=self.dials.length)
                if split == "train" or prompt not in seen:
                    break
            seen.add(prompt)
            if split != "mtbench":
                return {"prompt": prompt, "meta": meta}
            second, second_meta = draw_follow_up(meta, self.knowledge, rng)
            metas = [dict(meta), second_meta]
            reference = [self.expert_answer(each, seed) for each in metas]
            of_turns = {"category": "facts", "turns": [prompt, second], "reference": reference}
            return {"prompt": prompt, **of_turns, "meta": {**meta, "turns": metas}}

        return self._rows(n, f"{split}-{seed}", ("prompts", split, seed), make)

    def preference_pairs(
        self, n: int, seed: int, annotator: Annotator | None = None, split: str = "train"
    ) -> list[Row]:
        """Returns the preference rows {id, prompt, chosen, rejected, source, meta}.

        Both responses come from the supervised mixture, a share of them made to ramble or garbled (see
        `RAMBLING`); the annotator (default: unbiased) labels them. The meta adds to the prompt's
        `chosen_clauses`, `rejected_clauses` (rows of `clause_rows`), `true_chosen` and `true_rejected`.
        """
        labeller = annotator or Annotator()

        def make(rng: Any, name: str) -> Row:
            prompt, meta = draw_request(split, self.knowledge, rng, length=self.dials.length)
            first = self._candidate(meta, rng, split)
            second = self._candidate(meta, rng, split)
            while second[0] == first[0]:
                second = self._candidate(meta, rng, split)
            better = labeller.prefers_first((first, second), name)
            return {"prompt": prompt, **preference((first, second), better, meta, self.dials)}

        return self._rows(n, f"pair-{split}-{seed}", ("pairs", split, seed), make)

    def _parsed(self, meta: Meta, text: str) -> Candidate:
        clauses = self.clauses(meta, text)
        return text, clauses, self.total(clauses)

    def _candidate(self, meta: Mapping[str, Any], rng: Any, split: str) -> Candidate:
        """Returns a response to be compared: of the mixture, or one that rambles on or is garbled as a policy's may
        be."""
        reserved, family = split == "ood", self.dials.pairs
        text, located = self._respond(meta, rng, draw_quality(rng), reserved, family)
        if self.padding and rng.random() < self.padding:
            return self._parsed(meta, pad(text, meta, self.padded_with, rng, self.dials.families))
        draw = rng.random()
        if draw < RAMBLING:
            more, _ = self._respond(meta, rng, 0.3 * draw_quality(rng), reserved, family)
            return self._parsed(meta, ramble(text, more, rng))
        if draw < RAMBLING + GARBLING:
            return self._parsed(meta, garble(text, rng))
        clauses = self._scored(located, meta)
        return text, clauses, self.total(clauses)

    def anchor_rewards(self, meta: Meta) -> list[float]:
        key = _request_names(meta)
        if key not in self._anchor_rewards:
            texts = [self.mixture_answer(meta, 1000 + i, i / ANCHORS) for i in range(ANCHORS - 1)]
            texts.append(self.expert_answer(meta, 1000))
            self._anchor_rewards[key] = sorted(self.true_reward(meta, text) for text in texts)
        return self._anchor_rewards[key]

    # --- tasks ---------------------------------------------------------------------------------------

    def arithmetic(self, n: int, seed: int, split: str = "seen") -> list[Row]:
        """Returns the word problems {id, question, solution, answer, source, meta}; split `seen` or `unseen`."""
        return self._distinct(
            n, f"arithmetic-{split}-{seed}", lambda rng: tasks.word_problem(split, ARITHMETIC, rng), ("question",)
        )

    def multiple_choice(self, task: str, n: int, seed: int) -> list[Row]:
        """Returns questions {id, question, choices, answer, answer_index, solution, source, meta}.

        Args:
            task: arc | truthfulqa | winograd | hellaswag | mmlu.
            n: number of rows.
            seed: of the draw.
        """
        return self._distinct(
            n,
            f"{task}-{seed}",
            lambda rng: tasks.choice_question(task, self.knowledge, rng, training=False),
            ("question", "choices"),
        )

    def functions(self, n: int, seed: int, split: str = "test") -> list[Row]:
        """Returns the code rows {id, question, solution, tests, entry_point, source, meta}.

        `test` and `plus` of one seed ask for the same functions in the same order.
        """
        rows = self._distinct(
            n,
            f"functions-{split}-{seed}",
            lambda rng: tasks.function_problem(split, rng),
            ("question",),
            stream_name=f"functions-{'test' if split == 'plus' else split}-{seed}",
        )
        for row in rows:
            del row["near_miss"]
        return rows

    def _distinct(
        self, n: int, name: str, make: Callable[[Any], Row], fields: tuple[str, ...], stream_name: str | None = None
    ) -> list[Row]:
        """Returns `n` rows, each the first of twenty draws whose `fields` were not drawn before, or else the last."""
        seen: set[str] = set()

        def draw(rng: Any, _name: str) -> Row:
            for _ in range(20):
                row = make(rng)
                key = "|".join(str(row[each]) for each in fields)
                if key not in seen:
                    break
            seen.add(key)
            return row

        return self._rows(n, name, ("task", stream_name or name), draw)

    def task_examples(self, n: int, seed: int) -> list[Row]:
        """Returns the supervised rows {id, prompt, response, source, meta} for the tasks.

        Word problems, multiple choice (without `truthfulqa`) and functions as 11 : 6 : 3; a share `wrong_share` has a
        wrong solution, marked in `meta["right"]`.
        """

        def make(rng: Any, _name: str) -> Row:
            wrong = rng.random() < self.wrong_share
            kind = rng.choices(("functions", "arithmetic", "choices"), (3, 11, 6))[0]
            if kind == "functions":
                item = tasks.function_problem("train", rng)
                response = item["near_miss"] if wrong else item["solution"]
            elif kind == "arithmetic":
                item = tasks.word_problem("seen", ARITHMETIC, rng)
                response = tasks.slip(item["solution"], rng) if wrong else item["solution"]
            else:
                task = rng.choice([name for name in tasks.TASKS if name != "truthfulqa"])
                item = tasks.choice_question(task, self.knowledge, rng, training=True)
                others = [choice for choice in item["choices"] if choice != item["answer"]]
                response = rng.choice(others) if wrong else item["answer"]
            return {"prompt": item["question"], "response": response, "meta": item["meta"] | {"right": not wrong}}

        return self._rows(n, f"task-{seed}", ("task examples", seed), make)


def _request_names(meta: Meta) -> tuple[str, ...]:
    """Returns the animals and attributes of a request, which name the streams of answers to it."""
    return tuple(name for entity, requested in requested_attributes(meta).items() for name in (entity, *requested))
