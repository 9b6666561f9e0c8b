"""A user's own segmenter gets what it declares, as the project's segmenters do: no code asks for their names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.segmentation.segmenters import SentenceSegmenter, build_segmenter, segmenter_needs
from tasks.best_of_n import choose
from tasks.graph.check import check_rows
from tasks.graph.rows import load_rows
from tasks.normaliser import fit_normalisers
from tasks.params.reward_model import RewardModelSpec
from tasks.policy import train_policy
from tasks.references import make_references
from tasks.reward_bench import bench
from tasks.reward_model import train_reward_model
from tasks.running.loading import load_segmenter
from tasks.running.stage import argument_parser
from tasks.scoring.entropies import segmenter_with_cutoffs
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
    assert load_rows(tmp_path, "segment")["bandit"].reward_models[0].entropies
    said = "\n".join(check_rows(tmp_path, "segment", ["bandit"], "testbed"))
    assert "segmenter.high is '2.01', which needs 2.01, but params/scales/testbed/stages.yaml:entropies has" in said
    assert "segmenter.low" not in said


def test_a_stage_makes_the_model_that_it_asks_for(tmp_path: Path) -> None:
    (tmp_path / "mark.txt").write_text("|", encoding="utf-8")
    made = load_segmenter({"kind": PARAGRAPHS, "model": "any"}, tmp_path)
    assert made == Paragraphs("|")
    assert isinstance(made, SentenceSegmenter)
    with pytest.raises(RecipeError, match="made by the stage `segmenter`: give --sentences"):
        load_segmenter({"kind": PARAGRAPHS, "model": "any"}, None)


@pytest.mark.parametrize(
    "stage",
    [train_reward_model, fit_normalisers, make_references, choose, bench, train_policy],
    ids=lambda f: f.__name__,
)
def test_stages_that_read_its_model_explain_the_option_that_the_error_names(stage: Callable[..., None]) -> None:
    found = " ".join(argument_parser(stage).format_help().split())
    assert "--sentences SENTENCES result of `segmenter`: a SaT model with sentence ends" in found


def test_a_reward_model_is_refused_by_needs_and_not_by_names() -> None:
    for segmenter in (STATED, {"kind": PARAGRAPHS, "model": "any"}):
        with pytest.raises(RecipeError, match="data is 'other', but entropies, SaT sentences"):
            spec(segmenter=segmenter, data="other")
    assert spec(segmenter={"kind": PARAGRAPHS, "model": "any"}, end_token=True).end_token
    with pytest.raises(RecipeError, match="end_token: end tokens follow sentences"):
        spec(segmenter=STATED, end_token=True)


def test_needs_of_the_projects_own() -> None:
    needs = segmenter_needs({"kind": "entropy", "cutoff": "1.75"})
    assert (needs.entropies, needs.cutoffs, needs.of_stage) == (True, {"cutoff": "1.75"}, False)
    needs = segmenter_needs({"kind": "sat", "model": "sat-1l"})
    assert (needs.of_stage, needs.sentences, needs.cutoffs) == (True, True, {})
    assert not segmenter_needs("bandit").spelling
