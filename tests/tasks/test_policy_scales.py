"""Settings of policies: what a row states over its scale's, and contradictions that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_core.data.solutions import LearntSolutions
from rlhf_core.errors import RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.recipe import parse_recipe
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.reward_model import GenerativeModelScale, GenerativeModelSpec
from tests.tasks.golden_runs import SETTINGS, SHARED


def scale_of(**changes: Any) -> PolicyScale:
    return PolicyScale(**{**SETTINGS["policy/par_ppo"], **changes})


def test_a_row_may_state_multiples_of_the_scales_settings() -> None:
    stated = {"kind": "ppo", "iterations": {"times": 2}, "critic_lr": {"times": 0.5}}
    config = scale_of().optimiser_config(stated, "row")
    assert (config.iterations, config.critic_lr) == (6, 1.0e-3)


@pytest.mark.parametrize(
    ("optimiser", "message"),
    [
        ({"iterations": {"times": "two"}}, r"row: ppo: iterations is .*\{times: 2\}"),
        ({"iterations": {"times": 2, "plus": 1}}, r"row: ppo: iterations is .*\{times: 2\}"),
        ({"iterations": {"plus": 1}}, r"row: ppo: iterations is .*\{times: 2\}"),
        ({"lam": {"times": 2}}, "the scale gives None"),
        ({"replay": 3}, r"replay 3 with 3 iterations: .* nothing would ever be trained"),
    ],
)
def test_a_wrong_optimiser_is_refused(optimiser: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        scale_of().optimiser_config({"kind": "ppo", **optimiser}, "row")


def test_a_row_that_states_updates_leaves_the_scales_epochs() -> None:
    scale = PolicyScale({**SHARED["supervised"], "batch": 32, "microbatch": 32})
    training, _ = scale.supervised_config({"kind": "rft", "updates": 120}, "row")
    assert (training.epochs, training.updates, training.steps(500)) == (None, 120, 120)
    with pytest.raises(RecipeError, match=r"row: rft: epochs is 1 and updates is 120; state one of them"):
        scale.supervised_config({"kind": "rft", "epochs": 1, "updates": 120}, "row")


def test_a_models_own_training_counts_where_the_scales_is_not_fixed() -> None:
    model = GenerativeModelSpec("t", "b", {"epochs": {"times": 2}})
    scales = [GenerativeModelScale(dict(SHARED["supervised"]), {}, 8, fixed=fixed) for fixed in (False, True)]
    assert [scale.training_config(model, "here").epochs for scale in scales] == [2, 1]


def test_solutions_are_chosen_where_they_are_fixed_and_their_rewrites_known() -> None:
    chosen = PolicyScale(SHARED["without_critic"], solutions=LearntSolutions(failed=False))
    row = {k: v for k, v in SETTINGS["row/math-without-tls"].items() if k not in ("imitation", "rewrites")}
    with pytest.raises(RecipeError, match=r"solutions.failed is false, but the row reads no generative reward model"):
        reward_training(parse_recipe(row), chosen, "row")
    vanilla = replace(chosen, sampling=Sampling(8), solutions=LearntSolutions(most_right=2))
    with pytest.raises(RecipeError, match="solutions chooses among fixed samples, but source is 'on_policy'"):
        reward_training(parse_recipe(SETTINGS["row/vanilla-ppo"]), vanilla, "row")
