"""Measuring reward models and comparing policies: benchmark, pool, best of N, second judge, any reward model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rlhf_core.errors import DataError, NumericsError, RecipeError
from tasks.command_line import commands
from tasks.commands.bench_reward import bench_reward, load_set, set_scores
from tasks.scoring.classifiers import ScalarScorer
from tasks.scoring.reward_models import load_scorer, score_pairs
from tests.tasks.golden_runs import SharedRuns


@pytest.fixture
def classifier(golden: SharedRuns, tmp_path: Path) -> Path:
    """A scalar Hugging Face model with random weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    source = golden.result("sft") / "model"
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = AutoConfig.from_pretrained(source, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "scalar")
    tokenizer.save_pretrained(tmp_path / "scalar")
    return tmp_path / "scalar"


def test_a_scalar_hugging_face_model_is_benched_on_real_sets(classifier: Path, real_data: Path) -> None:
    scores, cut = bench_reward(classifier, ("hhh_alignment", "pandalm"), directory=real_data, rows=6, template="plain")
    whole = [score for score in scores if score.part == "all"]
    assert [(score.name, score.pairs) for score in whole] == [("hhh_alignment", 6), ("pandalm", 6)]
    assert all(score.lower <= score.accuracy <= score.upper for score in scores)
    assert 0 <= cut <= 1


def test_texts_are_cut_to_what_a_classifier_reads(classifier: Path, real_data: Path) -> None:
    """Beyond its positions a model errs, or scores without a word what it has never seen."""
    config, places = classifier / "config.json", 64
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": places}))
    given = ["bench-reward", str(classifier), "--sets", "pandalm", "--rows", "4", "--data", str(real_data)]
    given += ["--template", "plain"]
    cut = CliRunner().invoke(commands, given)
    assert cut.exit_code == 0, cut.output
    assert "cut to the model's limits: 0.0 %" not in cut.output
    too_many = CliRunner().invoke(commands, [*given, "--total-tokens", str(places + 1)])
    assert isinstance(too_many.exception, RecipeError)
    assert f"reads at most {places} tokens, not {places + 1}" in str(too_many.exception)


def test_rm_bench_compares_every_style_with_every_other(real_data: Path) -> None:
    rows = load_set("rm_bench", real_data, 10)
    assert len(rows) == 9
    assert {len([row for row in rows if row["group_id"] == group]) for group in {r["group_id"] for r in rows}} == {3}

    def polish(asked: Sequence[Mapping[str, Any]], texts: Sequence[str], batch: int) -> list[float]:
        style = {text: row["style"] for row in rows for text in (row["chosen"], row["rejected"])}
        return [float(("concise", "detailed_plain", "detailed_markdown").index(style[text])) for text in texts]

    found = {score.part: score for score in set_scores(polish, rows, 4)}  # type: ignore[arg-type]
    levels = [found[f"styles: {level}"] for level in ("easy", "normal", "hard")]
    assert [level.accuracy for level in levels] == [1.0, 0.0, 0.0]
    assert [level.pairs for level in levels] == [9, 9, 9]
    assert found["styles: average"].accuracy == pytest.approx(1 / 3)
    assert found["all"].ties == 9


def test_a_model_that_reads_padding_is_refused_before_it_is_benched(
    classifier: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = ScalarScorer.load(classifier, "plain")
    forward = scorer.model.forward
    # Without the mask, and with padding read as text, the score is that of the padded row's end.
    scorer.model.config.pad_token_id = -1
    monkeypatch.setattr(scorer.model, "forward", lambda input_ids, attention_mask: forward(input_ids=input_ids))
    rows = load_set("pandalm", real_data, 8)
    with pytest.raises(NumericsError, match="depend on batch size or padding"):
        score_pairs(scorer, rows, 4)


def test_what_is_no_reward_model_is_refused(tmp_path: Path, classifier: Path, real_data: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_scorer(tmp_path / "nowhere")
    config = json.loads((classifier / "config.json").read_text())
    labels = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    (classifier / "config.json").write_text(json.dumps(config | labels))
    with pytest.raises(DataError, match="has 2 outputs"):
        load_scorer(classifier, {"template": "plain"})
    (classifier / "config.json").unlink()
    with pytest.raises(DataError, match="cannot be loaded"):
        load_scorer(classifier, {"template": "plain"})
    with pytest.raises(DataError, match="unknown data set 'pandalmm'"):
        load_set("pandalmm", real_data, None)


def test_bench_reward_prints_a_table(golden: SharedRuns, real_data: Path, tmp_path: Path) -> None:
    line = ["bench-reward", str(golden.result("model-segment")), "--data", str(real_data), "--sets", "hhh_alignment"]
    done = CliRunner().invoke(commands, [*line, "--rows", "4", "--out", str(tmp_path / "scores.json")])
    assert done.exit_code == 0, done.output
    assert "hhh_alignment" in done.output
    assert json.loads((tmp_path / "scores.json").read_text())["scores"][0]["pairs"] == 4
