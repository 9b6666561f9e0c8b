"""A fitted normaliser and the segments that it was fitted to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.recipe import parse_recipe
from rlhf_core.rewards.composition import Reward
from tasks.graph.rows import paper_folder, papers, row_addresses
from tasks.params.pages import entries, read_settings
from tasks.policy_run.reward import RewardInputs, build_reward
from tests.rlhf_core.tiny_models import tiny_scalar_model

ROOT = Path(__file__).resolve().parents[2]
FITTED = ("global", "last", "location_aware")
LINE = {"w_mean": 0.1, "b_mean": 0.0, "w_std": 0.0, "b_std": 1.0, "floor": 0.1}
COEFFICIENTS = {name: {"mean": 0.0, "std": 1.0} for name in ("global", "last", "sequence")}
CUTOFFS = {"1.5": 0.9, "1.75": 1.1, "the same": 0.9}


def built(folder: Path, trained: dict[str, Any], read: dict[str, Any], normaliser: str) -> Reward:
    """The reward of a model that was trained on one segmentation and is read by another."""
    tiny_scalar_model().save(folder / "model" / "model", {"segmenter": trained, "aggregation": "mean"})
    for name, values in (("cutoffs", CUTOFFS), ("normaliser", {**COEFFICIENTS, "location_aware": {"huber": LINE}})):
        (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")
    row = {
        "title": "A row",
        "kind": "reward",
        "backbone": "tiny",
        "reward_model": "model",
        "readout": {"segmenter": read, "read": "value"},
        "normaliser": normaliser,
        "credit": "even_split",
        "optimiser": {"kind": "ppo"},
    }
    nothing: Any = None
    return build_reward(parse_recipe(row), RewardInputs(folder, (folder / "model",), (folder,)), 8, nothing)


@pytest.mark.parametrize("normaliser", FITTED)
@pytest.mark.parametrize(
    ("trained", "read"),
    [
        ({"kind": "ngram", "n": 5}, {"kind": "ngram", "n": 20}),
        ({"kind": "entropy", "cutoff": 0.9}, {"kind": "entropy", "cutoff": "1.75"}),
        ({"kind": "bandit"}, {"kind": "token"}),
    ],
)
def test_a_normaliser_of_another_segmentation_is_refused(
    tmp_path: Path, trained: dict[str, Any], read: dict[str, Any], normaliser: str
) -> None:
    with pytest.raises(RecipeError, match=f"normaliser '{normaliser}' was fitted to segments of the reward model"):
        built(tmp_path, trained, read, normaliser)
    assert built(tmp_path, trained, read, "sequence").components


@pytest.mark.parametrize("normaliser", FITTED)
@pytest.mark.parametrize(
    ("trained", "read"),
    [
        ({"kind": "ngram", "n": 5}, {"kind": "ngram", "n": 5}),
        ({"kind": "entropy", "cutoff": 0.9}, {"kind": "entropy", "cutoff": "1.5"}),
        ({"kind": "entropy", "cutoff": 0.9}, {"kind": "entropy", "cutoff": "the same"}),
        ({"kind": "token"}, {"kind": "token"}),
    ],
)
def test_a_normaliser_of_the_same_segmentation_is_taken(
    tmp_path: Path, trained: dict[str, Any], read: dict[str, Any], normaliser: str
) -> None:
    assert built(tmp_path, trained, read, normaliser).components


def test_every_committed_row_reads_the_segments_that_its_normaliser_is_fitted_to() -> None:
    checked = 0
    rows = {
        (paper, at): read_settings(at.under(ROOT))
        for paper in papers(ROOT)
        for at in row_addresses(ROOT, paper).values()
    }
    for (own, path), row in rows.items():
        for part in row.get("components") or [row]:
            if part.get("normaliser") not in FITTED:
                continue
            paper, _, name = str(part["reward_model"]).rpartition("/")
            models = entries(ROOT, paper_folder(paper or own), "reward_models")
            trained = read_settings(models[name].under(ROOT))
            assert part["readout"]["segmenter"] == trained["segmenter"], path
            checked += 1
    assert checked >= 19
