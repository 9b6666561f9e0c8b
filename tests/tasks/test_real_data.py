"""The flow on real preference data in short: a few hundred dialogues, from `prepare` to a trained policy."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tasks.commands.explain import explain
from tests.tasks.tiny_pipeline import RUNS, SETTINGS, SUPERVISED, Pipeline

ROWS = {"train": 240, "test": 24}
SET = "hh_helpful"


def shortened(real_data: Path, folder: Path) -> Path:
    """The first rows of the real files as a folder of their own."""
    folder.mkdir()
    for split, count in ROWS.items():
        source = real_data / f"{SET}.{split}.jsonl.gz"
        if not source.exists():
            pytest.skip(f"the real data directory holds no {source.name}")
        with gzip.open(source, "rt", encoding="utf-8") as file:
            lines = list(islice(file, count))
        (folder / f"{SET}.{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def real(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    root = tmp_path_factory.mktemp("real")
    data: dict[str, Any] = {
        "source": "directory",
        "directory": str(shortened(real_data, root / "files")),
        "template": "plain",
        "limits": {"prompt": 96, "total": 192},
        "preference": [SET],
        "validation_share": 0.1,
        "benchmark_rows": 8,
    }
    changes = {
        "data": data,
        "tokenizer": {"vocabulary": 600},
        "backbone": {**SETTINGS["backbone"], "training": {**SUPERVISED, "learning_rate": 2.0e-2}},
        "evaluation": {"max_new_tokens": 12, "task_tokens": 8, "judge": None},
    }
    made = Pipeline(root).write({**SETTINGS, **changes})
    for name in RUNS:
        made.run(name)
    return made


def test_real_pairs_become_every_set_that_the_stages_need(real: Pipeline) -> None:
    facts = json.loads((real.result("data") / "data.json").read_text())
    rows = facts["rows"]
    assert rows["preference.train"] + rows["preference.validation"] == ROWS["train"]
    assert rows["preference.validation"] == rows["sft.validation"] == ROWS["train"] // 10
    assert rows["preference.ood"] == ROWS["test"]
    assert rows["benchmarks/alpaca"] == 8
    assert 0 < rows["prompts"] <= rows["preference.train"]
    assert set(facts["digests"]) == {f"{SET}.train.jsonl", f"{SET}.test.jsonl"}
    assert [summary["quarantined"] for summary in facts["quarantine"]] == [0, 0]
    assert str(real.root) not in json.dumps(facts)
    held_out = {row["prompt"] for row in real.rows("data", "preference.ood.jsonl")}
    assert {row["turns"][0] for row in real.rows("data", "benchmarks/alpaca.jsonl")} <= held_out


def test_the_tokenizer_spells_any_text(real: Pipeline) -> None:
    from rlhf_core.models.loading import load_tokenizer

    tokenizer = load_tokenizer(real.result("tokenizer"))
    text = "A café in Zürich: 12 €, naïve — 東京 🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_long_dialogues_are_cut_and_counted(real: Pipeline) -> None:
    metrics = real.metrics("sft")
    assert metrics["prompts_cut"] > 0
    assert metrics["responses_cut"] > 0


def test_policies_are_trained_on_rewards_learnt_from_real_pairs(real: Pipeline) -> None:
    model = real.metrics("reward_model")
    assert 0 <= model["accuracy"] <= 1
    assert model["segments_per_response"] > 1
    for name in ("ppo", "dpo"):
        assert len(real.rows(name, "generations.jsonl")) == 8
        assert "alpaca_wr" not in real.metrics(name)
        assert "true_reward" not in real.metrics(name)
    assert real.metrics("ppo")["response_length"] > 0
    assert all(row["true_reward"] is None for row in real.rows("ppo", "rollouts.jsonl"))


def test_a_real_dialogue_can_be_explained(real: Pipeline) -> None:
    row = real.rows("data", "preference.ood.jsonl")[0]
    found = explain(real.result("reward_model"), row["prompt"], row["chosen"])
    values = [value for *_, value in found["segments"]]
    assert found["total"] == pytest.approx(sum(values) / len(values), abs=1e-5)
