"""What a rollout batch looks like before the update."""

from __future__ import annotations

from typing import Any

from rlhf_core.policy_optimisation.advantages import masked_mean
from rlhf_core.policy_optimisation.experience import Experience
from rlhf_core.policy_optimisation.kl import kl_tokens


def describe(experience: Experience, *, with_critic: bool) -> dict[str, float]:
    """Reward, KL, entropy, lengths, the critic's fit, and the reward's parts; means over responses or tokens."""
    batch, reward = experience.batch, experience.reward
    mask, lengths = batch.responses.mask, batch.responses.lengths.float()
    assert batch.logprobs is not None
    assert batch.reference_logprobs is not None
    k1 = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k1")
    k3 = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k3")
    metrics: dict[str, Any] = {
        "reward": reward.sequence_totals().mean(),
        "kl": k1.sum(dim=1).mean(),
        "kl_k3": k3.sum(dim=1).mean(),
        "entropy": -masked_mean(batch.logprobs, mask),
        "response_length": lengths.mean(),
        "truncated": 1.0 - batch.responses.ended.float().mean(),
    }
    if with_critic:
        error = masked_mean((experience.returns - experience.values) ** 2, mask)
        spread = masked_mean((experience.returns - masked_mean(experience.returns, mask)) ** 2, mask)
        metrics["value_mean"] = masked_mean(experience.values, mask)
        metrics["return_mean"] = masked_mean(experience.returns, mask)
        metrics["explained_variance"] = 1.0 - error / spread.clamp(min=1e-8)
    for name, signal in reward.raw.items():
        raw = signal.masked_mean() if hasattr(signal, "masked_mean") else signal.values
        metrics[f"proxy/{name}"] = raw.float().mean()
    for name, part in reward.breakdown.items():
        metrics[f"reward/{name}"] = part.sum(dim=1).mean()
    return {name: float(value) for name, value in metrics.items()}
