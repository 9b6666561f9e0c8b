"""A stage whose results change has another VERSION."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rlhf_core.policy_optimisation.config import OPTIMISERS
from rlhf_core.supervised.recipes import RECIPES
from tests.tasks.golden_metrics import REFRESH, Measured, differences, floor, measured, runs_of, stored, version
from tests.tasks.golden_runs import COMPUTING, RUNS, SETTINGS, SharedRuns
from tests.tasks.refresh_golden import ROUNDINGS, in_no_rounding
from tests.tasks.refresh_golden import golden as to_keep


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


def test_a_rounding_that_draws_another_token_widens_no_tolerance() -> None:
    first = Measured({"rows.jsonl": "abc"}, {"metrics/loss": 0.5})
    flipped = Measured({"rows.jsonl": "xyz"}, {"metrics/loss": 0.7})
    assert to_keep(first, [flipped, first]) == to_keep(first, [first])
    with pytest.raises(ValueError, match="every other rounding gives other texts"):
        to_keep(first, [flipped])


def test_what_leaves_its_values_in_every_rounding_has_changed() -> None:
    """A run whose golden values come back when it is rounded differently has not."""
    asked = []

    def measure(tree: Path, names: list[str], environment: Mapping[str, str] | None) -> dict[str, Measured] | str:
        kept = stored("tokenizer")["runs"]
        asked.append(names)
        if len(asked) == 1:
            return "the process was killed"
        as_before = Measured(kept["dialogue-tokenizer"]["texts"], kept["dialogue-tokenizer"]["numbers"])
        found = {"dialogue-tokenizer": as_before, "longform-tokenizer": Measured()}
        return {name: found[name] for name in names}

    names = ["dialogue-tokenizer", "longform-tokenizer"]
    assert in_no_rounding(names, measure) == ["longform-tokenizer"]
    assert asked == [names, names, *[["longform-tokenizer"]] * (len(ROUNDINGS) - 3)]
    assert in_no_rounding([], measure) == []


def test_the_smallest_tolerance_of_a_projection_is_that_of_its_series() -> None:
    numbers = {"rollouts.jsonl/rewards": 2.0, "rollouts.jsonl/rewards~": 0.01}
    assert floor("rollouts.jsonl/rewards~", numbers) == floor("rollouts.jsonl/rewards", numbers) == pytest.approx(4e-4)
