"""Properties of what stages write, on the golden runs; `test_versions.py` compares their values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.aspects import checked_scores
from rlhf_core.aspects.choices import build_aspect
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.data.templates import encode_text
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.normalisers import NoNormaliser, Scalar
from rlhf_core.rewards.preference_training import score_all
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.segmenters import Bandit, NGram
from rlhf_core.segmentation.segments import SegmentedSequence
from tasks.commands.explain import explain
from tasks.running.artifacts import digest
from tasks.running.loading import load_encoder, load_world
from tasks.scoring.references import load_references
from tasks.scoring.reward_models import TrainedScorer, load_scorer
from tasks.studies.world_record import right_selection
from tests.tasks.golden_runs import SharedRuns

#: Aspects of the selection by density.
DENSITIES = {"factuality": "sentence", "relevance": "span", "completeness": "sequence", "length": "sequence"}


def test_a_merge_is_the_mean_of_its_members_weights(golden: SharedRuns) -> None:
    names = ("model-warm", "model-warm-1", "model-warm-2")
    merged, *members = (ScalarModel.load(golden.result(name) / "model")[0].state_dict() for name in names)
    for name, value in merged.items():
        mean = sum(member[name].double() for member in members) / 2
        assert float((value.double() - mean).abs().max()) < 1e-6
    assert golden.read("model-warm", "history.jsonl") == []
    first, second = (golden.read(name, "history.jsonl")[-1]["learning_rate"] for name in names[1:])
    assert first == pytest.approx(0.5 * second), "members have rates of their own"


def test_explain_shows_the_stages_own_weights_and_totals(golden: SharedRuns) -> None:
    model = golden.result("model-sentence")
    shown = explain(model, "Tell me the sound of the cow.", "The cow gives a moo. It eats grass.")
    assert sum(shown["weights"]) == pytest.approx(1.0, abs=1e-5)
    worth = [value for *_, value in shown["segments"]]
    products = [w * r for w, r in zip(shown["weights"], shown["segment_rewards"], strict=True)]
    assert worth == pytest.approx(products, abs=1e-6)
    assert shown["total"] == pytest.approx(sum(worth), abs=1e-5)
    scorer = load_scorer(model)
    assert isinstance(scorer, TrainedScorer)
    asked, texts = {"prompt": "What does the cat eat?"}, ["It eats fish.", "I think about this for some time"]
    totals = [explain(model, asked["prompt"], text)["total"] for text in texts]
    assert scorer([asked, asked], texts) == pytest.approx(totals, abs=1e-5)


@pytest.mark.parametrize("segmenter", [Bandit(), NGram(3)])
def test_reference_rewards_are_what_the_reward_model_says_of_the_responses(
    golden: SharedRuns, segmenter: Bandit
) -> None:
    """Scored one by one, without padding, and normalised as the component normalises."""
    folder = golden.result("references-bandit")
    encoder = load_encoder(golden.result("dialogue"), golden.result("sft") / "model")
    stored = load_file(folder / "references.safetensors")
    responses = stored["ids"].split(stored["lengths"].tolist())
    read = RewardModelScorer(ScalarModel.load(golden.result("model-bandit") / "model")[0], segmenter, "aggregate")
    known = load_references(folder, read, NoNormaliser(), encoder.tokenizer)
    prompts = golden.read("dialogue", "prompts.jsonl")
    assert list(known.rewards) == [row["id"] for row in prompts]
    for number, row in enumerate(prompts[:4]):
        for m in range(len(known.rewards[row["id"]])):
            sequence = EncodedSequence(encoder.prompt(row), responses[10 * number + m].tolist())
            segmentation = segmenter.segment(encoder.responses([sequence]))
            ends = segmentation.ends[0][segmentation.mask[0]].tolist()
            naive, _ = score_all(read.model, [SegmentedSequence(sequence, ends)], encoder.pad_id)
            assert float(known.rewards[row["id"]][m]) == pytest.approx(float(naive[0]), abs=1e-5)
    together = torch.cat(list(known.rewards.values())).double()
    assert known.units.mean == pytest.approx(float(together.mean()))
    assert known.units.deviation == pytest.approx(float(together.std(correction=0)))
    normalised = load_references(folder, read, Scalar(0.5, 2.0), encoder.tokenizer)
    for name, rewards in known.rewards.items():
        torch.testing.assert_close(normalised.rewards[name], (rewards - 0.5) / 2.0)


def test_a_selection_is_right_where_the_truth_would_choose_the_same_aspect(golden: SharedRuns) -> None:
    selection, data = golden.result("selection-qa"), golden.result("longform")
    found, world = right_selection(selection, data), load_world(data)
    assert world is not None
    metas = {row["id"]: row["meta"] for row in golden.read("longform", "prompts.jsonl")}
    apart = []
    for row in golden.read("selection-qa", "answers.jsonl"):
        one, other = (world.true_reward(metas[row["id"]], row[kind]["text"]) for kind in ("greedy", "sampled"))
        if one != other:
            apart.append((one - other) * (row["greedy"]["length"] - row["sampled"]["length"]))
    assert found["true_inconsistency/length"] == pytest.approx(100 * sum(each < 0 for each in apart) / len(apart))
    made = golden.read("selection-qa", "selection.json")
    told = {name: found[f"true_inconsistency/{name}"] for name, f in made["aspects"].items() if not f["constant"]}
    assert found["right"] == float(told[made["chosen"][0]] == min(told.values()))


def test_answers_that_the_limit_cut_are_scored_at_their_last_token_as_in_training(golden: SharedRuns) -> None:
    folder = golden.result("model-holistic-qa") / "model"
    model, encoder = ScalarModel.load(folder)[0], load_encoder(golden.result("longform"), folder)
    cut = 0
    for answer in golden.read("selection-qa", "answers.jsonl"):
        words = encode_text(encoder.tokenizer, answer["sampled"]["text"])
        if len(words) == 16:
            prompt, response = torch.tensor([encoder.prompt(answer)]), torch.tensor([words])
            read = model(prompt, torch.ones_like(prompt).bool(), response, torch.ones_like(response).bool())[0, -1]
            assert read.item() == pytest.approx(answer["sampled"]["holistic"], abs=1e-5)
            cut += 1
    assert cut > 0


@pytest.mark.parametrize("name", ["factuality", "relevance", "completeness"])
def test_a_trained_aspect_keeps_its_density_whatever_the_text(golden: SharedRuns, name: str) -> None:
    folder = golden.result(f"aspect-{name}") / "model"
    model = build_aspect({"kind": "trained", "folder": str(folder), "right": 0.3, "wrong": -0.3})
    assert (model.name, model.density.value) == (name, DENSITIES[name])
    rows = golden.read("longform", "labelled.validation.jsonl")[:4]
    texts = [*(row["response"] for row in rows[:2]), "", "no mark, no capital"]
    scored = checked_scores(model, rows, texts)
    assert name == "completeness" or {value for one in scored for value in one.values} <= {0.3, -0.3}
    assert checked_scores(model, rows[1:2], texts[1:2])[0].values == pytest.approx(scored[1].values, abs=1e-5)


@pytest.mark.parametrize("name", ["sft", "model-bandit", "dpo"])
def test_another_seed_gives_another_model(golden: SharedRuns, name: str, tmp_path: Path) -> None:
    golden.run(name, out=tmp_path, seed="1")
    assert digest(tmp_path / "result" / "model") != digest(golden.result(name) / "model")
