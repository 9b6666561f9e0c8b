"""Verdicts in the replies of judges: one strict grammar for each form, in the module that has its template's name.

A reply is data: it is matched against fixed patterns and never evaluated. A verdict ends its reply, since what comes
behind may take it back; below the line of a verdict in brackets, and behind `Rating: [[n]]`, reasons may follow that
do not. Whatever looks like a verdict elsewhere in the reply, of this form or of another and in whatever letters, must
agree with it. A verdict that the reply quotes, tells of somebody else, gives as an example or under a condition is not
one (`quotation`, `attribution`). A reply that breaks a rule is unreadable. A thought in tags that opens a reply
(`<think>...</think>`) is not part of it; a thought without an end has no reply.
"""

from rlhf_core.evaluation.judges.replies.alpaca_eval import parse_alpaca_eval, preference_from_logprobs
from rlhf_core.evaluation.judges.replies.arena_hard import ARENA_LABELS, parse_arena_hard
from rlhf_core.evaluation.judges.replies.mt_bench import MT_BENCH_RANGE, parse_mt_bench
from rlhf_core.evaluation.judges.replies.output_pair import parse_output_pair
from rlhf_core.evaluation.judges.replies.pairwise import parse_pairwise
from rlhf_core.evaluation.judges.replies.ranking import parse_ranking
from rlhf_core.evaluation.judges.replies.reply_text import CUT_OFF

__all__ = [
    "ARENA_LABELS",
    "CUT_OFF",
    "MT_BENCH_RANGE",
    "parse_alpaca_eval",
    "parse_arena_hard",
    "parse_mt_bench",
    "parse_output_pair",
    "parse_pairwise",
    "parse_ranking",
    "preference_from_logprobs",
]
