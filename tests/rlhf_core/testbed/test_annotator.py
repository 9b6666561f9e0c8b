"""Labels follow the Bradley-Terry probabilities, and the ceiling is what the best predictor gets."""

from __future__ import annotations

import math

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import Annotator, Dials, World, bayes_ceiling, calibrated_temperature

WORLD = World()


def test_probability_is_the_logistic_of_the_difference():
    annotator = Annotator(temperature=0.5)
    assert annotator.probability(1.0, 0.0) == pytest.approx(1 / (1 + math.exp(-2)))
    assert annotator.probability(0.0, 1e6) == pytest.approx(0.0)


def test_the_calibrated_temperature_keeps_the_ceiling():
    world = World(dials=Dials(aggregation="mean"))
    annotator = Annotator(temperature=calibrated_temperature(world))
    assert bayes_ceiling(world.preference_pairs(4000, 0, annotator), annotator) == pytest.approx(0.83, abs=0.01)
    assert world.unit == pytest.approx(annotator.temperature / calibrated_temperature(WORLD))


def test_flaws_and_flipped_labels_do_not_move_a_calibrated_ceiling():
    flawed = Annotator(calibrated_temperature(WORLD, 0.83, Annotator(length_bias=2.0)), length_bias=2.0)
    assert bayes_ceiling(WORLD.preference_pairs(4000, 0, flawed), flawed) == pytest.approx(0.83, abs=0.01)
    assert calibrated_temperature(WORLD, 0.83, Annotator(flipped=0.2)) == calibrated_temperature(WORLD)
    with pytest.raises(RecipeError, match=r"ceiling is 0\.9999"):
        calibrated_temperature(WORLD, 0.9999)
