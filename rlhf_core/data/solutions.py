"""Solutions that a policy sampled, and rewrites of them: what RLMEC and its baselines learn from.

Rows are those of the stages that write them:

    samples.jsonl         id, question_id, prompt, solution (the true one), prediction, correct, token_ids as drawn
    rewrites.jsonl        id of the sample, prompt, prediction, rewrite, accepted; grm_rewrites.jsonl likewise
    token_rewards.jsonl   id of the sample, token_ids, rewards and probabilities of each token, EOS included

Source: RLMEC, §4.1 and §4.2.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import DataError
from rlhf_core.typed import Checked, above, at_least

Row = Mapping[str, Any]


def edits(rewrites: Iterable[Row]) -> list[Row]:
    """Returns the accepted rewrites that differ from their prediction; others teach no edit."""
    return [row for row in rewrites if row["accepted"] and row["rewrite"] != row["prediction"]]


@dataclass(frozen=True)
class LearntSolutions(Checked):
    """Settings that say which sampled solutions a policy learns from.

    Args:
        failed: whether wrong ones stay whose rewrite the generative reward model failed.
        most_right: right ones of a question at most, drawn from those of different text; None for all, repeated ones
            included.
        passes: over the solutions that stay, after which training ends before `iterations`; None for no such end.
    """

    failed: bool = True
    most_right: Annotated[int, at_least(1)] | None = None
    passes: Annotated[float, above(0)] | None = None

    def choose(self, samples: Sequence[Row], rewritten: Collection[str], seed: int) -> list[Row]:
        """Returns the samples that stay, in their order.

        Raises:
            DataError: none stays.
        """
        right: dict[str, dict[str, str]] = {}
        for sample in samples:
            if sample["correct"]:
                right.setdefault(sample["question_id"], {}).setdefault(_spelled(sample["prediction"]), sample["id"])
        drawn = random.Random(f"right solutions-{seed}")
        kept = {
            name
            for found in right.values()
            for name in drawn.sample(list(found.values()), min(len(found), self.most_right or len(found)))
        }

        def stays(sample: Row) -> bool:
            if sample["correct"]:
                return self.most_right is None or sample["id"] in kept
            return self.failed or sample["id"] in rewritten

        chosen = [sample for sample in samples if stays(sample)]
        if not chosen:
            raise DataError(
                f"none of {len(samples)} sampled solutions stays",
                field="failed",
                remedy="Train a better generative reward model, or set solutions.failed to true",
            )
        return chosen


#: Every sampled solution is learned from.
ALL_SOLUTIONS = LearntSolutions()


def _spelled(text: str) -> str:
    """Returns a solution without blanks, newlines and full stops, by which repeated ones are told. Source: RLMEC's
    released code."""
    return "".join(letter for letter in text if letter not in " \n.")


def ground_truths(samples: Sequence[Row]) -> list[Row]:
    """Returns the first sample of every question: its question and ground truth."""
    found: dict[str, Row] = {}
    for sample in samples:
        found.setdefault(sample["question_id"], sample)
    return list(found.values())


def pairs(samples: Sequence[Row]) -> list[dict[str, str]]:
    """Returns the preference pairs {id, question_id, prompt, chosen, rejected}: of each question its correct and wrong
    predictions.

    Distinct predictions only, each at most once: the k-th correct one with the k-th wrong one, in sampled order.
    """
    sides: dict[str, tuple[dict[str, Row], dict[str, Row]]] = {}
    for sample in samples:
        right, wrong = sides.setdefault(sample["question_id"], ({}, {}))
        (right if sample["correct"] else wrong).setdefault(sample["prediction"], sample)
    return [
        {
            "id": f"{good['id']}/{bad['id']}",
            "question_id": good["question_id"],
            "prompt": good["prompt"],
            "chosen": good["prediction"],
            "rejected": bad["prediction"],
        }
        for right, wrong in sides.values()
        for good, bad in zip(right.values(), wrong.values(), strict=False)
    ]
