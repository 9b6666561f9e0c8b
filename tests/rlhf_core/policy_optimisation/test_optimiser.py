"""The loop with a critic: what is read where, what an update does not depend on, and what stops a run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_compositions import PROMPTS, ROWS, fresh, run_of
from tiny_models import EOS, PAD, POLICIES, ToyTokenizer, batch_of
from torch.nn.functional import pad

from rlhf_core.errors import NumericsError
from rlhf_core.models.response_states import response_states
from rlhf_core.models.sampling import Sampling
from rlhf_core.passes import microbatches
from rlhf_core.policy_optimisation.advantages import gae, whiten
from rlhf_core.policy_optimisation.experience import EncodedPrompt, Experience, collect, slice_rows
from rlhf_core.policy_optimisation.optimiser import PolicyOptimiser
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rollout import Responses, RolloutBatch


def naive_values(run: PolicyOptimiser, prompt: list[int], row: list[int]) -> torch.Tensor:
    """The critic at the position before each response token of one unpadded sequence."""
    assert run.critic is not None
    one = [
        torch.tensor([prompt]),
        torch.ones(1, len(prompt)).bool(),
        torch.tensor([row]),
        torch.ones(1, len(row)).bool(),
    ]
    with torch.no_grad():
        if run.critic.backbone.config.is_encoder_decoder:
            states = run.critic.backbone(input_ids=one[0], decoder_input_ids=torch.tensor([[PAD, *row[:-1]]]))
            hidden = states.last_hidden_state[0]
        else:
            hidden = run.critic.backbone(input_ids=torch.cat([one[0], one[2]], dim=1)).last_hidden_state[0]
            hidden = hidden[len(prompt) - 1 : -1]
        assert torch.allclose(response_states(run.critic.backbone, *one)[0, :-1], hidden, atol=1e-5)
        return run.critic.heads["value"](hidden).squeeze(-1)


def test_collect_gathers_what_rewards_need() -> None:
    policy, reference, tokenizer = POLICIES["decoder"](3), fresh("decoder"), ToyTokenizer()
    chosen = [EncodedPrompt(row, str(row), {"id": str(row)}) for row in [*PROMPTS[:3], PROMPTS[0]]]
    generator = torch.Generator().manual_seed(0)
    batch = collect(policy, reference, tokenizer, chosen, Sampling(6), generator, microbatch=2)  # type: ignore[arg-type]
    inputs = (batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask)
    with torch.no_grad():
        ours, theirs = policy.statistics(*inputs), reference.statistics(*inputs)
    torch.testing.assert_close(batch.logprobs, ours.logprobs, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(batch.reference_logprobs, theirs.logprobs, atol=5e-5, rtol=1e-5)
    # segmentation is by the entropies of the SFT model, not of the policy that is trained
    torch.testing.assert_close(batch.responses.entropies, theirs.entropies, atol=5e-5, rtol=1e-5)
    assert batch.groups.tolist() == [0, 1, 2, 0]
    for i, pieces in enumerate(batch.responses.pieces or []):
        ids = batch.responses.ids[i][batch.responses.mask[i]].tolist()
        assert pieces == [f" {token}" for token in ids]
        assert batch.texts[i] == "".join(f" {token}" for token in ids if token > EOS)


def test_microbatches_hold_every_row_once_and_slices_are_trimmed() -> None:
    batch = batch_of(PROMPTS, ROWS)
    groups = [rows for rows, _ in microbatches(batch.inputs, 3, packed=True)]
    assert sorted(torch.cat(groups).tolist()) == list(range(8))
    part = slice_rows(batch, torch.tensor([4, 1]))
    alone = batch_of([PROMPTS[4], PROMPTS[1]], [ROWS[4], ROWS[1]])
    assert torch.equal(part.prompt_ids, alone.prompt_ids)
    assert torch.equal(part.responses.ids, alone.responses.ids)
    assert torch.equal(part.responses.ended, alone.responses.ended)
    assert part.texts == alone.texts


def test_the_critic_is_read_before_each_token_and_the_target_is_advantage_plus_value(kind: str) -> None:
    run = run_of("ppo", kind)
    experience = run.experience(run.source.next(run.generator))
    batch, mask = experience.batch, experience.batch.responses.mask
    for i in range(8):
        n = int(mask[i].sum())
        prompt, row = batch.prompt_ids[i][batch.prompt_mask[i]].tolist(), batch.responses.ids[i, :n].tolist()
        torch.testing.assert_close(experience.values[i, :n], naive_values(run, prompt, row), atol=2e-5, rtol=1e-4)
        assert experience.values[i, n:].abs().sum() == 0
    assert batch.logprobs is not None
    assert batch.reference_logprobs is not None
    penalised = experience.reward.total - run.config.kl_coef * (batch.logprobs - batch.reference_logprobs)
    raw = gae(penalised, experience.values, mask, 1.0, 0.95)
    torch.testing.assert_close(experience.returns, (raw + experience.values) * mask, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(experience.advantages, whiten(raw, mask), atol=1e-5, rtol=1e-5)
    assert float(experience.advantages[mask].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(experience.advantages[mask].std(correction=0)) == pytest.approx(1.0, abs=1e-3)


def fixed_experience(run: PolicyOptimiser, order: list[int], left: int = 0, right: int = 0) -> Experience:
    """The same made-up experience with rows in any order and padding to any width."""
    batch = batch_of([PROMPTS[i] for i in order], [ROWS[i] for i in order])
    old = batch.responses
    responses = Responses(
        pad(old.ids, (0, right), value=PAD), pad(old.mask, (0, right)), old.ended, old.pieces, None
    )  # fmt: skip
    shape = responses.ids.shape

    def values(salt: int, scale: float) -> torch.Tensor:
        filled = torch.zeros(shape)
        for place, i in enumerate(order):
            generator = torch.Generator().manual_seed(100 * salt + i)
            filled[place, : len(ROWS[i])] = scale * torch.randn(len(ROWS[i]), generator=generator)
        return filled

    batch = replace(
        batch,
        prompt_ids=pad(batch.prompt_ids, (left, 0), value=PAD),
        prompt_mask=pad(batch.prompt_mask, (left, 0)),
        responses=responses,
    )
    with torch.no_grad():
        now = run.policy.statistics(batch.prompt_ids, batch.prompt_mask, responses.ids, responses.mask).logprobs
    batch = replace(batch, logprobs=now + values(1, 0.2), reference_logprobs=now)
    reward = RewardOutput(torch.zeros(shape), {}, {})
    return Experience(batch, reward, values(2, 1.0), values(3, 1.0), values(4, 1.0), torch.zeros(shape[0]))


def gradients_of(
    kind: str, microbatch: int, order: list[int], chosen: list[int], **padding: int
) -> tuple[dict[str, Any], Any]:
    run = run_of("ppo", kind, actor_lr=1e-30, critic_lr=1e-30, microbatch=microbatch)
    assert run.critic is not None
    metrics = run.learner.minibatch(fixed_experience(run, order, **padding), torch.tensor(chosen)[:, None], 0.0)
    named = itertools.chain(run.policy.model.named_parameters(), run.critic.named_parameters("critic"))
    return {name: p.grad.clone() for name, p in named if p.grad is not None}, metrics


@pytest.mark.parametrize(
    ("microbatch", "order", "chosen", "padding"),
    [
        (1, list(range(8)), list(range(8)), {}),
        (3, list(range(8)), list(range(8)), {}),
        (8, [5, 2, 7, 0, 1, 6, 3, 4], list(range(8)), {}),
        (3, list(range(8)), [7, 3, 1, 0, 2, 6, 5, 4], {"left": 3, "right": 2}),
    ],
)
def test_an_update_depends_on_neither_microbatch_order_nor_padding(
    kind: str, microbatch: int, order: list[int], chosen: list[int], padding: dict[str, int]
) -> None:
    expected, metrics = gradients_of(kind, 8, list(range(8)), list(range(8)))
    found, other = gradients_of(kind, microbatch, order, chosen, **padding)
    assert expected.keys() == found.keys()
    assert any(name.startswith("critic") for name in expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5, rtol=1e-3, msg=name)
    assert metrics == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert metrics["clip_fraction"] > 0
    assert metrics["grad_norm"] > 0


def parameters(run: PolicyOptimiser) -> tuple[torch.Tensor, torch.Tensor]:
    """Policy's and critic's."""
    assert run.critic is not None
    policy, critic = (
        torch.cat([p.detach().flatten() for p in of.parameters()]) for of in (run.policy.model, run.critic)
    )
    return policy, critic


def test_only_the_critic_learns_during_warmup() -> None:
    run, history = run_of("ppo", "decoder", critic_warmup=2), []
    before = parameters(run)

    def stop_after_the_warmup(step: int, metrics: dict[str, float], _: Experience) -> bool:
        history.append(metrics)
        return step == 2

    run.train(stop_after_the_warmup)
    assert torch.equal(parameters(run)[0], before[0])
    assert not torch.equal(parameters(run)[1], before[1])
    assert "grad_norm" not in history[0]


def test_what_is_not_finite_stops_the_run() -> None:
    def broken(batch: RolloutBatch) -> RewardOutput:
        total = torch.full(batch.responses.ids.shape, float("nan"))
        return RewardOutput(total, {"broken": total}, {})

    run = run_of("ppo", "decoder")
    run.reward, before = broken, parameters(run)
    with pytest.raises(NumericsError, match="check the reward"):
        run.train(lambda *_: None)
    assert torch.equal(parameters(run)[0], before[0])
