"""Tool rewards against a tool server with latency and no cache hit: one by one, as a batch, and while a policy trains.

    python -m benchmarks.tools [--texts 128] [--latency 0.05] [--concurrency 16] [--iterations 4]

The first two count texts per second. Then PPO trains a policy of the testbed's size by the tool's rewards, with the
rollouts of the testbed's translation rows (128 responses, two epochs): the share of its time in which it waits for the
tool. Answers are asked for as soon as they are generated, while the reference scores them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tool_server import ToolServer
from benchmarks.workload import load_model, read, workload
from rlhf_core.aspects.aspect import checked_scores
from rlhf_core.aspects.language_tool import LanguageToolGrammar
from rlhf_core.testbed.translation import TranslationWorld

TARGET = 5.0
"""Times the one-by-one throughput that a batch must reach."""

WAITING = 0.1
"""Largest share of a training step spent waiting."""


@dataclass(frozen=True)
class Throughput:
    """Texts per second, asked one by one and as a batch."""

    one_by_one: float
    batched: float

    @property
    def ratio(self) -> float:
        return self.batched / self.one_by_one


@dataclass(frozen=True)
class Waiting:
    """Means over training steps.

    Attributes:
        step: seconds of a step.
        tool: seconds of it spent waiting for the tool.
        calls: what the tool was asked.
    """

    step: float
    tool: float
    calls: float

    @property
    def share(self) -> float:
        return self.tool / self.step


def throughput(texts: int, latency: float, concurrency: int) -> Throughput:
    """Measures on fresh texts and a server with `latency` seconds."""
    said = [row["response"] for row in TranslationWorld().sft_examples(4 * texts, 0)]
    said = list(dict.fromkeys(said))[: texts + max(8, texts // 8)]
    batch, alone = said[:texts], said[texts:]
    with ToolServer(latency) as server:
        one, many = (LanguageToolGrammar(server.url, concurrency=concurrency) for _ in range(2))
        started = time.monotonic()
        for text in alone:
            checked_scores(one, [{}], [text])
        single = len(alone) / (time.monotonic() - started)
        started = time.monotonic()
        checked_scores(many, [{}] * len(batch), batch)
        together = len(batch) / (time.monotonic() - started)
        for each in (one, many):
            each.client.close()
    return Throughput(single, together)


def waiting(folder: Path, latency: float, concurrency: int, iterations: int, rollout: int = 128) -> Waiting:
    """Trains on the workload in `folder`; the first step, which warms up, does not count."""
    from transformers import AutoTokenizer

    from rlhf_core.credit import build_credit
    from rlhf_core.models.policy import DecoderPolicy
    from rlhf_core.models.reward_model import ScalarModel
    from rlhf_core.models.sampling import Sampling
    from rlhf_core.policy_optimisation.config import optimiser_config
    from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience
    from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
    from rlhf_core.policy_optimisation.phases import PHASES, PhaseClock
    from rlhf_core.policy_optimisation.sources import OnPolicy
    from rlhf_core.rewards.aspect_scorer import AspectScorer, ToolClock, prefetching
    from rlhf_core.rewards.composition import Component, Reward

    place = str(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "model"))
    policy, reference = (DecoderPolicy(load_model(place).eval(), **read(place, "facts")) for _ in range(2))
    reference.model.requires_grad_(False)
    critic = ScalarModel(load_model(place).base_model, heads=("value",), bias=True)
    prompts = [EncodedPrompt(ids, "", {"id": str(i)}) for i, ids in enumerate(read(place, "prompts"))]
    config = optimiser_config(
        "ppo", iterations=iterations + 1, rollout_batch=rollout, group_size=4, minibatch=rollout // 2,
        microbatch=rollout // 2, epochs=2, actor_lr=1e-4, critic_lr=1e-4,
    )  # fmt: skip
    steps: list[dict[str, float]] = []
    with ToolServer(latency) as server:
        scorer = AspectScorer(LanguageToolGrammar(server.url, concurrency=concurrency), tokenizer)
        reward = Reward((Component("grammar", scorer, build_credit("as_is")),), clamp=None)
        clock, tools = PhaseClock(), ToolClock(reward)
        source = OnPolicy(
            policy, reference, tokenizer, prompts, Sampling(40), rollout_batch=rollout, group_size=4,
            microbatch=rollout // 2, clock=clock, on_generated=prefetching(reward),
        )  # fmt: skip

        def note(step: int, metrics: dict[str, float], experience: Experience) -> bool:
            steps.append({**clock.read(), **tools.read()})
            return False

        PolicyOptimiser(policy, reward, source, config, 0, critic=critic, clock=clock).train(note)
    counted = steps[1:]
    seconds = [sum(step[f"{phase}_seconds"] for phase in PHASES) for step in counted]
    means = (sum(step[name] for step in counted) / len(counted) for name in ("tool_seconds", "tool_calls"))
    return Waiting(sum(seconds) / len(seconds), *means)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=4, help="training steps that count")
    parser.add_argument("--out", type=Path, default=Path(".work/benchmarks"), help="where the policy is kept")
    given = parser.parse_args(arguments)
    found = throughput(given.texts, given.latency, given.concurrency)
    print(f"{given.texts} texts, {1000 * given.latency:.0f} ms latency, {given.concurrency} at once, no cache hit")
    reached = "reached" if found.ratio >= TARGET else "missed"
    print(
        f"one by one {found.one_by_one:.1f} texts/s, batched {found.batched:.1f} texts/s: {found.ratio:.1f} x, target "
        f"{TARGET:.0f} x {reached}"
    )
    waited = waiting(workload(given.out), given.latency, given.concurrency, given.iterations)
    reached = "reached" if waited.share <= WAITING else "missed"
    print(
        f"{waited.calls:.0f} calls in a training step of {waited.step:.2f} s, {waited.tool:.2f} s waiting: "
        f"{100 * waited.share:.1f} %, target {100 * WAITING:.0f} % {reached}"
    )


if __name__ == "__main__":
    main()
