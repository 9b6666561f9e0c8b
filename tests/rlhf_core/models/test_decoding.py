"""Decoding in fixed memory, computed and replayed as a graph: the responses of the growing cache, for each family.

A GPU's graph runs the same kernels on the same addresses again and again. `Recording` does so on the CPU.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tiny_models import EOS, PAD, POLICIES, VOCABULARY, random_rows, tiny_encoder_decoder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlhf_core.models import generation
from rlhf_core.models.decoding import DecoderDecoding, FixedDecoding
from rlhf_core.models.generation import CAPTURES, KEPT_SHARE, TOKENS_PER_LOOK, Generated
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.sampling import Sampling, generate, used_engines

SIZES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 64},
    "phi3": {"sliding_window": 64},
    "gemma": {},
    "gemma2": {"sliding_window": 64, "query_pre_attn_scalar": 8},
    "gpt_neox": {},
    "gpt2": {"n_inner": 32, "n_positions": 128},
}
PROMPTS = random_rows(5, [4, 2, 6, 1, 9], ended=False)


class Recording(TorchDispatchMode):
    """What `cuda_graph` does, on the CPU: notes the kernels of a step without an effect, and runs them again.

    Arguments and results of each call keep their memory. A kernel whose result the host would wait for is refused.
    """

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "unique", "masked_select")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name in self.WAITS:
            raise RuntimeError(f"{name} waits for the device")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.before.append((value, value.clone()))
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]))
        return made

    def replay(self) -> None:
        for func, args, kwargs, memory in self.calls:
            made = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
            for place, values in zip(memory, made, strict=True):
                if place.data_ptr() != values.data_ptr():
                    place.copy_(values)


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Captures a step as `cuda_graph` does."""
    recording = Recording()
    try:
        with recording:
            step()
    finally:
        for place, values in reversed(recording.before):
            place.copy_(values)
    return recording.replay


def policy_of(family: str, seed: int = 0, **fields: Any) -> Policy:
    """A random policy of a family that likes EOS, so that rows end at different steps."""
    config = AutoConfig.for_model(
        family, vocab_size=VOCABULARY, pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS, tie_word_embeddings=False,
        **SIZES | FAMILIES.get(family, {}) | fields,
    )  # fmt: skip
    torch.manual_seed(seed)
    policy = Policy(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), pad_id=PAD, eos_id=EOS)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[EOS] *= 2
    return policy


