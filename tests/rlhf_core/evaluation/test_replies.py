"""Every reply and answer is read as its contract says (docs/benchmarks.md), or counted as unreadable."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.evaluation.answers import extract_number, harness_answer, harness_match
from rlhf_core.evaluation.judges.replies import preference_from_logprobs
from rlhf_core.evaluation.judges.templates import TEMPLATES
from rlhf_core.reasoning.grading import extract_answer, is_right

PINNED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("replies.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("template", "reply", "outcome"),
    [(template, *case) for template, cases in PINNED["judges"].items() for case in cases.items()],
)
def test_a_reply_of_a_judge(template: str, reply: str, outcome: str | float) -> None:
    assert (TEMPLATES[template].parse(reply) or "-") == outcome


def test_every_template_of_a_judge_is_pinned() -> None:
    assert PINNED["judges"].keys() == {name for name, template in TEMPLATES.items() if template.n_answers}


@pytest.mark.parametrize(("solution", "number"), PINNED["numbers"].items())
def test_a_number(solution: str, number: str) -> None:
    assert (extract_number(solution) or "-") == number


@pytest.mark.parametrize(("solution", "gold", "right"), PINNED["mathematics"])
def test_an_answer_in_mathematics(solution: str, gold: str, right: bool) -> None:
    assert is_right(extract_answer(solution, {"answer": gold}), {"answer": gold}) == right


@pytest.mark.parametrize(("solution", "choice"), PINNED["choices"].items())
def test_a_choice(solution: str, choice: str) -> None:
    question = {"answer": "dog", "choices": ["cat", "dog", "a plan", "12%"]}
    extracted = extract_answer(solution, question)
    assert (extracted or "-") == choice
    assert is_right(extracted, question) == (choice == "dog")


def test_a_preference_is_two_minus_the_share_of_the_first_token() -> None:
    assert preference_from_logprobs({"m": math.log(0.3), "M": math.log(0.1)}) == pytest.approx(1.25)
    assert preference_from_logprobs({"m": -0.1, "The": -3.0}) == 1.0
    assert preference_from_logprobs({"m": -2000.0, "M": -1.0}) == 2.0
    assert preference_from_logprobs({" m": -0.1}) is None


@given(st.text(st.sampled_from("[]()<>=AB.:/$\\{}# \n1290mM'\"-"), max_size=80) | st.text(max_size=80))
def test_any_text_is_read_or_unreadable(text: str) -> None:
    for template in TEMPLATES.values():
        verdict = template.parse(text)
        assert not isinstance(verdict, float) or 1.0 <= verdict <= 10.0
    extract_answer(text, {"answer": "1"})
    assert harness_answer(text, "flexible")
    extract_answer(text, {"answer": "a", "choices": ["a", "b"]})


MARKS = ["[[", "]]", "[", "]", "A", "B", ">", ">>", "=", "<", "7", "10", ".5", ".", " ", "\n", "Rating: ", "**"]


@given(st.lists(st.sampled_from(MARKS), max_size=12).map("".join))
def test_brackets_are_read_by_the_official_patterns(text: str) -> None:
    labels = {*re.findall(r"\[\[([AB<>=]+)\]\]", text)}  # arena-hard-auto v0.1, config/judge_config.yaml
    label = labels.pop() if len(labels) == 1 else None
    assert TEMPLATES["arena_hard"].parse(text) == (label if label in ("A>>B", "A>B", "A=B", "B>A", "B>>A") else None)
    score = re.search(r"\[\[(\d+\.?\d*)\]\]", text) or re.search(r"\[(\d+\.?\d*)\]", text)  # FastChat, common.py
    rating = float(score[1]) if score else -1.0
    assert TEMPLATES["mt_bench"].parse(text) == (rating if 1 <= rating <= 10 else None)


def test_both_modes_of_the_harness() -> None:
    text = "First 5, then #### 12. So #### 13 and 14."
    assert (harness_answer(text, "strict"), harness_answer(text, "flexible")) == ("12.", "14.")
    assert harness_match(text, "reasoning\n#### 12", "strict")
    assert harness_match("It costs $1,200.", "1200", "flexible")
    assert not harness_match("#### 18.0", "18", "strict")  # the harness compares text
    assert not harness_match("#### 4\n\nQuestion: 3 cups?\n#### 3", "3", "flexible")


@pytest.mark.parametrize(
    "text", ["#### 12", "so 1,234.\n#### 1,234.", "nothing", "#### $7 and 8", "-3 or 5.0", "#### 4 Question: #### 5"]
)
def test_filters_are_those_of_the_harness(text: str) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.filters.extraction import RegexFilter

    from rlhf_core.evaluation.answers import HARNESS_STOPS, cut_at
    from rlhf_core.evaluation.harness.tasks import task_configs

    (config,) = task_configs("gsm8k").values()
    assert tuple(config["generation_kwargs"]["until"]) == HARNESS_STOPS
    for mode, filters in zip(("strict", "flexible"), config["filter_list"], strict=True):
        options = {key: value for key, value in filters["filter"][0].items() if key != "function"}
        ((found,),) = RegexFilter(**options).apply([[cut_at(text, HARNESS_STOPS)]], [{}])
        assert harness_answer(text, mode) == found


#: Other ways to write an answer; the harness's task hendrycks_math takes most of them for equal.
FORMS: dict[str, Callable[[str], str]] = {
    "fractions of text size": lambda text: text.replace("\\frac", "\\dfrac"),
    "fractions without braces": lambda text: re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", text),
    "roots without braces": lambda text: re.sub(r"\\sqrt\{(\w)\}", r"\\sqrt\1", text),
    "growing brackets": lambda text: re.sub(r"[\])]$", r"\\right\g<0>", re.sub(r"^[\[(]", r"\\left\g<0>", text)),
    "a narrow space": lambda text: f"\\!{text}",
    "a variable": lambda text: f"x={text}",
    "a variable and blanks": lambda text: f"k = {text}",
    "a unit": lambda text: f"{text}\\text{{ cm}}",
    "a unit of areas": lambda text: f"{text} \\text{{ square inches}}",
    "a currency": lambda text: f"\\${text}",
    "a degree": lambda text: f"{text}^\\circ",
    "without the zero": lambda text: text.replace("0.", "."),
    "without blanks": lambda text: text.replace(" ", ""),
}
GOLDS = (
    "5", "-3", "0.75", "\\frac{1}{2}", "-\\frac{3}{4}", "\\sqrt{3}", "3\\sqrt{2}", "\\frac{\\sqrt{3}}{2}", "15\\pi",
    "6 - 5i", "x^2 + 2x - 3", "2^{10}", "\\frac{9\\pi}{2}",
)  # fmt: skip
PAIRS = ("(3,4)", "[0, 1)", "(-\\infty, 5]", "(\\frac{1}{2}, 2)")


@pytest.mark.parametrize(
    ("gold", "form"),
    [*itertools.product(GOLDS, FORMS), *itertools.product(PAIRS, [form for form in FORMS if form != "a degree"])],
)
def test_answers_that_are_equal_to_the_harness_are_right(gold: str, form: str) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    answer, other = FORMS[form](gold), FORMS[form]("7")
    assert is_equiv(answer, gold) <= is_right(
        extract_answer(f"So \\boxed{{{answer}}}.", {"answer": gold}), {"answer": gold}
    )
    assert not is_right(extract_answer(f"So \\boxed{{{other}}}.", {"answer": gold}), {"answer": gold})


def _real_rows(name: str) -> list[dict[str, Any]]:
    default = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    path = Path(os.environ.get("REWARDSMITH_DATA", default)) / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip("no data directory")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_gold_solutions_of_gsm8k_are_right_by_every_rule() -> None:
    for row in _real_rows("gsm8k.test")[:300]:
        text = f"{row['solution']}\n#### {row['answer']}"
        assert is_right(extract_answer(text, row), row)
        assert harness_match(text, text, "strict")
        assert harness_match(text, row["answer"], "flexible")


def test_gold_solutions_of_math_are_right_and_no_other_answer_is() -> None:
    rows = _real_rows("math.test")[:60]
    for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
        assert is_right(extract_answer(row["solution"], row), row), row
        assert is_right(extract_answer(other["solution"], row), row) == (other["answer"] == row["answer"]), row
