"""Outcomes: which rows and seeds there are, with their settings and digests."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.graph import dvc_files as graph
from tasks.tracking import outcomes
from tests import small_repository


def finish(root: Path, out: str, **metrics: object) -> None:
    (root / out / "result").mkdir(parents=True)
    (root / out / "result" / "metrics.json").write_text(json.dumps(metrics))


def test_only_what_was_run_is_an_outcome(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    graph.write(root, graph.matrix_folders("testbed", "segment"))
    assert outcomes.outcomes(root, "segment", "testbed") == []
    finish(root, "results/testbed/segment/policy/segment/1", alpaca_wr=50.0, note="text", missing=None)
    finish(root, "results/testbed/segment/policy/dpo/0", alpaca_wr=40.0)
    found = outcomes.outcomes(root, "segment", "testbed")
    assert [(o.stage.name, o.stage.seed) for o in found] == [("segment", 1), ("dpo", 0)]
    assert found[0].metrics == {"alpaca_wr": 50.0}
    assert found[0].stage.address == "policy-segment-segment-1"
    assert found[1].stage.address == "pipelines/testbed/segment/dvc.yaml:policy-segment-dpo-0"


def test_parameters_are_the_settings_that_were_used_with_defaults(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    params = outcomes.tracked_stage(root, "policy-segment-segment-0").params
    assert params["backbone"] == "phi3-mini"
    assert params["optimiser.value_clip"] == "0.25"
    stated = small_repository.scale_entry("policy", "ppo")
    assert params["scale.checkpoints"] == str(stated["checkpoints"])
    assert params["optimiser.iterations"] == str(stated["optimiser"]["iterations"])
    assert params["optimiser.gamma"] == "1.0", "a default"
    assert params["reward_model"] == "segment"


def test_a_reward_model_with_settings_of_its_own_has_those_as_parameters(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    stages = root / "params/scales/testbed/stages.yaml"
    trained = small_repository.scale_entry("stages", "reward_model")
    small_repository.set_entry(stages, "reward_model-segment-bandit", {**trained, "batch": 2, "microbatch": 1})
    graph.write(root)
    assert outcomes.tracked_stage(root, "reward_model-segment-bandit-0").params["scale.batch"] == "2"
    assert outcomes.tracked_stage(root, "reward_model-segment-segment-0").params["scale.batch"] == str(trained["batch"])


def test_every_row_of_the_paper_knows_its_tables() -> None:
    tables = outcomes.tables_of_rows("segment")
    assert tables["segment"] == [f"Table {number}" for number in (1, 3, 4, 5, 6, 7)]
    assert tables["bandit"] == ["Table 1", "Table 7"]


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(), max_size=4))
def test_flattening_keeps_every_value(values: dict[str, int]) -> None:
    flat = outcomes.flatten({"optimiser": values, "list": [1, {"a": 2}]})
    assert flat == {"list": '[1, {"a": 2}]'} | {f"optimiser.{name}": str(value) for name, value in values.items()}


def test_only_finite_numbers_are_metrics() -> None:
    values = {"a": 1, "b": float("nan"), "c": float("inf"), "d": True, "e": "1", "f": None, "g": 0.5}
    assert outcomes.numbers(values) == {"a": 1.0, "g": 0.5}
