"""Sentences that lead to a verdict without giving it: somebody else's words, a condition, an example, a past opinion.

`Assistant B writes: [[B>A]]`, `The injected line was [[10]]` and `If B were right: [[B>A]]` give no verdict. In
`Assistant B says that 2 + 2 = 5, so my final verdict is: [[A>B]]` the judge takes the word again: a conjunction and
words that introduce a judge's own verdict, directly in front of it.
"""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.replies.wordings import (
    ABROAD,
    ANNOUNCES,
    ATTRIBUTES,
    BEHIND,
    CONJUNCTION,
    ENDS_IN_TEXT,
    EVALUATES,
    EXAMPLE,
    FOLLOWS,
    FORMER,
    GIVEN,
    HOLDS,
    IMAGINES,
    LEADS,
    MIGHT,
    NAMES_SPEAKER,
    NEGATED_BEFORE_COLON,
    NOUN_ALONE,
    OBJECT,
    OWN,
    OWNED,
    SUPPOSES,
    TAKES_THE_WORD,
)

#: Characters of the longest sentence that is searched; a verdict behind a longer one is not read.
_LONGEST = 1000
_QUOTED = re.compile('"[^"]*"|\u201c[^\u201d]*\u201d|`[^`]*`')


def attributes(text: str) -> bool:
    """Returns whether a sentence tells what somebody else says, wants or quotes."""
    end = text[-_LONGEST:]
    return bool(ATTRIBUTES.search(end) or ABROAD.search(end))


def supposes(text: str) -> bool:
    """Returns whether a sentence has a condition."""
    return SUPPOSES.search(text[-_LONGEST:]) is not None


def is_own(text: str) -> bool:
    """Returns whether a text is nothing but a judge's introduction of its own verdict."""
    own = _own(text)
    return own is not None and not text[: own.start()].strip() and not _tells_own(own, "")


def tells(sentence: str) -> bool:
    """Returns whether the words of a sentence in front of a verdict make it no verdict of the judge: they attribute it
    to somebody else, or make it conditional, an example or a former opinion."""
    own = _own(sentence)
    if len(sentence) > _LONGEST:
        return True
    if own is None:
        return _tells_without_introduction(sentence) or _holds(sentence)
    lead = sentence[: len(sentence) - len(own[0])]
    if _tells_own(own, lead):
        return True
    if not lead.strip() or is_own(lead):
        return False
    if _is_object(own, lead):
        return True
    taken = own["thus"] is not None or TAKES_THE_WORD.search(lead) is not None
    return _takes_away(lead, taken=taken) if taken or GIVEN.match(lead) else _tells_without_introduction(lead)


def _tells_without_introduction(lead: str) -> bool:
    lead = CONJUNCTION.sub("", lead[-_LONGEST:])
    end = lead[-240:]
    if attributes(lead) or supposes(lead) or LEADS.search(end) or EXAMPLE.search(end) or FORMER.search(end):
        return True
    if NEGATED_BEFORE_COLON.search(end) or OBJECT.search(end) or OWNED.search(end):
        return True
    if lead.rstrip().endswith(":") and not EVALUATES.search(end):
        return True
    return MIGHT.search(re.split(r"[:\u2013\u2014]\s", end[:-3])[-1] + end[-3:]) is not None


def _own(sentence: str) -> re.Match[str] | None:
    """Returns the introduction of a judge's own verdict that a sentence ends in."""
    tail = sentence[-240:]
    own = OWN.search(tail)
    return own if own is not None and own[0].strip() else None


def _tells_own(own: re.Match[str], lead: str) -> bool:
    """Returns whether a judge's introduction holds somebody else's words, a former opinion or a condition itself."""
    rest = " ".join(own[group] or "" for group in ("of", "rest", "how"))
    taken = not lead.strip() or own["thus"] or TAKES_THE_WORD.search(lead)
    would = own["would"] is not None and not taken
    former = FORMER.search(own[0]) or NEGATED_BEFORE_COLON.search(own[0])
    return bool(would or former or attributes(rest) or LEADS.search(rest) or supposes(rest) or EXAMPLE.search(own[0]))


def _is_object(own: re.Match[str], lead: str) -> bool:
    """Returns whether an introduction without a verb may be an object of the clause in front of it, as in `The answer
    includes a note and Rating:`; so may one with a capital, as in `and My verdict is`, and any directly behind the
    verb, as in `Assistant B bears I rate it`."""
    continues = NOUN_ALONE.fullmatch(own[0]) or re.match(r"\W*(?!I\b)[A-Z]", own[0])
    clause = lead[-_LONGEST:].rstrip()
    bare = not GIVEN.match(clause) and any(verb.end() == len(clause) for verb in HOLDS.finditer(clause))
    return own["thus"] is None and (bare or (continues is not None and _holds(lead)))


def _holds(lead: str) -> bool:
    """Returns whether a clause about an answer is open, so that a verdict behind it may be its object."""
    return not GIVEN.match(lead) and HOLDS.search(_QUOTED.sub('""', lead[-_LONGEST:])) is not None


def _takes_away(lead: str, *, taken: bool) -> bool:
    """Returns whether the words in front of a judge's introduction make the verdict another's or conditional; `taken`
    tells that a conjunction joins them."""
    said = [*ATTRIBUTES.finditer(lead), *ABROAD.finditer(lead)]
    condition = SUPPOSES.search(lead)
    if condition is not None and not (taken and lead[: condition.start()].strip()):
        return True
    if not said:
        return False
    last = max(match.end() for match in said)
    if ":" in lead[min(match.start() for match in said) :] or not re.search(r"\w", lead[last:]):
        return True
    rest = lead[last:].rstrip()
    taken = taken and not re.search(r"[^,\s]\s+and\s*$", rest)  # `says that it is right and my verdict is`
    return not taken and not (rest.endswith(",") and len(re.findall(r"\w+", rest)) > 1)


def announces(sentence: str) -> bool:
    """Returns whether a sentence without a verdict, a line above it, says that somebody else's words follow."""
    tail = sentence[-240:]
    return bool(ANNOUNCES.search(tail) or (attributes(sentence) and FOLLOWS.search(tail)))


def announces_text(item: str) -> bool:
    """Returns whether an item of a list ends in words that name a text, and so announces it."""
    return announces(item) and ENDS_IN_TEXT.search(item[-80:]) is not None


def trails_off(line: str) -> bool:
    """Returns whether a line breaks off in front of a verdict that it does not introduce as the judge's own."""
    end = line[-240:]
    found = (pattern.search(end) for pattern in (LEADS, EXAMPLE, FORMER, OBJECT, NEGATED_BEFORE_COLON))
    return not is_own(line) and any(found)


def names_speaker(heading: str) -> bool:
    """Returns whether a heading says whose words follow, as `Assistant B's answer`."""
    return NAMES_SPEAKER.fullmatch(heading) is not None


def is_fragment_of_condition(sentence: str) -> bool:
    """Returns whether a whole sentence is a condition alone (`Suppose B were right.`)."""
    supposed = IMAGINES.match(sentence)
    return bool(supposed or (SUPPOSES.match(sentence) and "," not in sentence and " then " not in sentence))


def attributes_behind(reasons: str) -> bool:
    """Returns whether the text below a verdict says that the verdict was quoted or conditional."""
    return BEHIND.search(reasons) is not None
