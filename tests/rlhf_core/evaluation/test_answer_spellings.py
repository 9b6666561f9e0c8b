"""Spellings of answers as models write them: right ones are accepted, and no part of another answer is."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.answers import solution_is_right
from rlhf_core.evaluation.choice_answers import extract_choice
from rlhf_core.reasoning.grading import extract_answer, is_right

RIGHT_NUMBERS = {
    "42": ["#### 42", "The answer is 42.", "\\boxed{42}", "$\\boxed{42}$", "**Answer: 42**", "42 apples",
           "So it is 42.", "The answer is $42.00.", "The answer is **42**", "The answer is 42.0 dollars",
           "The answer is \\(42\\).", "Final answer: 42", "The answer is 42!", "The answer is 42%",
           "The answer is 42 kg", "The answer is 42kg", "The answer is 40 + 2 = 42", "The answer is 42, not 41.",
           "It isn't 41 but 42", "not 41 but 42", "42, not 41", "The answer is not 41 but 42", "The answer is `42`",
           "```\n42\n```", "The answer is x = 42.", "The answer is \\text{42}", "The answer is 42 cm^2",
           "The area is 42 m^2.", "The answer is €42",
           "The answer is \N{ARABIC-INDIC DIGIT FOUR}\N{ARABIC-INDIC DIGIT TWO}", "\\fbox{42}", "\\boxed {42}",
           "The answer cannot be 5. The answer is 42.", "\\boxed{42}. It isn't \\boxed{41}.",
           "The answer is 42 or 42.0", "The final answer is 42. I hope it is correct.", "42 instead of 41",
           "The answer is 42 (6 * 7)", "The answer is 4.2e1", "The answer is 42 years old", "The answer is +42",
           "The answer is 42°"],
    "1234": ["1,234", "The answer is $1,234.00", "#### 1,234", "1{,}234", "The answer is 1'234",
             "The answer is 1\\,234", "The answer is 1\\ 234", "The answer is 1\N{THIN SPACE}234",
             "The answer is 1_234", "\\boxed{1 234}", "The answer is \u0661\u066c\u0662\u0663\u0664",
             "The answer is 1234.", "The answer is 1,234 people"],
    "1234.56": ["The answer is 1.234,56", "1,234.56", "The answer is 1.234,56 €",
                "The answer is \u0661\u0662\u0663\u0664\u066b\u0665\u0666"],
    "7": ["so 175/25 = 7 bars?", "Is it 5? So 7."],
    "90": ["300(.30)=90", "The answer is $90^\\circ$", "the angle is $90^\\circ,$ and it is right",
           "The answer cannot be negative, so it is 90.", "The answer will not change: 90"],
    "0.75": ["3/4", "3 / 4", "The answer is 3 / 4.", "\\boxed{\\frac{3}{4}}", "The answer is $\\frac{3}{4}$", "¾",
             "\\frac34", "The answer is .75", "The answer is 3/4 or 0.75", "The answer is 0.75 or 75%",
             "\\boxed{\\dfrac{3}{4}}", "The answer is \\frac{1.5}{2}"],
    "2.5": ["2 1/2", "The answer is 2 1/2 cups", "2½", "2 and a half", "The answer is 2 and 1/2", "2\\frac{1}{2}",
            "5/2"],
    "-5": ["The answer is -5", "The answer is \N{MINUS SIGN}5", "-5", "The answer is negative 5", "$-5$",
           "\\boxed{-5}"],
    "100000": ["The answer is 10^5", "10^{5}", "1,00,000", "10⁵", "The answer is 1 \\times 10^5", "100,000"],
}  # fmt: skip


@pytest.mark.parametrize(("gold", "text"), [(gold, text) for gold, texts in RIGHT_NUMBERS.items() for text in texts])
def test_a_right_number_is_accepted(gold: str, text: str) -> None:
    assert solution_is_right(text, gold)
    question = {"answer": gold}
    assert is_right(extract_answer(text, question), question)


WRONG_NUMBERS = {
    "3": ["3 / 4", "The answer is 3 / 4", "The answer is 3:45", "The answer is 3^2", "The answer is 3\\sqrt{2}",
          "not 3", "The answer is 3x", "The answer is 3\\pi", "The answer is 3 or 4", "The answer is 3 \\times 4",
          "The answer is 3-5"],
    "4": ["3 / 4", "3/4", "x^4", "The answer is \\sqrt{4}", "\\boxed{\\sqrt{4}}", "\\frac{3}{4}\\pi",
          "3\N{FRACTION SLASH}4"],
    "5": ["the answer cannot be 5", "the answer can't be 5", "The answer can\N{RIGHT SINGLE QUOTATION MARK}t be 5",
          "the answer is never 5", "not 5 but 7", "it isn't 5", "The answer isn\N{RIGHT SINGLE QUOTATION MARK}t 5",
          "It is not 5.", "The answer cannot be \\boxed{5}", "It isn't \\boxed{5}", "7, not 5",
          "\\boxed{7}, not \\boxed{5}", "The answer is 5'10", "The answer could not be 5", "5 is not the answer",
          "The answer must not be 5", "10^5", "x \\neq 5", "x != 5", "The answer will never be 5", "The answer is ±5",
          "7 rather than 5", "The answer is 5/6", "The answer is 5 - 3", "The answer is 5? No",
          "So 5? No, I was wrong"],
    "1": ["The answer is 1 234", "The answer is 1.234,56", "The answer is 1,5", "The answer is 1,2,3",
          "The answer is 1/2/2020", "The answer is 1 1/2", "The answer is 1 and a half", "The answer is 1½",
          "The answer is 1\N{THIN SPACE}234"],
    "10": ["The answer is 10^5", "The answer is 10_2", "10^{2}", "10²", "The answer is 10:30", "The answer is 10 ÷ 2"],
    "2": ["The answer is 2^{10}", "2^{10}", "The answer is 2 1/2", "2½", "The answer is 2k", "The answer is $2k",
          "it is $2k per month", "The answer is $2K.", "The answer is 2 + 3"],
    "1.234": ["1,234", "The answer is 1.234,56"],
    "1234": ["The answer is 1.234"],
    "56": ["1.234,56", "The answer is -56", "12:56"],
    "0.5": ["The answer is 0,500"],
}  # fmt: skip


@pytest.mark.parametrize(("gold", "text"), [(gold, text) for gold, texts in WRONG_NUMBERS.items() for text in texts])
def test_no_part_of_a_number_and_no_denied_one_is_accepted(gold: str, text: str) -> None:
    assert not solution_is_right(text, gold)
    question = {"answer": gold}
    assert not is_right(extract_answer(text, question), question)


CHOICES = ["cat", "dog", "12", "12%"]


@pytest.mark.parametrize(
    "text",
    ["The answer is (B).", "**Answer: B**", "Answer: B", "B", "(B)", "`B`", "```\nB\n```", "**B**",
     "$\\boxed{\\text{(B)}}$", "\\boxed{B}", "The answer is \\text{(B)}", "The answer is **(B)**", "The answer is b.",
     "The correct answer is B because A is wrong", "Option B", "The answer is option B", "The answer is dog.",
     "The answer is a dog", "#### B", "The answer is $\\textbf{(B)}$", "B, not A", "It isn't A but B",
     "The answer is not A but B", "The answer is: B) dog", "\\(B\\)", "The answer is [B]",
     "(B) is right. (A) is wrong.", "The answer is \N{FULLWIDTH LATIN CAPITAL LETTER B}"],
)  # fmt: skip
def test_a_right_choice_is_read(text: str) -> None:
    assert extract_choice(text, 4, CHOICES) == 1


@pytest.mark.parametrize(
    "text",
    ["A or B", "The answer is A or B", "The answer is (A) or (B).", "Either A or B", "The answer is A/B", "A and B",
     "The answer is cat or dog", "The answer is A, B or C", "The answer cannot be A",
     "The final answer cannot be a dog", "not B", "isn't (B)", "It isn't B", "The answer can't be (B)",
     "The answer is 12.5", "The answer is -12", "The answer is 12/5", "The answer is 12 million",
     "The answer is 12,000"],
)  # fmt: skip
def test_no_single_choice_is_none(text: str) -> None:
    assert extract_choice(text, 4, CHOICES) is None


@pytest.mark.parametrize(
    "text", ["The dog has not been sterilized", "A surface that is not sterilized", "It isn't sterilized"]
)
def test_not_in_front_of_a_choice_in_words_is_prose(text: str) -> None:
    assert extract_choice(text, 3, ["sterilized", "painted", "sold"]) == 0


def test_i_is_a_letter_or_a_pronoun() -> None:
    assert extract_choice("The answer is I", 9) == 8
    assert extract_choice("I think B", 9) == 1
    assert extract_choice("B and I am sure", 9) == 1
    assert extract_choice("A and I", 9) is None
    assert extract_choice("I is right", 9) == 8


def test_a_share_is_not_the_choice_of_its_number() -> None:
    assert extract_choice("The answer is 12%", 4, CHOICES) == 3
    assert extract_choice("The answer is 12%", 3, CHOICES[:3]) is None
    assert extract_choice("The answer is 12", 4, CHOICES) == 2


def test_more_choices_than_letters_are_refused() -> None:
    assert extract_choice("The answer is Z", 26) == 25
    with pytest.raises(DataError, match=r"field 'choices': 27 choices; answers are the letters A to Z\. Remove wrong"):
        extract_choice("The answer is A", 27)


def test_a_denied_expression_is_no_answer() -> None:
    question: dict[str, Any] = {"answer": "x^2"}
    for text in ("The answer cannot be \\boxed{x^2}", "It isn't \\boxed{x^2}"):
        assert not is_right(extract_answer(text, question), question)
