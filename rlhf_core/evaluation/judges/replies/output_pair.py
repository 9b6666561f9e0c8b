"""ALARM, Figure 6: `Output (a)` or `Output (b)`."""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.protocol import JudgeAnswer
from rlhf_core.evaluation.judges.replies.reply_text import MARKUP, after_thought

_OUTPUT = re.compile(rf"\s*{MARKUP}Output \(([ab])\){MARKUP}[.:]?{MARKUP}\s*")


@after_thought
def parse_output_pair(text: str) -> JudgeAnswer:
    """Parses `Output (a)` or `Output (b)`, also emphasised, and nothing else; label A: the first is better.

    Source: ALARM, Figure 6.
    """
    match = _OUTPUT.fullmatch(text)
    return (
        JudgeAnswer(valid=True, label=match[1].upper()) if match else JudgeAnswer.invalid("not one of the two outputs")
    )
