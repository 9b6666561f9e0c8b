"""Numbers that settings often are, and the parts that data and reward models provide for stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.typed import at_least, between
from rlhf_core.typed import typed as typed

#: The scale of commands that name none; its demo rows are in the root dvc.yaml.
DEFAULT_SCALE = "testbed"
#: Numbers that settings often are.
Count = Annotated[int, at_least(1)]
Size = Annotated[int, at_least(0)]
Share = Annotated[float, between(0, 1)]
InnerShare = Annotated[float, between(0, 1, open_low=True, open_high=True)]

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
    """A part that a setting needs of what its stage reads; `tasks.graph.needs` compares it with what is provided.

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
