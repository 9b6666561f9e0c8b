"""Every named algorithm: it learns, resumes bitwise, accumulates exactly, and refuses what contradicts."""

from __future__ import annotations

import copy
import io
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import EOS, POLICIES, ToyTokenizer, batch_of, random_rows, tiny_critic

from rlhf_core.credit import CREDITS
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.models.sampling import Sampling
from rlhf_core.policy_optimisation.config import OPTIMISERS, OptimiserConfig, composed, optimiser_config
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience, ReplayBuffer
from rlhf_core.policy_optimisation.learner import Imitation, Learner
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.policy_optimisation.sources import FixedSamples, OnPolicy, Passes
from rlhf_core.rewards.composition import Component, Reward, RewardOutput
from rlhf_core.rewards.function import FunctionScorer
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.choices import build_shaping
from rlhf_core.signals import Sequence

SIZES: dict[str, Any] = {
    "iterations": 3, "rollout_batch": 8, "minibatch": 4, "microbatch": 3, "epochs": 1, "actor_lr": 1e-3,
    "max_grad_norm": 1e9,
}  # fmt: skip
PROMPTS = random_rows(1, [3, 5, 1, 4, 2, 2, 6, 3], ended=False)
ROWS = random_rows(2, [6, 1, 3, 7, 2, 5, 4, 4])


def config_of(name: str, **settings: Any) -> OptimiserConfig:
    sizes = {**SIZES, **({"critic_lr": 1e-3} if name.startswith("ppo") else {})}
    sizes |= {"group_size": 4} if name == "grpo" else {}
    return optimiser_config(name, **{**sizes, **settings})


def token_reward(batch: RolloutBatch) -> RewardOutput:
    total = (batch.responses.ids.float() / 50 - 0.5) * batch.responses.mask
    return RewardOutput(total, {"ids": total}, {})


@cache
def fresh(kind: str) -> Policy:
    """A policy that nothing trains: a reference, or what is copied."""
    return POLICIES[kind](1)


@cache
def fresh_critic(kind: str) -> ScalarModel:
    return tiny_critic(kind, 2)


def run_of(
    name: str, kind: str = "decoder", seed: int = 0, imitate: bool = False, start: Policy | None = None, **settings: Any
) -> PolicyOptimiser:
    """A run of a policy that likes EOS; or of `start`, which is the critic's start, too."""
    config = config_of(name, **settings)
    policy, reference = copy.deepcopy(start or fresh(kind)), start or fresh(kind)
    if start is None:
        with torch.no_grad():
            policy.model.get_output_embeddings().weight[EOS] *= 3
    source: Any
    sizes = {"rollout_batch": config.rollout_batch, "microbatch": config.microbatch, "seed": seed}
    if config.source == "fixed":
        source = FixedSamples(reference, batch_of(PROMPTS, ROWS), **sizes)
    else:
        prompts = [EncodedPrompt(row, str(row), {"id": str(row)}) for row in PROMPTS]
        tokenizer: Any = ToyTokenizer()
        source = OnPolicy(policy, reference, tokenizer, prompts, Sampling(5), group_size=config.group_size, **sizes)
    sequences = [EncodedSequence(p, r) for p, r in zip(PROMPTS, ROWS, strict=True)]
    weights = [[1.0] * len(row) for row in ROWS]
    auxiliary = Imitation(sequences, weights, batch=3, microbatch=2, seed=seed) if imitate else None
    critic = None
    if config.has_critic and start is None:
        critic = copy.deepcopy(fresh_critic(kind))
    elif config.has_critic and start is not None:
        critic = ScalarModel.from_language_model(copy.deepcopy(start.model), heads=("value",), bias=True)
    return PolicyOptimiser(policy, token_reward, source, config, seed, critic=critic, auxiliary=auxiliary)


def stored(run: PolicyOptimiser) -> Any:
    """The state through a file, tensors and plain values only."""
    file = io.BytesIO()
    torch.save(run.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OPTIMISERS),
    ("online_dpo", {"dpo_min_margin": 0.1}),
    (
        "ppo",
        {
            "epochs": 2,
            "replay": 2,
            "iterations": 4,
            "value_target": "monte_carlo",
            "value_coef": 1.0,
            "kl_target": 0.5,
            "lr_warmup": 0.5,
        },
    ),
    ("rlmec", {"imitate": True}),
    ("grpo", {"replay": 1, "whitening": "minibatch", "lr_schedule": "cosine", "lr_final_share": 0.1}),
]


