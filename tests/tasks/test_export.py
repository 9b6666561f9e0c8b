"""Trained models as transformers loads them: the same scores, prompts and log-probabilities, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.exported import as_classifier
from tasks.command_line import commands
from tasks.commands import export as exporting
from tasks.running.artifacts import read_json, read_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.scoring.reward_models import TrainedScorer
from tests.tasks.golden_runs import SETTINGS, SharedRuns

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(golden: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains a reward model with other settings; returns its result."""

    def trained(**changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        page = folder / "reward_models.yaml"
        whole = {**SETTINGS["reward_model/segment"], "title": "Whole", "segmenter": {"kind": "bandit"}, **changes}
        page.write_text(yaml.safe_dump({"whole": whole}), encoding="utf-8")
        return golden.run("model-segment", spec=f"{page}:whole", out=folder / "0")

    return trained


@pytest.fixture(scope="module")
def whole(train: Train) -> Path:
    """A reward model that is read at the response's end."""
    return train()


@pytest.fixture(scope="module")
def exported(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "my-model"
    done = CliRunner().invoke(commands, ["export", str(whole), str(out)])
    assert done.exit_code == 0, done.output
    assert f"hf upload USER/my-model {out}" in done.output
    return out


def pairs(golden: SharedRuns) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows with the chosen and the rejected response of each."""
    rows = read_jsonl(golden.result("dialogue") / "preference.validation.jsonl")
    return [row for row in rows for _ in range(2)], [row[side] for row in rows for side in ("chosen", "rejected")]


def scores(folder: Path, rows: list[dict[str, Any]], texts: list[str], *, batch: int, side: str) -> list[float]:
    """Scores by transformers alone."""
    model, loading_info = AutoModelForSequenceClassification.from_pretrained(str(folder), output_loading_info=True)
    assert not loading_info["missing_keys"]
    tokenizer = AutoTokenizer.from_pretrained(str(folder), padding_side=side)
    found: list[float] = []
    dialogues = [
        [*prompt_messages(row), {"role": "assistant", "content": text}] for row, text in zip(rows, texts, strict=True)
    ]
    for start in range(0, len(dialogues), batch):
        read: Any = tokenizer.apply_chat_template(
            dialogues[start : start + batch], padding=True, return_dict=True, return_tensors="pt"
        )
        with torch.no_grad():
            found += model(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).logits[:, 0].tolist()
    return found


@pytest.mark.parametrize(("batch", "side"), [(1, "right"), (5, "left"), (64, "right")])
def test_transformers_scores_responses_as_the_training_code_does(
    golden: SharedRuns, whole: Path, exported: Path, side: str, batch: int
) -> None:
    rows, texts = pairs(golden)
    expected = TrainedScorer.load(whole)(rows, texts)
    assert max(expected) - min(expected) > 1e-2
    assert scores(exported, rows, texts, batch=batch, side=side) == pytest.approx(expected, abs=1e-5)


def test_an_export_has_weights_tokenizer_template_and_a_card_whose_example_runs(whole: Path, exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == [
        "README.md", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    header, _, body = (exported / "README.md").read_text().removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(header)["pipeline_tag"] == "text-classification"
    record = read_json(whole.parent / "record" / "record.json")
    accuracy = f"| accuracy | {read_json(whole / 'metrics.json')['accuracy']:.6g} |"
    shown = (record["commit"], record["result_digest"], "# Whole", "kind: bandit", "source: testbed", accuracy)
    assert [part for part in shown if part not in body] == []
    code = body.split("```python\n")[1].split("```")[0].replace('"my-model"', repr(str(exported)))
    names: dict[str, Any] = {}
    exec(compile(code, "card", "exec"), names)
    assert names["reward"].shape == (1,)


def test_a_policy_says_the_same_and_reads_the_same_prompts(golden: SharedRuns, tmp_path: Path) -> None:
    exporting.export(golden.result("segment"), tmp_path / "policy")
    folder, rows = str(tmp_path / "policy"), read_jsonl(golden.result("dialogue") / "sft.jsonl")[:6]
    loading: Any = AutoModelForCausalLM
    model, loading_info = loading.from_pretrained(folder, output_loading_info=True)
    assert not loading_info["missing_keys"]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    encoder = load_encoder(golden.result("dialogue"), golden.result("segment") / "model")
    policy = load_policy(golden.result("segment") / "model", encoder)
    assert model.generation_config.eos_token_id == encoder.eos_id
    for row in rows:
        made = encoder.sequence(row, row["response"])
        asked = prompt_messages(row)
        assert tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False) == made.prompt
        dialogue = [*asked, {"role": "assistant", "content": row["response"]}]
        whole = tokenizer.apply_chat_template(dialogue, return_dict=False)
        assert whole == [*made.prompt, *made.response]
        prompt, response = (torch.tensor([ids]) for ids in (made.prompt, made.response))
        ones = [torch.ones_like(ids, dtype=torch.bool) for ids in (prompt, response)]
        with torch.no_grad():
            own = policy.statistics(prompt, ones[0], response, ones[1]).logprobs[0]
            logits = model(input_ids=torch.tensor([whole])).logits[0, len(made.prompt) - 1 : -1]
        found = logits.log_softmax(dim=-1).gather(1, response[0][:, None])[:, 0]
        torch.testing.assert_close(found, own, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"segmenter": {"kind": "ngram", "n": 3}}, "read at the end of each segment"),
        ({"aggregation": "differential_mean"}, "does not give the head's value at the last token"),
    ],
)
def test_a_model_of_several_reads_is_refused_with_the_reason(
    train: Train, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RecipeError, match=reason):
        exporting.export(train(**changes), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_scores_that_differ_when_read_back_are_refused(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "hub_template", lambda template, tokenizer: "{{ messages[-1]['content'] }}")
    with pytest.raises(NumericsError, match="reads other tokens"):
        exporting.export(whole, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_named(golden: SharedRuns, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not an empty folder"):
        exporting.export(whole, golden.root)
    with pytest.raises(DataError, match="no trained model in this folder"):
        exporting.export(golden.result("dialogue"), tmp_path / "model")
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "zero_shot.json").write_text("{}")
    with pytest.raises(DataError, match="names a model that is asked"):
        exporting.export(tmp_path / "asked", tmp_path / "model")
    with pytest.raises(RecipeError, match="result of the stage 'generative_reward_model'"):
        exporting.export(golden.result("generative"), tmp_path / "model")
    shutil.copytree(whole, tmp_path / "alone" / "result")
    with pytest.raises(DataError, match="no record next to the model"):
        exporting.export(tmp_path / "alone" / "result", tmp_path / "model")


def test_a_model_without_such_a_classifier_in_transformers_is_refused() -> None:
    from transformers import T5Config, T5Model

    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
    model = ScalarModel(T5Model(T5Config(**sizes)))
    with pytest.raises(RecipeError, match="encoder-decoder"):
        as_classifier(model, "reward", 0, "here")
