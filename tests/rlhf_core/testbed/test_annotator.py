"""Labels follow the Bradley-Terry probabilities, and the ceiling is what the best predictor gets."""

from __future__ import annotations

import math
from statistics import mean

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import Annotator, World, bayes_ceiling

WORLD = World()


def test_ceiling_lies_where_the_design_wants_it():
    assert 0.80 <= bayes_ceiling(WORLD.preference_pairs(1500, 0), Annotator()) <= 0.84


def test_ceiling_equals_the_simulated_accuracy_of_the_true_reward():
    """Standard error of 6000 labels is .005."""
    pairs = WORLD.preference_pairs(6000, 0)
    right = mean(
        (0.5 if row["meta"]["true_chosen"] == row["meta"]["true_rejected"] else
         float(row["meta"]["true_chosen"] > row["meta"]["true_rejected"]))
        for row in pairs
    )  # fmt: skip
    assert right == pytest.approx(bayes_ceiling(pairs, Annotator()), abs=0.02)


def test_less_noise_raises_the_ceiling():
    pairs = WORLD.preference_pairs(300, 0)
    ceilings = [bayes_ceiling(pairs, Annotator(temperature=t)) for t in (0.1, 0.65, 3.0)]
    assert ceilings == sorted(ceilings, reverse=True)


def test_probability_is_the_logistic_of_the_difference():
    annotator = Annotator(temperature=0.5)
    assert annotator.probability(1.0, 0.0) == pytest.approx(1 / (1 + math.exp(-2)))
    assert annotator.probability(0.0, 1e6) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("bias", "amount"),
    [
        ("length_bias", lambda row, side: len(row[side])),
        ("flattery_bias", lambda row, side: sum(c[2] == "flattery" for c in row["meta"][f"{side}_clauses"])),
        (
            "repetition_bias",
            lambda row, side: sum(c[2] == "repetition" for c in row["meta"][f"{side}_clauses"]),
        ),
        ("keyword_bias", lambda row, side: row[side].lower().count("indeed")),
    ],
)
def test_each_bias_moves_labels_its_way(bias, amount):
    def share(annotator: Annotator) -> float:
        rows = WORLD.preference_pairs(800, 0, annotator)
        return mean(amount(row, "chosen") - amount(row, "rejected") for row in rows)

    assert share(Annotator(**{bias: 3.0})) > share(Annotator()) + 0.05


def test_labels_change_with_the_annotator_seed_only_in_order():
    one, two = (WORLD.preference_pairs(200, 0, Annotator(seed=seed)) for seed in (0, 1))
    assert all({a["chosen"], a["rejected"]} == {b["chosen"], b["rejected"]} for a, b in zip(one, two, strict=True))
    assert 0.1 < mean(a["chosen"] != b["chosen"] for a, b in zip(one, two, strict=True)) < 0.5


def test_pairs_never_hold_the_same_text_twice():
    assert all(row["chosen"] != row["rejected"] for row in WORLD.preference_pairs(500, 1))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(RecipeError, match="temperature"):
        Annotator(temperature=temperature)


def test_ceiling_of_nothing_is_refused():
    with pytest.raises(RecipeError, match="at least one pair"):
        bayes_ceiling([], Annotator())
