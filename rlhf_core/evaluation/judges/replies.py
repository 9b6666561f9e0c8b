"""Verdicts in the replies of judges: one strict grammar for each form.

A reply is data: it is matched against fixed patterns and never evaluated. Forms follow AlpacaEval 2.0 (`m` / `M`, here
also `preference: x`), Arena-Hard v0.1 (`[[A>>B]]`), MT-Bench (`[[n]]`), PAR, Listing 1 (`Better: A|B|N`), Sentence,
appendix B.3 (a list of models with ranks) and ALARM, Figure 6 (`Output (a)`).

A verdict ends its reply, since what comes behind may take it back; below the line of a verdict in brackets, and behind
`Rating: [[n]]`, reasons may follow that do not (`_TAKEN_BACK`, `_SCORE_TAKEN_BACK`). Whatever looks like a verdict
elsewhere in the reply, of this form or of another and in whatever letters, must agree with it. A reply that breaks a
rule is unreadable. A thought in tags that opens a reply (`<think>...</think>`) is not part of it; a thought without an
end has no reply.
"""

from __future__ import annotations

import functools
import html
import math
import re
import unicodedata
from collections.abc import Callable, Mapping

from rlhf_core.evaluation.judges.protocol import JudgeAnswer

ARENA_LABELS = ("A>>B", "A>B", "A=B", "B>A", "B>>A")
MT_BENCH_RANGE = (1.0, 10.0)

#: Ends an answer that the endpoint cut off at its length, so that no verdict ends it.
CUT_OFF = "\n[cut off at max_tokens]"
_THOUGHT = re.compile(r"\s*<(think|thinking|thought|reasoning)>", re.IGNORECASE)

#: Markdown around a verdict: emphasis, code and heading.
_MARKUP = r"[*_`# \t]{0,9}"
#: Text that may follow the last verdict of a reply: white space, closing marks and a full stop.
_END = re.compile(r"[\s*_`#.\"')\]}]*")
#: A negation right before a verdict.
_NEGATED = re.compile(
    r"\b(?:not|never|no|neither|cannot|refused?)\b[^.,:;!?]{0,30}$|n't\b[^.,:;!?]{0,30}$", re.IGNORECASE
)
#: What below a verdict may take it back: signs of another verdict, a question, doubt, and the mark of a cut reply.
_TAKEN_BACK = re.compile(
    r"[\[\]<>~=|?]|\b(?:actually|wait|instead|rather|correction|sorry|oops|second thought|changed? my|disregard|ignore|"
    r"take (?:it|that|this) back|mistake\w*|revis\w*|updat\w*|reconsider\w*|final|verdict|rating|score|winner|"
    r"would have|should (?:be|have)|sarcas\w*|jok(?:e|ing)|kidding|(?:is|was|am|are) (?:wrong|incorrect|false)|"
    r"not (?:the|my|an?|what|so|true|right|correct|really|serious))\b|n't\b|\bcut off at max_tokens\b",
    re.IGNORECASE,
)
#: Signs that look like those of verdicts: Cyrillic, Greek and small capital letters, other comparisons.
_LOOKALIKES = str.maketrans(
    dict(
        zip(
            "\u0410\u0412\u0391\u0392\u039d\u043c\u041c\u039c\u226b\u226a\u227b\u227a",
            [*"ABABNmMM", ">>", "<<", *"><"],
            strict=True,
        )
    )
    | dict(
        zip(
            "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0415\u041e\u0422\u0395\u03a4\u0299\u1d00",
            "aeopcyxiEOTETBA",
            strict=True,
        )
    )
)