#: Every variant of a decoder; of encoder-decoders one with a critic, one with pairs and one of fixed samples.
OF_KINDS = [("decoder", *variant) for variant in VARIANTS]
OF_KINDS += [("encoder_decoder", name, {}) for name in ("ppo", "online_dpo", "rlmec")]


@pytest.mark.parametrize(
    ("kind", "name", "settings"), OF_KINDS, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(kind: str, name: str, settings: dict[str, Any]) -> None:
    straight, history = run_of(name, kind, **settings), []
    straight.train(lambda step, metrics, _: history.append((step, metrics)))
    first = run_of(name, kind, **settings)
    half = straight.config.iterations // 2
    before = [first.iterate()[0] for _ in range(half)]
    resumed, after = run_of(name, kind, seed=99, **settings), []
    with torch.no_grad():
        for p in resumed.policy.model.parameters():
            p.add_(0.1)
    resumed.load_state_dict(stored(first))
    resumed.train(lambda step, metrics, _: after.append((step, metrics)))
    assert [*enumerate(before, start=1), *after] == history
    assert equal(stored(resumed), stored(straight))
    assert not equal(stored(straight)["learner"]["policy"], stored(run_of(name, kind, **settings))["learner"]["policy"])


@pytest.mark.parametrize("shaping", ["minmax", "meanstd", "clip"])
def test_running_statistics_and_a_buffer_that_has_been_drawn_from_resume_bitwise(shaping: str) -> None:
    def fresh_run(seed: int = 0) -> PolicyOptimiser:
        run = run_of("ppo", "decoder", seed, replay=2, iterations=6)
        scorer = FunctionScorer(lambda batch: batch.responses.ids[:, 0] / 12.0, Sequence, "first")
        chain = build_shaping({"kind": shaping})
        run.reward = Reward((Component("first", scorer, CREDITS["last_token"], shaping=chain),))
        return run

    straight, history = fresh_run(), []
    straight.train(lambda step, metrics, _: history.append(metrics))
    first, resumed = fresh_run(), fresh_run(9)
    for _ in range(4):
        first.iterate()
    resumed.load_state_dict(stored(first))
    assert [resumed.iterate()[0] for _ in range(2)] == history[4:]
    assert equal(stored(resumed), stored(straight))
    (counted,) = straight.state_dict()["reward"]["first"]["shaping"].values()
    assert counted["count"] == 6 * 8


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name, settings in OF_KINDS if not settings])
def test_accumulated_gradients_are_those_of_one_big_batch(kind: str, name: str) -> None:
    run = run_of(name, kind, minibatch=8)
    batch = batch_of(PROMPTS, [*ROWS[:-1], []])
    noise = torch.randn(batch.responses.ids.shape, generator=torch.Generator().manual_seed(0))
    noise = 0.1 * noise * batch.responses.mask
    with torch.no_grad():
        now = run.policy.statistics(
            batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask
        ).logprobs
    groups = torch.arange(8) // run.config.group_size
    experience = run.experience(replace(batch, logprobs=now + noise, reference_logprobs=now - noise, groups=groups))
    gradients = []
    for microbatch in (8, 4, 1):
        policy, critic = copy.deepcopy(run.policy), copy.deepcopy(run.critic)
        learner = Learner(policy, critic, replace(run.config, microbatch=microbatch))
        learner.minibatch(experience, learner.units(experience), 0.05)
        gradients.append([p.grad.clone() for p in policy.model.parameters() if p.grad is not None])
    assert sum(float(g.abs().sum()) for g in gradients[0]) > 0
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_an_empty_or_all_masked_batch_is_defined(kind: str, name: str) -> None:
    run = run_of(name, kind, minibatch=8)
    batch = batch_of(PROMPTS, [[] for _ in PROMPTS])
    zeros = torch.zeros(8, 1)
    wide = replace(batch.responses, ids=zeros.long(), mask=zeros.bool())
    groups = torch.arange(8) // run.config.group_size
    batch = replace(batch, responses=wide, logprobs=zeros, reference_logprobs=zeros, groups=groups)
    metrics = run.update(run.experience(batch))
    assert all(abs(value) < 1e6 for value in metrics.values())
    assert metrics["policy_loss"] == pytest.approx(0.6931 if name == "online_dpo" else 0.0, abs=1e-3)


