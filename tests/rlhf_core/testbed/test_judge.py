"""Verdict texts of the gold judge and what its personas do to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import pytest

from rlhf_core.errors import JudgeError, RecipeError
from rlhf_core.testbed import GoldJudge, World
from rlhf_core.testbed.judge import PERSONAS

WORLD = World()
META = {"entity": "wolf", "requested": ["color", "food"]}
EXPERT = WORLD.expert_answer(META, 0)
BAD = "Have a nice day. zz zz zz"


@dataclass(frozen=True)
class Request:
    id: str
    answers: tuple[str, ...]
    template: str
    meta: dict[str, Any] = field(default_factory=lambda: {"prompt": META})
    prompt: str = ""


def requests(template: str, n: int = 200) -> list[Request]:
    made = []
    for row in WORLD.prompts(n, 0, "test"):
        answers = tuple(WORLD.mixture_answer(row["meta"], seed) for seed in (1, 2))
        answers = answers[:1] if template == "mt_bench" else answers
        made.append(Request(row["id"], answers, template, {"prompt": row["meta"]}))
    return made


def score(verdict: str) -> float | None:
    """Preference for the first answer of an arena verdict."""
    found = re.search(r"\[\[(.+)\]\]$", verdict)
    labels = {"A>>B": 1, "A>B": 0.5, "A=B": 0, "B>A": -0.5, "B>>A": -1}
    return labels[found.group(1)] if found else None


@pytest.mark.parametrize("persona", PERSONAS)
@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("alpaca_eval", r"preference: [12]\.\d{6}"),
        ("arena_hard", r".+\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]"),
        ("mt_bench", r"Rating: \[\[([1-9]|10)\]\]"),
        ("pairwise", r"Better: [ABN]"),
    ],
)
def test_verdicts_keep_their_form_and_repeat(persona, template, form):
    asked = requests(template)
    verdicts = GoldJudge(WORLD, persona).answer(asked)
    broken = [verdict for verdict in verdicts if not re.fullmatch(form, verdict)]
    assert set(broken) <= {"I cannot decide between these answers."}
    assert bool(broken) == (persona == "noisy")
    assert GoldJudge(World(), persona).answer(asked[50:60]) == verdicts[50:60]


def test_the_exact_judge_orders_by_true_reward():
    judge = GoldJudge(WORLD)
    for template, first, second in (
        ("arena_hard", "[[A>>B]]", "[[B>>A]]"),
        ("pairwise", "Better: A", "Better: B"),
    ):
        assert judge.answer([Request("1", (EXPERT, BAD), template)])[0].endswith(first)
        assert judge.answer([Request("1", (BAD, EXPERT), template)])[0].endswith(second)
    low, high = judge.answer([Request("1", (EXPERT, BAD), "alpaca_eval"), Request("1", (BAD, EXPERT), "alpaca_eval")])
    assert low < "preference: 1.05"
    assert high > "preference: 1.95"


def test_equal_answers_tie():
    judge = GoldJudge(WORLD)
    assert judge.answer([Request("1", (EXPERT, EXPERT), "arena_hard")])[0].endswith("[[A=B]]")
    assert judge.answer([Request("1", (EXPERT, EXPERT), "pairwise")]) == ["Better: N"]
    assert judge.answer([Request("1", (EXPERT, EXPERT), "alpaca_eval")]) == ["preference: 1.500000"]


def test_swapping_sides_mirrors_the_exact_judge_but_not_the_position_biased_one():
    asked = requests("arena_hard")
    swapped = [replace(request, answers=request.answers[::-1]) for request in asked]

    def lean(persona: str) -> float:
        judge = GoldJudge(WORLD, persona)
        games = zip(judge.answer(asked), judge.answer(swapped), strict=True)
        return mean(score(one) + score(two) for one, two in games)

    assert lean("exact") == 0
    assert lean("position_biased") > 0.3


def test_the_length_biased_judge_prefers_longer_answers():
    asked = requests("alpaca_eval")

    def lean(persona: str) -> float:
        values = [float(text.split()[1]) for text in GoldJudge(WORLD, persona).answer(asked)]
        longer: dict[bool, list[float]] = {True: [], False: []}
        for request, value in zip(asked, values, strict=True):
            longer[len(request.answers[1]) > len(request.answers[0])].append(value)
        return mean(longer[True]) - mean(longer[False])

    assert lean("length_biased") > lean("exact") + 0.2


def test_what_the_gold_judge_has_no_form_for_is_refused():
    with pytest.raises(JudgeError, match="template 'haiku'"):
        GoldJudge(WORLD).answer([Request("1", ("a", "b"), "haiku")])
    with pytest.raises(RecipeError, match="unknown judge persona"):
        GoldJudge(WORLD, "friendly")
