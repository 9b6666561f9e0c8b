"""A reward function of the user's own: named, imported, checked, and paid on real tokens only."""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import batch_of, random_rows

from rlhf_core.credit import CREDITS
from rlhf_core.errors import NumericsError, RecipeError, ToolError, UserCodeError
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
    short = Component("short", FunctionScorer(brevity, Sequence), CREDITS["last_token"])
    even = Component("even", FunctionScorer(one_a_token, Tokens), CREDITS["as_is"])
    output = Reward((short, even))(BATCH)
    assert output.breakdown["short"].tolist() == [[0, 0, 0, 0, -5], [0, 0, -3, 0, 0]]
    assert output.breakdown["even"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_a_wrong_shape_is_named_with_the_right_one() -> None:
    said = r"function own:reward returned shape \(2, 5\); gives: sequence wants \(2,\), a value for each response"
    with pytest.raises(RecipeError, match=said):
        FunctionScorer(one_a_token, Sequence, "own:reward").score(BATCH)
    said = r"function brevity returned shape \(2,\); gives: tokens wants \(2, 5\), a value for each token"
    with pytest.raises(RecipeError, match=said):
        FunctionScorer(brevity, Tokens).score(BATCH)


FAILING = """
import functools, torch

def each(texts):
    return [text.undefined for text in texts]

@torch.no_grad()
def fails(batch):
    return each(batch.texts)

class Reward:
    def __call__(self, batch):
        return each(batch.texts)

reward = Reward()
in_torch = lambda batch: torch.tensor([1.0]) @ torch.ones(3)
of_trl = lambda prompts, completions: [0.0]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", r"failed: AttributeError: .*'undefined' \(line 5 of .*failing_rewards.py: return \[text.undefined"),
        ("reward", r"failed: AttributeError: .*'undefined' \(line 5 of .*failing_rewards.py: return \[text.undefined"),
        ("in_torch", r"failed: RuntimeError: .* \(line 16 of .*failing_rewards.py: in_torch = "),
        ("of_trl", r"takes \(prompts, completions\); it gets one argument"),
    ],
)
def test_an_error_of_a_function_names_it_with_file_and_line(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_rewards.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_rewards", raising=False)
    with pytest.raises(UserCodeError, match=f"reward function failing_rewards:{name} {said}") as raised:
        build_function_scorer(f"failing_rewards:{name}", "sequence").score(BATCH)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is not None


def test_an_error_that_says_what_to_do_passes_as_it_is() -> None:
    def asks(batch: RolloutBatch) -> torch.Tensor:
        raise ToolError("the grammar server does not answer")

    with pytest.raises(ToolError, match="the grammar server does not answer"):
        FunctionScorer(asks, Sequence).score(BATCH)


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


def test_a_function_that_edits_its_batch_changes_nothing_that_is_trained_on() -> None:
    def hostile(batch: RolloutBatch) -> torch.Tensor:
        batch.responses.mask[:] = False
        batch.responses.ids.zero_()
        batch.prompt_ids.add_(1)
        batch.records[0]["id"] = "other"  # type: ignore[index]
        batch.texts[0] = "other"  # type: ignore[index]
        batch.references["known"].zero_()
        batch.references["other"] = torch.ones(1)  # type: ignore[index]
        return torch.zeros(len(batch))

    before = copy.deepcopy((BATCH.responses, BATCH.prompt_ids, BATCH.records, BATCH.texts))
    references = {"known": torch.ones(3), "of another batch": torch.ones(3)}
    records = [{"id": "known"}, *BATCH.records[1:]]
    FunctionScorer(hostile, Sequence).score(replace(BATCH, records=records, references=references))
    assert records[0] == {"id": "known"}
    assert references.keys() == {"known", "of another batch"}
    assert references["known"].tolist() == [1, 1, 1]
    assert torch.equal(BATCH.responses.mask, before[0].mask)
    assert torch.equal(BATCH.responses.ids, before[0].ids)
    assert torch.equal(BATCH.prompt_ids, before[1])
    assert (BATCH.records, BATCH.texts) == before[2:]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_names_the_function_and_the_response(bad: float) -> None:
    def odd(batch: RolloutBatch) -> torch.Tensor:
        return torch.tensor([0.0, bad])

    with pytest.raises(NumericsError, match="reward function odd: the reward of response 1 of the batch is not finite"):
        FunctionScorer(odd, Sequence).score(BATCH)


def ends(batch: RolloutBatch) -> torch.Tensor:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (ends, r"ends ends the process \(exit 0\)"),
        (FunctionScorer, "is a class; name an instance"),
    ],
)
def test_what_gives_no_numbers_is_refused(function: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        FunctionScorer(function, Sequence).score(BATCH)


@pytest.mark.parametrize(
    "values",
    [
        torch.ones(2) * 1j,
        torch.ones(2).to_sparse(),
        torch.ones(2, 5).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        torch.ones(2, device="meta"),
        ["a", "b"],
        [None, 1.0],
        {"reward": 1.0},
        None,
    ],
    ids=lambda values: f"{type(values).__name__} {getattr(values, 'layout', '')}",
)
@pytest.mark.parametrize("gives", [Sequence, Tokens])
def test_only_plain_numbers_are_rewards(values: Any, gives: Any) -> None:
    with pytest.raises(RecipeError, match=f"own returned {type(values).__name__} .* it must be a tensor of numbers"):
        FunctionScorer(lambda batch: values, gives, "own").score(BATCH)


def seeds(batch: RolloutBatch) -> torch.Tensor:
    torch.manual_seed(12345)
    return batch.responses.lengths


def doubles(batch: RolloutBatch) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    return batch.responses.lengths


def moves(batch: RolloutBatch) -> torch.Tensor:
    os.chdir("/")
    return batch.responses.lengths


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (seeds, "changes torch's seed"),
        (doubles, "changes torch's default dtype"),
        (moves, "changes the working directory"),
    ],
)
def test_a_function_that_changes_the_process_is_refused(
    function: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        with torch.random.fork_rng(), pytest.raises(RecipeError, match=message):
            FunctionScorer(function, Sequence).score(BATCH)
    finally:
        torch.set_default_dtype(torch.float32)
