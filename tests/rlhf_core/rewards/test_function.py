"""A reward function of the user's own: named, imported, checked, and paid on real tokens only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tiny_models import batch_of, random_rows

from rlhf_core.credit import build_credit
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rewards.function import FunctionScorer, build_function_scorer
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence, Tokens

BATCH = batch_of([[5, 6], [7]], random_rows(0, [5, 3]))


def brevity(batch: RolloutBatch) -> torch.Tensor:
    return -batch.responses.lengths


def one_a_token(batch: RolloutBatch) -> torch.Tensor:
    return torch.ones(batch.responses.ids.shape)


def test_a_value_per_response_and_one_per_token_are_paid() -> None:
    short = Component("short", FunctionScorer(brevity, Sequence), build_credit("last_token"))
    even = Component("even", FunctionScorer(one_a_token, Tokens), build_credit("as_is"))
    output = Reward((short, even))(BATCH)
    assert output.breakdown["short"].tolist() == [[0, 0, 0, 0, -5], [0, 0, -3, 0, 0]]
    assert output.breakdown["even"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_a_wrong_shape_is_named_with_the_right_one() -> None:
    with pytest.raises(NumericsError, match=r"function one_a_token returned shape \(2, 5\), expected \(2,\)"):
        FunctionScorer(one_a_token, Sequence).score(BATCH)


def test_a_function_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text("def zero(batch):\n    return batch.responses.lengths * 0.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert build_function_scorer("own_rewards:zero", "sequence").score(BATCH).values.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brevity", "name it as 'package.module:name'"),
        ("no_such_module_here:f", "No module named 'no_such_module_here'"),
        ("math:no_such_function", "module math has no 'no_such_function'"),
        ("math:pi", "module math has no callable 'pi'"),
    ],
)
def test_what_cannot_be_imported_is_named(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_function_scorer(name, "sequence")
