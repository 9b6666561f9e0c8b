"""AlpacaEval 2.0: the identifier `m` or `M`, here also a last line `preference: x`, and log-probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from rlhf_core.evaluation.judges.protocol import JudgeAnswer
from rlhf_core.evaluation.judges.replies.quotation import is_told
from rlhf_core.evaluation.judges.replies.reply_text import after_thought, folded, number, stands

_PREFERENCE = re.compile(r"^[ \t]*preference:[ \t]*([0-9](?:\.[0-9]{1,30})?)[ \t]*\r?$", re.MULTILINE)
_PREFERENCE_LIKE = re.compile(r"preference[\s*_`]{0,9}[:=][\s*_`]{0,9}([0-9]{0,9}(?:[.,][0-9]{1,30})*)", re.IGNORECASE)
_IDENTIFIER_LINE = re.compile(r"^[ \t]*[mM][ \t]*\r?$", re.MULTILINE)


@after_thought
def parse_alpaca_eval(text: str) -> JudgeAnswer:
    """Returns the soft preference in [1, 2]; 2 means that the second answer shown is better.

    Accepts a last line `preference: x` (several lines only if they agree), or the whole answer being the
    model identifier `m` (1, first answer) or `M` (2, second answer), case-sensitive as in AlpacaEval.
    """
    found = list(_PREFERENCE.finditer(text))
    values = {float(each[1]) for each in found}
    if len(values) > 1:
        return JudgeAnswer.invalid("several different preferences")
    if values:
        value = values.pop()
        others = {each.strip(".,") for each in _PREFERENCE_LIKE.findall(folded(text))}
        if not stands(text, found[-1]) or _IDENTIFIER_LINE.search(text) or any(number(one) != value for one in others):
            return JudgeAnswer.invalid("a preference that the rest of the reply takes back")
        if is_told(text, found[-1]):
            return JudgeAnswer.invalid("a quoted preference")
        if not 1.0 <= value <= 2.0:
            return JudgeAnswer.invalid(f"preference {value:g} outside [1, 2]")
        return JudgeAnswer(valid=True, value=value)
    label = text.strip()
    if label in ("m", "M"):
        return JudgeAnswer(valid=True, value=1.0 if label == "m" else 2.0)
    return JudgeAnswer.invalid("no preference")


def preference_from_logprobs(logprobs: Mapping[str, float]) -> float | None:
    """Returns AlpacaEval's weighted annotator: `2 - p(m) / (p(m) + p(M))` of the first generated token.

    Args:
        logprobs: token -> log-probability (nats) of the first generated token.

    Returns:
        Preference in [1, 2] (2: the second answer is better); None if neither `m` nor `M` is listed. A
        token that is not listed has probability 0.
    """
    first, second = logprobs.get("m", -math.inf), logprobs.get("M", -math.inf)
    if max(first, second) == -math.inf or math.isnan(first) or math.isnan(second):
        return None
    gap = first - second
    p_first = 1.0 / (1.0 + math.exp(-gap)) if gap >= 0 else math.exp(gap) / (1.0 + math.exp(gap))
    return 2.0 - p_first
