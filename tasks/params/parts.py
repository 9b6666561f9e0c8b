"""Parts that data and reward models provide for stages, and the need of a setting for one; `tasks.graph.needs` compares
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Parts that data may provide for stages, in the words of refusals.
PAIRS, TRUE_REWARDS, CLAUSES = "preference pairs", "true rewards", "the testbed's clauses"
QUESTIONS, TESTBED_QUESTIONS, DIALOGUES = (
    "questions with a 'task'",
    "the testbed's questions",
    "the testbed's dialogues",
)
LONG_FORM, FACTS = "labelled long-form answers", "the facts of the testbed's long-form questions"
#: Parts that a reward model may provide.
TRAINED, TOKENS, SEGMENTS = "trained weights", "values at the policy's tokens", "rewards of segments"
FITTED, REFERENCES = "fitted normalisers", "reference rewards"


@dataclass(frozen=True)
class Need:
    """A part that a setting needs of what its stage reads.

    Attributes:
        part: one of the words above, or `benchmark_part`.
        field, value: the setting that needs it.
    """

    part: str
    field: str
    value: Any


def benchmark_part(name: str) -> str:
    """Returns a benchmark as a part that data may provide."""
    return f"benchmark '{name}'"
