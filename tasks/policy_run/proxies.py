"""Proxy rewards of benchmark answers, and how far the reward model prefers them to the SFT model's.

Source: PAR, §4.1 (proxy reward and win rate on the test set), §3.2 and §4.6 (hidden preference), Figure 6b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from rlhf_core.data.encoding import Encoder
from rlhf_core.models.policy import Policy
from rlhf_core.policy_optimisation.experience import proxy_scores, score
from rlhf_core.rewards.composition import Reward
from rlhf_core.rollout import RolloutBatch
from tasks.evaluating.policies import Evaluator
from tasks.running.result_rows import Generation
from tasks.scoring.texts import text_batch


class ProxyReader:
    """Proxy rewards of a benchmark's answers, of which `sft` has the SFT model's; shaping is left out, and its
    statistics stay as they are. An entropy segmenter reads entropies of the reference, the SFT policy."""

    def __init__(
        self,
        reward: Reward,
        reference: Policy,
        encoder: Encoder,
        evaluator: Evaluator,
        sft: Sequence[Generation],
        batch: int,
        benchmark: str,
    ) -> None:
        bare = tuple(replace(component, shaping=None, references={}) for component in reward.components)
        self.reward, self.reference, self.encoder, self.batch = Reward(bare, None), reference, encoder, batch
        self.longest = evaluator.config.max_new_tokens
        self.items = {item["id"]: item for item in evaluator.items(f"benchmarks/{benchmark}")}
        before = [row for row in sft if row["benchmark"] == benchmark and row["id"] in self.items]
        self.before = dict(zip((row["id"] for row in before), self.proxies(before), strict=True))

    @torch.no_grad()
    def proxies(self, rows: Sequence[Generation]) -> list[float]:
        """Returns the proxy reward of each answer."""
        found: list[float] = []
        for start in range(0, len(rows), self.batch):
            found += proxy_scores(self.reward(self._rollouts(rows[start : start + self.batch]), update=False)).tolist()
        return found

    def read(self, rows: Sequence[Generation]) -> dict[str, float]:
        """Returns `proxy_reward`, `proxy_reward_sft`, and `preference_score`: the mean of sigmoid(r(y) - r(y_sft)) over
        prompts."""
        rows = [row for row in rows if row["id"] in self.before]
        if not rows:
            return {}
        proxies = torch.tensor(self.proxies(rows))
        before = torch.tensor([self.before[row["id"]] for row in rows])
        return {
            "proxy_reward": float(proxies.mean()),
            "proxy_reward_sft": float(before.mean()),
            "preference_score": float(torch.sigmoid(proxies - before).mean()),
        }

    def _rollouts(self, rows: Sequence[Generation]) -> RolloutBatch:
        asked = []
        for row in rows:
            messages = {k: v for k, v in self.items[row["id"]].items() if k == "messages"}
            asked.append({"id": row["id"], "prompt": row["prompt"], "meta": row["meta"], **messages})
        texts = [row["response"] for row in rows]
        drawn = zip(asked, texts, rows, strict=True)
        sequences = [self.encoder.sampled(ask, text, row["n_tokens"], self.longest) for ask, text, row in drawn]
        batch = text_batch(self.encoder, asked, texts, sequences, range(len(rows)), self.reference.device)
        responses = batch.responses
        _, entropies = score(
            self.reference, batch.prompt_ids, batch.prompt_mask, responses.ids, responses.mask, self.batch
        )
        return replace(batch, responses=replace(responses, entropies=entropies))