_PREFERENCE = re.compile(r"^[ \t]*preference:[ \t]*([0-9](?:\.[0-9]{1,30})?)[ \t]*\r?$", re.MULTILINE)
_PREFERENCE_LIKE = re.compile(r"preference[\s*_`]{0,9}[:=][\s*_`]{0,9}([0-9]{0,9}(?:[.,][0-9]{1,30})*)", re.IGNORECASE)
_IDENTIFIER_LINE = re.compile(r"^[ \t]*[mM][ \t]*\r?$", re.MULTILINE)
_ARENA = re.compile(r"\[\[([AB<>=]{1,9})\]\]")
_ARENA_LIKE = re.compile(r"\[[\[ \t]{0,9}([AB])\s{0,9}([<>=]{1,3})\s{0,9}([AB])", re.IGNORECASE)
_SCORE = re.compile(r"\[\[([0-9]{1,9}\.?[0-9]{0,9})\]\]")
_SCORE_BACKUP = re.compile(r"\[([0-9]{1,9}\.?[0-9]{0,9})\]")
_SCORE_LIKE = re.compile(r"\[[ \t]{0,3}\[([^\[\]]{0,20}\d[^\[\]]{0,20})\][ \t]{0,3}\]")
_OUT_OF_TEN = re.compile(r"\s{0,3}/\s{0,3}10(?![0-9])")
_RATING = re.compile(r"\b(?:rating|score)\b[^\n\[\]]{0,30}$", re.IGNORECASE)
_RATING_LIKE = re.compile(r"\brating[\s*_`]{0,9}[:=][\s*_`]{0,9}([0-9]{1,9}(?:\.[0-9]{1,9})?)", re.IGNORECASE)
#: A sentence that ends in a judge's own score, in front of the score.
_RATES = re.compile(
    r"\s*(?:(?:so|thus|therefore|hence|overall|finally|in conclusion|in summary|in short)\b,?\s+)?"
    r"(?:(?:(?:my|the|this|its|final|overall|resulting)\s+){0,4}(?:rating|score)"
    r"(?:\s+(?:for|of)\s+(?:the|this)\s+(?:answer|response|reply))?(?:\s+(?:is|would be))?"
    r"|I(?:'d| would|'ll| will)?\s+(?:rate|score|give|grade)\b[^\[\]\"\u201c]{0,40})\s*[:=]?\s*",
    re.IGNORECASE,
)
#: Words that join a score to the reasons on its line, where they do not say whose score it is.
_JOINED = re.compile(
    r"[*_]{0,3}(?:\s{0,3}[.;:(\u2013\u2014]|\s+(?:-{1,2}\s|(?:because|since|as|for|given|due to)\b)|"
    r",(?!\s*(?:so |as )?(?:[^.,;]{0,30}\b)?(?:says?|said|claims?|claimed|writes|wrote|asks?|demands?|quot\w*)\b))",
    re.IGNORECASE,
)
#: Words in the reasons for a score that may take it back; that an answer is wrong or makes mistakes does not.
_SCORE_TAKEN_BACK = re.compile(
    r"[\[\]?]|\b(?:actually|wait|instead(?! of)|or rather|rather an? [1-9]|correction|sorry|oops|"
    r"second thought|reflection|changed? my|disregard|ignore|take (?:it|that|this) back|revis\w*|updat\w*|"
    r"reconsider\w*|verdict|rat(?:e|es|ed|ing|ings)|scor(?:e|es|ed|ing)|grades?|graded|deserv\w*|merits?|sarcas\w*|"
    r"jok(?:e|ing)|kidding|(?:my|by|was a|is a) mistake|I (?:was|am) (?:wrong|mistaken)|"
    r"I(?:'d| would|'ll| will)? (?:give|gave|assign|award|say|mean|meant)|"
    r"(?:this|that|which|above) (?:is|was) (?:wrong|incorrect|false|not)|not (?:my|what|so|true|really|serious)|"
    r"(?:should|would|could|must|ought)[^.\n]{0,40}\b(?:10|[1-9]|one|two|three|four|five|six|seven|eight|nine|ten))\b|"
    r"\b(?:I|this|that|which) \w{1,8}n't\b|n't\s{0,3}(?:[.,;!]|$)|\bno\s{0,3}[,:;.]|\bout of (?:10|ten)\b|"
    r"\bcut off at max_tokens\b",
    re.IGNORECASE,
)
#: A line that announces a quotation.
_QUOTES = re.compile(
    r"\b(?:says?|said|ends? (?:with|in|by)|claim(?:s|ed)?|quot\w*|writes?|wrote|reads|contains?|demands?|asks?|adds?)"
    r"\b[^.\n]{0,40}:\s*$",
    re.IGNORECASE,
)
#: Verbs of what an answer says or asks for, right before a verdict in the same sentence.
_SAID_BY_ANSWER = re.compile(
    r"\b(?:answer|response|reply|output|assistant|assistant [ab]|user|model)(?:'s \w{1,20})?\s(?:\w{1,12}\s)?"
    r"(?:says?|said|claims?|claimed|writes|wrote|asks?|asked|demands?|demanded|tells?|told|instructs?|instructed|"
    r"orders?|ordered|tries to|tried to|ends (?:with|in|by)|includes?|contains?|begs?|requests?)\b"
    r"(?:(?!\b(?:and|but|so|thus|therefore|hence)\b)[^,;.]){0,60}$"
    r"|\bwould (?:otherwise )?have been\b[^,;.]{0,20}$",
    re.IGNORECASE,
)
#: A winner in the words of Arena-Hard's prompt, right before a verdict.
_ARENA_SAID = re.compile(
    r"\b(?:assistant ([AB]) is (?:significantly |slightly )?better|tie)\b[^\w\[]{0,9}$", re.IGNORECASE
)
_BETTER_LINE = re.compile(rf"^{_MARKUP}Better:(.*)$", re.MULTILINE)
#: A letter, then at most a full stop, a remark in parentheses or a reason.
_BETTER = re.compile(
    rf"{_MARKUP}([ABN]){_MARKUP}(?:\.?{_MARKUP}|\.?[ \t]*\(([^()]*)\)\.?{_MARKUP}|,?[ \t]+because\b(.*))\r?"
)
_BETTER_LIKE = re.compile(
    r"(?i:better|winner|verdict|choice|preferred|b e t t e r)[\s*_`]{0,9}"
    r"(?:(?i:is\b)?[\s*_`]{0,9}[:=]|(?<=r)\s(?i:is\b))[\s*_`]{0,9}([ABN])\b"
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
#: Words that speak against an answer, which a reason may say of the other answer alone.
_AGAINST = re.compile(r"\b(?:less|least|lacks?|fails?|terrible|bad|poor|incorrect|weak|weaker|worst)\b", re.IGNORECASE)

_OUTPUT = re.compile(rf"\s*{_MARKUP}Output \(([ab])\){_MARKUP}[.:]?{_MARKUP}\s*")

_MODEL, _RANK = r"""(["'])model\1\s*:\s*\1model_([12])\1""", r"""\1rank\1\s*:\s*([12])"""
_OTHER_MODEL, _OTHER_RANK = _MODEL.replace(r"\1", r"\4"), _RANK.replace(r"\1", r"\4")
_RANKING = re.compile(
    rf"\[\s*\{{\s*{_MODEL}\s*,\s*{_RANK}\s*,?\s*\}}\s*,\s*\{{\s*{_OTHER_MODEL}\s*,\s*{_OTHER_RANK}\s*,?\s*\}}\s*,?\s*\]"
)
_FENCED = re.compile(r"```(?:python|json)?\s*([^`]*)```")


def _folded(text: str) -> str:
    """Returns a text as a reader sees it: without invisible characters, with plain letters in the place of wide and
    similar ones, HTML's entities and escapes undone."""
    seen = unicodedata.normalize("NFKC", html.unescape(text)).translate(_LOOKALIKES)
    return "".join(each for each in seen if each != "\\" and unicodedata.category(each) != "Cf")


def _stands(text: str, verdict: re.Match[str]) -> bool:
    """Returns whether a verdict ends its reply and no negation is right before it."""
    before = text[max(0, verdict.start() - 60) : verdict.start()]
    return _END.fullmatch(text, verdict.end()) is not None and _NEGATED.search(before) is None


def _holds(text: str, verdict: re.Match[str]) -> bool:
    """Returns whether a verdict in brackets ends its reply, or its line with reasons below that do not take it back."""
    if _stands(text, verdict):
        return True
    line, _, reasons = text[verdict.end() :].partition("\n")
    on_its_own = _stands(text[: verdict.end()] + line, verdict)
    return on_its_own and not _TAKEN_BACK.search(_folded(reasons))


def _after_thought(parse: Callable[[str], JudgeAnswer]) -> Callable[[str], JudgeAnswer]:
    """Returns a reader of the reply behind the thought that opens a text."""

    @functools.wraps(parse)
    def read(text: str) -> JudgeAnswer:
        opened = _THOUGHT.match(text)
        if opened is None:
            return parse(text)
        thoughts = re.split(rf"</{opened[1]}>", text, flags=re.IGNORECASE)
        if len(thoughts) != 2:
            return JudgeAnswer.invalid("a thought without one end")
        return parse(thoughts[1].lstrip())

    return read


def _arena_like(seen: str) -> set[str]:
    return {f"{one}{sign}{other}".upper() for one, sign, other in _ARENA_LIKE.findall(seen)}


@_after_thought
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
        others = {each.strip(".,") for each in _PREFERENCE_LIKE.findall(_folded(text))}
        if (
            not _stands(text, found[-1])
            or _IDENTIFIER_LINE.search(text)
            or any(_number(one) != value for one in others)
        ):
            return JudgeAnswer.invalid("a preference that the rest of the reply takes back")
        if not 1.0 <= value <= 2.0:
            return JudgeAnswer.invalid(f"preference {value:g} outside [1, 2]")
        return JudgeAnswer(valid=True, value=value)
    label = text.strip()
    if label in ("m", "M"):
        return JudgeAnswer(valid=True, value=1.0 if label == "m" else 2.0)
    return JudgeAnswer.invalid("no preference")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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


@_after_thought
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
    seen = _folded(text)
    winner = "N" if label == "A=B" else label[0]
    if not _holds(text, found[-1]) or _arena_like(seen) != {label} or {*_BETTER_LIKE.findall(seen)} - {winner}:
        return JudgeAnswer.invalid("a verdict that the rest of the reply takes back")
    if _is_quoted(text[: found[-1].start()]) or _SAID_BY_ANSWER.search(_sentence_before(text[: found[-1].start()])):
        return JudgeAnswer.invalid("a quoted verdict")
    said = _ARENA_SAID.search(text[max(0, found[-1].start() - 60) : found[-1].start()])
    if said is not None and (said[1] or "N").upper() != winner:
        return JudgeAnswer.invalid("a verdict in words and another in brackets")
    return JudgeAnswer(valid=True, label=label)


@_after_thought
def parse_mt_bench(text: str) -> JudgeAnswer:
    """Returns the score of `[[n]]`, else of `Rating: [n]`; n may have decimals (FastChat, `run_judge_single`).

    Reasons may follow, below or behind the judge's own `Rating: [[n]]` on its line, that do not take the score back
    (`_SCORE_TAKEN_BACK`).

    Deviations from FastChat: a number outside 1 to 10 is not a score of this scale and counts as missing, and so do
    several different scores, of which FastChat takes the first, and a score that is quoted or that the answer
    asks for. A number in single brackets counts behind `rating` or `score` alone: it may be an index or a source. A
    score that is read is always FastChat's.
    """
    found = list(_SCORE.finditer(text))
    single = not found
    found = found or list(_SCORE_BACKUP.finditer(text))
    scores = {float(each[1]) for each in found}
    if not scores:
        return JudgeAnswer.invalid("no score")
    if len(scores) > 1:
        return JudgeAnswer.invalid("several different scores")
    value, last = scores.pop(), found[-1]
    low, high = MT_BENCH_RANGE
    if not low <= value <= high:
        return JudgeAnswer.invalid(f"score {value:g} outside {low:g} to {high:g}")
    if single and not _RATING.search(text[max(0, last.start() - 60) : last.start()]):
        return JudgeAnswer.invalid("a number in brackets that is not called a rating")
    if text[: last.start()].endswith(("-", "\u2212")):
        return JudgeAnswer.invalid("a negative score")
    if _is_quoted(text[: last.start()]) or _SAID_BY_ANSWER.search(_sentence_before(text[: last.start()])):
        return JudgeAnswer.invalid("a quoted score")
    seen = _folded(text)
    like = [*_SCORE_LIKE.findall(seen), *_RATING_LIKE.findall(seen)]
    if not _score_holds(text, last) or any(_number(one) != value for one in like):
        return JudgeAnswer.invalid("a score that the rest of the reply takes back")
    return JudgeAnswer(valid=True, value=value)


def _sentence_before(text: str) -> str:
    """Returns the beginning of the sentence that a text ends in, its last 120 characters at most."""
    return re.split(r"\n|[.!?][\"')*_]{0,3}\s", text[-120:])[-1]


def _is_quoted(before: str) -> bool:
    """Returns whether a score is in quotation marks that its sentence opens, or below a line that announces a
    quotation."""
    sentence = _sentence_before(before)
    words, *_ = re.split(r"[\"\u201c]", sentence, maxsplit=1)
    opened = sentence.count('"') % 2 == 1 or sentence.count("\u201c") > sentence.count("\u201d")
    above = before[: len(before) - len(sentence)].rstrip()[-120:].rpartition("\n")[2]
    in_words = opened and re.search(r"\w", words) and not _RATES.fullmatch(words)
    return bool(in_words or _QUOTES.search(above))


def _score_holds(text: str, score: re.Match[str]) -> bool:
    """Returns whether a score ends its reply or its line, or is a judge's own rating before reasons on its line, and no
    reasons take it back."""
    before, behind = text[: score.start()], text[score.end() :]
    out_of_ten = _OUT_OF_TEN.match(behind)
    behind = behind[out_of_ten.end() :] if out_of_ten else behind
    if _NEGATED.search(before[-60:]):
        return False
    line, _, reasons = behind.partition("\n")
    if _END.fullmatch(line) is None:
        sentence = _sentence_before(before)
        quoted = before.count('"') % 2 or before.count("\u201c") > before.count("\u201d") or before.count("```") % 2
        rates = len(sentence) < 120 and _RATES.fullmatch(re.sub("[*_#]", "", sentence))
        if quoted or not rates or not _JOINED.match(line):
            return False
        reasons = behind
    return not _SCORE_TAKEN_BACK.search(_folded(reasons))


@_after_thought
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
    (label,), seen = labels, _folded(text)
    others = {*_BETTER_LIKE.findall(seen)} - {label} or label in _WORSE_LIKE.findall(seen) or _arena_like(seen)
    if others or _END.fullmatch(text, lines[-1].end()) is None:
        return JudgeAnswer.invalid("a verdict that the rest of the reply takes back")
    return JudgeAnswer(valid=True, label=label)


def _turns_round(verdict: re.Match[str]) -> bool:
    """Returns whether the remark or the reason of a verdict line may turn it round."""
    remark, reason = verdict[2] or "", verdict[3]
    bare = any(told is not None and not re.search(r"[A-Za-z]{2}", told) for told in (verdict[2], reason))
    against = reason is not None and _AGAINST.search(reason) and not set(_LABEL.findall(reason)) - {verdict[1]}
    return bare or bool(against) or _DOUBT.search(f"{remark} {reason or ''}") is not None


@_after_thought
def parse_ranking(text: str) -> JudgeAnswer:
    """Parses `[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]` and nothing else, in any order.

    The prompt announces that the answer will be executed; it is matched as text instead. Label A: model_1 is better,
    B: model_2, N: equal ranks. Source: Sentence, appendix B.3.
    """
    fenced = _FENCED.fullmatch(text.strip())
    match = _RANKING.fullmatch((fenced[1] if fenced else text).strip())
    if match is None:
        return JudgeAnswer.invalid("not a list of two models with ranks")
    _, first, rank, _, second, other = match.groups()
    if first == second:
        return JudgeAnswer.invalid("one model ranked twice")
    ranks = {first: int(rank), second: int(other)}
    return JudgeAnswer(valid=True, label="N" if rank == other else "A" if ranks["1"] < ranks["2"] else "B")


@_after_thought
def parse_output_pair(text: str) -> JudgeAnswer:
    """Parses `Output (a)` or `Output (b)`, also emphasised, and nothing else; label A: the first is better.

    Source: ALARM, Figure 6.
    """
    match = _OUTPUT.fullmatch(text)
    return (
        JudgeAnswer(valid=True, label=match[1].upper()) if match else JudgeAnswer.invalid("not one of the two outputs")
    )
