"""The gold judge: verdicts from the true reward, through the same text an LLM judge would send.

Personas: `exact` sees true rewards; `noisy` sees them with Gaussian noise and now and then answers what no
parser accepts; `position_biased` likes the answer shown first; `length_biased` likes longer answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import JudgeError
from rlhf_core.testbed.annotator import DEFAULT_TEMPERATURE, sigmoid
from rlhf_core.testbed.grammar import WORD
from rlhf_core.testbed.knowledge import GoldWorld, stream


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


class GoldJudge:
    """A judge that knows the world; deterministic given its seed and the request's id.

    Args:
        world: the world that made the prompts.
        persona: one of `PERSONAS`.
        seed: of the noise.
        temperature: of the soft preference of `alpaca_eval`, in units of the world.
    """

    def __init__(
        self, world: GoldWorld, persona: str = "exact", seed: int = 0, temperature: float = DEFAULT_TEMPERATURE
    ) -> None:
        self.world, self.persona, self.seed, self.temperature = world, PERSONAS[persona], seed, temperature
        self.name = f"gold-{persona}" if persona == "exact" else f"gold-{persona}-{seed}"

    def answer(self, requests: Sequence[Any]) -> list[str]:
        """Returns the verdict text of each request.

        `request.meta["prompt"]` is the meta of the prompt judged (for a second turn, the second turn's).

        Raises:
            JudgeError: a template that asks a language model only.
        """
        return [self._verdict(request) for request in requests]

    def _verdict(self, request: Any) -> str:
        rng = stream("judge", self.name, self.seed, request.id)
        unit, meta = self.world.unit, request.meta["prompt"]
        values = [
            self.world.true_reward(meta, text)
            + unit * self.persona.noise * rng.gauss(0, 1)
            + unit * self.persona.per_ten_words * (len(WORD.findall(text)) - USUAL_WORDS) / 10
            for text in request.answers
        ]
        if len(values) == 2:
            values[0] += unit * self.persona.first_bonus
        if rng.random() < self.persona.unparsable_share:
            return "I cannot decide between these answers."
        if request.template == "mt_bench":
            anchors = self.world.anchor_rewards(meta)
            rank = (bisect_left(anchors, values[0] - 1e-9) + bisect_right(anchors, values[0] + 1e-9)) / 2
            return f"Rating: [[{1 + round(9 * rank / len(anchors))}]]"
        return self._comparison(request.template, *values)

    def _comparison(self, template: str, first: float, second: float) -> str:
        """Returns the verdict on two answers in the form of a template."""
        unit, gap = self.world.unit, abs(first - second)
        better = "N" if gap <= TIE_MARGIN * unit else "A" if first > second else "B"
        if template == "alpaca_eval":
            return f"preference: {1 + sigmoid((second - first) / (self.temperature * unit)):.6f}"
        if template == "arena_hard":
            if better == "N":
                return "Both answers are worth the same. My final verdict is: [[A=B]]"
            verdict = f"{better}{'>>' if gap >= CLEAR_MARGIN * unit else '>'}{'B' if better == 'A' else 'A'}"
            return f"Assistant {better} is better. My final verdict is: [[{verdict}]]"
        if template == "pairwise":
            return f"Better: {better}"
        if template == "ranking":
            ranks = {"N": (1, 1), "A": (1, 2), "B": (2, 1)}[better]
            return str([{"model": f"model_{i}", "rank": rank} for i, rank in enumerate(ranks, start=1)])
        if template == "output_pair":  # the prompt allows no tie: the first of equal ones, so both orders never agree
            return f"Output ({'a' if first >= second else 'b'})"
        raise JudgeError(f"the gold judge has no answer in the form of template '{template}'")
