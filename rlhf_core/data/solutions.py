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


def _fields(row: Mapping[str, Any], kinds: Mapping[str, type], file: str, number: int) -> list[Any]:
    """Returns the values of a row, checked.

    Raises:
        DataError: a field that is missing or of another type.
    """
    for name, kind in kinds.items():
        if not isinstance(row.get(name), kind):
            raise DataError(
                f"is {row.get(name)!r:.60}, expected {kind.__name__}", file=file, row=number, field=name,
                remedy="Run the stage that makes it again",
            )  # fmt: skip
    return [row[name] for name in kinds]


_SAMPLE = {
    "id": str,
    "question_id": str,
    "prompt": str,
    "solution": str,
    "prediction": str,
    "correct": bool,
}
_REWRITE = {"id": str, "prompt": str, "prediction": str, "rewrite": str}
_REWARDS = {"id": str, "token_ids": list, "rewards": list}


def read_samples(rows: Iterable[Mapping[str, Any]], file: str) -> list[Sample]:
    """Samples of a file's rows.

    Raises:
        DataError: no row, a field missing or of another type, or an id that comes twice.
    """
    samples = [
        Sample(*[*_fields(row, _SAMPLE, file, number), row.get("token_ids")])
        for number, row in enumerate(rows, start=1)
    ]
    if not samples:
        raise DataError("there is no sampled solution", file=file, remedy="Sample more questions")
    if len({sample.id for sample in samples}) < len(samples):
        raise DataError("an id is used twice", file=file, field="id")
    return samples


def read_rewrites(rows: Iterable[Mapping[str, Any]], file: str) -> list[Rewrite]:
    """Returns the accepted rewrites of a file's rows that differ from their prediction; others teach no edit."""
    accepted = ((number, row) for number, row in enumerate(rows, start=1) if row.get("accepted"))
    found = [Rewrite(*_fields(row, _REWRITE, file, number)) for number, row in accepted]
    return [rewrite for rewrite in found if rewrite.rewrite != rewrite.prediction]


def read_token_rewards(rows: Iterable[Mapping[str, Any]], file: str) -> dict[str, TokenRewards]:
    """Returns the token rewards by sample id.

    Raises:
        DataError: another number of rewards than of tokens.
    """
    found = {}
    for number, row in enumerate(rows, start=1):
        name, ids, rewards = _fields(row, _REWARDS, file, number)
        if len(ids) != len(rewards):
            raise DataError(f"{len(rewards)} rewards for {len(ids)} tokens", file=file, row=number, field="rewards")
        found[str(name)] = TokenRewards(ids, rewards, row.get("probabilities"))
    return found


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
