"""Measuring reward models and comparing policies: benchmark, pool, best of N, second judge, any reward model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from rlhf_core.errors import DataError, NumericsError, RecipeError
from tasks import best_of_n, pool, reward_bench, second_judge
from tasks.command_line import commands
from tasks.commands.bench_reward import bench_reward, load_set, set_scores
from tasks.commands.explain import explain
from tasks.graph.rows import load_row
from tasks.params.pages import Address
from tasks.scoring.classifiers import ScalarScorer
from tasks.scoring.reward_models import TrainedScorer, load_scorer, score_pairs
from tests.tasks.tiny_pipeline import Pipeline

NOISY = {"judge": {"kind": "gold", "persona": "exact"}, "second": {"kind": "gold", "persona": "noisy"}}


def written(folder: Path, name: str, values: dict[str, Any]) -> str:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(folder / f"{name}.yaml")


def upstream(pipeline: Pipeline) -> list[str]:
    names = ("data", "sft", "entropies", "reward_model")
    return [word for name in names for word in (f"--{name.replace('_', '-')}", str(pipeline.result(name)))]


def metrics(out: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((out / "result" / "metrics.json").read_text())
    return found


@pytest.fixture(scope="module")
def drawn(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of four responses."""
    out = tmp_path_factory.mktemp("pool")
    spec = {"benchmarks": ["alpaca", "arena"], "samples": 4, "prompts": 2, "sampling": {"max_new_tokens": 8}}
    line = ["--scale", written(out, "pool", spec), "--data", str(pipeline.result("data"))]
    pool.main([*line, "--sft", str(pipeline.result("sft")), "--seed", "0", "--out", str(out)])
    return out / "result"


def test_a_reward_model_is_measured_on_every_section(pipeline: Pipeline, tmp_path: Path) -> None:
    scale = written(tmp_path, "bench", {"source": "testbed", "pairs": 2})
    reward_bench.main(["--scale", scale, *upstream(pipeline), "--out", str(tmp_path / "out")])
    found = metrics(tmp_path / "out")
    sections = [found[name] for name in ("chat", "chat_hard", "safety", "reasoning")]
    assert found["average"] == pytest.approx(sum(sections) / 4)
    assert {"ood_pairs", "seen_pairs", "subset/math-ood", "chat_lower"} <= set(found)


def test_the_best_of_n_come_from_one_pool_and_the_reward_never_falls(
    pipeline: Pipeline, drawn: Path, tmp_path: Path
) -> None:
    scale = written(tmp_path, "best", {"sizes": [1, 2, 4], "judges": NOISY})
    line = ["--scale", scale, *upstream(pipeline), "--pool", str(drawn), "--out", str(tmp_path / "out")]
    best_of_n.main(line)
    found = metrics(tmp_path / "out")
    for benchmark in ("alpaca", "arena"):
        rewards = [found[f"reward/{benchmark}/{size}"] for size in (1, 2, 4)]
        assert rewards == sorted(rewards)
        assert {f"{judge}/{benchmark}/4" for judge in ("judge", "second", "true")} <= set(found)
    rows = [json.loads(line) for line in (tmp_path / "out" / "result" / "choices.jsonl").read_text().splitlines()]
    samples = [json.loads(line)["samples"] for line in (drawn / "responses.jsonl").read_text().splitlines()]
    for row, own in zip(rows, samples, strict=True):
        assert row["best"]["4"] == own[row["rewards"].index(max(row["rewards"]))]
        assert row["best"]["1"] == own[0]


def test_a_size_beyond_the_pool_is_refused(pipeline: Pipeline, drawn: Path, tmp_path: Path) -> None:
    line = ["--scale", written(tmp_path, "best", {"sizes": [8]}), *upstream(pipeline), "--pool", str(drawn)]
    with pytest.raises(RecipeError, match="at most the pool of 4"):
        best_of_n.main([*line, "--out", str(tmp_path / "out")])


