"""Properties of what stages write, on the golden runs; `test_versions.py` compares their values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean

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


@pytest.mark.parametrize("name", ["segment", "two", "par", "sentence", "qa-alarm", "math-rlmec"])
def test_rewards_of_rollouts_are_the_sum_of_their_breakdown(golden: SharedRuns, name: str) -> None:
    rollouts = golden.read(name, "rollouts.jsonl")
    assert rollouts
    for row in rollouts:
        assert len(row["tokens"]) == len(row["rewards"]) == len(row["advantages"])
        total = [sum(parts) for parts in zip(*row["breakdown"].values(), strict=True)]
        assert total == pytest.approx(row["rewards"], abs=1e-5)


@pytest.mark.parametrize("name", ["model-segment", "model-token", "model-bandit"])
def test_rewards_of_examples_are_their_segments_rewards_spread_over_tokens(golden: SharedRuns, name: str) -> None:
    for row in golden.read(name, "examples.jsonl"):
        covered = [i for start, end, _ in row["segments"] for i in range(start, end)]
        assert covered == list(range(len(covered)))
        assert sum(row["rewards"][i] for i in covered) == pytest.approx(sum(v for *_, v in row["segments"]), abs=1e-5)
        assert all(value is None for value in row["rewards"][len(covered) :])


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


def test_what_comes_after_the_peak_is_measured_against_it(golden: SharedRuns) -> None:
    metrics = golden.read("odin", "metrics.json")
    assert metrics["loss_after_peak"] == pytest.approx(metrics["peak_win_rate_vs_sft"] - metrics["win_rate_vs_sft"])
    checkpoints = golden.read("odin", "checkpoints.jsonl")
    assert [row["step"] for row in checkpoints] == [1, 2, 3]
    assert all(0 < row["preference_score"] < 1 for row in checkpoints)
    assert checkpoints[-1]["proxy_reward"] == pytest.approx(metrics["proxy_reward"])


def test_the_selection_names_what_it_chose_and_by_what(golden: SharedRuns) -> None:
    selection = golden.read("selection-qa", "selection.json")
    found = {n: f["inconsistency"]["estimate"] for n, f in selection["aspects"].items() if not f["constant"]}
    (chosen,) = selection["chosen"]
    assert found[chosen] == min(found.values())
    assert sum(selection["holistic"]["pure"]) / 16 == pytest.approx(0, abs=1e-6)
    answers = golden.read("selection-qa", "answers.jsonl")
    signs = [[row["greedy"][n] - row["sampled"][n] for n in ("holistic", "length")] for row in answers]
    apart = [holistic * length < 0 for holistic, length in signs if holistic]
    assert found["length"] == pytest.approx(100 * fmean(apart))


def test_only_the_gate_shapes_aspects_and_its_counts_add_up(golden: SharedRuns) -> None:
    """Below the gate nothing but the holistic reward; above it every sentence pays a sigmoid of +-.5."""
    for rollout in golden.read("qa-alarm", "rollouts.jsonl"):
        holistic, aspect = rollout["breakdown"]["holistic"], rollout["breakdown"]["factuality"]
        assert {round(value, 4) for value in aspect} <= ({0.0} if sum(holistic) < 0 else {0.0, 0.6225, 0.3775})
    history = golden.read("qa-alarm", "history.jsonl")
    assert all(0 <= step["gate/share_above"] <= 1 for step in history)
    assert golden.read("qa-alarm", "metrics.json")["gate/pairs"] == sum(step["gate/pairs"] for step in history)
    assert "gate/pairs" not in golden.read("qa-weighted-sum", "metrics.json")
    scores = golden.read("qa-alarm", "scores.jsonl")
    assert [set(row) for row in scores] == [{"id", "holistic", *DENSITIES}] * 8
    assert golden.read("qa-alarm", "metrics.json")["score/length"] == pytest.approx(fmean(r["length"] for r in scores))


def test_every_question_is_sampled_as_often_as_asked_and_every_wrong_sample_is_corrected(golden: SharedRuns) -> None:
    samples = golden.read("samples", "samples.jsonl")
    questions = golden.read("mathematics", "questions.jsonl")
    assert [row["id"] for row in samples] == [f"{each['id']}/{n}" for each in questions for n in range(6)]
    tokenizer = load_encoder(golden.result("mathematics"), golden.result("samples") / "tokenizer").tokenizer
    assert all(tokenizer.decode(r["token_ids"], skip_special_tokens=True) == r["prediction"] for r in samples)
    wrong = {row["id"] for row in samples if not row["correct"]}
    for name, file in (("teacher", "rewrites.jsonl"), ("generative", "grm_rewrites.jsonl")):
        rewrites = golden.read(name, file)
        assert {row["id"] for row in rewrites} == wrong
        assert all(bool(row["reason"]) is not row["accepted"] for row in rewrites)
    counts = golden.read("samples", "metrics.json")
    assert Counter(row["correct"] for row in samples) == {True: counts["correct"], False: counts["erroneous"]}


def test_every_token_of_every_sample_has_a_reward_of_its_sign(golden: SharedRuns) -> None:
    samples = {row["id"]: row for row in golden.read("samples", "samples.jsonl")}
    rewards = golden.read("generative", "token_rewards.jsonl")
    assert {row["id"] for row in rewards} == set(samples)
    for row in rewards:
        assert row["token_ids"] == samples[row["id"]]["token_ids"]
        low, high = (0.0, 0.5) if samples[row["id"]]["correct"] else (-0.1, 0.0)
        assert row["rewards"] == pytest.approx([min(max(p - 0.5, low), high) for p in row["probabilities"]])
    paid = {row["id"]: row["rewards"] for row in rewards}
    for row in golden.read("math-rlmec", "credit.jsonl"):
        assert row["credit"] == pytest.approx(paid[row["id"]], abs=1e-6)
    assert all(row["imitation_loss"] > 0 for row in golden.read("math-rlmec", "history.jsonl"))


@pytest.mark.parametrize("name", ["sft", "model-bandit", "dpo"])
def test_another_seed_gives_another_model(golden: SharedRuns, name: str, tmp_path: Path) -> None:
    golden.run(name, out=tmp_path, seed="1")
    assert digest(tmp_path / "result" / "model") != digest(golden.result(name) / "model")
