"""Token rewards from a generative reward model's probabilities, and their look-up while a policy trains.

Source: RLMEC, section 4.2, Eq. 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Tokens

Span = tuple[int, int]


@dataclass(frozen=True)
class RewardRanges:
    """Ranges to which rewards are clipped.

    Attributes:
        negative: (alpha, beta) of wrong predictions, so only tokens held to be wrong are punished.
        positive: of right ones, so only tokens held to be right are rewarded.
    """

    negative: tuple[float, float] = (-0.1, 0.0)
    positive: tuple[float, float] = (0.0, 0.5)

    def __post_init__(self) -> None:
        for name in ("negative", "positive"):
            low, high = getattr(self, name)
            if low > high:
                raise RecipeError(f"{name} is [{low}, {high}]; state the lower bound first")
        if self.negative[1] > 0:
            raise RecipeError(
                f"negative is {[*self.negative]}; its upper bound must be at most 0: wrong solutions earn nothing"
            )
        if self.positive[0] < 0:
            raise RecipeError(
                f"positive is {[*self.positive]}; its lower bound must be at least 0: right solutions are not punished"
            )


def token_rewards(probabilities: Sequence[float], correct: bool, ranges: RewardRanges | None = None) -> list[float]:
    """Returns [tokens] clip(P - 1/2, alpha, beta) of each token.

    Args:
        probabilities: [tokens] of each token of the prediction, EOS included, as the corrected one.
        correct: whether the prediction's answer is right.
        ranges: of the clipping.

    Raises:
        NumericsError: a probability outside [0, 1].
    """
    ranges = ranges or RewardRanges()
    low, high = ranges.positive if correct else ranges.negative
    for number, p in enumerate(probabilities):
        if not 0 <= p <= 1 + 1e-6:
            raise NumericsError(f"the probability of token {number} is {p}")
    return [min(max(p - 0.5, low), high) for p in probabilities]


def aligned_logprobs(
    spans: Sequence[Span], model_spans: Sequence[Span], model_logprobs: Sequence[float]
) -> list[float]:
    """Returns the log-probability of each policy token where the reward model cuts the same text into other tokens.

    A model token's log-probability is shared out over its characters, and a policy token takes that of its own. So a
    policy token made of whole model tokens has exactly the log-probability of its text, equal tokens keep theirs, and
    the sum over the text is the same. A token without characters takes 0.

    Args:
        spans: [start, end) of each policy token in the text.
        model_spans: of each token of the reward model, in order and without a gap.
        model_logprobs: of those, nats.

    Raises:
        DataError: spans that leave out or double a character of the text.
    """
    if len(model_spans) != len(model_logprobs):
        raise DataError(f"{len(model_logprobs)} log-probabilities for {len(model_spans)} tokens")
    for name, cuts in (("policy", spans), ("reward model", model_spans)):
        ends = [0, *(end for _, end in cuts)]
        if any(start != before for (start, _), before in zip(cuts, ends, strict=False)):
            raise DataError(f"the tokens of the {name} leave out or double a part of the text")
    if spans and model_spans and spans[-1][1] != model_spans[-1][1]:
        raise DataError(f"the policy's tokens end at {spans[-1][1]}, the reward model's at {model_spans[-1][1]}")
    found, first = [], 0
    for start, end in spans:
        total, place = 0.0, first
        while place < len(model_spans) and model_spans[place][0] < end:
            left, right = model_spans[place]
            shared = min(end, right) - max(start, left)
            if shared > 0:
                total += model_logprobs[place] * shared / (right - left)
            if right > end:
                break
            place += 1
        first = place
        found.append(total)
    return found


@dataclass(frozen=True)
class GivenTokenRewards:
    """Scores fixed samples by rewards that were computed before training for each of their tokens.

    Args:
        rewards: by the id of a batch's record; one per response token, EOS included.
    """

    rewards: Mapping[str, Sequence[float]]

    @property
    def gives(self) -> type[Tokens]:
        return Tokens

    def score(self, batch: RolloutBatch) -> Tokens:
        """Returns [batch, response_len] float32.

        Raises:
            DataError: a response without rewards, or with another number of them than it has tokens.
        """
        mask = batch.responses.mask
        values = torch.zeros(mask.shape)
        for row, (record, length) in enumerate(zip(batch.records, mask.sum(dim=1).tolist(), strict=True)):
            given = self.rewards.get(str(record.get("id")))
            if given is None or len(given) != length:
                raise DataError(
                    f"sample '{record.get('id')}' has {length} tokens and {0 if given is None else len(given)} rewards",
                    field="rewards",
                    remedy="Score the samples that the policy trains on",
                )
            values[row, :length] = torch.tensor(list(given), dtype=torch.float32)
        return Tokens(values.to(mask.device))
