"""The schedule on a described cluster: who waits for whom, what is idle, what it costs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.models.cost import PEAK, PEAKS
from tasks.commands import cluster_plan
from tasks.graph.cluster import FLOW_RUN_SECONDS, Machine, machines_of, simulate
from tasks.graph.expected import side_by_side_seconds
from tasks.graph.stages import Stage
from tests import small_repository

CORE = Machine("cpu", 0, 1)


def stage(address: str, *upstream: str, state: str = "run", **needs: int) -> Stage:
    kind, _, name = address.partition("-")
    out = f"results/paper/own/{kind}/{name}/0"
    return Stage(address, kind, "own", name, 0, "", (f"{out}/result",), upstream, state, (), {"cores": 1, **needs})


def named(*stages: Stage) -> dict[str, Stage]:
    return {one.address: one for one in stages}


@pytest.mark.parametrize(
    ("text", "machines"),
    [
        ("64xH100", [Machine("H100", 8, float("inf"))] * 8),
        ("4xA100", [Machine("A100", 4, float("inf"))]),
        ("8xH100/4", [Machine("H100", 4, float("inf"))] * 2),
        ("2xcpu", [CORE] * 2),
        ("4xcpu/2, 1xL4", [Machine("cpu", 0, 2)] * 2 + [Machine("L4", 1, float("inf"))]),
    ],
)
def test_a_cluster_is_described_in_a_word(text: str, machines: list[Machine]) -> None:
    assert machines_of(text) == machines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("H100", "'H100' is not of the form 64xH100"),
        ("0xH100", "not of the form"),
        ("8xH10O", "unknown GPU 'H10O'; did you mean 'H100'"),
        ("12xH100", "12 H100 do not fill machines of 8; write H100/N"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        machines_of(text)


def test_a_diamond_on_two_cores_takes_its_longest_chain() -> None:
    stages = named(stage("a"), stage("b", "a"), stage("c", "a"), stage("d", "b", "c"))
    found = simulate(stages, {"a": 1.0, "b": 2.0, "c": 5.0, "d": 1.0}, [CORE, CORE])
    assert found.seconds == found.critical_seconds == 7.0
    assert found.critical == ("a", "c", "d")
    assert found.busy == 9.0
    assert found.idle_share == pytest.approx(1 - 9 / 14)
    assert simulate(stages, {"a": 1.0, "b": 2.0, "c": 5.0, "d": 1.0}, [CORE]).seconds == 9.0


def test_gpus_of_two_machines_are_not_added_up() -> None:
    stages = named(*(stage(f"policy-{name}", gpus=3) for name in "abc"))
    seconds = dict.fromkeys(stages, 10.0)
    assert simulate(stages, seconds, machines_of("8xH100/4")).seconds == 20.0
    assert simulate(stages, seconds, machines_of("12xH100/12")).seconds == 10.0
    with pytest.raises(RecipeError, match=r"stage policy-a needs 3 GPU\(s\) of one machine"):
        simulate(stages, seconds, machines_of("8xH100/2"))


def test_stages_that_are_current_take_nothing_and_pass_on_who_waits_for_whom() -> None:
    stages = named(stage("a"), stage("b", "a", state="current"), stage("c", "b"))
    assert simulate(stages, {"a": 2.0, "c": 3.0}, [CORE, CORE]).seconds == 5.0


@pytest.mark.parametrize("seed", range(5))
def test_cores_alone_give_the_schedule_that_the_plan_of_one_machine_gives(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"policy-{number:02}" for number in range(30)]
    stages = named(*(stage(n, *rng.sample(names[:at], min(at, rng.randrange(3)))) for at, n in enumerate(names)))
    seconds = {name: rng.uniform(1, 9) for name in names}
    for cores in (1, 2, 5):
        found = simulate(stages, seconds, [CORE] * cores)
        assert found.seconds == pytest.approx(side_by_side_seconds(stages, dict(seconds), cores))
        assert found.critical_seconds <= found.seconds + 1e-9


def test_seconds_are_measured_else_forecast_for_the_clusters_gpus_else_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        cluster_plan, "expected_seconds", lambda *_: {"sft-big": 100.0, "policy-a": None, "tables": None}
    )
    monkeypatch.setattr(cluster_plan, "_forecasts", lambda *_: {("own", "policy", "a"): 16.0})
    stages = named(stage("sft-big", gpus=8), stage("policy-a", "sft-big", gpus=8), stage("tables", "policy-a"))
    seconds, unknown = cluster_plan.seconds_on(tmp_path, stages, "paper", machines_of("8xH100"))
    forecast = 2 * 3600 * PEAK / PEAKS["H100"].operations
    assert seconds["sft-big"] == 100.0 + FLOW_RUN_SECONDS
    assert seconds["policy-a"] == pytest.approx(forecast + FLOW_RUN_SECONDS)
    assert unknown == ["tables"]


def test_the_plan_prints_a_line_for_the_paper_with_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = small_repository.create(tmp_path / "tree", demo=("bandit",), seeds=(0,))
    cluster_plan.print_cluster_plan(root, "segment", [], [], scale="testbed", full=False, workers="2xcpu", price=3600.0)
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if line.startswith("segment"))
    assert "longest chain" in shown
    assert "8 of 8 stages are without an estimate" in shown
    assert len(line.split()) > 6