def test_a_second_judge_compares_policies_by_the_ranking_prompt(pipeline: Pipeline, tmp_path: Path) -> None:
    row = written(tmp_path, "row", {"kind": "second_judge", "policy": "ppo", "against": ["dpo"]})
    line = ["--row", row, "--scale", written(tmp_path, "judge", {"judge": NOISY["judge"]})]
    line += ["--data", str(pipeline.result("data"))]
    policies = ["--policies", str(pipeline.result("ppo")), str(pipeline.result("dpo"))]
    second_judge.main([*line, *policies, "--out", str(tmp_path / "out")])
    assert 0 <= metrics(tmp_path / "out")["second/dpo"] <= 100
    games = [json.loads(x) for x in (tmp_path / "out" / "result" / "judgements.jsonl").read_text().splitlines()]
    assert {game["first"] for game in games} == {"model", "baseline"}
    with pytest.raises(RecipeError, match="1 opponents, but 1 policies"):
        second_judge.main([*line, *policies[:2], "--out", str(tmp_path / "again")])


def test_scores_are_those_that_explain_shows(pipeline: Pipeline) -> None:
    folder = pipeline.result("reward_model")
    scorer = load_scorer(folder)
    assert isinstance(scorer, TrainedScorer)
    asked, said = {"prompt": "What does the cat eat?"}, ["It eats fish.", "I think about this for some time"]
    shown = [explain(folder, asked["prompt"], text)["total"] for text in said]
    assert scorer([asked, asked], said) == pytest.approx(shown, abs=1e-5)


@pytest.fixture
def classifier(pipeline: Pipeline, tmp_path: Path) -> Path:
    """A scalar Hugging Face model with random weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    source = pipeline.result("sft") / "model"
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = AutoConfig.from_pretrained(source, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "scalar")
    tokenizer.save_pretrained(tmp_path / "scalar")
    return tmp_path / "scalar"


def test_a_scalar_hugging_face_model_is_benched_on_real_sets(classifier: Path, real_data: Path) -> None:
    scores, cut = bench_reward(
        classifier, directory=real_data, sets=("hhh_alignment", "pandalm"), rows=6, template="plain"
    )
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
        load_scorer(classifier, template="plain")
    (classifier / "config.json").unlink()
    with pytest.raises(DataError, match="cannot be loaded"):
        load_scorer(classifier, template="plain")
    with pytest.raises(DataError, match="unknown data set 'pandalmm'"):
        load_set("pandalmm", real_data, None)


def test_bench_reward_prints_a_table(pipeline: Pipeline, real_data: Path, tmp_path: Path) -> None:
    line = ["bench-reward", str(pipeline.result("reward_model")), "--data", str(real_data), "--sets", "hhh_alignment"]
    done = CliRunner().invoke(commands, [*line, "--rows", "4", "--out", str(tmp_path / "scores.json")])
    assert done.exit_code == 0, done.output
    assert "hhh_alignment" in done.output
    assert json.loads((tmp_path / "scores.json").read_text())["scores"][0]["pairs"] == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "reward_bench", "reward_model": "sentence", "credit": "last_token"}, "unknown setting 'credit'"),
        ({"kind": "best_of_n"}, "'reward_model' is missing"),
        (
            {"kind": "second_judge", "policy": "sentence", "against": ["tokn"]},
            "against names 'tokn'.*'token'",
        ),
        ({"kind": "second_judge", "policy": "sentence", "against": ["bench-da"]}, "which trains no policy"),
        ({"kind": "second_judge", "policy": "sentence"}, "'against' is missing"),
    ],
)
def test_a_row_that_measures_says_what_is_wrong_with_it(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    shutil.copytree(root / "params", tmp_path / "params")
    shutil.copy(root / "params.yaml", tmp_path)
    page = {"own": {"backbone": "llama31-8b-sft", **values}}
    (tmp_path / "params" / "sentence" / "rows_own.yaml").write_text(yaml.safe_dump(page), encoding="utf-8")
    with pytest.raises(RecipeError, match=message):
        load_row(tmp_path, "sentence", Address("params/sentence/rows_own.yaml:own"))