def sample(policy: Policy, rows: list[list[int]], sampling: Sampling, seed: int = 0) -> tuple[Generated, torch.Tensor]:
    """Returns responses, and what the generator draws next."""
    generator = torch.Generator().manual_seed(seed)
    return generate(policy, *pad_rows(rows, PAD, "left"), sampling, generator), torch.rand(3, generator=generator)


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Generated, torch.Tensor]]:
    """Samples as `sample` does, by the cache that transformers gives the model."""

    def by_growing(*given: Any, **more: Any) -> tuple[Generated, torch.Tensor]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DecoderDecoding, "_obstacle", lambda self, room: "it is the reference")
            patched.delitem(CAPTURES, "cpu", raising=False)
            return sample(*given, **more)

    return by_growing


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has the CPU sample as a GPU does; returns the number of kernels of each step that was captured."""
    captured: list[int] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        replay = recorded(step)
        captured.append(len(replay.__self__.calls))  # type: ignore[attr-defined]
        return replay

    monkeypatch.setitem(CAPTURES, "cpu", capture)
    monkeypatch.setitem(TOKENS_PER_LOOK, "cpu", 3)
    monkeypatch.setitem(KEPT_SHARE, "cpu", KEPT_SHARE["cuda"])
    return captured


def assert_same(found: tuple[Generated, torch.Tensor], expected: tuple[Generated, torch.Tensor]) -> None:
    """Asserts equal tokens and generators, and log-probabilities and entropies within 2e-5."""
    for name in ("ids", "mask", "ended"):
        assert torch.equal(getattr(found[0], name), getattr(expected[0], name)), name
    for name in ("logprobs", "entropies"):
        torch.testing.assert_close(getattr(found[0], name), getattr(expected[0], name), atol=2e-5, rtol=1e-5)
    assert torch.equal(found[1], expected[1])


SETTINGS = [
    Sampling(24),
    Sampling(9, temperature=0.0),
    Sampling(24, temperature=0.7, top_k=9),
    Sampling(17, temperature=1.4, top_p=0.8),
    Sampling(1),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_fixed_memory_and_a_replayed_step_give_the_responses_of_the_growing_cache(
    family: str, growing: Any, request: pytest.FixtureRequest
) -> None:
    policy = policy_of(family)
    used_engines.clear()
    cases = [(sampling, seed) for seed, sampling in enumerate(SETTINGS)]
    rows = [row for row in PROMPTS for _ in range(2)]
    expected = [growing(policy, rows, sampling, seed) for sampling, seed in cases]
    for (sampling, seed), responses in zip(cases, expected, strict=True):
        assert_same(sample(policy, rows, sampling, seed), responses)
    captured = request.getfixturevalue("steps")
    for (sampling, seed), responses in zip(cases, expected, strict=True):
        assert_same(sample(policy, rows, sampling, seed), responses)
    assert len(captured) >= len(SETTINGS) - 1, "a graph for all but a single token"
    assert used_engines == {"loop"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_step_is_captured_anew_for_the_rows_that_are_left(seed: int, growing: Any, steps: list[int]) -> None:
    policy, rows = policy_of("llama", seed), PROMPTS * 4
    expected = growing(policy, rows, Sampling(40), seed)
    assert_same(sample(policy, rows, Sampling(40), seed), expected)
    assert len(steps) > 1, "rows were dropped"
    assert len(set(steps)) == 1, "the same kernels for fewer rows"


@pytest.mark.parametrize("group", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_of_a_prompt_share_its_pass_wherever_they_are(
    kind: str, group: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, read, steps = POLICIES[kind](seed), list[tuple[int, ...]](), 12
    rows = PROMPTS * group
    rows = [rows[i] for i in torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()]
    reader = policy.model.get_encoder() if kind == "encoder_decoder" else policy.model.model
    hook = reader.register_forward_pre_hook(
        lambda module, args, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found, after = sample(policy, rows, Sampling(steps), seed)
    hook.remove()
    assert read[0] == (len(PROMPTS), max(map(len, PROMPTS)))
    # one row at a time, which shares nothing
    monkeypatch.setattr(generation, "_parts", lambda policy, rows, *given: rows)
    assert_same(sample(policy, rows, Sampling(steps), seed), (found, after))


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("phi3", {"sliding_window": 16}, "32 tokens do not fit the sliding window of 16"),
        ("gemma2", {"sliding_window": 31, "query_pre_attn_scalar": 8}, "32 tokens do not fit the sliding window of 31"),
        ("bloom", {"n_layer": 2, "n_head": 2}, "bloom makes masks or positions of its own"),
        ("t5", {}, "the model is an encoder-decoder"),
    ],
)
def test_what_cannot_be_captured_is_computed_and_the_record_says_so(
    family: str, fields: dict[str, Any], reason: str, growing: Any, steps: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    policy = tiny_encoder_decoder() if family == "t5" else policy_of(family, **fields)
    used_engines.clear()
    expected = growing(policy, PROMPTS, Sampling(24))
    for _ in range(2):
        assert_same(sample(policy, PROMPTS, Sampling(24)), expected)
    assert used_engines == {"loop", f"loop without CUDA graphs: {reason}"}
    assert [record.message for record in caplog.records] == [f"engine loop without CUDA graphs: {reason}"]
    assert not steps


def test_a_capture_that_fails_changes_no_response(growing: Any, steps: list[int], monkeypatch: Any) -> None:
    policy, layer = policy_of("llama"), list[int]()

    def waiting(module: Any, args: Any, output: torch.Tensor) -> None:
        layer.append(int(output.argmax()))

    policy.model.lm_head.register_forward_hook(waiting)
    expected = growing(policy, PROMPTS, Sampling(24))
    used_engines.clear()
    assert_same(sample(policy, PROMPTS, Sampling(24)), expected)
    assert used_engines == {"loop", "loop without CUDA graphs: _local_scalar_dense waits for the device"}


def test_a_kernel_that_takes_no_such_mask_reads_prompts_and_leaves_tokens_to_sdpa(
    growing: Any, steps: list[int]
) -> None:
    shapes: list[tuple[int, int]] = []

    def kernel(module: Any, query: Any, key: Any, *given: Any, **more: Any) -> Any:
        shapes.append((query.shape[2], key.shape[2]))
        return sdpa_attention_forward(module, query, key, *given, **more)

    AttentionInterface.register("kernel_of_a_test", kernel)
    AttentionMaskInterface.register("kernel_of_a_test", AttentionMaskInterface()["sdpa"])
    policy = policy_of("llama")
    expected = growing(policy, PROMPTS, Sampling(24))
    policy.model.set_attn_implementation("kernel_of_a_test")
    assert_same(sample(policy, PROMPTS, Sampling(24)), expected)
    assert shapes == [(9, 9)] * 2, "its two layers read prompts alone"
    assert steps
    assert policy.model.config._attn_implementation == "kernel_of_a_test"


def test_a_gpu_samples_in_as_few_parts_as_its_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = cast("Policy", SimpleNamespace(device=torch.device("cuda"), model=policy_of("llama").model))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    parts = []
    for free in (10**9, 10**6, 5 * 10**5, 10**4, 0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        parts.append(generation._parts(policy, 64, 40, 24))
    # a row: keys and values of 64 tokens, twice; a layer's 17 states of 40 tokens; and logits
    row = 2 * (2 * 2 * 2 * 8 * 64 * 4) + 17 * 4 * 40 * 16 + 40 * VOCABULARY
    assert parts == [math.ceil(1.1 * 64 * row / (free + 1000)) for free in (10**9, 10**6, 5 * 10**5)] + [64, 64]
    assert generation._parts(policy_of("llama"), 64, 40, 24) == 1


@pytest.mark.parametrize("captures", [False, True])
def test_the_memory_of_a_batch_is_free_when_its_responses_are_there(
    captures: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    plain = FixedDecoding.__init__

    def noted(self: FixedDecoding, *given: Any, **more: Any) -> None:
        made.append(weakref.ref(self))
        plain(self, *given, **more)
        made.extend(weakref.ref(layer.keys) for layer in self.cache.layers)

    monkeypatch.setattr(FixedDecoding, "__init__", noted)
    if captures:
        request.getfixturevalue("steps")
    policy = policy_of("llama")
    gc.collect()
    gc.disable()
    try:
        sample(policy, PROMPTS * 3, Sampling(20))
        assert [found() for found in made] == [None] * 3
    finally:
        gc.enable()
