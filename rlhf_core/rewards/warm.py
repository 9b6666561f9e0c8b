"""Several reward models averaged into one. Source: WARM (Ramé et al., 2024), as in PAR §4.1."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import ScalarModel


@torch.no_grad()
def average_weights(models: Sequence[ScalarModel]) -> ScalarModel:
    """Returns the uniform average of the weights of reward models of one architecture, in the first one's place.

    Sums are float64, so that the average does not depend on the order beyond one rounding.

    Raises:
        RecipeError: fewer than two, or models whose weights differ in name or shape.
    """
    if len(models) < 2:
        raise RecipeError(f"a merge averages reward models, and {len(models)} is given; name at least 2")
    states = [model.state_dict() for model in models]
    shapes = [{name: tuple(value.shape) for name, value in state.items()} for state in states]
    for number, found in enumerate(shapes[1:], start=2):
        if found != shapes[0]:
            odd = sorted(
                name for name in {*found, *shapes[0]} if found.get(name) != shapes[0].get(name)
            )[0]  # fmt: skip
            raise RecipeError(
                f"reward models 1 and {number} of a merge differ in '{odd}': {shapes[0].get(odd)} and "
                f"{found.get(odd)}; average models of one backbone with the same heads"
            )
    merged = {
        name: (sum(state[name].double() for state in states) / len(states)).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in states[0].items()
    }
    models[0].load_state_dict(merged)
    return models[0]
