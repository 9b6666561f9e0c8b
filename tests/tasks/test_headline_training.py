"""Training of headline rows on the testbed: enough updates of the actor over enough iterations of fresh rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.published.printed_tables import PAPERS
from rlhf_core.recipe import Recipe, parse_recipe
from tasks.graph.rows import read_rows
from tasks.graph.scale import Scale
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.settings import DEFAULT_SCALE, typed
from tasks.studies.caveats import LEAST

ROOT = Path(__file__).resolve().parents[2]
#: Online DPO is a row beyond the paper's tables.
OTHERS = ("online_dpo",)


def settings_of(paper: str) -> dict[str, tuple[Recipe, OptimiserConfig]]:
    """Returns the recipe and the optimiser's settings of every row of a paper that learns from a reward."""
    here, found = Scale(ROOT, DEFAULT_SCALE), {}
    for name, row in read_rows(ROOT, paper)[0].items():
        if row.kind == "reward" and here.has(row):
            recipe = parse_recipe(read_settings(row.path.under(ROOT)), name)
            where = Address(str(here.row(row, 0)[-1].arguments["scale"]))
            scale = typed(PolicyScale, read_settings(where.under(ROOT)), str(where))
            found[name] = recipe, scale.optimiser_config(recipe.optimiser, name)
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_headline_rows_have_enough_updates_over_enough_iterations(paper: str) -> None:
    for name, (recipe, config) in settings_of(paper).items():
        iterations = config.iterations - config.critic_warmup - config.replay
        updates = iterations * config.epochs * config.rollout_batch // config.minibatch
        if recipe.optimiser["kind"] not in OTHERS:
            assert updates >= LEAST["updates"], f"{name}: {updates} updates"
            assert iterations >= LEAST["iterations"], f"{name}: {iterations} iterations"
