"""Losses of reward models: Reg, ODIN and the average of several models, against naive references."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import PAD, random_rows, tiny_scalar_model

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import ScalarModel, average_weights
from rlhf_core.rewards.preference_losses import Odin, build_loss
from rlhf_core.rewards.preference_training import head_evaluations, pair_loss
from rlhf_core.segmentation.segments import SegmentedSequence

PROMPTS = random_rows(1, [3, 5, 2, 4], ended=False)


def side(seed: int, lengths: list[int]) -> list[SegmentedSequence]:
    rows = random_rows(seed, lengths)
    return [SegmentedSequence(EncodedSequence(p, r), [len(r) - 1]) for p, r in zip(PROMPTS, rows, strict=True)]


CHOSEN, REJECTED = side(2, [6, 3, 7, 5]), side(3, [2, 4, 4, 8])


def two_heads(seed: int = 0) -> ScalarModel:
    return tiny_scalar_model(seed, ("quality", "length"))


def naive_correlation(values: list[float], others: list[float]) -> float:
    a, b = sum(values) / len(values), sum(others) / len(others)
    spread = math.sqrt(sum((v - a) ** 2 for v in values) * sum((o - b) ** 2 for o in others))
    return sum((v - a) * (o - b) for v, o in zip(values, others, strict=True)) / spread


def logistic(difference: float) -> float:
    return math.log(1 + math.exp(-difference))


def test_regularisation_adds_the_squares_of_both_rewards() -> None:
    model = tiny_scalar_model()
    loss, count, sums = pair_loss(
        model, CHOSEN, REJECTED, PAD, loss=build_loss({"kind": "bradley_terry", "regularisation": 0.005})
    )
    with torch.no_grad():
        good, bad = head_evaluations(model, CHOSEN, REJECTED, PAD)["reward"]
    pairs = list(zip(good.tolist(), bad.tolist(), strict=True))
    squares = sum(g**2 + b**2 for g, b in pairs)
    assert float(loss.detach()) == pytest.approx(sum(logistic(g - b) for g, b in pairs) + 0.005 * squares, rel=1e-5)
    assert count == 4.0
    assert sums["regularisation"] == pytest.approx(squares, rel=1e-5)


def test_odin_is_what_its_terms_add_up_to() -> None:
    model = two_heads()
    loss, count, sums = pair_loss(model, CHOSEN, REJECTED, PAD, loss=Odin(length=0.5, orthogonality=2.0))
    with torch.no_grad():
        found = head_evaluations(model, CHOSEN, REJECTED, PAD, heads=("quality", "length"))
    quality, length = ([*good.tolist(), *bad.tolist()] for good, bad in found.values())
    tokens = [float(len(s.sequence.response)) for s in (*CHOSEN, *REJECTED)]
    both = [q + n for q, n in zip(quality, length, strict=True)]
    preference = sum(logistic(both[i] - both[i + 4]) for i in range(4))
    a, b = (model.heads[name].weight[0].tolist() for name in ("quality", "length"))  # type: ignore[index]
    similarity = abs(sum(x * y for x, y in zip(a, b, strict=True))) / (math.hypot(*a) * math.hypot(*b))
    terms = 0.5 * (abs(naive_correlation(quality, tokens)) - naive_correlation(length, tokens)) + 2.0 * similarity
    assert float(loss.detach()) == pytest.approx(preference + count * terms, rel=1e-5)
    assert sums["head_similarity"] / count == pytest.approx(similarity, rel=1e-5)
    assert sums["accuracy"] == sum(quality[i] > quality[i + 4] for i in range(4))


def test_a_merge_is_the_mean_of_every_weight() -> None:
    models = [tiny_scalar_model(seed) for seed in range(5)]
    states = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    merged = average_weights(models).state_dict()
    for name, value in merged.items():
        naive = torch.stack([state[name].double() for state in states]).mean(dim=0).float()
        torch.testing.assert_close(value, naive, rtol=0, atol=1e-7)


def test_a_merge_needs_models_of_one_kind() -> None:
    with pytest.raises(RecipeError, match="name at least 2"):
        average_weights([tiny_scalar_model()])
    with pytest.raises(RecipeError, match=r"1 and 2 of a merge differ in 'heads\.length\.weight'"):
        average_weights([tiny_scalar_model(), two_heads()])
