"""Reading answers out of generated solutions: numbers, boxed expressions, choice letters.

`extract_number` follows the RLMEC evaluation; `harness_answer` and `harness_match` follow the task gsm8k
(version 3.0) of lm-evaluation-harness.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from rlhf_core.evaluation.denials import (
    answer_told,
    denied_before,
    in_one_sentence,
    instead_of,
    taken_back,
)
from rlhf_core.evaluation.numerals import NUMBER, Numeral, is_computed, numerals, plain_digits, read_whole

#: Full-width forms of ASCII.
HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
LATEX_TEXT = r"\\(?:text|textbf|textnormal|mbox|mathrm)\s*\{([^{}]*)\}"
#: A fraction in a text, unless a factor follows, and a mixed number.
_FRACTION_IN_TEXT = re.compile(
    r"\\frac\{\s{0,9}(-?[0-9]+(?:\.[0-9]+)?)\s{0,9}\}\{\s{0,9}([0-9]+(?:\.[0-9]+)?)\s{0,9}\}(?!\s{0,9}\\[a-z]|[A-Za-z(^])"
)
_HALF = re.compile(
    r"(?<=[0-9]) (?:and|&) (?:(?:an? |one[ -])(half|third|quarter)|(three quarters|two thirds)|(?=[0-9]+/[0-9]))\b"
)
_HALVES = {"half": "1/2", "third": "1/3", "quarter": "1/4", "three quarters": "3/4", "two thirds": "2/3"}
_OR = re.compile(r"[%$*}]{0,4}(?:\s[a-z]{2,12})?,? or [$*]{0,3}")
#: A blank between groups of digits, which mathematics in LaTeX does not show.
_IN_MATHS = re.compile(r"(?<=[0-9]) (?=[0-9]{3}(?![0-9]))")
_BOX = re.compile(r"\\f?boxe?d?\s{0,3}\{")
_ONE_NUMBER = re.compile(
    rf"(?P<number>[-+]?\s?{NUMBER})\$?"
    rf"(?:\s*(?:%|°|{LATEX_TEXT})"
    r"|\s+(?!(?:pi|squared|cubed|factorial|plus|minus|times|over|or|and|to)\b)[^\W\d_]{2,})*[.$\s]*"
)
_FRACTION_OF_NUMBERS = re.compile(r"\\frac\{\s*(-?[0-9]+)\s*\}\{\s*([0-9]+)\s*\}")
#: Characters written for a minus sign, beside the hyphen of ASCII.
_DASHES = "\N{MINUS SIGN}\N{EN DASH}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{SMALL HYPHEN-MINUS}"
#: A sign in front of the marks that open a number, unless it subtracts or is a bullet.
_SIGN_OUTSIDE = re.compile(
    rf"(?<![0-9)}}\]%*:])(?<![0-9)}}\]%*:]\s)([-{_DASHES}])(\\boxed\{{|\\text\{{|\\\(|\*{{1,2}})(?=[0-9.$\\])"
)
#: Digits of other scripts, and fractions in one character.
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")
_ONE_CHARACTER_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e]")
#: The power of a unit: `25 cm^2`, `25 \\text{ cm}^2`.
_POWER_OF_UNIT = re.compile(
    r"(?:(?<=\b[mck]m)|(?<=\bft)|(?<=\bin)|(?<=[0-9] m)|(?<=[0-9]m)|(?<=units)|(?<=feet)|(?<=meters)|(?<=[a-z.]\}))"
    r"\s?\^\s?\{?[23]\}?"
)
_SUPERSCRIPTS = re.compile("(?<=[0-9)])[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
#: Spellings of one expression, in the order in which they are replaced: dashes and spaces, fractions.
_SPELLINGS = (
    (re.compile(f"[{_DASHES}]"), "-"),
    (re.compile("[\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}\N{INDIAN RUPEE SIGN}]"), "$"),
    (re.compile(r"\bnegative\s(?=\$?[0-9.])|(?:^|(?<=\bis\s)|(?<=[=:]\s))minus\s(?=\$?[0-9.])", re.IGNORECASE), "-"),
    (_SIGN_OUTSIDE, r"\2\1"),
    (re.compile("\N{ARABIC DECIMAL SEPARATOR}"), "."),
    (re.compile("\N{ARABIC THOUSANDS SEPARATOR}"), ","),
    (re.compile(r"!=|\u2260|\\n(?:eq?|ot\s?=)(?![A-Za-z])"), " not "),
    (re.compile(r">="), "\u2265"),
    (re.compile(r"<="), "\u2264"),
    (re.compile(r"\s?\^\s?\{?\s?\\circ(?![A-Za-z])\s?\}?"), "\N{DEGREE SIGN}"),
    (_POWER_OF_UNIT, ""),
    (re.compile(r"(?<=[0-9])(?:\\[ ;:]|~)(?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile("(?<=[0-9])[\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\u2006-\u200a](?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile("(?<=[0-9])['\N{RIGHT SINGLE QUOTATION MARK}](?=[0-9]{3}(?![0-9]))"), ""),
    (re.compile("\N{RIGHT SINGLE QUOTATION MARK}"), "'"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<!\\)\\[!,]"), ""),
    (re.compile(r"(?<!\\)\\[;: ]"), " "),
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*([0-9]|(?<=\s)[A-Za-z])"), r"\\frac{\1}"),
    (re.compile(r"(\\frac\s{0,9}\{(?:[^{}]|\{[^{}]{0,200}\}){0,200}\})\s*([0-9A-Za-z])"), r"\1{\2}"),
)
#: A number with a power of ten (`1.8e1`, `1.8 \\times 10^{1}`), and one that a word multiplies.
_POWER_OF_TEN = re.compile(
    r"(?<![\w.])(?P<number>[0-9]{1,40}(?:\.[0-9]{1,40})?)(?:[eE]|\s?(?:\\times|\\cdot|[x*\u00d7])\s?10\s?\^\s?\{?)"
    r"(?P<power>[-+]?[0-9]{1,9})\}?(?![\w^]|\.[0-9])"
)
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MULTIPLIED = re.compile(
    r"(?<![\w.,/])(?P<number>[0-9]{1,3}(?:,[0-9]{3}){1,9}|[0-9]{1,40})(?P<decimals>\.[0-9]{1,40})?"
    r"(?:(?:\s(?P<part>[0-9]{1,9}))?/(?P<of>[1-9][0-9]{0,8}))?(?P<close>[}$*]{0,3})\s"
    rf"(?P<word>{'|'.join(_MAGNITUDES)})s?(?![\w-])",
    re.IGNORECASE,
)

#: Ways in which lm-evaluation-harness reads an answer: the first `#### n`, or the last number.
HarnessMode = Literal["strict", "flexible"]
_HARNESS = {
    "strict": (re.compile(r"#### (\-?[0-9\.\,]+)"), 0),
    "flexible": (re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)"), -1),
}
#: Stop strings of a generation: in the harness's task gsm8k, and in RLMEC, whose prompt has the marks of Alpaca's form.
HARNESS_STOPS = ("Question:", "</s>", "<|im_end|>")
RLMEC_STOPS = ("### Instruction:", "### Response:", "</s>")
HARNESS_INVALID = "[invalid]"
_HARNESS_IGNORED = (r",", r"\$", r"(?s).*#### ", r"\.$")


def extract_number(text: str) -> str | None:
    """Returns the number a solution ends with, as plain digits (`-1234.5`) or a fraction of two (`3/4`), or None.

    What follows the last `####` or `The answer is` (any case), then what follows the last `=` in it; the
    first number there if a trigger was present, else the last. Without a trigger, a `\\boxed{}` takes the
    trigger's place. If nothing but text follows the `=`, the part before it is searched.

    Deviations from RLMEC's own rule:
        1. A number is read whole or not at all, in the spellings of `numerals`: `1.8e1` is 18, `3 / 4` is 3/4,
           `2 1/2` is 5/2; `3:45`, `10 - 5` and `17 or 18` are no answers.
        2. Denied and withdrawn numbers are no answers: `The answer is not 5 but 6` is 6, `7, not 5` is 7, `It isn't 5`
           and `The answer is 5 is wrong` have none.
    """
    text = in_one_spelling(text)
    part, triggered = answer_told(text)
    if not triggered and extract_boxed(text) is not None:
        part, triggered = told_box(text), True
        part = None if part is None else _IN_MATHS.sub("", part)
    if part is None:
        return None
    for searched in (part.rsplit("=", 1)[-1], part):
        searched = _HALF.sub(_as_half, _FRACTION_IN_TEXT.sub(_as_fraction, searched))
        found = numerals(searched)
        if found:
            return _first_number(searched, found) if triggered else _last_number(searched, found)
    return None


def _first_number(text: str, found: Sequence[Numeral]) -> str | None:
    """Returns the first number of an answer, None if it is denied, part of an operation or one of several answers."""
    first = found[0]
    if denied_before(text, first.start):
        instead = instead_of(text, first.end)
        behind = [each for each in found if instead is not None and each.start >= instead]
        return _first_number(text, behind) if behind else None
    if first.value is None or is_computed(text, first):
        return None
    other = next((each for each in found[1:] if _OR.fullmatch(text, first.end, each.start)), None)
    if other is not None and (other.value is None or not answers_equal(first.value, _per_cent(text, first, other))):
        return None
    return first.value


def _per_cent(text: str, first: Numeral, other: Numeral) -> str | None:
    """Returns the second of two spellings of a number; of `0.75 or 75%` and `75% or 0.75`, the first."""
    marked = [text[each.end : each.end + 1] == "%" for each in (first, other)]
    values = [parse_number(each.value or "") for each in (first, other)]
    if marked[0] != marked[1] and None not in values:
        whole, share = (values[0], values[1]) if marked[0] else (values[1], values[0])
        if whole == 100 * (share or 0):
            return first.value
    return other.value


def _last_number(text: str, found: Sequence[Numeral]) -> str | None:
    """Returns the last number of a text that is not denied, if one is in the sentence of the last number."""
    behind, denied = found[-1], set[str | None]()
    for each in reversed(found):
        if not in_one_sentence(text, each.end, behind.start):
            return None
        behind = each
        if denied_before(text, each.start):
            denied.add(each.value)
        elif each.value in denied or taken_back(text, each.start):
            return None
        else:
            return each.value
    return None


def told_box(text: str) -> str | None:
    """Returns the content of the last `\\boxed{...}` that is not denied, unless a later one denies it; or None."""
    denied = set[str]()
    for start, content in reversed(_boxes(text)):
        if denied_before(text, start):
            denied.add(content)
        elif content not in denied:
            return None if taken_back(text, start) else content
    return None


def _as_half(match: re.Match[str]) -> str:
    """Returns ` and a half` as ` 1/2`, and ` and ` in front of a fraction as a blank."""
    return f" {_HALVES.get(match[1] or match[2] or '', '')}"


def _as_fraction(match: re.Match[str]) -> str:
    before = match.string[: match.start()][-1:]
    return f"{' ' if before.isalnum() else ''}{match[1]}/{match[2]}"


def extract_boxed(text: str) -> str | None:
    """Returns the content of the last complete `\\boxed{...}` (braces balanced), or None; `-\\boxed{5}` holds -5."""
    found = _boxes(text)
    return found[-1][1] if found else None


def _boxes(text: str) -> list[tuple[int, str]]:
    """Returns where each complete `\\boxed{...}` begins, and its content."""
    text = _SIGN_OUTSIDE.sub(r"\2\1", _BOX.sub(r"\\boxed{", text))
    opened: list[int] = []
    closed: dict[int, int] = {}
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            closed[opened.pop()] = match.start()
    found = [match for match in re.finditer(r"\\boxed\{", text) if match.end() - 1 in closed]
    return [(match.start(), text[match.end() : closed[match.end() - 1]].strip()) for match in found]


def in_one_spelling(text: str) -> str:
    """Returns a text with signs, digits, fractions and marks of numbers in one spelling."""
    text = _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(HALF_WIDTH))
    text = _SUPERSCRIPTS.sub(lambda power: f"^{{{unicodedata.normalize('NFKC', power[0])}}}", text)
    text = _ONE_CHARACTER_FRACTION.sub(_as_two_numbers, text).replace("\N{FRACTION SLASH}", "/")
    for spelling, replacement in _SPELLINGS:
        text = spelling.sub(replacement, text)
    return _POWER_OF_TEN.sub(_power_of_ten, text)


def _power_of_ten(match: re.Match[str]) -> str:
    """Returns the digits of a number with a power of ten, nothing for one beyond 1e99."""
    if abs(int(match["power"])) > 99:
        return ""
    return plain_digits(Fraction(match["number"]) * Fraction(10) ** int(match["power"]))


def _multiplied(match: re.Match[str]) -> str:
    """Returns `5 million` as 5000000, `5 1/2 million` as 5500000."""
    value = Fraction(match["number"].replace(",", "") + (match["decimals"] or ""))
    if match["of"]:
        if match["decimals"]:
            return match[0]
        part = Fraction(int(match["part"] or value), int(match["of"]))
        value = value + part if match["part"] else part
    return plain_digits(value * 10 ** _MAGNITUDES[match["word"].lower()]) + match["close"]


def _in_digits(text: str) -> str:
    """Returns a text with `5 million` as 5000000."""
    return _MULTIPLIED.sub(_multiplied, in_one_spelling(text))


def _as_two_numbers(match: re.Match[str]) -> str:
    blank = " " if match.string[: match.start()][-1:].isdigit() else ""
    return blank + unicodedata.normalize("NFKC", match[0])


def parse_number(text: str) -> Fraction | None:
    """Returns the value of a text that is one number with at most a currency sign, unit or percent sign around it.

    `1,234.50`, `$18`, `18.0 dollars`, `90^\\circ`, `3/4`, `\\frac{3}{4}`, `1\\frac34` and `\\boxed{18}` are numbers;
    `18 or 20`, `1,2`, `9\\pi`, `2x` and `6-i` are not. A unit is in `\\text{}`, or words of two or more letters behind
    a blank.
    """
    boxed = extract_boxed(text)
    cleaned = in_one_spelling(_IN_MATHS.sub("", boxed) if boxed is not None else text).strip("$ ")
    match = _ONE_NUMBER.fullmatch(_FRACTION_OF_NUMBERS.sub(r" \1/\2", cleaned).strip())
    found = None if match is None else read_whole(match["number"].replace("- ", "-"))
    try:
        return None if found is None else Fraction(found)
    except ValueError:  # of more digits than Python reads
        return None


def answers_equal(predicted: str | None, gold: str | None) -> bool:
    """Returns whether two answers are equal: as numbers (18.0 = 18, 1,000 = 1000, $5 = 5 dollars), else as text without
    space and case.

    Texts are compared as spelled alike: `\\dfrac`, `\\frac12` and `\\text{(C)}` are `\\frac`, `\\frac{1}{2}` and `C`.
    `5 million` equals 5000000, and 5 as well: a question may ask for millions.
    """
    if predicted is None or gold is None:
        return False
    left, right = parse_number(predicted), parse_number(gold)
    if left is not None and right is not None:
        long_left, long_right = parse_number(_in_digits(predicted)), parse_number(_in_digits(gold))
        return long_left == long_right or (left == right and (long_left == left or long_right == right))
    return _folded(predicted) == _folded(gold) != ""


def _folded(text: str) -> str:
    boxed = extract_boxed(text)
    text = re.sub(LATEX_TEXT, r"\1", in_one_spelling(boxed if boxed is not None else text))
    text = re.sub(r"\s+", "", text).casefold().strip("$.")
    return text[1:-1] if re.fullmatch(r"\([a-z]\)", text) else text


def solution_is_right(solution: str, gold: str) -> bool:
    """Returns whether the number extracted from a generated solution equals the gold answer (itself or its `#### n`
    line); a number in words such as `5 million` may be meant either way, as the gold answers of GSM8K are."""
    target = gold if parse_number(gold) is not None else extract_number(gold)
    found, in_digits = extract_number(solution), extract_number(_in_digits(solution))
    return answers_equal(found, target) or answers_equal(in_digits, target)


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Returns a generation up to the first of some stop strings."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def harness_answer(text: str, mode: HarnessMode) -> str:
    """Returns gsm8k's filters: `strict` the first `#### n`, `flexible` the last number; `[invalid]` without one.

    The text ends at the task's stop strings.
    """
    pattern, select = _HARNESS[mode]
    found = pattern.findall(cut_at(text, HARNESS_STOPS))
    if not found:
        return HARNESS_INVALID
    chosen = found[select]
    if isinstance(chosen, tuple):
        chosen = next(group for group in chosen if group)
    return str(chosen).strip()


def harness_match(text: str, gold: str, mode: HarnessMode) -> bool:
    """Returns gsm8k's exact_match between a generation and a gold solution (whole, or only its final number)."""
    return _harness_normalised(harness_answer(text, mode)) == _harness_normalised(gold)


def _harness_normalised(text: str) -> str:
    for pattern in _HARNESS_IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
