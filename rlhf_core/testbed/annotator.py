"""Bradley-Terry annotators with chosen biases: their labels, the accuracy nobody can beat on these, and temperatures
that follow from such an accuracy.

A dial changes how far the rewards of two responses are apart, and with it how hard their labels are to predict. The
calibrated temperature keeps the Bayes ceiling where it is, so the dial moves nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.testbed.grammar import KEYWORD, WORD
from rlhf_core.testbed.knowledge import Row, stream
from rlhf_core.testbed.rewards import DEFAULT, Clause, Dials, clause_rows
from rlhf_core.typed import Checked, Seed, above, between, typed

if TYPE_CHECKING:
    from rlhf_core.testbed.world import World

_KEYWORD = re.compile(rf"\b{KEYWORD}\b", re.IGNORECASE)

DEFAULT_TEMPERATURE = 0.75

CALIBRATED = "calibrated"
"""Temperature of an annotator in a data spec that `calibrated_temperature` finds."""

DEFAULT_CEILING = 0.83
"""Bayes ceiling of the unbiased annotator at the default temperature of .75 in the default world."""

PAIRS = 4000
"""Pairs that a temperature is fitted to; the ceiling of other pairs differs by .003 (standard error)."""

SEED = -1
"""Seed of these pairs, which no data set has."""

BIASES = ("length_bias", "flattery_bias", "keyword_bias", "repetition_bias")

#: A response, its clauses and its true reward.
Candidate = tuple[str, Sequence[Clause], float]


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

    def prefers_first(self, sides: Sequence[Candidate], pair: str) -> bool:
        """Returns the drawn label of two responses; the same for the same annotator seed and pair name."""
        first, second = (self.utility(text, true, [c.kind for c in clauses]) for text, clauses, true in sides)
        return stream("annotator", self.seed, pair).random() < self.probability(first, second)


def preference(
    sides: Sequence[Candidate], first_is_better: bool, meta: Mapping[str, Any], dials: Dials = DEFAULT
) -> Row:
    """Returns {chosen, rejected, meta} of two responses; the meta has both sides' `clause_rows` and true rewards."""
    chosen, rejected = sides if first_is_better else (sides[1], sides[0])
    truth: Row = {}
    for name, (_, clauses, true) in (("chosen", chosen), ("rejected", rejected)):
        truth |= {f"{name}_clauses": clause_rows(clauses, dials), f"true_{name}": true}
    return {"chosen": chosen[0], "rejected": rejected[0], "meta": {**meta, **truth}}


def bayes_ceiling(pairs: Iterable[Mapping[str, Any]], annotator: Annotator) -> float:
    """Returns the expected accuracy of the best predictor, one that knows the annotator's utilities: mean max(p, 1-p).

    Args:
        pairs: rows of `World.preference_pairs` (their meta holds clauses and true totals).
        annotator: the one that labelled them.
    """
    chances = [annotator.probability(*_utilities(row, annotator)) for row in pairs]
    return sum(max(p, 1 - p) for p in chances) / len(chances)


def _utilities(row: Mapping[str, Any], annotator: Annotator) -> tuple[float, float]:
    """Returns what an annotator feels the chosen and the rejected response of a pair are worth, in reward units."""
    meta = row["meta"]
    chosen, rejected = (
        annotator.utility(row[side], meta[f"true_{side}"], [c[2] for c in meta[f"{side}_clauses"]])
        for side in ("chosen", "rejected")
    )
    return chosen, rejected


def calibrated_temperature(world: World, target: float = DEFAULT_CEILING, annotator: Annotator | None = None) -> float:
    """Returns the temperature at which the Bayes ceiling of a world's pairs is `target`, to four digits.

    Args:
        world: draws the pairs, always the same ones.
        target: the ceiling, between .5 and 1.
        annotator: its biases count; its temperature and flipped labels do not.

    Raises:
        RecipeError: a ceiling that no temperature between 1e-4 and 1e4 has.
    """
    biased = annotator or Annotator()
    pairs = (_utilities(row, biased) for row in world.preference_pairs(PAIRS, SEED))
    gaps = [abs(first - second) for first, second in pairs]
    low, high = math.log(1e-4), math.log(1e4)
    if not _ceiling(gaps, high) < target < _ceiling(gaps, low):
        raise RecipeError(
            f"ceiling is {target:g}; in this world it must be between {_ceiling(gaps, high):.3f} and "
            f"{_ceiling(gaps, low):.3f}"
        )
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if _ceiling(gaps, middle) > target else (low, middle)
    return float(f"{math.exp(low):.4g}")


def _ceiling(gaps: Sequence[float], log_temperature: float) -> float:
    temperature = math.exp(log_temperature)
    return sum(sigmoid(gap / temperature) for gap in gaps) / len(gaps)


def check_annotator(settings: Mapping[str, Any]) -> None:
    """Refuses settings of an annotator that `annotator_of` does not take.

    Raises:
        RecipeError: an unknown field, a value that its field does not allow, or a ceiling without calibration.
    """
    given = {name: value for name, value in settings.items() if name != "ceiling"}
    temperature, ceiling = given.get("temperature"), settings.get("ceiling")
    if isinstance(temperature, str):
        if temperature != CALIBRATED:
            raise RecipeError(f"annotator: temperature is '{temperature}'{hint(temperature, (CALIBRATED,))}")
        del given["temperature"]
    elif "ceiling" in settings:
        raise RecipeError("annotator: ceiling belongs to 'temperature: calibrated'; leave it out, or calibrate")
    if ceiling is not None and not (isinstance(ceiling, float) and 0.5 < ceiling < 1):
        raise RecipeError(f"annotator: ceiling is {ceiling}; it must be between 0.5 and 1, both excluded")
    typed(Annotator, given, "annotator")


def annotator_of(settings: Mapping[str, Any], world: World) -> Annotator:
    """Returns the annotator of a data spec: fields of `Annotator`, or `temperature: calibrated` with `ceiling`.

    Biases are in the world's unit, so that a flaw is as strong beside the true reward at every setting of a dial.
    """
    check_annotator(settings)
    given = {name: value * world.unit if name in BIASES else value for name, value in settings.items()}
    target = given.pop("ceiling", None) or DEFAULT_CEILING
    if given.get("temperature") != CALIBRATED:
        return Annotator(**given)
    del given["temperature"]
    annotator = Annotator(**given)
    return replace(annotator, temperature=calibrated_temperature(world, target, annotator))
