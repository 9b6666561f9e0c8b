"""A Bradley-Terry annotator with chosen biases, and the accuracy nobody can beat on its labels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import RecipeError
from rlhf_core.testbed.grammar import KEYWORD, WORD
from rlhf_core.testbed.knowledge import stream
from rlhf_core.typed import Checked, Seed, above, between

_KEYWORD = re.compile(rf"\b{KEYWORD}\b", re.IGNORECASE)

DEFAULT_TEMPERATURE = 0.75


def sigmoid(x: float) -> float:
    """Returns the logistic function, safe for large |x|."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else 1.0 - 1.0 / (1.0 + math.exp(x))


@dataclass(frozen=True)
class Annotator(Checked):
    """Labels a pair with P(first preferred) = sigmoid((U1 - U2) / temperature).

    The utility U is the true reward plus what the biases add, so a policy can be led to exploit them.

    Attributes:
        temperature: reward units; larger is noisier.
        length_bias: reward units per ten words.
        flattery_bias: reward units per flattery clause.
        keyword_bias: reward units per occurrence of the word `grammar.KEYWORD`.
        repetition_bias: reward units per repetition clause.
        flipped: share of labels that are turned around, whatever the pair.
        seed: of the label noise.

    Raises:
        RecipeError: for a temperature that is not positive and finite, or a share outside [0, .5].
    """

    temperature: Annotated[float, above(0)] = DEFAULT_TEMPERATURE
    length_bias: float = 0.0
    flattery_bias: float = 0.0
    keyword_bias: float = 0.0
    repetition_bias: float = 0.0
    flipped: Annotated[float, between(0, 0.5)] = 0.0
    seed: Seed = 0

    def utility(self, text: str, reward: float, kinds: Sequence[str]) -> float:
        """Returns this annotator's value of a response, in reward units.

        Args:
            text: the response.
            reward: its true reward.
            kinds: the kinds of its clauses.
        """
        value = reward
        if self.length_bias:
            value += self.length_bias * len(WORD.findall(text)) / 10
        if self.keyword_bias:
            value += self.keyword_bias * len(_KEYWORD.findall(text))
        value += self.flattery_bias * kinds.count("flattery")
        return value + self.repetition_bias * kinds.count("repetition")

    def probability(self, first: float, second: float) -> float:
        """Returns the probability that the first of two responses is preferred, from their utilities."""
        p = sigmoid((first - second) / self.temperature)
        return p + self.flipped * (1 - 2 * p) if self.flipped else p

    def prefers_first(self, first: float, second: float, pair: str) -> bool:
        """Returns the drawn label; the same for the same annotator seed and pair name."""
        return stream("annotator", self.seed, pair).random() < self.probability(first, second)


def bayes_ceiling(pairs: Iterable[Mapping[str, Any]], annotator: Annotator) -> float:
    """Returns the expected accuracy of the best predictor, one that knows the annotator's utilities: mean max(p, 1-p).

    Args:
        pairs: rows of `World.preference_pairs` (their meta holds clauses and true totals).
        annotator: the one that labelled them.

    Raises:
        RecipeError: without any pair.
    """
    ceilings = []
    for row in pairs:
        p = annotator.probability(*pair_utilities(row, annotator))
        ceilings.append(max(p, 1 - p))
    if not ceilings:
        raise RecipeError("bayes_ceiling needs at least one pair")
    return sum(ceilings) / len(ceilings)


def pair_utilities(row: Mapping[str, Any], annotator: Annotator) -> tuple[float, float]:
    """Returns what an annotator feels the chosen and the rejected response of a pair are worth, in reward units."""
    meta = row["meta"]
    chosen, rejected = (
        annotator.utility(row[side], meta[f"true_{side}"], [c[2] for c in meta[f"{side}_clauses"]])
        for side in ("chosen", "rejected")
    )
    return chosen, rejected
