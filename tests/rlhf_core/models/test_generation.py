"""Sampling: against Hugging Face's greedy search and naive truncation, repeatable and independent of other rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, PAD, POLICIES, next_logits, random_rows, tiny_policy

from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.models.choosing import truncate
from rlhf_core.models.decoding import Decoding, FixedDecoding
from rlhf_core.models.generation import TOKENS_PER_LOOK, Generated
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.response_states import response_states
from rlhf_core.models.sampling import Sampling, generate

PROMPTS = random_rows(5, [4, 2, 6, 1, 3, 5, 2, 2], ended=False)


def policy_that_ends(seed: int = 0, eagerness: float = 2.0, kind: str = "decoder") -> Policy:
    """A random policy that likes EOS, so that rows end at different steps."""
    policy = POLICIES[kind](seed)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[EOS] *= eagerness
        if kind == "encoder_decoder":  # the EOS logit follows the mean state
            states = response_states(policy.model, *(torch.ones(1, 1).long(), torch.ones(1, 1).bool()) * 2)[0]
            mean = policy.scale * states.mean(dim=0)  # type: ignore[attr-defined]
            policy.model.get_output_embeddings().weight[EOS] = eagerness * mean / mean.dot(mean)
    return policy


def sample(policy: Policy, prompts: list[list[int]], seed: int = 0, **settings: float) -> Generated:
    ids, mask = pad_rows(prompts, PAD, "left")
    options = {"max_new_tokens": 12, **settings}
    return generate(policy, ids, mask, Sampling(**options), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_is_hugging_faces_greedy(kind: str, seed: int) -> None:
    policy = policy_that_ends(seed, kind=kind)
    out = sample(policy, PROMPTS, temperature=0.0)
    ids, mask = pad_rows(PROMPTS, PAD, "left")
    theirs = policy.model.generate(
        ids, attention_mask=mask.long(), max_new_tokens=12, do_sample=False, eos_token_id=EOS, pad_token_id=PAD
    )[:, 1 if kind == "encoder_decoder" else ids.shape[1] :]
    assert out.ids.masked_fill(~out.mask, PAD).tolist() == theirs[:, : out.ids.shape[1]].tolist()
    assert (theirs[:, out.ids.shape[1] :] == PAD).all()


def test_generation_stops_when_all_rows_ended() -> None:
    policy = policy_that_ends(eagerness=0.0)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.zero_()
    calls = []
    policy.model.model.register_forward_hook(lambda *_: calls.append(1))
    policy.eos_id = 0  # all logits are equal, so greedy picks token 0
    out = sample(policy, PROMPTS, temperature=0.0)
    assert out.mask.sum(dim=1).tolist() == [1] * len(PROMPTS)
    assert out.ended.all()
    assert len(calls) == 1


def test_dropping_ended_rows_changes_no_other_rows_samples(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is also sampled with its own random numbers alone, by a loop without cache or batch."""
    policy = policy_that_ends(1, 2.0 if kind == "decoder" else 12.0, kind)
    prompts, steps = PROMPTS, 12
    selections = []
    decoding = FixedDecoding if kind == "decoder" else Decoding
    plain = decoding.keep
    monkeypatch.setattr(decoding, "keep", lambda self, kept: selections.append(len(kept)) or plain(self, kept))
    out = sample(policy, prompts, seed=3, max_new_tokens=steps)
    assert selections, "no row was dropped: the test does not test what it says"
    generator = torch.Generator().manual_seed(3)
    uniforms = torch.stack([torch.rand(len(prompts), generator=generator) for _ in range(steps)])
    for i, prompt in enumerate(prompts):
        row: list[int] = []
        for step in range(steps):
            p = next_logits(policy, prompt, row)[-1].softmax(-1).tolist()
            cumulative = itertools.accumulate(p)
            row.append(next(token for token, total in enumerate(cumulative) if total > float(uniforms[step, i])))
            if row[-1] == EOS:
                break
        assert out.ids[i][out.mask[i]].tolist() == row


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.5}, {"temperature": 0.0}])
def test_recorded_logprobs_are_the_untruncated_ones_of_a_fresh_pass(kind: str, settings: dict[str, float]) -> None:
    policy = policy_that_ends(2, kind=kind)
    out = sample(policy, PROMPTS, **settings)
    ids, mask = pad_rows(PROMPTS, PAD, "left")
    with torch.no_grad():
        fresh = policy.statistics(ids, mask, out.ids, out.mask, with_entropy=False)
    torch.testing.assert_close(out.logprobs, fresh.logprobs, atol=5e-5, rtol=1e-5)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 9), st.sampled_from([1.0, 0.95, 0.5, 0.1]))
def test_truncation_keeps_what_a_naive_loop_keeps(seed: int, top_k: int, top_p: float) -> None:
    scores = 2 * torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
    kept = torch.isfinite(truncate(scores, Sampling(4, top_k=top_k, top_p=top_p)))
    for row in range(3):
        order = sorted(range(8), key=lambda i: -float(scores[row, i]))
        order = order[:top_k] if top_k else order
        mass = torch.tensor([float(scores[row, i]) for i in order]).softmax(0).tolist()
        expected, total = set(), 0.0
        for i, p in zip(order, mass, strict=True):
            if total >= top_p and top_p < 1:
                break
            expected.add(i)
            total += p
        assert {i for i in range(8) if kept[row, i]} == expected


def test_settings_out_of_range_and_broken_policies_are_refused() -> None:
    for bad in ({"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}):
        with pytest.raises(RecipeError, match=f"{next(iter(bad))} is .*; it must be"):
            Sampling(**{"max_new_tokens": 4, **bad})  # type: ignore[arg-type]
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(NumericsError, match="not finite"):
        sample(policy, PROMPTS)


def test_the_training_mode_is_given_back() -> None:
    policy = policy_that_ends()
    policy.model.train()
    sample(policy, PROMPTS, max_new_tokens=2)
    assert policy.model.training


@pytest.mark.parametrize("every", [2, 3, 100])
def test_looking_seldom_which_rows_have_ended_changes_neither_samples_nor_generator(
    kind: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_that_ends(1, 2.0 if kind == "decoder" else 12.0, kind)
    ids, mask = pad_rows(PROMPTS[:3], PAD, "left")
    found = []
    for looks in (1, every):
        monkeypatch.setitem(TOKENS_PER_LOOK, "cpu", looks)
        generator = torch.Generator().manual_seed(3)
        found.append((generate(policy, ids, mask, Sampling(60), generator), torch.rand(2, generator=generator)))
    (often, after), (seldom, later) = found
    assert often.ended.all(), "so that there are steps that nobody needs"
    assert torch.equal(seldom.ids, often.ids)
    assert torch.equal(seldom.mask, often.mask)
    torch.testing.assert_close(seldom.logprobs, often.logprobs, atol=1e-5, rtol=1e-5)
    assert torch.equal(later, after)