def test_the_buffer_fills_first_and_then_swaps_for_a_stored_batch() -> None:
    run = run_of("ppo", "decoder", iterations=8)
    buffer, generator = ReplayBuffer(4), torch.Generator().manual_seed(0)
    made: list[Experience] = [run.experience(run.source.next(run.generator)) for _ in range(7)]
    assert [buffer.substitute(each, generator) for each in made[:4]] == [None] * 4
    out = [buffer.substitute(each, generator) for each in made[4:]]
    known = [each.advantages for each in made]
    for i, each in enumerate(out):
        assert each is not None
        assert any(torch.equal(each.advantages, advantages) for advantages in known[: 4 + i])
    assert len(buffer.pool) == 4
    assert ReplayBuffer(0).substitute(made[0], generator) is made[0]


def test_online_dpo_skips_pairs_of_a_small_margin_and_counts_them() -> None:
    run = run_of("online_dpo", "decoder", dpo_min_margin=1.5)
    made = run.experience(run.source.next(run.generator))
    scores = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 5.0, 0.0, 1.5])
    experience = replace(made, scores=scores, batch=replace(made.batch, groups=torch.arange(8) // 2))
    assert run.learner.units(experience).tolist() == [[2, 3], [7, 6]]
    metrics = run.update(experience)
    assert metrics["skipped_pairs"] == 2
    assert metrics["policy_loss"] == pytest.approx(0.6931, abs=0.1)
    assert "skipped_pairs" not in run_of("online_dpo", "decoder").iterate()[0]


def test_the_imitation_loss_is_divided_by_the_weighted_tokens(kind: str) -> None:
    policy = POLICIES[kind](1)
    sequences = [EncodedSequence(PROMPTS[0], ROWS[0]), EncodedSequence(PROMPTS[2], ROWS[2])]
    weights = [[1.0, 0.5, 0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    parts = list(Imitation(sequences, weights, batch=2, microbatch=1, coefficient=2.0).parts(policy))
    expected = 0.0
    for sequence, row in zip(sequences, weights, strict=True):
        batch = batch_of([sequence.prompt], [sequence.response])
        logprobs = policy.statistics(batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask)
        expected -= 2.0 * float((torch.tensor([row]) * logprobs.logprobs).sum().detach()) / 4
    assert float(sum(parts)) == pytest.approx(expected, rel=1e-5)  # type: ignore[arg-type]


def test_every_item_comes_once_before_any_comes_again() -> None:
    passes = Passes(5, 3, "a")
    drawn = [i for _ in range(5) for i in passes.next()]
    assert all(sorted(drawn[start : start + 5]) == list(range(5)) for start in range(0, 15, 5))
    with pytest.raises(DataError, match="nothing to draw"):
        Passes(0, 1, "a")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grpo", {"group_size": 1}, "at least 2"),
        ("grpo", {"rollout_batch": 6, "minibatch": 6}, "group_size"),
        ("grpo", {"critic_lr": 1e-3}, "does not read 'critic_lr': critic is 'none'"),
        ("grpo", {"value_clip": 0.2}, "does not read 'value_clip'"),
        ("grpo", {"critic": "sft"}, "'gae' needs a critic"),
        ("grpo", {"kl_estimator": "k1"}, "would penalise nothing"),
        ("ppo", {"kl_placement": ["reward", "loss"]}, "kl_placement is .* must be text"),
        ("ppo", {"critic_lr": None}, "state critic_lr"),
        ("ppo", {"critic": "none"}, "critic is 'none'"),
        ("ppo", {"critic_warmup": None}, "critic_warmup is null; it must be a whole number"),
        ("ppo", {"kl_placement": "none", "kl_coef": 0.1}, "does not read 'kl_coef'"),
        ("ppo", {"kl_horizon": 10}, "kl_coef is fixed"),
        ("ppo", {"kl_target": 6.0, "kl_coef": 0.0}, "adapts a penalty"),
        ("ppo", {"group_std": "sample"}, "does not read 'group_std'"),
        ("ppo", {"replay": 3}, "nothing would ever be trained"),
        ("ppo", {"minibatch": 3}, "not a multiple of minibatch 3"),
        ("ppo", {"epochs": 0}, "epochs is 0; it must be at least 1"),
        ("ppo", {"clipp": 0.1}, "did you mean 'clip'"),
        ("ppo", {"actor_lr": float("nan")}, "actor_lr"),
        ("ppo_a2c", {"clip": 0.1}, "does not read 'clip': objective is 'policy_gradient'"),
        ("online_dpo", {"group_size": 4}, "learns from pairs"),
        ("online_dpo", {"kl_placement": "reward"}, "dpo_beta"),
        ("online_dpo", {"dpo_min_margin": -0.1}, "dpo_min_margin is -0.1; it must be at least 0"),
        ("online_dpo", {"dpo_min_margin": float("nan")}, "dpo_min_margin is nan; it must be a finite number"),
        ("grpo", {"dpo_min_margin": 0.5}, "does not read 'dpo_min_margin'"),
        ("rlmec", {"whitening": "rollout"}, "their own rewards"),
        ("grop", {}, "did you mean 'grpo'"),
    ],
)
def test_contradicting_settings_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        config_of(name, **settings)


def test_a_critic_that_the_settings_do_not_want_is_refused() -> None:
    run = run_of("grpo", "decoder")
    with pytest.raises(RecipeError, match="a critic is given"):
        PolicyOptimiser(run.policy, token_reward, run.source, run.config, 0, critic=tiny_critic("decoder"))


def test_the_example_of_the_engine_page_runs() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "engine.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    made = {
        name: globals()[name] for name in ("RolloutBatch", "RewardOutput", "OnPolicy", "Sampling", "PolicyOptimiser")
    }
    made |= {"optimiser_config": optimiser_config, "tokenizer": ToyTokenizer(), "policy": POLICIES["decoder"](1)}
    made |= {"reference": POLICIES["decoder"](1), "prompts": [EncodedPrompt(row, "", {}) for row in PROMPTS]}
    printed: list[Any] = []
    exec(block.replace("iterations=10", "iterations=2"), {**made, "print": lambda *values: printed.append(values)})
    assert [step for step, *_ in printed] == [1, 2]
    kinds = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert kinds == set(OPTIMISERS)


def of_another_engine(run: PolicyOptimiser, gap: float) -> PolicyOptimiser:
    """Returns a run whose engine finds every token less probable by a factor of e^gap than the policy does."""
    following = run.source.next

    def shifted(generator: torch.Generator) -> RolloutBatch:
        batch = following(generator)
        assert batch.logprobs is not None
        return replace(batch, engine_logprobs=batch.logprobs - gap)

    run.source.next = shifted  # type: ignore[method-assign]
    return run


@pytest.mark.parametrize(
    ("name", "settings"),
    [("ppo", {}), ("rloo", {}), ("grpo", {"kl_coef": 0.0}), ("reinforce_plus_plus", {"replay": 1})],
)
def test_importance_weights_multiply_the_gradient_up_to_their_cap(name: str, settings: dict[str, Any]) -> None:
    sizes = {"minibatch": 8, **settings}

    def norm(gap: float, cap: float | None) -> float:
        run = of_another_engine(run_of(name, "decoder", **sizes, importance_cap=cap), gap)
        metrics = [run.iterate()[0] for _ in range(1 + run.config.replay)][-1]
        assert ("importance" in metrics) == (cap is not None)
        return metrics["grad_norm"]

    plain = norm(0.5, None)
    assert plain > 0
    assert norm(0.5, 2.0) == pytest.approx(plain * math.exp(0.5), rel=1e-4)
    assert norm(0.5, 1.25) == pytest.approx(plain * 1.25, rel=1e-4)
    assert norm(-0.5, 2.0) == pytest.approx(plain * math.exp(-0.5), rel=1e-4)


def test_null_takes_back_a_setting_that_the_composition_does_not_read() -> None:
    """A scale states it for all rows; one row's optimiser has no use for it."""
    assert composed("grpo", {"critic_lr": None}) == composed("grpo", {})
    with pytest.raises(RecipeError, match="set it to null in the row"):
        composed("grpo", {"critic_lr": 1e-3})


def test_importance_weights_are_refused_where_nothing_reads_them_or_all_are_1() -> None:
    for name in ("online_dpo", "rlmec"):
        with pytest.raises(RecipeError, match=f"'{name}' does not read 'importance_cap': objective is '{name}'"):
            config_of(name, importance_cap=2.0)
    with pytest.raises(RecipeError, match="importance_cap is 2, but source is 'fixed'"):
        config_of("vanilla_ppo", source="fixed", importance_cap=2.0)
    with pytest.raises(RecipeError, match="importance_cap is 0"):
        config_of("grpo", importance_cap=0.0)
    with pytest.raises(
        RecipeError, match="importance_cap is 2, but the engine's log-probabilities are the policy's own"
    ):
        run_of("grpo", "decoder", importance_cap=2.0).iterate()
