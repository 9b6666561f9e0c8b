"""Answers that a text denies, doubts or takes back, and those that it tells."""

from __future__ import annotations

import re

TRIGGER = re.compile(r"####|the answer is", re.IGNORECASE)
_MODAL = (
    r"(?:can ?not|(?:ca|could|must|wo|would|should)n't|(?:could|must|may|might|will|would|should) not|"
    r"(?:can|could|will|would) never)"
)
_ANSWER_IS_NOT = (
    rf"\bthe (?:\w{{1,12}} )?answer (?:is (?:certainly |surely |definitely )?not|isn't|{_MODAL} (?:be|equal))\b"
)
#: A trigger that denies the answer behind it: `the answer cannot be 5`, but not `the answer cannot be negative`.
DENYING = re.compile(
    rf"{_ANSWER_IS_NOT}(?=[\s:*_`$(\[\"'=]{{1,9}}(?:(?:the|option|choice|number)\s){{0,2}}[(*$]{{0,3}}"
    r"(?:[-+]?[0-9.\\]|(?-i:[A-Zb-z])\b))",
    re.IGNORECASE,
)
_DENIED_IN_WORDS = re.compile(rf"{_ANSWER_IS_NOT}\s(?:(?:an?|the)\s)?[\"'*]{{0,3}}$", re.IGNORECASE)
#: Words directly before an answer that deny it: `it isn't 5`, `7, not 5`, `7 instead of 5`.
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|hardly|no longer|anything but|far from|(?:other|rather) than|instead of|"
    r"by no means)|n't)"
    r"(?:\s(?:be|been|equals?|to|exactly|simply|really|actually|necessarily|possibly|the|an?|number|value|answer|option|"
    r"choice|is)){0,4}\s{0,3}[\s:*_`$(\[\"'=]{0,6}(?:\\(?:boxed|text|textbf|mathrm|\(|\[)\{?){0,2}$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")
#: Words behind a trigger that say that the answer is another one.
DENIED = re.compile(
    r"(?:n't|\W{0,9}(?:(?:of course|definitely|certainly|clearly|surely|probably|actually|simply|also|thus|therefore)"
    r"\W{1,9})?"
    r"(?:not|never|neither|no longer|anything but|hardly|by no means|cannot be|far from|between|"
    r"(?:other|more|less|greater|fewer) than))\b",
    re.IGNORECASE,
)
_AFFIRMED = r"(?:right|correct|true|possible|(?:the|my) (?:right|correct|final|answer))"
#: Words behind an answer that take it back: `5 is wrong`, `5, which isn't right`, `5? No`, `5, wait`.
_TAKEN_BACK = re.compile(
    r"[\s:]{0,9}(?:\$\s)?[^\s,;?]{1,60}(?:\s(?!is\b|was\b|it\b|that\b|this\b|which\b)[A-Za-z]{2,15})?(?:\s?\?\s{1,3}no\b|"
    r"[.,;:]?\s{1,3}(?:[-\u2013\u2014]\s)?(?:(?:wait|sorry|oops|correction|I mean)\b|no[,.:]|"
    r"but (?:it|that|this) should be\b|"
    r"(?:(?:but |and )?(?:which|that|this|it)\s)?(?:(?:is|was|seems|looks|must be|cannot be|can't be|isn't|wasn't)\s"
    r"(?:(?:clearly|obviously|surely|probably|definitely|certainly|simply|just|completely|still|also)\s)?"
    r"(?:wrong|incorrect|false|untrue|impossible|a mistake|"
    rf"not\s{_AFFIRMED})\b(?! to\b)"
    rf"|(?:cannot be|can't be|isn't|wasn't)\s{_AFFIRMED}\b)))",
    re.IGNORECASE,
)
#: Words before a trigger that take what follows back.
_DOUBTED = re.compile(
    r"(?:(?:(?:\bnot|n't) (?:true|correct|right|the case|think|believe|say)|\b(?:doubt|false|wrong|if|whether|unless|"
    r"suppose|assume|assuming|imagine|pretend)|"
    r"\b(?:student|friend|brother|sister|someone|somebody|people|some|he|she|they|it|text|book) "
    r"(?:says?|said|claims?|claimed|thinks?|thought|believes?|believed|guess|guesses|guessed)),? (?:that )?)$",
    re.IGNORECASE,
)
_INSTEAD = re.compile(r"[^\n]{0,200}?\bbut\b", re.IGNORECASE)


def told(tail: str) -> str | None:
    """Returns what a trigger tells: of a denial what follows its 'but', None without one or if it is taken back."""
    if _TAKEN_BACK.match(tail):
        return None
    denied = DENIED.match(tail)
    if denied is None:
        return tail
    instead = _INSTEAD.match(tail, denied.end())
    return tail[instead.end() :] if instead else None


def last_is_doubted(text: str) -> bool:
    """Returns whether the words before the last `The answer is` or `####` deny it, or those behind take it back."""
    triggers = list(TRIGGER.finditer(text))
    return bool(triggers) and (
        is_doubted(text, triggers[-1]) or _TAKEN_BACK.match(text, triggers[-1].end()) is not None
    )


def is_doubted(text: str, trigger: re.Match[str]) -> bool:
    """Returns whether the words before a trigger deny it, as in `I doubt that the answer is 5`."""
    return _DOUBTED.search(text[max(0, trigger.start() - 40) : trigger.start()]) is not None


def answer_told(text: str) -> tuple[str | None, bool]:
    """Returns what the last `The answer is` or `####` tells, None if it is denied, and whether there is one; without
    one, the text."""
    triggers, denying = list(TRIGGER.finditer(text)), list(DENYING.finditer(text))
    if denying and (not triggers or denying[-1].end() > triggers[-1].end()):
        instead = _INSTEAD.match(text, denying[-1].end())
        return (text[instead.end() :] if instead else None), True
    if not triggers:
        return text, False
    return (None if is_doubted(text, triggers[-1]) else told(text[triggers[-1].end() :])), True


def denied_before(text: str, start: int) -> bool:
    """Returns whether the words directly before a place deny what begins there, as in `it isn't 5`."""
    return _DENIED_BEFORE.search(text[max(0, start - 80) : start]) is not None


def denied_in_words(text: str, start: int) -> bool:
    """Returns whether `the answer is not` or `the answer cannot be` is directly before a place."""
    return _DENIED_IN_WORDS.search(text[max(0, start - 80) : start]) is not None


def taken_back(text: str, start: int) -> bool:
    """Returns whether the words behind what begins at a place take it back, as in `5 is not the answer`."""
    return _TAKEN_BACK.match(text, start) is not None


def in_one_sentence(text: str, start: int, end: int) -> bool:
    """Returns whether no sentence ends between two places."""
    return _SENTENCE_END.search(text, start, end) is None


def instead_of(text: str, start: int) -> int | None:
    """Returns the place behind the `but` that follows a denied answer, None without one."""
    found = _INSTEAD.match(text, start)
    return None if found is None else found.end()
