"""MT-Bench: a score in brackets (FastChat, `run_judge_single`)."""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.protocol import JudgeAnswer
from rlhf_core.evaluation.judges.replies.attribution import attributes_behind
from rlhf_core.evaluation.judges.replies.quotation import is_told
from rlhf_core.evaluation.judges.replies.reply_text import END, NEGATED, after_thought, folded, number

MT_BENCH_RANGE = (1.0, 10.0)

_SCORE = re.compile(r"\[\[([0-9]{1,9}\.?[0-9]{0,9})\]\]")
_SCORE_BACKUP = re.compile(r"\[([0-9]{1,9}\.?[0-9]{0,9})\]")
_SCORE_LIKE = re.compile(r"\[[ \t]{0,3}\[([^\[\]]{0,20}\d[^\[\]]{0,20})\][ \t]{0,3}\]")
_OUT_OF_TEN = re.compile(
    r"[*_`]{0,3}(?:\s{0,3}/\s{0,3}10(?![0-9])|\s{1,3}(?:out )?of (?:a possible )?(?:10(?!\.?[0-9])|ten\b))",
    re.IGNORECASE,
)
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


@after_thought
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
    if is_told(text, last):
        return JudgeAnswer.invalid("a quoted or conditional score")
    seen = folded(text)
    like = [*_SCORE_LIKE.findall(seen), *_RATING_LIKE.findall(seen)]
    if not _score_holds(text, last) or any(number(one) != value for one in like):
        return JudgeAnswer.invalid("a score that the rest of the reply takes back")
    return JudgeAnswer(valid=True, value=value)


def _score_holds(text: str, score: re.Match[str]) -> bool:
    """Returns whether a score ends its reply or its line, or is a judge's own rating before reasons on its line, and no
    reasons take it back."""
    before, behind = text[: score.start()], text[score.end() :]
    out_of_ten = _OUT_OF_TEN.match(behind)
    behind = behind[out_of_ten.end() :] if out_of_ten else behind
    if NEGATED.search(before[-60:]):
        return False
    line, _, reasons = behind.partition("\n")
    if END.fullmatch(line) is None:
        sentence = re.split(r"\n|[.!?][\"')*_]{0,3}\s", before[-160:])[-1]
        rates = len(sentence) < 120 and _RATES.fullmatch(re.sub("[*_#]", "", sentence))
        if not rates or not _JOINED.match(line):
            return False
        reasons = behind
    seen = folded(reasons)
    return not _SCORE_TAKEN_BACK.search(seen) and not attributes_behind(seen)
