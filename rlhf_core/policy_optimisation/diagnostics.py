"""Diagnostics of a rollout batch before the update. The learner reports on the update itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_core.policy_optimisation.advantages import masked_mean
from rlhf_core.policy_optimisation.experience import Experience
from rlhf_core.policy_optimisation.kl import kl_tokens
from rlhf_core.policy_optimisation.objectives import importance_ratio
from rlhf_core.rollout import Responses

#: Tokens of the n-grams whose repetition is counted.
REPETITION_N = 3


def describe(experience: Experience, *, with_critic: bool) -> dict[str, float]:
    """Returns the reward, KL, entropy, lengths, repetition, advantages, the critic's fit, and the reward's parts.

    `kl` (k1) and `kl_k3` are nats per response against the reference; `entropy` is the mean Shannon entropy, in nats
    per token, of the distributions that the tokens were drawn from, at temperature 1 and untruncated; `proxy` is the
    raw proxy score of a response. `return_*` are of the critic's target, and without a critic of the advantage
    before whitening. `explained_variance` is 1 - E[(R - V)^2] / Var[R] over tokens. `engine_gap` is the mean distance
    of the engine's log-probabilities from the policy's, where they are not the same numbers; `importance` is the mean
    weight of a token by them, and `importance_capped` the share of tokens whose weight the cap lowered.
    """
    batch, reward = experience.batch, experience.reward
    mask, lengths = batch.responses.mask, batch.responses.lengths.float()
    assert batch.logprobs is not None
    assert batch.reference_logprobs is not None
    k1 = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k1")
    k3 = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k3")
    totals = reward.sequence_totals()
    metrics: dict[str, Any] = {
        "reward": totals.mean(),
        "reward_std": totals.std(correction=0),
        "proxy": experience.scores.mean(),
        "proxy_std": experience.scores.std(correction=0),
        "kl": k1.sum(dim=1).mean(),
        "kl_k3": k3.sum(dim=1).mean(),
        "response_length": lengths.mean(),
        "response_length_max": lengths.max(),
        "truncated": 1.0 - batch.responses.ended.float().mean(),
        "repetition": repetition_rate(batch.responses),
    }
    if batch.entropies is not None:
        metrics["entropy"] = masked_mean(batch.entropies, mask)
    if batch.engine_logprobs is not None:
        gap = torch.where(mask, (batch.logprobs - batch.engine_logprobs).abs(), 0.0)
        metrics |= {"engine_gap": masked_mean(gap, mask), "engine_gap_max": gap.max()}
    if experience.importance is not None and batch.engine_logprobs is not None:
        capped = importance_ratio(batch.logprobs, batch.engine_logprobs, mask) > experience.importance
        metrics["importance"] = masked_mean(experience.importance, mask)
        metrics["importance_capped"] = masked_mean(capped.float(), mask)
    metrics |= _spread("advantage", experience.advantages, mask)
    metrics |= _spread("return", experience.returns, mask)
    if with_critic:
        error = masked_mean((experience.returns - experience.values) ** 2, mask)
        metrics["value_mean"] = masked_mean(experience.values, mask)
        metrics["explained_variance"] = 1.0 - error / (metrics["return_std"] ** 2).clamp(min=1e-8)
    for name, signal in reward.raw.items():
        raw = signal.masked_mean() if hasattr(signal, "masked_mean") else signal.values
        metrics[f"proxy/{name}"] = raw.float().mean()
    for name, part in reward.breakdown.items():
        metrics[f"reward/{name}"] = part.sum(dim=1).mean()
    return {name: float(value) for name, value in metrics.items()}


def _spread(name: str, values: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Returns the mean and population standard deviation over real tokens."""
    mean = masked_mean(values, mask)
    return {f"{name}_mean": mean, f"{name}_std": masked_mean((values - mean) ** 2, mask).sqrt()}


def repetition_rate(responses: Responses, n: int = REPETITION_N) -> float:
    """Returns the share of n-grams that stood earlier in the same response, over all responses; 0 without any
    n-gram."""
    repeated = total = 0
    for ids, length in zip(responses.ids.tolist(), responses.lengths.tolist(), strict=True):
        grams = [tuple(ids[i : i + n]) for i in range(length - n + 1)]
        repeated += len(grams) - len(set(grams))
        total += len(grams)
    return repeated / total if total else 0.0
