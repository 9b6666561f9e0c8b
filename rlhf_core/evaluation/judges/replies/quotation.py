"""Quotations in a reply: block quotes, fences, quotation marks, tags, and lines that announce them.

A verdict in a block quote is quoted. A code fence, quotation marks or JSON around nothing but a verdict that ends the
reply are a judge's own formatting, unless the words in front of them announce a quotation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlhf_core.evaluation.judges.replies import attribution
from rlhf_core.evaluation.judges.replies.reply_text import END, folded

_NEW_LINE = re.compile(r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_BLOCK_QUOTE = re.compile(r"\s*(?:(?:[-*+]|[0-9]{1,3}[.)])\s{1,4})?>")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+\u2022]|[0-9]{1,3}[.)])\s+(?=\S)")
_HEADING = re.compile(r"\s{0,3}(?:#{1,6}\s|(\*\*|__)[^*_]+\1\s*$)")
_FENCE = re.compile(r"\s*(?:[-*+]\s{1,4})?(?:(`{3,})[^`]*|(~{3,}).*)$")
_SENTENCE_END = re.compile(
    r"(?<!\b[eE]\.[gG])(?<!\b[iI]\.[eE])(?<!\b[cC][fF])(?<!\b[vV][sS])[.!?][\"')*_\]]{0,3}\s+|[\u3002!?](?=\S)"
)
_BLANKS = re.compile(r"[ \t]+")
_EMPHASIS = re.compile(r"[*_#`~]{1,9}")
#: Tags around words that are not the judge's verdict.
_QUOTING_TAG = re.compile(
    r"<!--|-->|<(/?)\s*(blockquote|q|cite|del|s|strike|pre|samp|details|quote\w*|think|thinking|thought|reasoning|scratchpad|draft|"
    r"(?:assistant|answer|response|output|model|user|candidate)[\w-]*)\b[^<>\n]{0,200}>",
    re.IGNORECASE,
)
_OWN_TAGS = {"answer", "output", "response"}
_KEY = re.compile(r"[\"']([\w ]{1,40})[\"']\s*:\s*[\"'\[]?\s*$")
_OWN_KEY = re.compile(
    r"(?:my_|the_)?(?:final|overall)?[_ ]?(?:verdict|rating|score|judge?ment|decision|winner|choice|result|preference|"
    r"answer|conclusion|output|grade|evaluation)",
    re.IGNORECASE,
)
_OPENING, _CLOSING = (
    re.compile("[\u201c\u201e\u00ab\u2039\u300c\u300e]"),
    re.compile("[\u201d\u00bb\u203a\u300d\u300f]"),
)
_QUOTE_MARK = re.compile('["\u201c\u201e\u00ab\u2039\u300c\u300e]')


@dataclass(frozen=True)
class _Place:
    """A verdict's place: the lines above it, the text before it on its line, and the text behind it."""

    above: list[str]
    line: str
    behind: str


def is_told(text: str, verdict: re.Match[str]) -> bool:
    """Returns whether a reply quotes a verdict, or tells it of somebody else or under a condition, in front of it."""
    *above, line = _NEW_LINE.split(folded(text[: verdict.start()]))
    place = _Place(above, line, folded(text[verdict.end() :]))
    if _BLOCK_QUOTE.match(line) or (above and _BLOCK_QUOTE.match(above[-1])) or _in_tags(above, line):
        return True
    fence, ambiguous = _opening_fence(above)
    if fence is not None:
        alone = not any(each.strip() for each in above[fence + 1 :]) and _closes(place.behind)
        nested = ambiguous and "```" not in place.behind and attribution.is_own(_plain(line))
        if not (alone or nested):
            return True
        place = _Place(above[:fence] if alone else [], line, place.behind)
    return _is_told_on_its_line(place) or _is_told_above(place)


def _in_tags(above: list[str], line: str) -> bool:
    """Returns whether a tag of a quotation that begins a line, or is on the verdict's own, is still open."""
    opened: dict[str, int] = {}
    for each in (*above, line):
        if "<" in each or "-->" in each:
            for tag in _QUOTING_TAG.finditer(each):
                name = (tag[2] or tag[0]).lower()
                if tag[1] or tag[0] == "-->":
                    opened[name if tag[1] else "<!--"] = 0
                elif each is line or not each[: tag.start()].strip(" \t*_>-"):
                    opened[name] = 1
    return any(opened[name] for name in opened.keys() - _OWN_TAGS)


def _opening_fence(lines: list[str]) -> tuple[int | None, bool]:
    """Returns the index of the line whose code fence is open at the end of some lines, and whether a fence in another
    fence makes that doubtful."""
    opened: tuple[int, str] | None = None
    nested = False
    for i, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        mark = fence[1] or fence[2]
        if opened is None:
            opened = (i, mark)
        elif mark.startswith(opened[1]) and line.strip().strip(mark[0]) == "":
            opened = None
        else:
            nested = True
    return (opened[0] if opened else None), nested


