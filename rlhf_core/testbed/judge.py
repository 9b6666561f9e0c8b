"""The gold judge: verdicts from the true reward, through the same text an LLM judge would send.

Personas: `exact` sees true rewards; `noisy` sees them with Gaussian noise and now and then answers what no
parser accepts; `position_biased` likes the answer shown first; `length_biased` likes longer answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_core.errors import JudgeError, RecipeError
from rlhf_core.testbed.annotator import DEFAULT_TEMPERATURE, sigmoid
from rlhf_core.testbed.grammar import WORD
from rlhf_core.testbed.knowledge import stream
from rlhf_core.testbed.rewards import Meta


class GoldWorld(Protocol):
    """A world of the testbed, as far as true rewards go."""

    @property
    def unit(self) -> float:
        """Returns what thresholds and noise that are stated in reward units are multiplied by."""

    def true_reward(self, meta: Meta, text: str) -> float:
        """True reward of a response to the prompt of this meta, in reward units."""

    def anchor_rewards(self, meta: Meta) -> list[float]:
        """Returns the sorted true rewards of the prompt's fixed pool of graded answers."""


class GoldRequest(Protocol):
    """The part of `rlhf_core.evaluation.judges.protocol.JudgeRequest` that the gold judge reads."""

    @property
    def id(self) -> str: ...
    @property
    def answers(self) -> tuple[str, ...]: ...
    @property
    def template(self) -> str: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Persona:
    """Departures of a judge from the truth, in reward units of the default world.

    Attributes:
        noise: standard deviation of the error on each answer's reward.
        first_bonus: added to the answer shown first.
        per_ten_words: added for every ten words of an answer beyond `USUAL_WORDS`.
        unparsable_share: share of verdicts that hold none.
    """

    noise: float = 0.0
    first_bonus: float = 0.0
    per_ten_words: float = 0.0
    unparsable_share: float = 0.0


PERSONAS: dict[str, Persona] = {
    "exact": Persona(),
    "noisy": Persona(noise=1.0, unparsable_share=0.02),
    "position_biased": Persona(first_bonus=1.0),
    "length_biased": Persona(per_ten_words=0.7),
}

USUAL_WORDS = 28
"""Length that the length-biased judge neither likes nor dislikes, in words; the mixture has 24 on average."""

TIE_MARGIN = 0.1
"""Reward difference, in units of the world, up to which `arena_hard`, `pairwise` and `ranking` call a tie."""

CLEAR_MARGIN = 1.5
"""Reward difference, in units of the world, from which `arena_hard` answers with a double sign."""


def _alpaca_eval(judge: GoldJudge, values: list[float], request: GoldRequest) -> str:
    return f"preference: {1 + sigmoid((values[1] - values[0]) / (judge.temperature * judge.world.unit)):.6f}"


def _arena_hard(judge: GoldJudge, values: list[float], request: GoldRequest) -> str:
    difference = values[0] - values[1]
    if abs(difference) <= TIE_MARGIN * judge.world.unit:
        return "Both answers are worth the same. My final verdict is: [[A=B]]"
    better, worse = ("A", "B") if difference > 0 else ("B", "A")
    sign = ">>" if abs(difference) >= CLEAR_MARGIN * judge.world.unit else ">"
    return f"Assistant {better} is better. My final verdict is: [[{better}{sign}{worse}]]"


def _mt_bench(judge: GoldJudge, values: list[float], request: GoldRequest) -> str:
    anchors = judge.world.anchor_rewards(request.meta["prompt"])
    rank = (bisect_left(anchors, values[0] - 1e-9) + bisect_right(anchors, values[0] + 1e-9)) / 2
    return f"Rating: [[{1 + round(9 * rank / len(anchors))}]]"


def _pairwise(judge: GoldJudge, values: list[float], request: GoldRequest) -> str:
    difference = values[0] - values[1]
    label = "N" if abs(difference) <= TIE_MARGIN * judge.world.unit else "A" if difference > 0 else "B"
    return f"Better: {label}"


def _ranking(judge: GoldJudge, values: list[float], request: GoldRequest) -> str:
    difference = values[0] - values[1]
    ranks = (1, 1) if abs(difference) <= TIE_MARGIN * judge.world.unit else (1, 2) if difference > 0 else (2, 1)
    return str([{"model": f"model_{i}", "rank": rank} for i, rank in enumerate(ranks, start=1)])


def _output_pair(judge: GoldJudge, values: list[float], request: GoldRequest) -> str:
    """Names the better output, the first of two equal ones: the prompt allows no tie, so both orders never agree."""
    return f"Output ({'a' if values[0] >= values[1] else 'b'})"


_TEMPLATES: dict[str, tuple[int, Callable[[GoldJudge, list[float], GoldRequest], str]]] = {
    "alpaca_eval": (2, _alpaca_eval),
    "arena_hard": (2, _arena_hard),
    "mt_bench": (1, _mt_bench),
    "pairwise": (2, _pairwise),
    "ranking": (2, _ranking),
    "output_pair": (2, _output_pair),
}


class GoldJudge:
    """A judge that knows the world; deterministic given its seed and the request's id.

    Args:
        world: the world that made the prompts.
        persona: one of `PERSONAS`.
        seed: of the noise.
        temperature: of the soft preference of `alpaca_eval`, in units of the world.

    Raises:
        RecipeError: for an unknown persona.
    """

    def __init__(
        self, world: GoldWorld, persona: str = "exact", seed: int = 0, temperature: float = DEFAULT_TEMPERATURE
    ) -> None:
        if persona not in PERSONAS:
            raise RecipeError(f"unknown judge persona '{persona}', known are {', '.join(PERSONAS)}")
        self.world, self.persona, self.seed, self.temperature = world, PERSONAS[persona], seed, temperature
        self.name = f"gold-{persona}" if persona == "exact" else f"gold-{persona}-{seed}"

    def answer(self, requests: Sequence[GoldRequest]) -> list[str]:
        """Returns the verdict text of each request.

        `request.meta["prompt"]` is the meta of the prompt judged (for a second turn, the second turn's).

        Raises:
            JudgeError: for an unknown template, a wrong number of answers or a missing prompt meta.
        """
        return [self._verdict(request) for request in requests]

    def _verdict(self, request: GoldRequest) -> str:
        if request.template not in _TEMPLATES:
            known = ", ".join(_TEMPLATES)
            raise JudgeError(f"request {request.id}: unknown template '{request.template}', known are {known}")
        count, form = _TEMPLATES[request.template]
        if len(request.answers) != count:
            raise JudgeError(
                f"request {request.id}: {request.template} judges {count} answers, not {len(request.answers)}"
            )
        if "prompt" not in request.meta:
            raise JudgeError(f"request {request.id}: the gold judge needs the prompt's meta under 'prompt'")
        rng = stream("judge", self.name, self.seed, request.id)
        unit = self.world.unit
        values = [
            self.world.true_reward(request.meta["prompt"], text)
            + unit * self.persona.noise * rng.gauss(0, 1)
            + unit * self.persona.per_ten_words * (len(WORD.findall(text)) - USUAL_WORDS) / 10
            for text in request.answers
        ]
        if count == 2:
            values[0] += unit * self.persona.first_bonus
        if rng.random() < self.persona.unparsable_share:
            return "I cannot decide between these answers."
        return form(self, values, request)
