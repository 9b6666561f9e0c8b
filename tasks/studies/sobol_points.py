"""Points that tuning tries: Sobol's sequence over the search space of a kind of optimiser, the same for every row.

The sequence depends on the space only: more trials continue it, and no trial's outcome
changes the next point.
"""

from __future__ import annotations

import warnings
from typing import Any

from rlhf_core.errors import RecipeError
from tasks.params.tuning import Space

#: Significant digits of a point's values, which a study's file then repeats exactly.
DIGITS = 3
#: The seed by which every sequence is scrambled.
SCRAMBLE = 0
#: Settings of one trial by name.
Point = dict[str, float]


def search_points(space: Space, trials: int) -> list[Point]:
    """Returns the first points of the sequence.

    Args:
        space: the ranges by setting.
        trials: how many points; powers of 2 cover the space evenly.

    Raises:
        RecipeError: Optuna is not installed.
    """
    optuna = _optuna()
    distributions = {
        name: optuna.distributions.FloatDistribution(range_.low, range_.high, log=range_.log)
        for name, range_ in space.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=SCRAMBLE)
    study = optuna.create_study(sampler=sampler)
    # The sampler learns the space from the first trial, which it would draw at random.
    bounds = {name: range_.low for name, range_ in space.items()}
    study.add_trial(optuna.trial.create_trial(params=bounds, distributions=distributions, value=0.0))
    asked = [study.ask(distributions).params for _ in range(trials)]
    return [{name: float(f"{point[name]:.{DIGITS}g}") for name in space} for point in asked]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        remedy = "install it with `pip install 'rewardsmith[tune]'`"
        raise RecipeError(f"tuning needs Optuna, which is not installed; {remedy}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
