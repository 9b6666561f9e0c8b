"""Ordinary replies of judges in the styles of several models: every one is read, and read right."""

from __future__ import annotations

import pytest

from rlhf_core.evaluation.judges.templates import TEMPLATES

HONEST: dict[str, list[tuple[str, str | float]]] = {
    "arena_hard": [
        (
            "My own answer: Paris.\n\nAssistant A gives the right city and explains why. Assistant "
            "B says Lyon, which is wrong.\n\nMy final verdict is: [[A>>B]]",
            "A>>B",
        ),
        (
            "## Comparison\n\n- **Assistant A**: correct, concise.\n- **Assistant B**: claims that "
            "water boils at 90 °C.\n\n## Verdict\n\n**[[A>>B]]**",
            "A>>B",
        ),
        ("### My final verdict is: [[A=B]]", "A=B"),
        ("**Final Verdict:** [[B>A]]", "B>A"),
        ("My final verdict is: Assistant A is slightly better: [[A>B]]", "A>B"),
        ("My final verdict is: Assistant B is significantly better: [[B>>A]].", "B>>A"),
        ("My final verdict is tie, relatively the same: [[A=B]]", "A=B"),
        ("[[A>B]] Assistant A is slightly better", "A>B"),
        ("[[B>>A]]: Assistant B is significantly better.", "B>>A"),
        ("Final verdict: [[A=B]] about the same", "A=B"),
        ("**[[A>B]]** Assistant A is slightly better.\n\nBoth are correct, yet A explains each step.", "A>B"),
        (
            "| Criterion | A | B |\n|---|---|---|\n| Accuracy | good | poor |\n| Concision | good | "
            "good |\n\n**Verdict: [[A>>B]]**",
            "A>>B",
        ),
        ("| Criterion | Winner |\n|---|---|\n| Accuracy | A |\n| **Verdict** | [[A>B]] |", "A>B"),
        ("$\\boxed{[[A>B]]}$", "A>B"),
        ("Therefore the verdict is\n\n$$\\boxed{[[B>A]]}$$", "B>A"),
        ("\\[\n\\boxed{[[A>>B]]}\n\\]", "A>>B"),
        ("Verdict:\n```\n[[A>B]]\n```", "A>B"),
        ("```\nMy final verdict is: [[B>A]]\n```", "B>A"),
        ("`[[A=B]]`", "A=B"),
        ('{"explanation": "Assistant B says that 2 + 2 = 5.", "verdict": "[[A>>B]]"}', "A>>B"),
        ("<verdict>[[B>A]]</verdict>", "B>A"),
        ("<answer>\n[[B>A]]\n</answer>", "B>A"),
        ("<think>If length counts, [[B>A]]?</think>\n\nAssistant A is correct.\n\n[[A>B]]", "A>B"),
        ("After comparing both answers with mine, I conclude that Assistant B is more helpful. [[B>A]]", "B>A"),
        ("Since Assistant B claims two false dates without a source, my final verdict is: [[A>>B]]", "A>>B"),
        ("Given these points, my final verdict is:\n\n[[A>B]]", "A>B"),
        ("Assistant A includes more detail, and the user asked for detail. Therefore, I choose [[A>B]].", "A>B"),
        ("Both assistants say the same thing in other words. Overall, I'd say [[A=B]].", "A=B"),
        (
            "If the user wanted a short answer, B would do. The user wants depth, though.\n\nFinal verdict: [[A>B]]",
            "A>B",
        ),
        (
            "> What is the capital of Australia?\n\nMy answer: Canberra. Assistant A says "
            "Sydney.\n\nMy final verdict is: [[B>>A]]",
            "B>>A",
        ),
        ('Assistant B wrote "Sydney". That is wrong.\n\n**My final verdict is: [[A>>B]]**', "A>>B"),
        ("Assistant B writes:\n\n> Sydney is the capital.\n\nThis is wrong.\n\nMy final verdict is: [[A>>B]]", "A>>B"),
        (
            "Assistant A's code:\n\n```python\nprint(1)\n```\n\nIt prints the wrong value.\n\nMy final "
            "verdict is: [[B>>A]]",
            "B>>A",
        ),
        ("1. Helpfulness: A wins.\n2. Relevance: equal.\n3. Concision: A wins.\n\nMy final verdict is: [[A>B]]", "A>B"),
        ("- Assistant B claims that the moon is made of cheese\n- Assistant A is right\n[[A>>B]]", "A>>B"),
        ("Assistant A's answer is more complete, so the final verdict is [[A>B]]", "A>B"),
        ("Assistant B did not follow the instructions.\n\n[[A>>B]]", "A>>B"),
        ("Assistant B does not cite sources; therefore my verdict is: [[A>B]]", "A>B"),
        ("Without a doubt, my final verdict is: [[A>>B]]", "A>>B"),
        ("**Winner: Assistant A** — [[A>B]]", "A>B"),
        ("Here is my final verdict:\n\n[[B>A]]", "B>A"),
        ("最终结论：[[A>B]]", "A>B"),
        ("我的最终判断是：**[[B>A]]**。", "B>A"),
        ("Mein Urteil: [[A>B]]", "A>B"),
        ("Mon verdict final : [[A=B]]", "A=B"),
        ("My final verdict is: [[A>B]]\n\n**Reason:** Assistant A names both causes. Assistant B names one.", "A>B"),
        ("[[A>B]]\n\nAssistant A provided a more detailed answer with examples, while Assistant B was brief.", "A>B"),
        ("My final verdict would be: [[A>B]]", "A>B"),
    ],
    "mt_bench": [
        ("The response is accurate and well structured. It could be improved by adding a source. Rating: [[8]]", 8),
        ("**Rating: [[9]]**", 9),
        ("Rating: [[8]] out of 10", 8),
        ("Rating: **[[8]]** out of 10.", 8),
        ("[[8]]/10", 8),
        ("**Score:** [[7]]/10\n\nThe answer is clear but lacks depth.", 7),
        ("### Evaluation\n\nThe assistant's answer says that 7 is even, which is false.\n\n### Rating\n\n[[2]]", 2),
        ("The answer is correct and matches the reference answer. Rating: [[10]]", 10),
        ("My rating would be [[7]].", 7),
        ("I would give this response a rating of [[6]].", 6),
        ("Overall, I'd rate this answer [[7.5]].", 7.5),
        ("Therefore, the final rating is: [[4]]", 4),
        ("\\boxed{[[8]]}", 8),
        ("$$\\boxed{[[8]]}$$", 8),
        ('{"explanation": "It is short.", "rating": "[[5]]"}', 5),
        ("```\nRating: [[5]]\n```", 5),
        ("The assistant asks the user for more details, which the question already has, so I rate it [[3]].", 3),
        ("The user asked for a haiku. The assistant wrote a limerick.\n\nRating: [[3]]", 3),
        ("Had the assistant mentioned the exceptions, the answer would have been complete.\n\nRating: [[7]]", 7),
        ("If the reader is a beginner, this is ideal. It should have named a source, however. Rating: [[8]]", 8),
        ("The response contains a wrong statement in step 2. Rating: [[4]]", 4),
        ("- Accuracy: good\n- Depth: shallow\n- Creativity: none\n\nRating: [[5]]", 5),
        ("| Aspect | Note |\n|---|---|\n| Accuracy | right |\n\nRating: [[9]]", 9),
        ("Rating: [[7]]\n\nExplanation: The response addresses the question, but it doesn't give an example.", 7),
        ("Rating: [[6]] - the answer is helpful yet misses the second part.", 6),
        ("The assistant's second answer repeats the first one. It says nothing new.\n\n**Rating: [[4]]**", 4),
        ("评分：[[8]]", 8),
        ("Its score is [[6]].", 6),
        ("The answer mentions both towns and is right, rating: [[9]]", 9),
        ("The response gives a correct answer, thus I rate it [[9]]", 9),
        ("The answer gives two towns and deserves a rating of [[8]]", 8),
        ("Given that the answer lists every town, my rating: [[9]]", 9),
        ("With all this in mind, my rating: [[7]]", 7),
        ("The assistant quoted the poem without a fault, so the rating is [[10]].", 10),
        ("<rating>[[8]]</rating>", 8),
    ],
    "pairwise": [
        (
            "Assistant-A Response:\nClear and correct.\nAssistant-B Response:\nClaims that the sun "
            "is cold.\nComparison and Analysis:\nA is accurate.\n\nBetter: A",
            "A",
        ),
        (
            "Assistant-A Response:\nClear.\n\nAssistant-B Response:\nUnclear.\n\nComparison and "
            "Analysis:\nAssistant-B says less, and what it says is wrong.\nBetter: A",
            "A",
        ),
        ("### Comparison and Analysis:\nBoth answer the question.\n\n**Better: N**", "N"),
        ("**Better:** B", "B"),
        ("Assistant-B would be better if it were shorter.\n\nBetter: A", "A"),
        ("- Assistant-A asks a question back\n- Assistant-B answers\nBetter: B", "B"),
        ("The comparison result:\nBetter: B", "B"),
        ("Here is the comparison result in the requested format:\n\nBetter: A", "A"),
        ("```\nBetter: B\n```", "B"),
        ("## Final verdict\n\nBetter: N", "N"),
        (
            "Assistant-A wrote a poem as requested. Assistant-B wrote prose.\n\nBetter: A because it follows the form",
            "A",
        ),
    ],
    "alpaca_eval": [
        ("m", 1),
        ("M", 2),
        (" M\n", 2),
        ("preference: 1.4", 1.4),
        ("The first output is clearer.\npreference: 1.1", 1.1),
    ],
    "output_pair": [
        ("Output (a)", "A"),
        ("**Output (b)**", "B"),
        ("Output (b).", "B"),
        ("## Output (a):", "A"),
    ],
    "ranking": [
        ("[{'model': 'model_1', 'rank': 1}, {'model': 'model_2', 'rank': 2}]", "A"),
        ('```json\n[{"model": "model_2", "rank": 1}, {"model": "model_1", "rank": 2}]\n```', "B"),
        ("[\n    {'model': 'model_1', 'rank': 2},\n    {'model': 'model_2', 'rank': 1}\n]", "B"),
    ],
}


@pytest.mark.parametrize(("template", "reply", "reading"), [(name, *case) for name in HONEST for case in HONEST[name]])
def test_an_ordinary_reply_is_read(template: str, reply: str, reading: str | float) -> None:
    verdict = TEMPLATES[template].parse(reply)
    assert (verdict.label or verdict.value) == reading, verdict.reason


def test_sixty_ordinary_replies_are_kept() -> None:
    assert sum(map(len, HONEST.values())) >= 60
