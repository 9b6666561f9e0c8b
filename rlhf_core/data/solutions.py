"""Solutions that a policy sampled, and rewrites of them: what RLMEC and its baselines learn from.

Rows are those of samples.jsonl, rewrites.jsonl (a teacher's), grm_rewrites.jsonl (a generative reward model's) and
token_rewards.jsonl. Source: RLMEC, §4.1 and §4.2.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import DataError
from rlhf_core.typed import Checked, above, at_least


@dataclass(frozen=True)
class Sample:
    """One sampled solution.

    Attributes:
        id: of the sample.
        question_id: of its question; several samples share one.
        prompt: the question as asked.
        solution: the ground truth.
        prediction: what was sampled.
        correct: whether its answer is right.
        token_ids: as drawn, EOS included where the model produced it; None where only the text is known.
    """

    id: str
    question_id: str
    prompt: str
    solution: str
    prediction: str
    correct: bool
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True)
class Rewrite:
    """A correct solution that was made from a prediction by editing it.

    Attributes:
        id: of the sample.
        prompt: the question as asked.
        prediction: the sampled solution.
        rewrite: the corrected one.
    """

    id: str
    prompt: str
    prediction: str
    rewrite: str


@dataclass(frozen=True)
class TokenRewards:
    """Rewards of a sample's tokens, EOS included.

    Attributes:
        token_ids: of the prediction.
        rewards: [len(token_ids)].
        probabilities: that they come from; None where only the rewards are known.
    """

    token_ids: Sequence[int]
    rewards: Sequence[float]
    probabilities: Sequence[float] | None = None


def read_samples(rows: Iterable[Mapping[str, Any]], file: str) -> list[Sample]:
    """Returns the samples of a file's rows.

    Raises:
        DataError: there is none.
    """
    names = ("id", "question_id", "prompt", "solution", "prediction", "correct")
    samples = [Sample(**{name: row[name] for name in names}, token_ids=row.get("token_ids")) for row in rows]
    if not samples:
        raise DataError("there is no sampled solution", file=file, remedy="Sample more questions")
    return samples


def read_rewrites(rows: Iterable[Mapping[str, Any]]) -> list[Rewrite]:
    """Returns the accepted rewrites of a file's rows that differ from their prediction; others teach no edit."""
    return [
        Rewrite(row["id"], row["prompt"], row["prediction"], row["rewrite"])
        for row in rows
        if row.get("accepted") and row["rewrite"] != row["prediction"]
    ]


def read_token_rewards(rows: Iterable[Mapping[str, Any]]) -> dict[str, TokenRewards]:
    """Returns the token rewards of a file's rows by sample id."""
    return {row["id"]: TokenRewards(row["token_ids"], row["rewards"], row.get("probabilities")) for row in rows}


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

    def choose(self, samples: Sequence[Sample], rewritten: Collection[str], seed: int) -> list[Sample]:
        """Returns the samples that stay, in their order.

        Args:
            samples: all.
            rewritten: ids of wrong ones with an accepted rewrite.
            seed: of the draw.

        Raises:
            DataError: none stays.
        """
        right: dict[str, dict[str, str]] = {}
        for sample in samples:
            if sample.correct:
                right.setdefault(sample.question_id, {}).setdefault(_spelled(sample.prediction), sample.id)
        drawn = random.Random(f"right solutions-{seed}")
        kept = {
            name
            for found in right.values()
            for name in drawn.sample(list(found.values()), min(len(found), self.most_right or len(found)))
        }

        def stays(sample: Sample) -> bool:
            if sample.correct:
                return self.most_right is None or sample.id in kept
            return self.failed or sample.id in rewritten

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


def ground_truths(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the first sample of every question: its question and ground truth."""
    found: dict[str, Sample] = {}
    for sample in samples:
        found.setdefault(sample.question_id, sample)
    return list(found.values())


def pairs(samples: Sequence[Sample]) -> list[dict[str, str]]:
    """Returns the preference pairs {id, question_id, prompt, chosen, rejected}: of each question its correct and wrong
    predictions.

    Distinct predictions only, each at most once: the k-th correct one with the k-th wrong one, in sampled order.
    """
    sides: dict[str, tuple[dict[str, Sample], dict[str, Sample]]] = {}
    for sample in samples:
        right, wrong = sides.setdefault(sample.question_id, ({}, {}))
        (right if sample.correct else wrong).setdefault(sample.prediction, sample)
    return [
        {
            "id": f"{good.id}/{bad.id}",
            "question_id": good.question_id,
            "prompt": good.prompt,
            "chosen": good.prediction,
            "rejected": bad.prediction,
        }
        for right, wrong in sides.values()
        for good, bad in zip(right.values(), wrong.values(), strict=False)
    ]
