"""Rows of the worlds: fixed by seed and settings, begun alike for any number, labelled by what their text says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import Annotator, Dials, World
from rlhf_core.testbed.longform import LongFormWorld
from rlhf_core.testbed.prompts import SPLITS
from rlhf_core.testbed.reasoning import TESTS, Reasoning, ReasoningConfig
from rlhf_core.testbed.responses import PADDINGS
from rlhf_core.testbed.reward_bench import reward_bench_pairs
from rlhf_core.testbed.tasks import TASKS, ArithmeticConfig
from rlhf_core.testbed.translation import TranslationWorld

WORLD, LONG_FORM, TRANSLATION = World(), LongFormWorld(), TranslationWorld()
REASONING = Reasoning(ReasoningConfig(ArithmeticConfig(seen_start=(1, 9), unseen_start=(3, 14), largest=99)))
MOVED = {
    "mean": World(dials=Dials(aggregation="mean")),
    "weighted": World(dials=Dials(aggregation="weighted", emphasis=3.0)),
    "8 clauses": World(dials=Dials(clauses=8)),
    "late": World(dials=Dials(late=0.5)),
    "other": World(dials=Dials(pairs="other")),
    **{kind: World(padding={kind: 0.4}) for kind in PADDINGS},
}


def of_world(world: World) -> list[Any]:
    metas = [row["meta"] for row in world.prompts(4, 8)]
    return [
        world.sft_examples(10, 1, follow_up_share=0.2),
        [world.preference_pairs(10, 3, Annotator(length_bias=0.1), split) for split in ("train", "ood")],
        [world.prompts(5, 4, split) for split in SPLITS],
        [[world.expert_answer(meta, 1), world.anchor_rewards(meta)] for meta in metas],
        reward_bench_pairs(world, 1, 9),
    ]


MADE: dict[str, Callable[[], Any]] = {
    "dialogue": lambda: [
        WORLD.sft_examples(20, 0, follow_up_share=0.2),
        WORLD.task_examples(20, 0),
        WORLD.preference_pairs(20, 0),
        [WORLD.prompts(10, 0, split) for split in SPLITS],
        [WORLD.arithmetic(10, 0, split) for split in ("seen", "unseen")],
        [WORLD.multiple_choice(task, 10, 0) for task in TASKS],
        [WORLD.functions(10, 0, split) for split in ("test", "plus", "live")],
    ],
    **{name: lambda world=world: of_world(world) for name, world in MOVED.items()},  # type: ignore[misc]
    "long form": lambda: [
        LONG_FORM.sft_examples(20, 0),
        LONG_FORM.prompts(20, 0, "test"),
        LONG_FORM.preference_pairs(20, 0),
        LONG_FORM.labelled_answers(20, 0),
    ],
    "completeness": lambda: LONG_FORM.preference_pairs(20, 4, None, "test", "completeness", 0.2),
    "translation": lambda: [
        TRANSLATION.sft_examples(20, 0),
        TRANSLATION.prompts(20, 0, "test"),
        TRANSLATION.preference_pairs(20, 0),
    ],
    "reasoning": lambda: [
        [REASONING.questions(task, 20, 0, test) for task in TESTS for test in (None, *TESTS[task])],
        [REASONING.examples(task, 20, 0) for task in TESTS],
    ],
}
#: A change here changes every published number.
DIGESTS = {
    "dialogue": "33ee6653816b2cbb",
    "mean": "ec596a794a0c3195",
    "weighted": "e51361e40e7b8c63",
    "8 clauses": "74059e2ca1daecd9",
    "late": "dbd66f2dd6b388a9",
    "other": "5c3cdd72a0e042c8",
    "flattery": "4c1f8c1efcdee45c",
    "keyword": "f152833955b0a0eb",
    "repetition": "44e9779fdd45f570",
    "long form": "46fe4d1380aaefaa",
    "completeness": "49808916c332c2fb",
    "translation": "f6a192aab4ec0282",
    "reasoning": "28e7413e009571ca",
}


@pytest.mark.parametrize("name", MADE)
def test_rows_are_fixed(name: str) -> None:
    text = json.dumps(MADE[name](), sort_keys=True, ensure_ascii=name not in ("long form", "translation"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


def test_the_default_dials_are_version_3() -> None:
    assert World().version == World(7, padding={"flattery": 0.4}).version == 3
    assert {MOVED[name].version for name in ("mean", "8 clauses", "late", "other")} == {4}


@pytest.mark.parametrize("world", [WORLD, *MOVED.values()], ids=["default", *MOVED])
def test_generated_responses_parse_back_into_their_clauses(world: World) -> None:
    rows = [(row["meta"], row["response"], "clauses", "true") for row in world.sft_examples(50, 3)]
    for row in world.preference_pairs(30, 3):
        rows += [(row["meta"], row[side], f"{side}_clauses", f"true_{side}") for side in ("chosen", "rejected")]
    for meta, text, clauses, true in rows:
        assert world.clause_rows(world.clauses(meta, text)) == meta[clauses]
        assert world.true_reward(meta, text) == meta[true] == pytest.approx(sum(c[3] for c in meta[clauses]), abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ArithmeticConfig(largest=120), "largest is 120; it must be from 1 to 99"),
        (lambda: ArithmeticConfig(operand=(0, 3)), "operand"),
        (lambda: ArithmeticConfig(seen_start=(5, 2)), "seen_start"),
        (lambda: Annotator(temperature=0.0), r"temperature is 0\.0"),
        (lambda: Annotator(flipped=0.6), r"flipped is 0\.6"),
    ],
)
def test_what_no_world_has_is_refused(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        wrong()
