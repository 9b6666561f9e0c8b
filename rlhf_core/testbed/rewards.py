"""True rewards: what each clause of a response earns, given the request; and the dials of a world.

A dial is a setting that a study varies and moves one thing. At its default it changes nothing: the world is version 3,
bit for bit. Facts, prompts and, where the dial leaves them alone, responses are drawn from the same streams at every
setting, so two settings of one seed can be compared row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from rlhf_core.errors import RecipeError
from rlhf_core.testbed.grammar import USUAL, Located, read
from rlhf_core.typed import Checked, at_least, between


@dataclass(frozen=True)
class DialogueLength:
    """Sizes of requests and responses.

    Attributes:
        animals: number of animals that a prompt asks about.
        counts: requested attributes of each animal, drawn with equal chance.
        hard_count: the same in the `arena` split.
        blocks: factor on the noise of a response, on its most clauses and on its most words.
    """

    animals: int
    counts: tuple[int, ...]
    hard_count: int
    blocks: int


#: Length by the mean number of clauses of a response, roughly.
LENGTHS: Mapping[int, DialogueLength] = {
    4: DialogueLength(animals=1, counts=(1, 2, 2, 3), hard_count=3, blocks=1),
    8: DialogueLength(animals=2, counts=(2, 2, 3, 3), hard_count=3, blocks=3),
    40: DialogueLength(animals=6, counts=(4,), hard_count=4, blocks=20),
}
SHORT = LENGTHS[4]


@dataclass(frozen=True)
class Dials(Checked):
    """Dials of a world.

    Attributes:
        aggregation: the true reward of a response is the sum of its clause rewards, their
            mean, or their weighted mean.
        emphasis: weight of a requested fact in the weighted mean; every other clause weighs 1.
        clauses: mean number of clauses of a response, roughly: a key of `LENGTHS`.
        late: share of the mixture's responses with a late clause behind the facts, a retraction or an assurance, which
            makes the facts before it earn nothing or twice as much.
        pairs: wordings of compared responses: those of the supervised mixture (`usual`), which a policy learns, or a
            family of their own (`other`), which it never sees.
    """

    aggregation: Literal["sum", "mean", "weighted"] = "sum"
    emphasis: Annotated[float, at_least(1)] = 1.0
    clauses: Literal[4, 8, 40] = 4
    late: Annotated[float, between(0, 1)] = 0.0
    pairs: Literal["usual", "other"] = "usual"

    def _check_together(self) -> None:
        if (self.aggregation == "weighted") != (self.emphasis > 1):
            raise RecipeError(
                f"emphasis is {self.emphasis:g} and aggregation '{self.aggregation}'; give 'weighted' an emphasis "
                "above 1, such as 3, and leave emphasis out otherwise"
            )

    @property
    def length(self) -> DialogueLength:
        return LENGTHS[self.clauses]

    @property
    def families(self) -> tuple[str, ...]:
        """Returns the families of wordings that responses are read in, names of `grammar.FAMILIES`."""
        others = {"late": self.late > 0, "other": self.pairs == "other"}
        return ("usual", *(name for name, used in others.items() if used))

    def moved(self) -> dict[str, Any]:
        """Returns the dials that are not at their default, by name."""
        still = asdict(Dials())
        return {name: value for name, value in asdict(self).items() if value != still[name]}


Meta = Mapping[str, Any]
"""Request of a prompt: at least `entity` (str) and `requested` (list of attributes); `also` has the attributes of every
further animal."""

DEFAULT = Dials()


#: True value by entity and attribute: of a world's knowledge base, or of the passages of one question.
Facts = Mapping[tuple[str, str], str]


def requested_attributes(meta: Meta) -> Mapping[str, Sequence[str]]:
    """Returns the requested attributes of every animal that a prompt asks about, the main one first."""
    return {meta["entity"]: meta["requested"], **meta.get("also", {})}


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
        retraction, assurance: the first late clause behind a fact, beside what it makes of the facts before it.
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
    retraction: float = 0.0
    assurance: float = 0.0


KINDS: tuple[str, ...] = (
    "requested_true", "requested_false", "unrequested_true", "unrequested_false", "repetition", "greeting",
    "misplaced_greeting", "closing", "misplaced_closing", "flattery", "filler", "garbled",
)  # fmt: skip
"""Every kind of clause, in the order of the documentation."""

LATE_FACTORS: Mapping[str, float] = {"retraction": 0.0, "assurance": 2.0}
"""Factors of a late clause on the rewards of the facts before it."""

FACT_KINDS = frozenset({"requested_true", "requested_false", "unrequested_true", "unrequested_false"})
"""Kinds whose reward a late clause decides."""


@dataclass(frozen=True)
class Clause:
    """One clause of a response: character span [start, end), kind (one of `KINDS`) and true reward."""

    start: int
    end: int
    kind: str
    reward: float


def score(located: Sequence[Located], meta: Meta, facts: Facts, rewards: ClauseRewards) -> list[Clause]:
    """Give each located statement its kind and reward.

    The first late clause behind a fact multiplies the rewards of the facts before it; any other is filler.
    """
    entity, requested = meta["entity"], requested_attributes(meta)
    said: set[tuple[str, str, str]] = set()
    clauses: list[Clause] = []
    decided = False
    for position, item in enumerate(located):
        statement = item.statement
        kind = statement.kind
        if kind == "fact":
            subject = statement.entity or entity
            fact = (subject, statement.attribute, statement.value)
            asked = "requested" if statement.attribute in requested.get(subject, ()) else "unrequested"
            truth = "true" if facts.get(fact[:2]) == statement.value else "false"
            kind = "repetition" if fact in said else f"{asked}_{truth}"
            said.add(fact)
        elif (kind == "greeting" and position > 0) or (kind == "closing" and position < len(located) - 1):
            kind = f"misplaced_{kind}"
        elif kind in LATE_FACTORS:
            if decided or not said:
                kind = "filler"
            else:
                decided = True
                clauses = [_decided(clause, LATE_FACTORS[kind]) for clause in clauses]
        reward = getattr(rewards, kind)
        if kind == "garbled":
            reward += rewards.garbled_word * max(0, statement.words - rewards.garbled_free_words)
        clauses.append(Clause(item.start, item.end, kind, reward))
    return clauses


def _decided(clause: Clause, factor: float) -> Clause:
    """Returns a clause before a late one, whose reward a fact keeps times a factor; 0 has no sign."""
    return replace(clause, reward=clause.reward * factor + 0.0) if clause.kind in FACT_KINDS else clause


def clauses_of(
    text: str, meta: Meta, facts: Facts, rewards: ClauseRewards, families: tuple[str, ...] = USUAL
) -> list[Clause]:
    """Returns the gold parse of any text: clauses whose spans partition it.

    A text without a word is one garbled clause with the reward of an empty response; the empty text has no
    clause.
    """
    located = read(text, families)
    if not located:
        return [Clause(0, len(text), "garbled", rewards.empty)] if text else []
    return score(located, meta, facts, rewards)


def shares(clauses: Sequence[Clause], dials: Dials) -> list[float]:
    """Returns what each clause adds to the true reward of its response.

    The sum adds every clause's reward as it is. The means divide weighted rewards by the sum of weights: all weights
    are 1, or `emphasis` for a requested fact in the weighted mean.
    """
    if dials.aggregation == "sum":
        return [clause.reward for clause in clauses]
    weights = [dials.emphasis if clause.kind.startswith("requested") else 1.0 for clause in clauses]
    everything = sum(weights)
    return [weight * clause.reward / everything for weight, clause in zip(weights, clauses, strict=True)]


def clause_rows(clauses: Sequence[Clause], dials: Dials = DEFAULT) -> list[list[Any]]:
    """Returns clauses as JSON rows [start, end, kind, share of the true reward], the reward itself under a sum."""
    paid = zip(clauses, shares(clauses, dials), strict=True)
    return [[clause.start, clause.end, clause.kind, share] for clause, share in paid]


def total(clauses: Sequence[Clause], rewards: ClauseRewards, dials: Dials = DEFAULT) -> float:
    """True reward of a response: the sum of its clauses' shares; an empty response earns `rewards.empty`."""
    return round(sum(shares(clauses, dials)), 6) if clauses else rewards.empty
