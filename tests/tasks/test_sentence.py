"""The Sentence paper's path through the stages: segmenter, reward model, normaliser, reward, explain."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.models.policy import pad_rows
from rlhf_core.recipe import parse_recipe
from rlhf_core.rollout import Responses, RolloutBatch
from tasks import normaliser, policy, references, reward_model, segmenter
from tasks.commands.explain import explain
from tasks.graph.rows import row_addresses
from tasks.params.pages import read_settings
from tasks.policy_run.reward import RewardInputs, build_reward
from tasks.running.loading import load_encoder
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline

pytest.importorskip("wtpsplit")

SPEC: dict[str, Any] = {
    "source": "train",
    "gold": "clauses",
    "tagger": {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 400, "window": 60},
    "training": {"epochs": 4, "batch": 8, "microbatch": 8, "learning_rate": 1.0e-2},
}
ROOT = Path(__file__).resolve().parents[2]
SAT = {"kind": "sat", "model": "sat-1l"}
ROW = {**SETTINGS["segment"], "credit": "segment_end", "normaliser": "none"}


def written(folder: Path, name: str, values: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(folder / f"{name}.yaml")


@pytest.fixture(scope="module")
def sentences(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("segmenter")
    segmenter.main(["--spec", written(out, "spec", SPEC), "--data", str(pipeline.result("data")), "--out", str(out)])
    return out / "result"


@pytest.fixture(scope="module", params=[True, False], ids=["with END", "without END"])
def trained(
    request: pytest.FixtureRequest, pipeline: Pipeline, sentences: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A sentence reward model and its normaliser, beside each other."""
    out = tmp_path_factory.mktemp("reward_model")
    kind = {"kind": "differential_attention", "dim": 16}
    spec = {**SETTINGS["reward_model"], "segmenter": SAT, "aggregation": kind, "end_token": request.param}
    upstream = ["--data", str(pipeline.result("data")), "--sft", str(pipeline.result("sft"))]
    upstream += ["--sentences", str(sentences)]
    scale = str(pipeline.settings("reward_model_scale"))
    model = ["--spec", written(out, "spec", spec), "--scale", scale, "--seed", "0", "--out", str(out / "model")]
    reward_model.main([*model, *upstream])
    fitted = ["--scale", str(pipeline.settings("normaliser")), "--reward-model", str(out / "model" / "result")]
    normaliser.main([*fitted, *upstream, "--out", str(out / "normaliser")])
    return out


def words(pipeline: Pipeline) -> Any:
    return load_encoder(pipeline.result("data"), pipeline.result("sft") / "model").tokenizer


def batch(pipeline: Pipeline) -> RolloutBatch:
    """Two dialogues; one answer is cut off, one is empty."""
    encoder = load_encoder(pipeline.result("data"), pipeline.result("sft") / "model")
    row = {"prompt": "Tell me the sound of the cow."}
    made = [encoder.sequence(row, text) for text in ("The cow gives a moo. It eats grass. Bye", "It weighs 5 kg", "")]
    rows = [made[0].response[:-1], made[1].response, made[2].response]
    prompt_ids, prompt_mask = pad_rows([s.prompt for s in made], encoder.pad_id, "left")
    ids, mask = pad_rows(rows, encoder.pad_id, "right")
    ended = torch.tensor([False, True, True])
    responses = Responses(ids, mask, ended, pieces=[encoder.pieces(r) for r in rows])
    texts = [token_spans(encoder.tokenizer, r)[0] for r in rows]
    return RolloutBatch(prompt_ids, prompt_mask, responses, ["?"] * 3, texts, [{}] * 3, torch.arange(3))


def test_the_stage_finds_the_sentences_of_every_response(pipeline: Pipeline, sentences: Path) -> None:
    metrics = json.loads((sentences / "metrics.json").read_text())
    assert 0 <= metrics["f1"] <= 1
    known = json.loads((sentences / "sentences.json").read_text())
    rows = pipeline.rows("data", "preference.train.jsonl")
    for row in rows[:5]:
        ends = known[segmenter.text_digest(row["chosen"])]
        assert ends[-1] == len(row["chosen"])


