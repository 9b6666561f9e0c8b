"""A stage whose results change has another VERSION."""

from __future__ import annotations

import pytest

from rlhf_core.policy_optimisation.config import OPTIMISERS
from rlhf_core.supervised.recipes import RECIPES
from tests.tasks.golden_metrics import REFRESH, Measured, differences, measured, runs_of, stored, version
from tests.tasks.golden_runs import COMPUTING, RUNS, SETTINGS, SharedRuns
from tests.tasks.refresh_golden import golden as to_keep
from tests.tasks.refresh_golden import in_no_rounding


@pytest.mark.parametrize("name", RUNS)
def test_results_change_only_with_the_version(golden: SharedRuns, name: str) -> None:
    stage = RUNS[name].stage
    if stored(stage)["version"] != version(stage):
        pytest.fail(
            f"VERSION of stage {stage} changed: refresh its golden values with `{REFRESH} {' '.join(runs_of(stage))}`"
        )
    changes = differences(stored(stage)["runs"][name], measured(golden.made(name).result(name)))
    if changes and in_no_rounding([name]):
        pytest.fail(
            f"results of stage {stage} changed but VERSION did not: step VERSION in tasks/{stage}.py and of every "
            f"stage that this changes, and refresh with `{REFRESH}`.\n" + "\n".join(changes[:5])
        )


def test_every_stage_optimiser_and_recipe_has_a_golden_run() -> None:
    kinds = {values["optimiser"]["kind"] for values in SETTINGS.values() if "kind" in values.get("optimiser", {})}
    used = {name for run in RUNS.values() for name in run.settings.values()}
    assert {run.stage for run in RUNS.values()} == set(COMPUTING)
    assert kinds >= {*OPTIMISERS, *RECIPES}
    assert {name for name in SETTINGS if name.startswith(("row/", "policy/"))} <= used
    assert {name for stage in COMPUTING for name in stored(stage)["runs"]} == set(RUNS)


def test_differences_beyond_rounding_are_found() -> None:
    first = Measured({"rows.jsonl": "abc"}, {"metrics/loss": 0.5, "metrics/kl": 0.0, "metrics/ece": 0.1})
    second = Measured({"rows.jsonl": "abc"}, {"metrics/loss": 0.5004, "metrics/kl": 1e-7, "metrics/ece": 0.1})
    kept = to_keep(first, [second])
    assert kept["tolerances"] == {"metrics/loss": pytest.approx(0.002)}
    assert (
        differences(kept, Measured(first.texts, {"metrics/loss": 0.5015, "metrics/kl": 1e-6, "metrics/ece": 0.15}))
        == []
    )
    changed = Measured({"rows.jsonl": "abd"}, {"metrics/loss": 0.503, "metrics/ece": float("nan"), "metrics/new": 1.0})
    assert [change.split(":")[0] for change in differences(kept, changed)] == [
        "texts of rows.jsonl",
        "metrics/ece",
        "metrics/loss",
        "metrics/new",
    ]
