"""Reference rewards: sampled and scored once, read by every row as its own component reads and normalises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.normalisers import NoNormaliser, Scalar
from rlhf_core.rewards.preference_training import score_all
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation import Bandit, NGram
from rlhf_core.segmentation.segments import SegmentedSequence
from tasks.running.loading import load_encoder
from tasks.scoring.references import load_references
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline, changed

M = SETTINGS["references"]["responses"]


def scorer(pipeline: Pipeline, segmenter: Any, read: Any = "aggregate") -> RewardModelScorer:
    return RewardModelScorer(ScalarModel.load(pipeline.result("reward_model") / "model")[0], segmenter, read)


def tokenizer(pipeline: Pipeline) -> Any:
    return load_encoder(pipeline.result("data"), pipeline.result("sft") / "model").tokenizer


def test_every_training_prompt_has_its_references(pipeline: Pipeline) -> None:
    known = load_references(
        pipeline.result("references"), scorer(pipeline, Bandit()), NoNormaliser(), tokenizer(pipeline)
    )
    assert list(known.rewards) == [row["id"] for row in pipeline.rows("data", "prompts.jsonl")]
    assert all(rewards.shape == (M,) for rewards in known.rewards.values())
    together = torch.cat(list(known.rewards.values())).double()
    assert known.units.mean == pytest.approx(float(together.mean()))
    assert known.units.deviation == pytest.approx(float(together.std(correction=0)))
    assert known.units.constants == "sft"


@pytest.mark.parametrize("segmenter", [Bandit(), NGram(3)])
def test_they_are_what_the_reward_model_says_of_the_responses(pipeline: Pipeline, segmenter: Any) -> None:
    """Scored one by one, without padding."""
    encoder = load_encoder(pipeline.result("data"), pipeline.result("sft") / "model")
    stored = load_file(pipeline.result("references") / "references.safetensors")
    responses = stored["ids"].split(stored["lengths"].tolist())
    read = scorer(pipeline, segmenter)
    known = load_references(pipeline.result("references"), read, NoNormaliser(), encoder.tokenizer)
    for number, row in enumerate(pipeline.rows("data", "prompts.jsonl")[:4]):
        for m in range(M):
            ids = responses[M * number + m].tolist()
            sequence = EncodedSequence(encoder.prompt(row), ids)
            segmentation = segmenter.segment(encoder.responses([sequence]))
            ends = segmentation.ends[0][segmentation.mask[0]].tolist()
            naive, _ = score_all(read.model, [SegmentedSequence(sequence, ends)], encoder.pad_id)
            assert float(known.rewards[row["id"]][m]) == pytest.approx(float(naive[0]), abs=1e-5)


def test_they_are_normalised_as_the_component_normalises(pipeline: Pipeline) -> None:
    folder, words = pipeline.result("references"), tokenizer(pipeline)
    raw = load_references(folder, scorer(pipeline, NGram(3), "value"), NoNormaliser(), words)
    read = scorer(pipeline, NGram(3), "value")
    normalised = load_references(folder, read, Scalar(0.5, 2.0), words)
    for name, rewards in raw.rewards.items():
        torch.testing.assert_close(normalised.rewards[name], (rewards - 0.5) / 2.0)
    assert normalised.units.deviation == pytest.approx(raw.units.deviation / 2)


def test_a_row_prints_what_its_constants_came_to(pipeline: Pipeline) -> None:
    metrics = pipeline.metrics("par")
    length = pipeline.metrics("references")["length"]
    assert metrics["shaping/segment/length_penalty_beyond"] == pytest.approx(length)
    assert metrics["shaping/segment/length_penalty_per_token"] == 0.01


def refused(pipeline: Pipeline, folder: Path, row: dict[str, Any], references: Path | None = None) -> None:
    """Runs the `par` row changed, or with other references."""
    path = folder / "row.yaml"
    path.write_text(yaml.safe_dump(row), encoding="utf-8")
    from tasks import policy

    _, line = pipeline.arguments("par", folder / "out", settings={"row": path})
    place = line.index("--references")
    line = line[:place] + ([] if references is None else ["--references", str(references)]) + line[place + 2 :]
    policy.main(line)


def test_a_row_without_its_references_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"need reference rewards by the reward models \['segment'\].*--references"):
        refused(pipeline, tmp_path, SETTINGS["par"])


def test_more_references_than_are_cached_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    row = changed(SETTINGS["par"], "shaping", [{"kind": "par", "references": M + 1}])
    with pytest.raises(DataError, match=rf"has {M} reference reward\(s\), the shaping asks for {M + 1}"):
        refused(pipeline, tmp_path, row, pipeline.result("references"))


def test_prompts_without_references_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pipeline.result("references"), tmp_path / "references"))
    facts = json.loads((folder / "references.json").read_text())
    facts["prompts"] = [f"other-{name}" for name in facts["prompts"]]
    (folder / "references.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"has no reference rewards; they are cached for \d+ prompt"):
        refused(pipeline, tmp_path, SETTINGS["par"], folder)


def test_references_that_are_not_finite_are_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pipeline.result("references"), tmp_path / "references"))
    stored = load_file(folder / "references.safetensors")
    stored["values.reward"][:] = float("nan")
    save_file(stored, folder / "references.safetensors")
    with pytest.raises(NumericsError, match=r"a reference reward of prompt '.*' is not finite"):
        refused(pipeline, tmp_path, SETTINGS["par"], folder)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("responses", 0, "responses is 0"),
        ("constants", "paper", "constants is 'paper'; known: value, sft"),
        ("sampling", {"top_q": 0.9}, "unknown setting 'sampling.top_q'; did you mean 'top_p'"),
    ],
)
def test_settings_out_of_range_are_refused(
    pipeline: Pipeline, tmp_path: Path, path: str, value: Any, message: str
) -> None:
    target = tmp_path / "references.yaml"
    target.write_text(yaml.safe_dump(changed(SETTINGS["references"], path, value)), encoding="utf-8")
    with pytest.raises(RecipeError, match=message):
        pipeline.run("references", tmp_path / "out", settings={"scale": target})