def test_weighted_sentence_rewards_are_paid_at_boundary_tokens_and_add_up(
    pipeline: Pipeline, sentences: Path, trained: Path
) -> None:
    rollouts = batch(pipeline)
    paid = {}
    for read, credit in (("weighted", "segment_end"), ("aggregate", "last_token")):
        row = {**ROW, "readout": {"segmenter": SAT, "read": read}, "credit": credit}
        folders = [trained / "model" / "result"], [trained / "normaliser" / "result"]
        inputs = RewardInputs(None, *folders, sentences=sentences)
        reward = build_reward(parse_recipe(row), inputs, microbatch=2, tokenizer=words(pipeline))
        paid[read] = reward(rollouts).total
    torch.testing.assert_close(paid["weighted"].sum(dim=1), paid["aggregate"].sum(dim=1), atol=1e-5, rtol=1e-4)
    assert paid["weighted"][~rollouts.responses.mask].abs().sum() == 0
    assert ((paid["aggregate"] != 0).sum(dim=1) <= 1).all()


@pytest.mark.parametrize("name", ["sentence", "sent2res"])
def test_a_row_of_the_paper_trains_and_is_measured(
    pipeline: Pipeline, sentences: Path, trained: Path, tmp_path: Path, name: str
) -> None:
    """The committed row, at a size of seconds."""
    row = read_settings(row_addresses(ROOT, "sentence")[name].under(ROOT))
    row["readout"]["segmenter"] = SAT
    sizes = {k: v for k, v in SETTINGS["ppo"]["optimiser"].items() if k != "critic_lr"}
    files = {"row": written(tmp_path, "row", row), "evaluation": pipeline.settings("evaluation")}
    files["scale"] = written(tmp_path, "scale", {**SETTINGS["ppo"], "optimiser": sizes})
    made = {"data": pipeline.result("data"), "sft": pipeline.result("sft"), "sentences": sentences}
    made |= {"reward-model": trained / "model" / "result", "normaliser": trained / "normaliser" / "result"}
    line = [str(word) for k, path in {**files, **made}.items() for word in (f"--{k}", path)]
    policy.main([*line, "--seed", "0", "--out", str(tmp_path / "out")])
    metrics = json.loads((tmp_path / "out" / "result" / "metrics.json").read_text())
    assert {"true_reward", "win_rate_vs_sft", "kl"} <= set(metrics)
    assert ("mean_segment_length" in metrics) is (name == "sentence")


def test_reference_rewards_are_known_of_sentences_without_end_tokens_alone(
    pipeline: Pipeline, sentences: Path, trained: Path, tmp_path: Path
) -> None:
    model = trained / "model" / "result"
    upstream = {"data": pipeline.result("data"), "sft": pipeline.result("sft"), "reward-model": model}
    line = ["--scale", str(pipeline.settings("references")), "--seed", "0", "--out", str(tmp_path)]
    line += [str(word) for name, path in upstream.items() for word in (f"--{name}", path)]
    line += ["--sentences", str(sentences)]
    if json.loads((model / "model" / "reward_model.json").read_text()).get("end_token"):
        with pytest.raises(RecipeError, match=r"reads end tokens.*use a reward model with end_token: false"):
            references.main(line)
        return
    references.main(line)
    row = {**ROW, "shaping": {"kind": "par", "references": 2}}
    reward = {}
    for read, credit in (("value", "segment_end"), ("aggregate", "last_token")):
        recipe = parse_recipe({**row, "readout": {"segmenter": SAT, "read": read}, "credit": credit})
        folders = [model], [trained / "normaliser" / "result"], [tmp_path / "result"]
        inputs = RewardInputs(None, *folders, sentences=sentences)
        reward[read] = partial(build_reward, recipe, inputs, microbatch=2, tokenizer=words(pipeline))
    known = reward["value"]().components[0].references
    assert list(known) == [row["id"] for row in pipeline.rows("data", "prompts.jsonl")]
    with pytest.raises(RecipeError, match="'aggregate' of a reward model of aggregation 'differential_attention'"):
        reward["aggregate"]()


def test_a_shaping_with_references_is_refused_where_they_are_never_known() -> None:
    row = {**ROW, "shaping": {"kind": "par"}, "readout": {"segmenter": SAT, "read": "weighted"}}
    with pytest.raises(RecipeError, match="needs reference rewards, but they are not known for read-out 'weighted'"):
        parse_recipe(row)


def test_explain_shows_weights_and_rewards(pipeline: Pipeline, trained: Path) -> None:
    shown = explain(
        trained / "model" / "result", "Tell me the sound of the cow.", "The cow gives a moo. It eats grass."
    )
    assert sum(shown["weights"]) == pytest.approx(1.0, abs=1e-5)
    worth = [value for *_, value in shown["segments"]]
    products = [w * r for w, r in zip(shown["weights"], shown["segment_rewards"], strict=True)]
    assert worth == pytest.approx(products, abs=1e-6)
    assert shown["total"] == pytest.approx(sum(worth), abs=1e-5)
