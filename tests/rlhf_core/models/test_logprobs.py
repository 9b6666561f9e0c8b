"""Log-probabilities and entropies: every path against the naive reference, in values, gradients and dtypes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, batch_of, random_rows, tiny_policy
from torch import Tensor, nn

from rlhf_core.models import logprobs
from rlhf_core.models.fused_logprobs import can_fuse, fused_statistics
from rlhf_core.models.logprobs import project, token_statistics

TOKENS, HIDDEN, WORDS = 7, 8, 30


def token_statistics_naive(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the same from full logits [tokens, vocabulary]: the reference."""
    p = torch.softmax(logits.double(), dim=-1)
    chosen = torch.stack([p[i, t].log() for i, t in enumerate(targets.tolist())]) if len(targets) else p.new_zeros(0)
    return chosen.float(), (-(p * p.clamp(min=1e-300).log()).sum(dim=-1)).float()


def case(bias: bool = False, seed: int = 0) -> tuple[Tensor, Tensor, nn.Linear]:
    """(hidden states, targets, projection); the first and the last word are among the targets."""
    torch.manual_seed(seed)
    output = nn.Linear(HIDDEN, WORDS, bias=bias)
    targets = torch.randint(0, WORDS, (TOKENS,))
    targets[0], targets[1] = 0, WORDS - 1
    return 3 * torch.randn(TOKENS, HIDDEN), targets, output


def plain(hidden: Tensor, targets: Tensor, output: nn.Module, softcap: float | None = None) -> tuple[Tensor, Tensor]:
    """Log-softmax and gather, entropy from the same; differentiable."""
    logits = output(hidden).float()
    log_p = (softcap * torch.tanh(logits / softcap) if softcap else logits).log_softmax(-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def gradients(function: Any, hidden: Tensor, targets: Tensor, output: nn.Linear, **options: Any) -> list[Tensor]:
    """Of a loss in which every token's log-probability and entropy has its own weight."""
    hidden, output = hidden.clone().requires_grad_(), copy.deepcopy(output)
    logs, entropies = function(hidden, targets, output, **options)
    weights = torch.linspace(-1, 2, len(targets), dtype=logs.dtype)
    loss = (weights * logs).sum()
    if entropies.requires_grad:
        loss = loss + (weights.flip(0) * entropies**2).sum()
    loss.backward()
    assert hidden.grad is not None
    return [hidden.grad, *(p.grad for p in output.parameters() if p.grad is not None)]


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_chunked_statistics_are_the_naive_ones(chunk: int, softcap: float | None) -> None:
    hidden, targets, output = case()
    logs, entropies = token_statistics(hidden, targets, output, softcap=softcap, chunk=chunk)
    expected = token_statistics_naive(project(hidden, output, softcap), targets)
    torch.testing.assert_close(logs, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected[1], atol=1e-5, rtol=1e-5)
    assert token_statistics(hidden, targets, output, with_entropy=False)[1].abs().sum() == 0


@pytest.mark.parametrize("blocks", [(1, 1), (3, 7), (7, 30), (100, 100), (None, None)])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_statistics_are_the_naive_ones(blocks: Any, softcap: float | None, bias: bool) -> None:
    hidden, targets, output = case(bias)
    sizes = dict(zip(("tokens", "vocabulary"), blocks, strict=True))
    expected = token_statistics_naive(project(hidden, output, softcap), targets)
    found = fused_statistics(hidden, targets, output, softcap=softcap, **sizes)
    for value, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-5)
    alone = fused_statistics(hidden, targets, output, softcap=softcap, with_entropy=False, **sizes)
    torch.testing.assert_close(alone[0], expected[0], atol=1e-5, rtol=1e-5)
    assert alone[1].abs().sum() == 0
    naive = gradients(plain, hidden, targets, output, softcap=softcap)
    fused = gradients(fused_statistics, hidden, targets, output, softcap=softcap, **sizes)
    assert len(naive) == len(fused) == 2 + bias
    for value, wanted in zip(fused, naive, strict=True):
        torch.testing.assert_close(value, wanted, atol=2e-5, rtol=1e-4)


