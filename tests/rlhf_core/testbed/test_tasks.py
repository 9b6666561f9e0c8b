"""Arithmetic, multiple choice and functions: answers are right, splits are apart."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from collections import Counter
from textwrap import indent

import pytest

from rlhf_core.testbed import World, functions
from rlhf_core.testbed.choices import TASKS
from rlhf_core.testbed.knowledge import stream

WORLD = World()
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def consistent(solution: str) -> bool:
    """Returns whether each line computes what it says and the answer is the last result."""
    *lines, final = solution.split("\n")
    value = None
    for line in lines:
        left, sign, right, result = re.fullmatch(r"(\d+) (.) (\d+) = (\d+)", line).groups()
        assert value in (None, left)
        value = result
        if OPERATORS[sign](int(left), int(right)) != int(result):
            return False
    return final == f"#### {value}"


@pytest.mark.parametrize("split", ["seen", "unseen"])
def test_solutions_compute_their_answers(split):
    rows = WORLD.arithmetic(512, 0, split)
    assert len({row["question"] for row in rows}) == 512
    for row in rows:
        assert consistent(row["solution"])
        assert row["solution"].endswith(f"#### {row['answer']}")
        assert 1 <= int(row["answer"]) <= 99
        assert re.search(r"\d+", row["question"]).group() == row["solution"].split(" ")[0]


@pytest.mark.parametrize("task", TASKS)
def test_choices_hold_one_right_answer_at_any_place(task):
    rows = WORLD.multiple_choice(task, 512, 0)
    count = 2 if task == "winograd" else 4
    for row in rows:
        assert len(set(row["choices"])) == count
        assert row["choices"][row["answer_index"]] == row["answer"] == row["solution"]
    places = Counter(row["answer_index"] for row in rows)
    assert min(places[place] for place in range(count)) > 512 / count * 0.7


def test_right_choices_agree_with_the_knowledge_base():
    facts = WORLD.knowledge.facts
    for task in ("arc", "truthfulqa"):
        for row in WORLD.multiple_choice(task, 200, 0):
            entity, attribute = row["meta"]["combination"].split()
            assert facts[entity, attribute] in row["answer"]
            assert entity in row["question"]
            assert task == "arc" or any(WORLD.knowledge.myths[entity, attribute] in c for c in row["choices"])
    for row in WORLD.multiple_choice("winograd", 200, 0):
        entity, other, attribute = row["meta"]["combination"].split()
        assert facts[entity, attribute] != facts[other, attribute]
        assert facts[entity, attribute] in row["question"]


def test_the_right_ending_is_the_best_answer():
    for row in WORLD.multiple_choice("hellaswag", 200, 0):
        entity, *requested = row["meta"]["combination"].split()
        values = [WORLD.true_reward({"entity": entity, "requested": requested}, choice) for choice in row["choices"]]
        assert values[row["answer_index"]] == max(values) == 2.0
        assert sorted(values)[-2] < 1.9


def run_checks(problems: list[tuple[str, list[str]]]) -> list[bool]:
    """Returns which of our own solutions pass their tests, in a process of their own."""
    parts = ["results = []"]
    for index, (solution, tests) in enumerate(problems):
        parts.append(f"def check_{index}():\n" + indent("\n".join([solution, *tests]), "    "))
        parts.append(
            f"try:\n    check_{index}()\n    results.append('1')\nexcept AssertionError:\n    results.append('0')"
        )
    parts.append("print(''.join(results))")
    done = subprocess.run(
        [sys.executable, "-I", "-"],
        input="\n".join(parts),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [mark == "1" for mark in done.stdout.strip()]


@pytest.mark.parametrize("split", ["train", "test", "plus", "live"])
def test_solutions_pass_their_tests(split):
    rows = WORLD.functions(300, 0, split)
    assert all(run_checks([(row["solution"], row["tests"]) for row in rows]))
    assert all(len(row["tests"]) == 3 for row in rows) == (split != "plus")


def test_near_misses_fail_the_plus_tests_and_some_pass_the_base_tests():
    problems = [functions.problem("plus", stream("near miss", index)) for index in range(300)]
    plus = run_checks([(item["near_miss"], item["tests"]) for item in problems])
    base = run_checks([(item["near_miss"], item["tests"][:3]) for item in problems])
    assert not any(plus)
    assert 0.05 < sum(base) / len(base) < 0.5
