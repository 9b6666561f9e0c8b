"""A user's own segmenter gets what it declares, as the project's segmenters do: no code asks for their names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.segmentation.segmenters import build_segmenter
from tasks.graph.check import check_rows
from tasks.params.reward_model import RewardModelSpec
from tasks.running.loading import load_segmenter
from tasks.scoring.segmenting import segmenter_with_cutoffs
from tests.tasks.own_segmenter import Paragraphs, Surprises

ROOT = Path(__file__).resolve().parents[2]
SURPRISES, PARAGRAPHS = "tests.tasks.own_segmenter:Surprises", "tests.tasks.own_segmenter:Paragraphs"
STATED = {"kind": SURPRISES, "low": "1.5", "high": "2.0"}


def spec(**fields: object) -> RewardModelSpec:
    return RewardModelSpec("t", "b", aggregation="mean", loss="bradley_terry", **fields)  # type: ignore[arg-type]


def test_its_cutoffs_become_nats(tmp_path: Path) -> None:
    (tmp_path / "cutoffs.json").write_text(json.dumps({"1.5": 0.25, "2.0": 0.75}), encoding="utf-8")
    resolved = segmenter_with_cutoffs(STATED, tmp_path)
    assert build_segmenter(resolved) == Surprises(0.25, 0.75)
    with pytest.raises(DataError, match="entropy cutoff 9 is not among"):
        segmenter_with_cutoffs({**STATED, "high": "9"}, tmp_path)
    with pytest.raises(RecipeError, match="own_segmenter:Surprises needs the SFT model's entropies: give --entropies"):
        segmenter_with_cutoffs(STATED, None)


def test_a_plan_knows_its_stages_and_refuses_a_cutoff_that_the_scale_lacks(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    file = tmp_path / "params" / "segment" / "reward_models.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["bandit"]["segmenter"] = {**STATED, "high": "2.01"}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    said = "\n".join(check_rows(tmp_path, "segment", ["bandit"], "testbed"))
    assert "segmenter.high is '2.01', which needs entropy cutoff '2.01', but its inputs (" in said
    assert "did you mean \"entropy cutoff '2.0'\"?" in said
    assert "segmenter.low" not in said


def test_a_stage_makes_the_model_that_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "mark.txt").write_text("|", encoding="utf-8")
    made = load_segmenter({"kind": PARAGRAPHS, "model": "any"}, tmp_path)
    assert made == Paragraphs("|")
    assert hasattr(made, "sentence_ends")
    with pytest.raises(RecipeError, match="made by the stage `segmenter`: give --sentences"):
        load_segmenter({"kind": PARAGRAPHS, "model": "any"}, None)


def test_a_reward_model_is_refused_by_needs_and_not_by_names() -> None:
    for segmenter in (STATED, {"kind": PARAGRAPHS, "model": "any"}):
        with pytest.raises(RecipeError, match="data is 'other', but entropies, SaT sentences"):
            spec(segmenter=segmenter, data="other")
    assert spec(segmenter={"kind": PARAGRAPHS, "model": "any"}, end_token=True).end_token
    with pytest.raises(RecipeError, match="end_token: end tokens follow sentences"):
        spec(segmenter=STATED, end_token=True)
