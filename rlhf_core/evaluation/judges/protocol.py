"""Interface of a judge: requests in, raw verdict text out; another module parses the text strictly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class JudgeRequest:
    """One question to a judge.

    Attributes:
        id: stable identifier; unique within one call.
        prompt: the user's prompt (for two turns, the rendered dialogue).
        answers: the answers in the order shown: one for `mt_bench`, two for the pairwise templates.
        template: name of the template in `rlhf_core.evaluation.judges.templates`.
        meta: prompt meta data for judges that know the world (`reference` for an LLM with a reference
            answer); never shown to an LLM judge except `reference`.
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    template: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Judge(Protocol):
    """Answers requests with verdict text.

    A judge that could not answer a request (network down after all retries, refused) returns the empty
    string for it, which no parser accepts; the games count it as unparsable.
    """

    name: str

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        """Returns the raw verdict text of each request, in order."""
        ...


#: Verdict of a reply, None if it is unreadable. A number is a soft preference in [1, 2], 2 where the second is better
#: (`alpaca_eval`), or a score from 1 to 10 (`mt_bench`); a label is A>>B, A>B, A=B, B>A or B>>A (`arena_hard`),
#: or A, B or N.
Verdict = float | str | None
