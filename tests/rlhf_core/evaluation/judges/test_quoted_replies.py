"""A verdict that the reply quotes, attributes or supposes is read for nobody, in every form and on every line."""

from __future__ import annotations

import time

import pytest

from rlhf_core.evaluation.judges.templates import TEMPLATES
from tests.fuzz.wrappings import ABOVE, BELOW, CONDITIONAL, HOLDING, QUOTING

#: Verdicts that may follow other words on their line, and those that must begin it.
IN_SENTENCES = {"arena_hard": ("[[B>>A]]", "My final verdict is: [[B>A]]"), "mt_bench": ("[[10]]", "Rating: [[10]]")}
ON_LINES = {**IN_SENTENCES, "pairwise": ("Better: B",), "alpaca_eval": ("preference: 2",)}


@pytest.mark.parametrize("wrapping", [*QUOTING, *CONDITIONAL, *HOLDING])
def test_a_quoted_or_conditional_verdict_counts_for_nobody(wrapping: str) -> None:
    for template, verdicts in IN_SENTENCES.items():
        for verdict in verdicts:
            reply = wrapping.replace("{}", verdict)
            assert not TEMPLATES[template].parse(reply).valid, reply
            assert not TEMPLATES[template].parse(f"Both are short.\n\n{reply}").valid, reply


@pytest.mark.parametrize("wrapping", [*QUOTING, *CONDITIONAL])
def test_a_quoted_clause_counts_for_nobody(wrapping: str) -> None:
    reply = wrapping.replace("{}", "I rate it [[9]]")
    assert not TEMPLATES["mt_bench"].parse(reply).valid, reply


@pytest.mark.parametrize(
    "reply",
    [
        "It answers well. I rate it [[9]]",
        "Given all it mentions I rate it [[9]]",
        "It holds a note, then I rate it [[9]]",
    ],
)
def test_a_clause_of_the_judge_counts(reply: str) -> None:
    assert TEMPLATES["mt_bench"].parse(reply).value == 9.0, reply


@pytest.mark.parametrize("above", ABOVE)
@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_a_verdict_below_a_line_that_announces_a_quotation_counts_for_nobody(above: str, gap: str) -> None:
    for template, verdicts in ON_LINES.items():
        for verdict in verdicts:
            assert not TEMPLATES[template].parse(f"{above}{gap}{verdict}").valid, (template, verdict)


@pytest.mark.parametrize("below", BELOW)
def test_a_verdict_that_the_next_line_calls_a_quotation_counts_for_nobody(below: str) -> None:
    for template, verdicts in ON_LINES.items():
        for verdict in verdicts:
            assert not TEMPLATES[template].parse(f"{verdict}\n{below}").valid, (template, verdict)


@pytest.mark.parametrize("wrapping", [*QUOTING, *CONDITIONAL, *HOLDING])
def test_a_judge_that_quotes_another_verdict_beside_its_own_does_not_give_the_quoted_one(wrapping: str) -> None:
    for template, own, quoted in (("arena_hard", "[[A>B]]", "[[B>>A]]"), ("mt_bench", "[[2]]", "[[10]]")):
        reply = f"{wrapping.replace('{}', quoted)}\n\nThis is wrong.\n\nRating: {own}"
        verdict = TEMPLATES[template].parse(reply)
        assert (verdict.label, verdict.value) in ((None, None), ("A>B", None), (None, 2.0)), reply


@pytest.mark.parametrize(
    ("template", "reply"),
    [
        ("arena_hard", "```\n[[A>B]]\n```"),
        ("mt_bench", "```text\nRating: [[7]]\n```"),
        ("pairwise", "```\nBetter: A\n```"),
    ],
)
def test_a_fence_around_nothing_but_the_last_line_is_the_judges_own(template: str, reply: str) -> None:
    assert TEMPLATES[template].parse(reply).valid
    assert not TEMPLATES[template].parse(reply.replace("\n", "\nI am the best.\n", 1)).valid
    assert not TEMPLATES[template].parse(f"Assistant B writes:\n{reply}").valid


LONG = (
    "rating ", "assistant b says ", "if ", '"', "\u201c", "```\n", "> ", "<q>", "<!--", "a's b c ", "the verdict for ",
    ", so ", "- ", "\n", "x:\n", "Assistant B writes:\n", "&lt;", "\u044f", "[[", "(", "I rate ", "would ",
    "this line ", '"a": ', "in a b c of ", "A\u200b",
)  # fmt: skip


@pytest.mark.parametrize("piece", LONG)
def test_a_hundred_thousand_characters_are_read_in_a_moment(piece: str) -> None:
    long = (piece * 100_000)[:100_000]
    for template, verdicts in ON_LINES.items():
        for reply in (f"{long}\n{verdicts[0]}", f"{verdicts[0]}\n{long}"):
            start = time.process_time()
            TEMPLATES[template].parse(reply)
            assert time.process_time() - start < 1  # .1 s on an idle core
