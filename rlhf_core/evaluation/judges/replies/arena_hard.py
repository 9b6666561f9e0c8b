"""Arena-Hard v0.1: one of five verdicts in double brackets."""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.protocol import JudgeAnswer
from rlhf_core.evaluation.judges.replies.attribution import attributes_behind
from rlhf_core.evaluation.judges.replies.quotation import is_told
from rlhf_core.evaluation.judges.replies.reply_text import BETTER_LIKE, after_thought, arena_like, folded, stands

ARENA_LABELS = ("A>>B", "A>B", "A=B", "B>A", "B>>A")

#: Words below a verdict that may take it back: another verdict, a question, doubt, and the mark of a cut reply.
_TAKEN_BACK = re.compile(
    r"[\[\]<>~=|?]|\b(?:actually|wait|instead|rather|correction|sorry|oops|second thought|changed? my|disregard|ignore|"
    r"take (?:it|that|this) back|mistake\w*|revis\w*|updat\w*|reconsider\w*|final|verdict|rating|score|winner|"
    r"would have|should (?:be|have)|sarcas\w*|jok(?:e|ing)|kidding|(?:is|was|am|are) (?:wrong|incorrect|false)|"
    r"not (?:the|my|an?|what|so|true|right|correct|really|serious))\b|n't\b|\bcut off at max_tokens\b",
    re.IGNORECASE,
)
_ARENA = re.compile(r"\[\[([AB<>=]{1,9})\]\]")
#: A winner in the words of Arena-Hard's prompt.
_WORDS = (
    r"(?:the )?assistant (?P<{0}>[AB])(?:'s (?:answer|response))? is "
    r"(?:(?P<{0}_far>significantly|much|far|considerably)|(?P<{0}_near>slightly|marginally|somewhat|a bit))? ?"
    r"better(?: than (?:assistant )?[AB])?"
    r"|(?:it is )?(?:an? )?(?P<{0}_tie>tie|(?:about|relatively|roughly) the same|equally good)"
)
#: These words right before a verdict, and right behind it on its line.
_SAID_BEFORE = re.compile(rf"\b(?:{_WORDS.format('before')})\b[^\w\[]{{0,9}}$", re.IGNORECASE)
_SAID_BEHIND = re.compile(
    rf"[\s*_`:,(\u2013\u2014-]{{0,9}}(?:{_WORDS.format('behind')})(?:, relatively the same)?\b[^\w\n\[?<>=|]{{0,9}}$",
    re.IGNORECASE | re.MULTILINE,
)


def _contradicts(said: re.Match[str] | None, where: str, label: str) -> bool:
    """Returns whether a verdict in words is another than one of the five labels."""
    if said is None:
        return False
    if said[f"{where}_tie"]:
        return label != "A=B"
    strong, weak = said[f"{where}_far"], said[f"{where}_near"]
    far = ">>" in label
    return said[where].upper() != label[0] or label == "A=B" or bool(strong and not far) or bool(weak and far)


def _holds(text: str, verdict: re.Match[str], end: int) -> bool:
    """Returns whether a verdict in brackets, told in words up to `end`, ends its reply, or its line with reasons below
    that do not take it back."""
    if stands(text, verdict, end):
        return True
    line, _, reasons = text[end:].partition("\n")
    on_its_own = stands(text[:end] + line, verdict, end)
    seen = folded(reasons)
    return on_its_own and not _TAKEN_BACK.search(seen) and not attributes_behind(seen)


@after_thought
def parse_arena_hard(text: str) -> JudgeAnswer:
    """Returns one of five verdicts in double brackets (Arena-Hard v0.1, `get_score`), at the end of the reply or of
    its line.

    Repeated equal verdicts are one verdict; different ones are none. A bracketed comparison outside the five
    labels (`[[A<B]]`) is invalid, as in the official scoring.
    """
    found = list(_ARENA.finditer(text))
    labels = {each[1] for each in found}
    if not found:
        return JudgeAnswer.invalid("no verdict")
    if len(labels) > 1:
        return JudgeAnswer.invalid("several different verdicts")
    label = labels.pop()
    if label not in ARENA_LABELS:
        return JudgeAnswer.invalid(f"unknown verdict {label}")
    seen, last = folded(text), found[-1]
    winner = "N" if label == "A=B" else label[0]
    behind = _SAID_BEHIND.match(text, last.end())
    held = _holds(text, last, behind.end() if behind else last.end())
    if not held or arena_like(seen) != {label} or {*BETTER_LIKE.findall(seen)} - {winner}:
        return JudgeAnswer.invalid("a verdict that the rest of the reply takes back")
    if is_told(text, last):
        return JudgeAnswer.invalid("a quoted or conditional verdict")
    before = _SAID_BEFORE.search(text[max(0, last.start() - 80) : last.start()])
    if _contradicts(before, "before", label) or _contradicts(behind, "behind", label):
        return JudgeAnswer.invalid("a verdict in words and another in brackets")
    return JudgeAnswer(valid=True, label=label)
