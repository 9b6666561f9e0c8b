"""Whole stages on the model families in use, each loaded from a folder as from the hub."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rlhf_core.data.templates import chat_template
from rlhf_core.errors import DataError
from rlhf_core.models.loading import load_language_model, load_tokenizer
from tasks.running.artifacts import read_jsonl
from tests.model_families import FAMILIES, published
from tests.tasks.golden_runs import SETTINGS, SHARED, GoldenRuns

#: From data to an evaluated policy.
CHAIN = ("dialogue", "dialogue-tokenizer", "sft", "entropies", "model-segment", "fit-segment", "segment")
#: Further runs, of the platform test.
OTHERS = (
    "references-segment", "segment-par", "dpo", "mathematics-tokenizer", "reasoner", "samples", "teacher", "generative",
    "pool",
)  # fmt: skip
FEW = {
    "sft": 24, "sft_validation": 4, "tasks": 8, "prompts": 8, "preference_train": 16, "preference_validation": 8,
    "preference_ood": 4, "benchmark": 2, "choices": 1, "arithmetic": 1, "functions": 1,
}  # fmt: skip


def settings_of(family: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Golden settings with fewer rows, the family's chat template, and its folder as the source."""
    made = copy.deepcopy(SETTINGS)
    template = FAMILIES[family].template
    made["data/dialogue"] |= {"template": template, "limits": {"prompt": 400, "total": 640}, "rows": FEW}
    made["data/mathematics"] |= {"template": template, "limits": {"prompt": 400, "total": 640}}
    made["data/mathematics"]["rows"] |= {"sft": 8, "sft_validation": 2, "questions": 4}
    made["tokenizer"] = made["question_tokenizer"] = {"source": str(folder)}
    del made["backbone"]["architecture"]
    made["backbone"] |= {"source": str(folder)}
    made["backbone"]["training"] |= {"epochs": 1, "learning_rate": 5.0e-3}
    made["evaluation"] |= {"max_new_tokens": 6, "task_tokens": 4}
    made["reasoner"] = made["backbone"]
    made["policy/ppo"]["optimiser"] |= {"rollout_batch": 8, "minibatch": 8}
    made["policy/ppo"]["sampling"] = {"max_new_tokens": 8}
    made["references"] |= {"responses": 3}
    made["samples"] |= {"samples": 2, "sampling": {"max_new_tokens": 12}}
    made["generative_scale"] |= {
        "limits": {"prompt": 1600, "total": 2000},
        "training": {**SHARED["supervised"], "batch": 4},
    }
    made["generative_scale"]["max_new_tokens"] = 12
    made["pool"] = {"benchmarks": ["alpaca"], "samples": 2, "prompts": 2, "sampling": {"max_new_tokens": 8}}
    made["reward_bench"] = {"source": "testbed", "pairs": 2}
    made["best_of_n"]["sizes"] = [1, 2]
    return made


def texts_of(data: Path) -> list[str]:
    return [row[field] for row in read_jsonl(data / "sft.jsonl") for field in ("prompt", "response")]


def started(family: str, root: Path, data: Sequence[str]) -> GoldenRuns:
    """Golden runs of data, and the family's folder trained on their texts."""
    made = GoldenRuns(root).write(settings_of(family, root / "hub"))
    for name in data:
        made.run(name)
    published(family, [text for name in data for text in texts_of(made.result(name))], root / "hub")
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_from_its_folder_to_an_evaluated_policy(family: str, tmp_path: Path) -> None:
    made = started(family, tmp_path, ["dialogue"])
    for name in CHAIN[1:]:
        made.run(name)
    the_tokenizer_is_the_familys_own(made, family)
    the_sft_model_learned_in_float32_and_kept_its_shape(made, family)
    for name in ("sft", "segment"):
        for row in made.read(name, "generations.jsonl"):
            assert not re.search(r"<\|.*\|>|<(pad|eos|bos|end_of_turn|start_of_turn|/s)>", row.get("response", "")), row
    first = made.read("segment", "history.jsonl")[0]
    assert abs(first["kl"]) < 1e-3, "the reference is the policy that sampled"
    assert first["logprob_gap_max"] < 1e-3, "what was sampled has the log-probability that is trained"
    assert first["grad_norm"] > 0
    assert first["critic_grad_norm"] > 0
    end = chat_template(FAMILIES[family].template).eos_token(
        AutoTokenizer.from_pretrained(made.result("sft") / "model")
    )
    for row in made.read("segment", "rollouts.jsonl"):
        total = [sum(parts) for parts in zip(*row["breakdown"].values(), strict=True)]
        assert total == pytest.approx(row["rewards"], abs=1e-5)
        assert end not in row["tokens"][:-1]


def the_tokenizer_is_the_familys_own(made: GoldenRuns, family: str) -> None:
    before, after = (
        AutoTokenizer.from_pretrained(folder) for folder in (made.root / "hub", made.result("segment") / "model")
    )
    assert type(after) is type(before)
    assert len(after) - len(before) == (family in ("llama", "llama2")), (
        "a pad token is added where there is none, only there"
    )
    assert after.chat_template == before.chat_template
    assert after.pad_token_id is not None
    example = read_jsonl(made.result("dialogue") / "sft.jsonl")[0]["response"]
    assert after.encode(example) == before.encode(example)


def the_sft_model_learned_in_float32_and_kept_its_shape(made: GoldenRuns, family: str) -> None:
    published_model = load_language_model(made.root / "hub")
    trained = load_language_model(made.result("sft") / "model")
    assert published_model.dtype == FAMILIES[family].dtype
    assert trained.dtype == torch.float32
    assert trained.config.model_type == FAMILIES[family].model_type
    grown = int(trained.config.vocab_size) - int(published_model.config.vocab_size)
    assert grown == (family in ("llama", "llama2"))
    assert len(AutoTokenizer.from_pretrained(made.result("sft") / "model")) <= int(trained.config.vocab_size)
    own, other = (model.get_output_embeddings().weight.float() for model in (trained, published_model))
    assert not torch.equal(own[: len(other)], other)


@pytest.mark.platform
@pytest.mark.parametrize("family", ["gemma2", "t5"])  # a decoder with a head of its own width, an encoder-decoder
def test_every_other_stage_runs_on_a_family(family: str, tmp_path: Path) -> None:
    made = started(family, tmp_path, ["dialogue", "mathematics"])
    for name in (*CHAIN[1:], *OTHERS):
        made.run(name)
    assert made.read("references-segment")["responses"] > 0
    assert {row["step"] for row in made.read("segment-par", "history.jsonl")} == {1, 2}
    assert made.read("dpo")["dpo_loss"] > 0
    tokens = made.read("generative", "token_rewards.jsonl")
    assert tokens
    model = {"reward_model": made.result("model-segment"), "entropies": made.result("entropies"), "sentences": None}
    for name in ("reward_bench", "best_of_n"):
        made.run(name, **model)
    assert made.read("best_of_n")["reward/alpaca/2"] >= made.read("best_of_n")["reward/alpaca/1"]
    sections = [made.read("reward_bench")[name] for name in ("chat", "chat_hard", "safety", "reasoning")]
    assert made.read("reward_bench")["average"] == pytest.approx(sum(sections) / 4)


def test_a_folder_that_only_sentencepiece_reads_says_so(tmp_path: Path) -> None:
    if find_spec("sentencepiece") is not None:
        pytest.skip("sentencepiece is installed")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    (tmp_path / "spiece.model").write_bytes(b"\x0a\x0e\x0a\x05<pad>")
    with pytest.raises(DataError, match="without the package sentencepiece"):
        load_tokenizer(tmp_path)
