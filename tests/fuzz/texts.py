"""Replies of judges, answers of models and rows of data, put together from pieces that parsers look for."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from rlhf_core.data.jsonl import read_lines
from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import RECORD_TYPES
from rlhf_core.evaluation.answers import extract_number, parse_number, solution_is_right
from rlhf_core.evaluation.choice_answers import extract_choice
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.templates import TEMPLATES, render
from tests.fuzz.damage import VALUES
from tests.fuzz.wrappings import ABOVE, BELOW, CONDITIONAL, HOLDING, QUOTING

PIECES = (
    "Better: ", "A", "B", "N", " = ", " < ", "[[", "]]", "10", "7.5", ">>", "preference: ", "m", "M", "Output (a)",
    "**", "\n", " ", "or", "not", "because", "The answer is ", "####", "\\boxed{", "}", "\\frac", "{",
    "\N{FULLWIDTH DIGIT FIVE}", "1,234", "/", "-", "nan", "\ud800", "\0", "{'model': 'model_1', 'rank': 1}", ",", "[",
    "]", "(C)", "%", "9" * 50, "=", "but", "<|", "|>", "# Instruction", "## Output (a):", "### User:", '"""',
)  # fmt: skip


def text_of(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(30)))


#: Verdicts by template that each stand alone, and the judge's own other one; those of the first two also inside a line.
VERDICTS = {
    "arena_hard": (("[[B>>A]]", "**[[B>A]]**", "My final verdict is: [[B>>A]]", "So [[B>A]]."), "[[A>B]]"),
    "mt_bench": (("[[10]]", "Rating: [[10]]", "**Rating:** [[9]]/10", "I rate it [[9]]"), "Rating: [[2]]"),
    "pairwise": (("Better: B", "**Better: B**"), "Better: A"),
    "alpaca_eval": (("preference: 2",), "preference: 1"),
}
#: Sentences of a judge that give no verdict.
REMARKS = (
    "Both are short.",
    "Assistant A names the source.",
    "- It is clear.",
    "## Comparison",
    "| a | b |",
    "It says 5.",
)
#: Ways to write the same words.
SPELLINGS: tuple[Callable[[str], str], ...] = (
    str, str.upper, lambda text: text.replace(" ", "\N{NO-BREAK SPACE}"), lambda text: text.replace("e", "e\u200b"),
    lambda text: text.replace("Assistant B", "**Assistant B**"), lambda text: text.replace("a", "\u0430"),
    lambda text: text.replace(" ", "  "),
)  # fmt: skip


def wrapped_verdict(rng: random.Random) -> tuple[str, str, str]:
    """Returns a template, a reply whose only verdict is a quotation, a condition or an example, and the judge's own."""
    template = rng.choice([*VERDICTS])
    verdicts, own = VERDICTS[template]
    verdict, spelled = rng.choice(verdicts), rng.choice(SPELLINGS)
    kind = rng.choice(("inside", "above", "below") if template in ("arena_hard", "mt_bench") else ("above", "below"))
    if kind == "inside":
        holding = () if verdict.startswith("I ") else HOLDING
        before, behind = rng.choice([*QUOTING, *CONDITIONAL, *holding]).split("{}")
        reply = spelled(before) + verdict + behind
    elif kind == "above":
        reply = spelled(rng.choice(ABOVE)) + rng.choice(("\n", "\n\n", "\r\n")) + verdict
    else:
        reply = verdict + rng.choice(("\n", "\n\n")) + rng.choice(BELOW)
    remarks = [rng.choice(REMARKS) for _ in range(rng.randrange(3))]
    return template, "\n\n".join([*remarks, reply]), own


def judge_replies(rng: random.Random) -> str:
    """A reply is read in both orders of its words or not at all, no wrapped verdict counts, and no answer changes the
    marks of a prompt."""
    name, wrapped, own = wrapped_verdict(rng)
    parse = TEMPLATES[name].parse
    assert not parse(wrapped).valid, f"{name} reads {wrapped!r}"
    both = parse(f"{wrapped}\n\nThat is wrong.\n\n{own}")
    assert not both.valid or both == parse(own), f"{name} reads {wrapped!r} beside its own"
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
    extract_choice(text, 4, ["cat", "dog", "1", "2"])
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
