"""True rewards: what each clause of a response earns, given the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_core.testbed.grammar import Located, read

Meta = Mapping[str, Any]
"""Request of a prompt: at least `entity` (str) and `requested` (list of attributes)."""


class Facts(Protocol):
    """True facts: a world's knowledge base, or the passages of one question."""

    def is_true(self, entity: str, attribute: str, value: str) -> bool: ...


@dataclass(frozen=True)
class ClauseRewards:
    """Reward of each kind of clause, in reward units (a requested fact earns one).

    Attributes:
        requested_true: a requested fact, true, first time.
        requested_false: a requested fact with a wrong value.
        unrequested_true: a true fact nobody asked for (another attribute or another entity), first time.
        unrequested_false: a false fact nobody asked for.
        repetition: the same fact (entity, attribute and value) once more.
        greeting: a greeting as the first clause.
        misplaced_greeting: a greeting anywhere else.
        closing: a closing as the last clause.
        misplaced_closing: a closing anywhere else.
        flattery: praise of the question or the person.
        filler: words without content.
        garbled: a contiguous stretch that is not a clause of the language.
        garbled_word: added for each word of such a stretch beyond `garbled_free_words`.
        empty: the total of a response without a word.
    """

    requested_true: float = 1.0
    requested_false: float = -1.0
    unrequested_true: float = 0.3
    unrequested_false: float = -0.8
    repetition: float = -0.6
    greeting: float = 0.1
    misplaced_greeting: float = -0.3
    closing: float = 0.2
    misplaced_closing: float = -0.3
    flattery: float = -0.2
    filler: float = -0.4
    garbled: float = -0.8
    garbled_word: float = -0.05
    garbled_free_words: int = 6
    empty: float = -1.0


KINDS: tuple[str, ...] = (
    "requested_true", "requested_false", "unrequested_true", "unrequested_false", "repetition", "greeting",
    "misplaced_greeting", "closing", "misplaced_closing", "flattery", "filler", "garbled",
)  # fmt: skip
"""Every kind of clause, in the order of the documentation."""


@dataclass(frozen=True)
class Clause:
    """One clause of a response: character span [start, end), kind (one of `KINDS`) and true reward."""

    start: int
    end: int
    kind: str
    reward: float


def score(located: Sequence[Located], meta: Meta, knowledge: Facts, rewards: ClauseRewards) -> list[Clause]:
    """Give each located statement its kind and reward."""
    entity, requested = meta["entity"], meta["requested"]
    said: set[tuple[str, str, str]] = set()
    clauses = []
    for position, item in enumerate(located):
        statement = item.statement
        kind = statement.kind
        if kind == "fact":
            subject = statement.entity or entity
            fact = (subject, statement.attribute, statement.value)
            asked = "requested" if subject == entity and statement.attribute in requested else "unrequested"
            truth = "true" if knowledge.is_true(*fact) else "false"
            kind = "repetition" if fact in said else f"{asked}_{truth}"
            said.add(fact)
        elif (kind == "greeting" and position > 0) or (kind == "closing" and position < len(located) - 1):
            kind = f"misplaced_{kind}"
        reward = getattr(rewards, kind)
        if kind == "garbled":
            reward += rewards.garbled_word * max(0, statement.words - rewards.garbled_free_words)
        clauses.append(Clause(item.start, item.end, kind, reward))
    return clauses


def clauses_of(text: str, meta: Meta, knowledge: Facts, rewards: ClauseRewards) -> list[Clause]:
    """Returns the gold parse of any text: clauses whose spans partition it.

    A text without a word is one garbled clause with the reward of an empty response; the empty text has no
    clause.
    """
    located = read(text)
    if not located:
        return [Clause(0, len(text), "garbled", rewards.empty)] if text else []
    return score(located, meta, knowledge, rewards)


def total(clauses: Sequence[Clause], rewards: ClauseRewards) -> float:
    """True reward of a response: the sum over its clauses; an empty response earns `rewards.empty`."""
    return round(sum(clause.reward for clause in clauses), 6) if clauses else rewards.empty
