"""Verdicts in the replies of judges: for each template one form; every other reply is unreadable.

Arena-Hard, MT-Bench and AlpacaEval are read by the rules of their official code. Of the papers' own prompts the last
line counts, in the form that the prompt asks for. A reply is data: it is matched and never evaluated.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping

#: Verdict of a reply, None if it is unreadable. A number is a soft preference in [1, 2], 2 where the second is better
#: (`alpaca_eval`), or a score from 1 to 10 (`mt_bench`); a label is A>>B, A>B, A=B, B>A or B>>A (`arena_hard`),
#: or A, B or N.
Verdict = float | str | None

ARENA_LABELS = ("A>>B", "A>B", "A=B", "B>A", "B>>A")
#: Last line of a reply that the endpoint cut off at its length.
CUT_OFF = "\n[cut off at max_tokens]"

_ARENA = re.compile(r"\[\[([AB<>=]+)\]\]")
_SCORES = (re.compile(r"\[\[([0-9]+\.?[0-9]*)\]\]"), re.compile(r"\[([0-9]+\.?[0-9]*)\]"))
_PREFERENCE = re.compile(r"preference: ?([12](?:\.[0-9]{1,30})?)")
_BETTER = re.compile(r"Better: ?([ABN])\.?")
_OUTPUT = re.compile(r"Output \(([ab])\)\.?")
_MARKDOWN = re.compile("[*_`#]")
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


def parse_arena_hard(text: str) -> Verdict:
    """Returns the one label in double brackets, however often; different labels, or one that is not among the five,
    are unreadable.

    Source: lmarena/arena-hard-auto, v0.1: `get_score` of gen_judgment.py.
    """
    labels = set(_ARENA.findall(_without_thought(text)))
    return labels.pop() if len(labels) == 1 and labels <= set(ARENA_LABELS) else None


def parse_mt_bench(text: str) -> Verdict:
    """Returns the number of the first `[[n]]`, without one of the first `[n]`; one outside 1 to 10 is unreadable.

    Source: lm-sys/FastChat, `run_judge_single` of llm_judge/common.py.
    """
    reply = _without_thought(text)
    found = next((match for pattern in _SCORES if (match := pattern.search(reply))), None)
    value = float(found[1]) if found else math.nan
    return value if 1.0 <= value <= 10.0 else None


def parse_alpaca_eval(text: str) -> Verdict:
    """Returns the soft preference in [1, 2], 2 where the second answer shown is better.

    The last line is `preference: x`, as an endpoint's log-probabilities give it (`preference_from_logprobs`); or the
    reply is the sampled label `m` (1) or `M` (2).
    """
    labels = {"m": 1.0, "M": 2.0}
    found = _PREFERENCE.fullmatch(_last_line(text))
    value = float(found[1]) if found else labels.get(_without_thought(text).strip(), math.nan)
    return value if 1.0 <= value <= 2.0 else None


def preference_from_logprobs(logprobs: Mapping[str, float]) -> float | None:
    """Returns AlpacaEval's weighted annotator: `2 - p(m) / (p(m) + p(M))` of the first generated token.

    Args:
        logprobs: token -> log-probability (nats) of the first generated token.

    Returns:
        Preference in [1, 2] (2: the second answer is better); None if neither `m` nor `M` is listed. A
        token that is not listed has probability 0.

    Source: tatsu-lab/alpaca_eval, `logprob_parser` of completion_parsers.py.
    """
    first, second = logprobs.get("m", -math.inf), logprobs.get("M", -math.inf)
    if max(first, second) == -math.inf or math.isnan(first) or math.isnan(second):
        return None
    gap = first - second
    p_first = 1.0 / (1.0 + math.exp(-gap)) if gap >= 0 else math.exp(gap) / (1.0 + math.exp(gap))
    return 2.0 - p_first


def parse_pairwise(text: str) -> Verdict:
    """Returns the verdict of a last line `Better: A`, `Better: B` or `Better: N`. Source: PAR, Listing 1."""
    found = _BETTER.fullmatch(_last_line(text))
    return found[1] if found else None


def parse_output_pair(text: str) -> Verdict:
    """Returns the verdict of a last line `Output (a)`, label A, or `Output (b)`, label B. Source: ALARM, Figure 6."""
    found = _OUTPUT.fullmatch(_last_line(text))
    return found[1].upper() if found else None


def parse_ranking(text: str) -> Verdict:
    """Returns the verdict of a reply that is a list of `model_1` and `model_2` with ranks 1 or 2, in either order.

    The prompt announces that the answer will be executed; it is read as a literal instead, as AlpacaEval's
    `ranking_parser` does. Label A: model_1 is better, B: model_2, N: equal ranks. Source: Sentence, appendix B.3.
    """
    try:
        rows = ast.literal_eval(_without_thought(text).strip())
        ranks = {row["model"]: row["rank"] for row in rows}
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError):
        return None
    if len(rows) != 2 or ranks.keys() != {"model_1", "model_2"} or any(rank not in (1, 2) for rank in ranks.values()):
        return None
    first, second = ranks["model_1"], ranks["model_2"]
    return "N" if first == second else "A" if first < second else "B"


def _without_thought(text: str) -> str:
    return _THOUGHT.sub("", text)


def _last_line(text: str) -> str:
    """Returns the last line that is not empty without Markdown's marks of emphasis, code and headings."""
    lines = [line.strip() for line in _MARKDOWN.sub("", _without_thought(text)).splitlines()]
    return next((line for line in reversed(lines) if line), "")


#: Readers by template; one that is not here asks for no verdict.
READERS: Mapping[str, Callable[[str], Verdict]] = {
    "alpaca_eval": parse_alpaca_eval,
    "arena_hard": parse_arena_hard,
    "pairwise": parse_pairwise,
    "ranking": parse_ranking,
    "output_pair": parse_output_pair,
    **dict.fromkeys(("mt_bench", "mt_bench_turns", "mt_bench_reference", "mt_bench_reference_turns"), parse_mt_bench),
}
