"""Judges behind one interface: requests in, verdict text out, parsed strictly elsewhere."""

from rlhf_core.evaluation.judges.games import (
    Comparison,
    Game,
    Outcome,
    combine_orders,
    drawn_order,
    grade_answers,
    play_games,
    soft_preferences,
    win_rate_of_outcomes,
)
from rlhf_core.evaluation.judges.protocol import Judge, JudgeRequest, Verdict
from rlhf_core.evaluation.judges.templates import TEMPLATES, Template, get_template, render

__all__ = [
    "Comparison",
    "Game",
    "Judge",
    "JudgeRequest",
    "Outcome",
    "TEMPLATES",
    "Template",
    "Verdict",
    "combine_orders",
    "drawn_order",
    "get_template",
    "grade_answers",
    "play_games",
    "render",
    "soft_preferences",
    "win_rate_of_outcomes",
]
