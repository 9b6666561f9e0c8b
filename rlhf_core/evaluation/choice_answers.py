"""Reading the chosen letter out of answers to multiple-choice questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from rlhf_core.errors import DataError
from rlhf_core.evaluation.answers import HALF_WIDTH, LATEX_TEXT, extract_boxed, told_box
from rlhf_core.evaluation.denials import DENIED, TRIGGER, answer_told, denied_before, denied_in_words, taken_back
from rlhf_core.evaluation.numerals import numerals

#: Marks around an answer: bold, code, mathematics.
_MARKS = re.compile(r"```\w{0,12}|[*`$]+|\\[()\[\]]|(?<!\w)_+(?=\(?[A-Za-z]\)?_)|(?<=[A-Za-z)])_+(?!\w)")
_LATEX = re.compile(rf"{LATEX_TEXT}|\\(?:mathbf|boldsymbol|bf|rm|f?boxed)\s?\{{([^{{}}]*)\}}")
#: Other words that lead to the letter at once: `Answer: B`, `The correct option is (B)`.
_LED = re.compile(
    r"\b(?:answer|option|choice)(?: (?:is|would be|must be|should be))?[\s:]{1,3}(?:option |choice )?(?=\(?[A-Z]\b)",
    re.I,
)
#: Marks and words that make a number in front of them another one.
_SCALED = re.compile(
    r"\s?(?:%|\u00b0|\^|/)|\s(?:percent|dozen|hundred|thousand|million|billion|trillion)\b|\s?[-+*\u00d7\u00f7]\s?[0-9]"
)
#: Between two answers that are both named.
_AND = r"(?:\s?[,/&]\s?|,?\s(?:or|and)\s(?:also\s)?)(?:(?:an?|the|option|choice)\s)?"
#: The letter I as a word: `I think`, but not `I is right`.
_PRONOUN = r"I\s(?!is\b|was\b)[a-z]"
SEVERAL = -1


def extract_choice(text: str, n_choices: int, choices: Sequence[str] | None = None) -> int | None:
    """Returns the 0-based index of the chosen answer in a generated multiple-choice solution, or None.

    Looks after the last `The answer is` or `####`, else in the last `\\boxed{}` or behind `Answer:`, else in the whole
    text, for, in this order: a letter in parentheses; a single letter before punctuation or the line's end; the text
    of exactly one choice; any single capital letter. After a trigger the first hit counts, else the last; but what
    follows the trigger at once, the longest choice's text or else a letter, comes before all of these. Bold, code and
    LaTeX around a letter are no part of it. Denied letters do not count, and `A or B` is no choice.

    Args:
        text: the generation.
        n_choices: letters A to the n-th are valid.
        choices: the choices' texts, for answers given in words.

    Raises:
        DataError: more choices than letters.
    """
    if n_choices > len(ascii_uppercase):
        remedy = f"Remove wrong choices until there are at most {len(ascii_uppercase)}"
        raise DataError(f"{n_choices} choices; answers are the letters A to Z", field="choices", remedy=remedy)
    last, texts = ascii_uppercase[n_choices - 1], choices or ()
    text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").translate(HALF_WIDTH)
    denials = [choice if DENIED.match(choice) else "" for choice in texts]
    said = _told_choice(
        _behind_trigger(text), "", denials
    )  # "The answer is not enough information" names such a choice
    if said is not None:
        return said if said != SEVERAL else None
    part, triggered = answer_told(text)
    if not triggered and extract_boxed(text) is not None:
        part, triggered = told_box(text), True
    if part is None:
        return None
    if not triggered and (led := _led_letter(text, last)) is not None:
        part, triggered = led, True
    if triggered:
        told = _told_choice(part, last, texts)
        if told is not None:
            return told if told != SEVERAL else None
    plain = _plain(part)
    for pattern in (rf"\(([A-{last}a-{last.lower()}])\)", rf"(?<![\w'])([A-{last}])(?=[.):,;*]|[ \t]*(?:\n|$))"):
        if letters := _letters(pattern, plain):
            return _single(letters, plain, last, first=triggered)
    if texts and (named := _named_choice(part, texts)) is not None:
        return named
    letters = _letters(rf"(?<![\w'])(?!{_PRONOUN})([A-{last}])(?![\w'])", plain)
    return _single(letters, plain, last, first=triggered) if letters else None


def _behind_trigger(text: str) -> str:
    """Returns what follows the last `The answer is` or `####`; empty without one."""
    triggers = list(TRIGGER.finditer(text))
    return text[triggers[-1].end() :] if triggers else ""


def _plain(text: str) -> str:
    """Returns a text without the marks of bold, code and LaTeX."""
    for _ in range(3):
        text = _LATEX.sub(lambda found: found[1] or found[2] or "", text)
    return _MARKS.sub(lambda found: found[0][1] if found[0] in ("\\(", "\\)") else "", text)


def _led_letter(text: str, last: str) -> str | None:
    """Returns the text from the last letter that a word such as `Answer:` leads to, None without one."""
    plain = _plain(text)
    found = [one for one in _LED.finditer(plain) if plain[one.end() :].lstrip("(")[:1] <= last]
    found = [one for one in found if not denied_before(plain, one.end())]
    return plain[found[-1].end() :] if found else None


def _letters(pattern: str, text: str) -> list[re.Match[str]]:
    """Returns the letters in a text that are neither denied nor taken back."""
    found = re.finditer(pattern, text)
    return [one for one in found if not denied_before(text, one.start()) and not taken_back(text, one.start())]


def _single(letters: Sequence[re.Match[str]], text: str, last: str, *, first: bool) -> int | None:
    """Returns the first or last of several letters, None if another letter is named in the same breath."""
    chosen = letters[0 if first else -1]
    several = any(one.start() <= chosen.start(1) < one.end() for one in _several(last).finditer(text))
    return None if several else ord(chosen[1].upper()) - ord("A")


def _several(last: str) -> re.Pattern[str]:
    letter = rf"(?:\([A-{last}a-{last.lower()}]\)|(?<![\w'])(?!{_PRONOUN})[A-{last}](?![\w']))"
    return re.compile(rf"{letter}(?:{_AND}{letter})+(?!\s(?:is|was|isn't|are|cannot)\b)")


def _told_choice(tail: str, last: str, choices: Sequence[str]) -> int | None:
    """Returns the index of the choice that the text begins with: its text, with or without an article, else its
    letter up to the last one, '' for none; SEVERAL where another choice follows at once."""
    for opening in (r"^[\s:*\"'`]+", r"^[\s:*\"'`$]+"):
        found = _told_text(re.sub(opening, "", tail), choices)
        if found is not None:
            return found
    if not last:
        return None
    plain = re.sub(r"^[\s:\"'\[]+", "", _plain(tail))
    letter = re.match(
        rf"(?:option |choice )?(?:\(\s?([A-{last}a-{last.lower()}])\s?\)|([A-{last}])(?![\w'-])"
        rf"|([b-hj-z])(?=[.)]?\s*(?:\n|$)))",
        plain,
    )
    if letter is None:
        return None
    chosen = (letter[1] or letter[2] or letter[3]).upper()
    if chosen > last:
        return None
    return (
        SEVERAL
        if _several(last).match(plain, max(letter.start(group) for group in (1, 2, 3)) - bool(letter[1]))
        else ord(chosen) - ord("A")
    )


def _told_text(tail: str, choices: Sequence[str]) -> int | None:
    """Returns the index of the choice whose text a text begins with, SEVERAL where another one follows at once."""
    texts = [choice.strip().removesuffix(".") for choice in choices]
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        found = re.match(rf"(?:(?:an?|the)\s+)?{_pattern(texts[i])}", tail, re.IGNORECASE) if texts[i] else None
        if found and not _cuts_number(tail, found.start(1), found.end(1)):
            others = "|".join(_pattern(text) for text in texts if text and text != texts[i])
            joined = others and re.match(rf"{_AND}(?:{others})", tail[found.end() :], re.IGNORECASE)
            return SEVERAL if joined else i
    return None


def _pattern(text: str) -> str:
    return rf"({re.escape(text)})(?!\w|[.,/][0-9])"


def _cuts_number(text: str, start: int, end: int) -> bool:
    """Returns whether a place in a text begins or ends inside a number, or before its unit of size: 12 in `12%`."""
    if text[end - 1 : end].isdigit() and _SCALED.match(text, end):
        return True
    begin = max(0, start - 60)
    near = text[begin : end + 60]
    digits = [each for each in numerals(near) if each.start < end - begin and start - begin < each.end]
    return any(
        near[min(each.start, start - begin) : start - begin].strip("$ ") or each.end > end - begin for each in digits
    )


def _named_choice(text: str, choices: Sequence[str]) -> int | None:
    """Returns the only choice named in the text; a choice inside a longer named choice does not count."""
    named = [i for i, choice in enumerate(choices) if choice.strip() and _is_named(text, choice.strip())]
    named = [
        i for i in named if not any(j != i and choices[i].strip().lower() in choices[j].strip().lower() for j in named)
    ]
    return named[0] if len(named) == 1 else None


def _is_named(text: str, choice: str) -> bool:
    """Returns whether a text names a choice; of denials only `the answer is not` counts, as others are prose."""
    found = re.finditer(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE)
    return any(not denied_in_words(text, one.start()) and not _cuts_number(text, *one.span()) for one in found)
