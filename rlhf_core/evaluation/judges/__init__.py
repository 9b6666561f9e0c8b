"""Judges behind one interface: requests in, verdict text out, parsed strictly elsewhere."""

from rlhf_core.evaluation.judges.games import (
    Game,
    JudgedPair,
    Outcome,
    combine_orders,
    drawn_order,
    grade_answers,
    play_games,
    win_rate_of_outcomes,
)
from rlhf_core.evaluation.judges.protocol import Judge, JudgeAnswer, JudgeRequest
from rlhf_core.evaluation.judges.templates import TEMPLATES, JudgePrompt, get_template, render

__all__ = [
    "JudgedPair",
    "Game",
    "Judge",
    "JudgeRequest",
    "Outcome",
    "TEMPLATES",
    "JudgePrompt",
    "JudgeAnswer",
    "combine_orders",
    "drawn_order",
    "get_template",
    "grade_answers",
    "play_games",
    "render",
    "win_rate_of_outcomes",
]
