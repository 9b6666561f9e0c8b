"""PAR, Listing 1: a last line `Better: A`, `Better: B` or `Better: N`."""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.protocol import JudgeAnswer
from rlhf_core.evaluation.judges.replies.attribution import attributes, supposes
from rlhf_core.evaluation.judges.replies.quotation import is_told
from rlhf_core.evaluation.judges.replies.reply_text import (
    BETTER_LIKE,
    END,
    MARKUP,
    after_thought,
    arena_like,
    folded,
)

_BETTER_LINE = re.compile(rf"^{MARKUP}Better:(.*)$", re.MULTILINE)
#: A letter, then at most a full stop, a remark in parentheses or a reason.
_BETTER = re.compile(
    rf"{MARKUP}([ABN]){MARKUP}(?:\.?{MARKUP}|\.?[ \t]*\(([^()]*)\)\.?{MARKUP}|,?[ \t]+because\b(.*))\r?"
)
_WORSE_LIKE = re.compile(r"(?i:worse|loser)[\s*_`]{0,9}[:=][\s*_`]{0,9}([AB])\b")
_LABEL = re.compile(r"\b[ABN]\b")
#: Words of a remark or reason that may turn a verdict round.
_DOUBT = re.compile(
    r"\b(?:no|not|never|neither|nor|cannot|but|however|although|though|wrong|other|first|second|former|latter|actually|"
    r"wait|instead|rather|worse|tie|equal|both|or|better|unless|if|maybe|perhaps|unsure|hardly|barely|nobody|lower|loses|"
    r"lost|sarcasm|joke|kidding)\b|n't\b|\?",
    re.IGNORECASE,
)
#: A reason that is the answer's own demand.
_TOLD_SO = re.compile(
    r"\b(?:(?:says|claims|told|tells|asks|asked|orders|wants|instructs?|demands?|begs)\b.{0,20}\b(?:so|me|it|to|that)"
    r"|it (?:says|claims|demands|insists))\b",
    re.IGNORECASE,
)
#: Words that speak against an answer, which a reason may say of the other answer alone.
_AGAINST = re.compile(r"\b(?:less|least|lacks?|fails?|terrible|bad|poor|incorrect|weak|weaker|worst)\b", re.IGNORECASE)


@after_thought
def parse_pairwise(text: str) -> JudgeAnswer:
    """Returns the verdict of a last line that starts with `Better: A`, `Better: B` or `Better: N`, the letter as a
    whole word (PAR).

    Behind the letter may stand a remark in parentheses that names no other letter, or a reason after 'because'; neither
    has words that may turn the verdict round. Several such lines must agree; `Better: A or B`, `Better: A < B` and
    `Better: A is worse than B` name no winner.
    """
    lines = list(_BETTER_LINE.finditer(text))
    if not lines:
        return JudgeAnswer.invalid("no verdict line")
    labels = set()
    for line in lines:
        match = _BETTER.fullmatch(line[1])
        if match is None or set(_LABEL.findall(match[2] or "")) - {match[1]} or _turns_round(match):
            return JudgeAnswer.invalid("a verdict line that names no winner")
        labels.add(match[1])
    if len(labels) > 1:
        return JudgeAnswer.invalid("several different verdicts")
    (label,), seen = labels, folded(text)
    others = {*BETTER_LIKE.findall(seen)} - {label} or label in _WORSE_LIKE.findall(seen) or arena_like(seen)
    if others or END.fullmatch(text, lines[-1].end()) is None:
        return JudgeAnswer.invalid("a verdict that the rest of the reply takes back")
    if is_told(text, lines[-1]):
        return JudgeAnswer.invalid("a quoted or conditional verdict")
    return JudgeAnswer(valid=True, label=label)


def _turns_round(verdict: re.Match[str]) -> bool:
    """Returns whether the remark or the reason of a verdict line may turn it round."""
    remark, reason = verdict[2] or "", verdict[3]
    if attributes(remark) or supposes(remark) or _TOLD_SO.search(reason or ""):
        return True
    bare = any(told is not None and not re.search(r"[A-Za-z]{2}", told) for told in (verdict[2], reason))
    against = reason is not None and _AGAINST.search(reason) and not set(_LABEL.findall(reason)) - {verdict[1]}
    return bare or bool(against) or _DOUBT.search(f"{remark} {reason or ''}") is not None
