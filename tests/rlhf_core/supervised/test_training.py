"""The training loop: accumulation, learning rates, and stopping on what is not finite."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.training import train

CONFIG = TrainingConfig(epochs=1, batch=6, microbatch=6, learning_rate=0.1, warmup=0.0, schedule="constant")
INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = [1.0, 4.0, 2.0, 7.0, 3.0, 1.0]


def fit(config: TrainingConfig, steps: int = 3) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Parameters and history of a linear model whose rows weigh unequally, as responses of unequal length do."""
    torch.manual_seed(0)
    model, history = nn.Linear(3, 1).double(), []

    def loss(rows: list[int]) -> tuple[torch.Tensor, float, dict[str, float]]:
        weights = torch.tensor([WEIGHTS[i] for i in rows], dtype=torch.float64)
        total = (weights * (model(INPUTS[rows]).squeeze(1) - 1.0) ** 2).sum()
        return total, float(weights.sum()), {"error": float(total.detach())}

    train(
        model, loss, LengthBucketedBatches([1] * 6, seed=0, rows_per_batch=6), steps, config,
        lambda step, metrics: history.append({"step": step, **metrics}),
        weight=lambda rows: sum(WEIGHTS[i] for i in rows),
    )  # fmt: skip
    assert not model.training
    return torch.cat([p.detach().flatten() for p in model.parameters()]), history


@pytest.mark.parametrize("microbatch", [1, 2, 4])
def test_accumulation_equals_one_big_batch(microbatch: int) -> None:
    expected, history = fit(CONFIG)
    found, other = fit(replace(CONFIG, microbatch=microbatch))
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    for a, b in zip(history, other, strict=True):
        assert a == pytest.approx(b)
        assert a["loss"] == pytest.approx(a["error"])
    assert [row["step"] for row in history] == [1, 2, 3]
    assert history[-1]["loss"] < history[0]["loss"]


def test_a_step_is_adamw_on_the_weighted_mean() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.95), weight_decay=0.3)
    ((weights * (model(INPUTS).squeeze(1) - 1.0) ** 2).sum() / weights.sum()).backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    optimiser.step()
    found, history = fit(replace(CONFIG, weight_decay=0.3, max_grad_norm=0.5), steps=1)
    torch.testing.assert_close(found, torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert history[0]["grad_norm"] == pytest.approx(norm)
    assert history[0]["learning_rate"] == 0.1


def rates(schedule: str, steps: int, warmup: float = 0.0, final_share: float = 0.0) -> list[float]:
    config = replace(CONFIG, schedule=schedule, warmup=warmup, final_share=final_share)
    return [config.rate(step, steps) for step in range(steps)]


def test_learning_rates() -> None:
    assert rates("constant", 5, warmup=0.4) == pytest.approx([0.5, 1, 1, 1, 1])
    assert rates("linear", 5) == pytest.approx([1, 1, 0.75, 0.5, 0.25])
    assert rates("linear", 6, 0.33, 0.1) == pytest.approx([0.5, 1, 1, 0.775, 0.55, 0.325])
    cosine = [1.0, *(0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4))]
    assert rates("cosine", 5) == pytest.approx(cosine)
    assert rates("cosine", 5, final_share=0.1) == pytest.approx([0.1 + 0.9 * x for x in cosine])
    assert rates("cosine", 1) == [1.0]
    for schedule in ("constant", "linear", "cosine"):
        found = rates(schedule, 40, 0.1)
        assert all(0 < rate <= 1 for rate in found)
        assert found[4:] == sorted(found[4:], reverse=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_step(value: float) -> None:
    model = nn.Linear(1, 1)
    before = model.weight.detach().clone()
    with pytest.raises(NumericsError, match="step 1: loss"):
        train(
            model, lambda rows: (value * model(torch.ones(1, 1)).sum(), 1.0, {}),
            LengthBucketedBatches([1], seed=0, rows_per_batch=1), 2, CONFIG,
            lambda step, metrics: None, weight=lambda rows: 1.0,
        )  # fmt: skip
    assert torch.equal(model.weight, before)


def test_a_number_of_updates_does_not_depend_on_the_rows() -> None:
    assert replace(CONFIG, epochs=1.03).steps(3_000) == round(1.03 * 3_000 / 6)
    updates = replace(CONFIG, epochs=None, updates=120)
    assert [updates.steps(rows) for rows in (1, 700, 3_000)] == [120, 120, 120]
    assert updates.seen(700) == 720


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 1.0, "updates": 120}, "epochs is 1.0 and updates is 120; state one of them"),
        ({"epochs": None}, "'epochs' is missing; state it, or 'updates'"),
        ({"epochs": None, "updates": 0}, "updates is 0; it must be at least 1"),
    ],
)
def test_a_run_states_epochs_or_updates(given: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        replace(CONFIG, **given)  # type: ignore[arg-type]