def test_extreme_logits_stay_finite() -> None:
    hidden, targets, output = case()
    hidden = hidden * 1e4
    with torch.no_grad():
        logs, entropies = fused_statistics(hidden, targets, output, tokens=2, vocabulary=4)
        expected = token_statistics_naive(output(hidden), targets)
    torch.testing.assert_close(entropies, expected[1], atol=1e-4, rtol=1e-4)
    finite = torch.isfinite(expected[0])
    torch.testing.assert_close(logs[finite], expected[0][finite], atol=1e-2, rtol=1e-4)
    assert torch.isfinite(logs).all()


@pytest.mark.parametrize("function", [token_statistics, fused_statistics])
def test_statistics_are_float32_whatever_the_models_dtype(function: Any) -> None:
    hidden, targets, output = case()
    output = output.bfloat16()
    state = hidden.bfloat16().requires_grad_()
    logs, entropies = function(state, targets, output)
    assert logs.dtype == entropies.dtype == project(state, output, None).dtype == torch.float32
    with torch.no_grad():
        expected = token_statistics_naive(output(state), targets)
    torch.testing.assert_close(logs, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected[1], atol=1e-5, rtol=1e-5)
    (logs.sum() + entropies.sum()).backward()
    assert state.grad is not None
    assert output.weight.grad is not None
    assert state.grad.dtype == output.weight.grad.dtype == torch.bfloat16


def test_frozen_weights_get_no_gradient() -> None:
    hidden, targets, output = case(bias=True)
    expected = gradients(fused_statistics, hidden, targets, output)
    output.requires_grad_(False)
    found = gradients(fused_statistics, hidden, targets, output)
    assert len(found) == 1
    assert torch.equal(found[0], expected[0])


def test_only_a_plain_layer_without_hooks_is_fused() -> None:
    class Adapted(nn.Linear):
        pass

    assert can_fuse(nn.Linear(2, 3))
    assert not can_fuse(Adapted(2, 3))
    assert not can_fuse(nn.Sequential(nn.Linear(2, 3)))
    gathered, sharded = nn.Linear(2, 3), nn.Linear(2, 3)
    gathered.register_forward_pre_hook(lambda *_: None)
    sharded.weight.data = torch.empty(0)
    assert not can_fuse(gathered)
    assert not can_fuse(sharded)


@pytest.mark.parametrize("tied", [False, True])
def test_a_policys_gradients_do_not_depend_on_the_path(monkeypatch: pytest.MonkeyPatch, tied: bool) -> None:
    batch = batch_of(random_rows(1, [3, 6, 1, 4], ended=False), random_rows(2, [6, 1, 4, 2]))
    found, values, fused = [], [], []
    function = logprobs.fused_statistics
    monkeypatch.setattr(logprobs, "fused_statistics", lambda *a, **k: fused.append(1) or function(*a, **k))
    for limit in (VOCABULARY, VOCABULARY - 1):
        monkeypatch.setattr(logprobs, "RECOMPUTE_VOCABULARY", limit)
        policy = tiny_policy(1)
        if tied:
            policy.model.get_output_embeddings().weight = policy.model.get_input_embeddings().weight
        statistics = policy.statistics(
            batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask, with_entropy=True
        )
        (statistics.logprobs.sum() + (statistics.entropies**2).sum()).backward()
        values.append(statistics)
        found.append({name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None})
        assert len(fused) == int(limit < VOCABULARY)
    torch.testing.assert_close(values[0].logprobs, values[1].logprobs)
    assert found[0].keys() == found[1].keys()
    assert sum(float(g.abs().sum()) for g in found[0].values()) > 0
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], atol=2e-5, rtol=1e-4)
