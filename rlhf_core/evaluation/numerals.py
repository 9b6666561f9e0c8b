"""Numbers as texts write them: each is read whole, or not at all.

Commas group thousands and a point begins decimals, as in the official evaluation of GSM8K, which removes commas:
`1,234` is 1234 and `1.234` is 1.234. Read as well:

1. Groups by thin spaces, apostrophes, `_`, LaTeX's `{,}` and `\\,`, and Indian ones: `1'234`, `1_000`, `1,00,000`.
2. European spellings that cannot be English ones: `1.234,56`, `1.234.567`.
3. Fractions, mixed numbers, powers of ten: `3 / 4`, `2 1/2`, `10^5`, `1.8e1`.

Everything else that digits are part of is not a number: `1,5`, `1 000`, `3:45`, `1/2/2020`, `2^{10}`, `2x`, `$2k`,
`3\\sqrt{2}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_ENGLISH = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3})(?:\.[0-9]+)?")
_EUROPEAN = re.compile(r"[1-9][0-9]{0,2}(?:(?:\.[0-9]{3})+,(?:[0-9]{1,2}|[0-9]{4,})|(?:\.[0-9]{3}){2,}(?:,[0-9]+)?)")
_UNDERSCORED = re.compile(r"[1-9][0-9]{0,2}(?:_[0-9]{3})+")
#: Digits with what joins them, whether or not they are a number together.
_JOINED = r"(?:[0-9]+(?:(?:[.,:'_]|[ ](?=[0-9]{3}(?![0-9])))[0-9]+)*|(?<![\w.])\.[0-9]+)"
_SIGN = r"(?:(?<![\w.)}\]])[-+])?(?:\$\s?)?"
_OPERAND = rf"(?:[-+]?{_JOINED}|\{{\s?[-+]?{_JOINED}\s?\}}|\(\s?[-+]?{_JOINED}\s?\))"
_WHOLE = r"(?:(?<![0-9])[0-9]{1,3}\s{1,3}(?=[0-9]{1,9}\s?/\s?[0-9]))"
#: Numbers joined by `/` and `^`, the first of which may be the whole of a mixed number.
NUMBER = rf"{_SIGN}{_WHOLE}?{_JOINED}(?:\s?(?:/|\^|\*\*)\s?{_OPERAND})*"
_FUNCTION = (
    r"\\(?:frac|sqrt|binom|log|ln|exp|sin|cos|tan|cot|sec|csc|pi|theta|alpha|beta|infty|sum|prod|int|lim|vec|begin|"
    r"overline|overrightarrow|pmod|bmod)(?![A-Za-z])"
)
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]{0,99}\}){0,99}\}){0,99}\}"
#: A number, or an expression that is not one.
_ITEM = re.compile(
    rf"(?P<function>[-+]?{_FUNCTION}(?:\s?(?:\[[^\]]{{0,9}}\]|{_BRACED}|\^\s?[0-9A-Za-z])){{0,4}})|(?<![\w.])(?P<run>{NUMBER})"
)
_ITEM_IN_WORD = re.compile(rf"(?P<function>(?!))|(?P<run>{NUMBER})")
_FRACTION = re.compile(
    rf"(?:(?P<whole>[0-9]+)\s{{1,3}})?(?P<over>{_JOINED})\s?/\s?[{{(]?\s?(?P<under>{_JOINED})\s?[)}}]?"
)
_POWER = re.compile(r"10\s?(?:\^|\*\*)\s?[{(]?\s?(?P<power>[-+]?[0-9]{1,2})\s?[)}]?")
#: Marks that make digits in front of them a part of something else. A letter may be a unit, but for those of variables.
_GOES_ON = re.compile(
    rf"\s?{_FUNCTION}|\s?(?:\^|\*\*(?=\s?[0-9(]))|_|\s?/\s?(?:[0-9({{\\]|[a-z](?!\w))|\([0-9]"
    r"|[a-z]?\^|[xyznikqrabe](?![a-zA-Z0-9])|\s[xyzn](?![\w'])|[\u03c0\u221a]|\s\\?pi\b"
    r"|(?:[kKMB]|bn|mn)(?!\w)|[eE][-+]?[0-9]"
    r"|\s(?:squared|cubed|factorial)\b|\s(?:over|point|divided by|to the power of)\s[0-9]"
)
#: The same, behind the first number of an answer: an operation or a range.
_COMPUTED = re.compile(
    r"\s?(?:\\times|\\cdot|\\div|\\pm|[-+*\u00d7\u00b7\u00f7\u00b1\u2013]|x(?=\s?[0-9]))\s?[$(]?(?:[0-9]|\.[0-9]|\\(?:frac|sqrt))"
    r"|\sto\s\$?[0-9]"
)
#: Marks that make digits behind them a part of something else.
_BEGUN = re.compile(r"(?:\^\s?[{(]?|_\{?|[\u00b1\u221a]|\\pm|[0-9]\s?:)\s?$|\\(?:sqrt|log|ln)\s?$")


@dataclass(frozen=True)
class Numeral:
    """Digits of a text with all that belongs to them.

    Attributes:
        start: index of its first character.
        end: index behind its last character.
        value: plain digits (`-1234.5`) or a fraction of two (`3/4`); None if it cannot be read as one number.
    """

    start: int
    end: int
    value: str | None


def numerals(text: str) -> list[Numeral]:
    """Returns what digits a text has, in order; of a text without a number of its own, those inside words (`Rs.18`)."""
    return [*_numerals(text, _ITEM)] or [*_numerals(text, _ITEM_IN_WORD)]


def _numerals(text: str, item: re.Pattern[str]) -> Iterator[Numeral]:
    for match in item.finditer(text):
        run = match["run"]
        whole = run is not None and not (
            _GOES_ON.match(text, match.end()) or _BEGUN.search(text[max(0, match.start() - 8) : match.start()])
        )
        yield Numeral(match.start(), match.end(), read_whole(run) if whole else None)


def is_computed(text: str, numeral: Numeral) -> bool:
    """Returns whether a number is the first of an operation or a range."""
    return _COMPUTED.match(text, numeral.end) is not None


def read_whole(run: str) -> str | None:
    """Returns what a number is in plain digits, or as a fraction of two; None if it is not one number."""
    bare = re.sub(r"[$+]", "", run).strip()
    sign, bare = ("-", bare[1:].strip()) if bare.startswith("-") else ("", bare)
    found = _amount(bare) or _power(bare) or _fraction(bare)
    return None if found is None else sign + found


def _amount(text: str) -> str | None:
    """Returns one number without sign in plain digits."""
    if _DIGITS.fullmatch(text):
        return text
    if _ENGLISH.fullmatch(text):
        return text.replace(",", "")
    if _EUROPEAN.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return text.replace("_", "") if _UNDERSCORED.fullmatch(text) else None


def _power(text: str) -> str | None:
    match = _POWER.fullmatch(text)
    return plain_digits(Fraction(10) ** int(match["power"])) if match else None


def _fraction(text: str) -> str | None:
    match = _FRACTION.fullmatch(text)
    over, under = (_amount(match["over"]), _amount(match["under"])) if match else (None, None)
    if match is None or over is None or under is None or not under.strip("0."):
        return None
    if match["whole"] is None and over.isdigit() and under.isdigit():
        return f"{over}/{under}"
    if max(len(over), len(under), len(match["whole"] or "")) > 99:
        return None
    if match["whole"] is None:
        return plain_digits(Fraction(over) / Fraction(under))
    if not (over.isdigit() and under.isdigit()) or not 0 < int(over) < int(under):
        return None
    return f"{int(match['whole']) * int(under) + int(over)}/{under}"


def plain_digits(value: Fraction) -> str:
    """Returns a number as digits, with decimals where they end, else as a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
    return digits if Fraction(digits) == value else f"{value.numerator}/{value.denominator}"