def _closes(behind: str) -> bool:
    """Returns whether nothing follows a verdict but the end of its code fence."""
    return END.fullmatch(behind) is not None


def _plain(line: str) -> str:
    return _BLANKS.sub(" ", _EMPHASIS.sub("", _LIST_ITEM.sub("", line, count=1))).strip("| ")


def _sentences(line: str) -> list[str]:
    """Returns the last two sentences of a line, the second one unended."""
    starts = [0, *(match.end() for match in _SENTENCE_END.finditer(line))]
    last = line[starts[-1] :]
    return [line[starts[-2] : starts[-1]] if len(starts) > 1 else "", last]


def _is_told_on_its_line(place: _Place) -> bool:
    line = _plain(place.line)
    key = _KEY.search(line)
    if key is not None:
        return not _OWN_KEY.fullmatch(key[1]) or line.count("{") - line.count("}") > 1
    previous, sentence = _sentences(line)
    if _in_quotation_marks(place, sentence):
        return True
    if attribution.tells(sentence):
        return True
    return bool(previous) and _leads_on(previous)


def _in_quotation_marks(place: _Place, sentence: str) -> bool:
    """Returns whether quotation marks around a verdict hold or follow more than a judge's introduction of it."""
    paragraph = "\n".join([*_paragraph(place.above), place.line])
    closed_behind = '"' in re.split(r"\n\s*\n", place.behind, maxsplit=1)[0]
    opened = (
        sentence.count('"') % 2 == 1
        or len(_OPENING.findall(paragraph)) > len(_CLOSING.findall(paragraph))
        or (closed_behind and paragraph.count('"') % 2 == 1)
    )
    if not opened:
        return False
    marks = list(_QUOTE_MARK.finditer(sentence))
    if not marks:
        return True
    words, said = sentence[: marks[-1].start()], sentence[marks[-1].end() :]
    return not all(not re.search(r"\w", part) or attribution.is_own(part) for part in (words, said))


def _paragraph(above: list[str]) -> list[str]:
    """Returns the lines directly above, up to an empty one."""
    start = len(above)
    while start and above[start - 1].strip():
        start -= 1
    return above[start:]


def _leads_on(sentence: str) -> bool:
    """Returns whether a whole sentence in front of a verdict announces a quotation or is a condition alone."""
    return attribution.announces(sentence) or attribution.is_fragment_of_condition(sentence)


def _is_told_above(place: _Place) -> bool:
    """Returns whether a line above announces the verdict, where the verdict's line has nothing before its sentence."""
    line = _plain(place.line)
    if _sentences(line)[0]:
        return False
    adjacent = bool(_paragraph(place.above))
    ends = (i for i in range(len(place.above), 0, -1) if place.above[i - 1].strip())
    lines = place.above[: next(ends, 0)]
    if not lines:
        return False
    return _nearest_announces(lines[-1], line, adjacent=adjacent) or _block_is_announced(lines, adjacent=adjacent)


def _nearest_announces(nearest: str, line: str, *, adjacent: bool) -> bool:
    plain = _plain(nearest)
    previous, last = _sentences(plain + " ")
    last = last.strip() or previous.strip()
    if re.search(r"[:,;\u2013\u2014\u2026-]\W*$", last[-80:]):
        told = attribution.announces(last) or attribution.tells(last) or attribution.tells(f"{last} {line}")
        return told or attribution.names_speaker(last)
    if _HEADING.match(nearest):
        return attribution.announces(last) or attribution.names_speaker(plain)
    if _LIST_ITEM.match(nearest) or nearest.lstrip().startswith("|"):
        return attribution.announces_text(last)
    if _leads_on(last):
        return True
    if attribution.names_speaker(plain):
        return True
    if re.search(r"[.!?\u3002)]\W*$", last[-80:]):
        return False
    if attribution.trails_off(last):
        return True
    if not adjacent:
        return False
    return attribution.supposes(last) or (not attribution.is_own(line) and attribution.tells(f"{last} {line}"))


def _block_is_announced(lines: list[str], *, adjacent: bool) -> bool:
    """Returns whether a verdict is in or right behind a block of text that a line with a colon announces as somebody
    else's, and that has no marks of a quotation to end it."""
    breaks = 0 if adjacent else 1
    for i in range(len(lines) - 2, -1, -1):
        plain = _plain(lines[i])
        if not plain:
            breaks += not lines[i].strip() and bool(lines[i + 1].strip())
        elif plain.endswith(":"):
            behind = lines[i + 1] if lines[i + 1].strip() else lines[i + 2]
            marked = any(mark.match(behind) for mark in (_LIST_ITEM, _BLOCK_QUOTE, _FENCE)) or _QUOTE_MARK.match(behind)
            apart = not lines[i + 1].strip()
            return not marked and breaks - apart <= 1 and attribution.announces(_sentences(plain)[1])
        if breaks > 2:
            return False
    return False
