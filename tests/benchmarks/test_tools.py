"""The benchmark of tool rewards counts what it says it does; times are not looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from benchmarks import tools
from benchmarks.tool_server import ToolServer
from tests.rlhf_core.tiny_models import EOS, PAD, VOCABULARY, tiny_policy


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[ToolServer]:
    """The servers that were asked."""
    made: list[ToolServer] = []

    def make(*given: Any) -> ToolServer:
        made.append(ToolServer(*given))
        return made[-1]

    monkeypatch.setattr(tools, "ToolServer", make)
    return made


def written_workload(folder: Path) -> Path:
    """A random model, a tokenizer of numbered words and four prompts, laid out as `benchmarks.workload` does."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=f"w{PAD}", eos_token=f"w{EOS}")
    tokenizer.save_pretrained(folder / "model")
    tiny_policy().model.save_pretrained(folder / "model")
    (folder / "facts.json").write_text(json.dumps({"pad_id": PAD, "eos_id": EOS}))
    (folder / "prompts.json").write_text(json.dumps([[5, 6], [7], [8, 9, 10], [11]]))
    return folder


def test_every_text_is_asked_once_and_fresh_ones_for_each_side(servers: list[ToolServer]) -> None:
    found = tools.throughput(texts=12, latency=0.002, concurrency=3)
    (server,) = servers
    assert server.calls == 12 + 8
    assert 1 < server.most_at_once <= 3
    assert found.ratio == found.batched / found.one_by_one > 0


def test_steps_that_count_are_those_after_the_first(servers: list[ToolServer], tmp_path: Path) -> None:
    found = tools.waiting(written_workload(tmp_path), latency=0.001, concurrency=4, iterations=2, rollout=8)
    (server,) = servers
    assert 0 < found.calls <= 8
    assert 2 * found.calls < server.calls <= 2 * found.calls + 8, "the first step asked, too"
    assert 0 <= found.tool <= found.step
    assert found.share == found.tool / found.step
