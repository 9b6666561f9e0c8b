"""Verdicts of the gold judge: fixed for every persona and template, and the truth in the judge's form."""

from __future__ import annotations

import hashlib
import json

import pytest

from rlhf_core.errors import JudgeError
from rlhf_core.evaluation.judges.templates import JudgeRequest
from rlhf_core.testbed import GoldJudge, World

WORLD = World()
META = {"entity": "wolf", "requested": ["color", "food"]}
EXPERT, BAD = WORLD.expert_answer(META, 0), "Have a nice day. zz zz zz"
TEMPLATES = ("alpaca_eval", "arena_hard", "mt_bench", "pairwise", "ranking", "output_pair")


def asked(template: str) -> list[JudgeRequest]:
    made = []
    for row in WORLD.prompts(60, 0, "test"):
        answers = tuple(WORLD.mixture_answer(row["meta"], seed) for seed in (1, 2))
        answers = answers[:1] if template == "mt_bench" else answers
        made.append(JudgeRequest(row["id"], "", answers, template, {"prompt": row["meta"]}))
    return made


@pytest.mark.parametrize(
    ("persona", "digest"),
    [
        ("exact", "11c6148002137589"),
        ("noisy", "acb6aafd900efe81"),
        ("position_biased", "3d3e967e479d8dc7"),
        ("length_biased", "4241eecdc2962b56"),
    ],
)
def test_verdicts_are_fixed(persona: str, digest: str) -> None:
    text = json.dumps([GoldJudge(WORLD, persona).answer(asked(template)) for template in TEMPLATES])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("template", "better", "worse", "equal"),
    [
        ("arena_hard", "[[A>>B]]", "[[B>>A]]", "[[A=B]]"),
        ("pairwise", "Better: A", "Better: B", "Better: N"),
        ("alpaca_eval", "preference: 1.0", "preference: 1.9", "preference: 1.500000"),
    ],
)
def test_the_exact_judge_orders_by_true_reward(template: str, better: str, worse: str, equal: str) -> None:
    pairs = ((EXPERT, BAD), (BAD, EXPERT), (EXPERT, EXPERT))
    verdicts = GoldJudge(WORLD).answer([JudgeRequest("1", "", pair, template, {"prompt": META}) for pair in pairs])
    assert all(part in verdict for part, verdict in zip((better, worse, equal), verdicts, strict=True))


def test_what_the_gold_judge_has_no_form_for_is_refused() -> None:
    with pytest.raises(JudgeError, match="template 'haiku'"):
        GoldJudge(WORLD).answer([JudgeRequest("1", "", ("a", "b"), "haiku", {"prompt": META})])
