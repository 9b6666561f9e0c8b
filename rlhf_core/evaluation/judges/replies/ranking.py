"""Sentence, appendix B.3: a list of two models with ranks."""

from __future__ import annotations

import re

from rlhf_core.evaluation.judges.protocol import JudgeAnswer
from rlhf_core.evaluation.judges.replies.reply_text import after_thought

_MODEL, _RANK = r"""(["'])model\1\s*:\s*\1model_([12])\1""", r"""\1rank\1\s*:\s*([12])"""
_OTHER_MODEL, _OTHER_RANK = _MODEL.replace(r"\1", r"\4"), _RANK.replace(r"\1", r"\4")
_RANKING = re.compile(
    rf"\[\s*\{{\s*{_MODEL}\s*,\s*{_RANK}\s*,?\s*\}}\s*,\s*\{{\s*{_OTHER_MODEL}\s*,\s*{_OTHER_RANK}\s*,?\s*\}}\s*,?\s*\]"
)
_FENCED = re.compile(r"```(?:python|json)?\s*([^`]*)```")


@after_thought
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
