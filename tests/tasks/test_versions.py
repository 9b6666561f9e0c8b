"""A stage that measures something else than before has another VERSION."""

from __future__ import annotations

import pytest

from tests.tasks.golden_metrics import REFRESH, differences, measured, stored
from tests.tasks.tiny_pipeline import RUNS, Pipeline


@pytest.mark.parametrize("name", RUNS)
def test_metrics_change_only_with_the_version(pipeline: Pipeline, name: str) -> None:
    golden, found = stored(name), measured(pipeline, name)
    stage = RUNS[name][0]
    changes = differences(golden["metrics"], found["metrics"])
    if golden["version"] != found["version"]:
        pytest.fail(
            f"VERSION of stage {stage} is {found['version']}, its golden metrics are of version {golden['version']}: "
            f"refresh them with `{REFRESH} {name}`"
        )
    if changes:
        pytest.fail(
            f"metrics of stage {stage} changed but VERSION did not: step VERSION in tasks/{stage}.py and of every "
            f"stage that this changes, and refresh with `{REFRESH}`. {'; '.join(changes)}"
        )


def test_differences_beyond_rounding_are_found() -> None:
    golden = {"loss": 0.5, "bins": 12, "reward": -1.5}
    assert differences(golden, {"loss": 0.5005, "bins": 12, "reward": -1.502}) == []
    assert differences(golden, {"loss": 0.502, "bins": 13, "reward": 1.5}) == [
        "bins: 12 -> 13",
        "loss: 0.5 -> 0.502",
        "reward: -1.5 -> 1.5",
    ]
    assert differences(golden, {"loss": 0.5, "bins": 12}) == ["reward: -1.5 -> None"]
