"""Replies of judges, answers of models and rows of data, put together from pieces that parsers look for."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from rlhf_core.data.jsonl import read_lines
from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import RECORD_TYPES
from rlhf_core.evaluation.answers import extract_number, parse_number, solution_is_right
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.templates import TEMPLATES, render
from rlhf_core.reasoning.grading import extract_answer
from tests.fuzz.damage import VALUES

PIECES = (
    "Better: ", "A", "B", "N", " = ", " < ", "[[", "]]", "10", "7.5", ">>", "preference: ", "m", "M", "Output (a)",
    "**", "\n", " ", "or", "not", "because", "The answer is ", "####", "\\boxed{", "}", "\\frac", "{",
    "\N{FULLWIDTH DIGIT FIVE}", "1,234", "/", "-", "nan", "\ud800", "\0", "{'model': 'model_1', 'rank': 1}", ",", "[",
    "]", "(C)", "%", "9" * 50, "=", "but", "<|", "|>", "# Instruction", "## Output (a):", "### User:", '"""',
)  # fmt: skip


def text_of(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))


def judge_replies(rng: random.Random) -> str:
    """A reply is read within its scale or not at all, and no answer changes the marks of a prompt."""
    text = text_of(rng)
    for template in TEMPLATES.values():
        verdict = template.parse(text)
        assert not verdict.valid or verdict.value is None or 1 <= verdict.value <= 10, text
        if template.n_answers == 2:
            _, user = render(JudgeRequest("1", "q", (text, "plain"), template.name))
            _, plain = render(JudgeRequest("1", "q", ("plain", "plain"), template.name))
            for mark in template.marks:
                assert user.lower().count(mark.lower()) == plain.lower().count(mark.lower()), text
    return text


def model_answers(rng: random.Random) -> str:
    """An answer has a number that can be read again, or none."""
    text = text_of(rng)
    found = extract_number(text)
    assert found is None or solution_is_right(f"#### {found}", found) or parse_number(found) is None, text
    extract_answer(text, {"answer": "cat", "choices": ["cat", "dog", "1", "2"]})
    return text


def data_rows(rng: random.Random) -> str:
    """A row is good, or has faults with a field and a reason."""
    row = {"id": "a", "prompt": "q", "chosen": "x", "rejected": "y", "source": "s", "messages": []}
    for _ in range(rng.randrange(1, 4)):
        row[rng.choice([*row, "label", "carried"])] = rng.choice([value for value in VALUES if value != {1: 2}])
    text = json.dumps(row)
    if rng.random() < 0.3:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice('{}[]":,\0\\') + text[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.train.jsonl")
        path.write_text(text + "\n", encoding="utf-8", errors="surrogatepass")
        lines = read_lines(path)
    find_faults(lines.rows, RECORD_TYPES[rng.choice(["preference", *RECORD_TYPES])])
    return text
