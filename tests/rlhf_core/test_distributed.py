"""Two processes with half of every batch each end as one process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.models.vllm.environment import installed

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RUNS = ("sft", "reward_model", "ppo", "ppo_encoder_decoder", "grpo", "online_dpo", "ppo_resumed")
#: DeepSpeed's configurations; None is plain data parallelism.
CONFIGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "zero1": {"zero_optimization": {"stage": 1}},
    "zero2-offload": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "zero3": {"zero_optimization": {"stage": 3}},
}
Results = dict[str, dict[str, Any]]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1", **more}


def results(
    folder: Path, processes: int, names: Sequence[str], configs: Mapping[str, Any] = CONFIGS, seconds: float = 500
) -> dict[str, Results]:
    """Returns the results of `ranks.py` by configuration and run."""
    file = folder / f"{processes}.pt"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    line = [sys.executable, *(launcher if processes > 1 else []), str(HERE / "ranks.py")]
    line += [",".join(names), str(file), json.dumps(configs)]
    done = subprocess.run(line, env=environment(DS_ACCELERATOR="cpu"), capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Results] = torch.load(file, weights_only=True)
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Weights to 1e-4 of a learning rate of 1e-2 or 1e-3, metrics to 1e-4 of their size."""
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        torch.testing.assert_close(
            found["weights"][name], value, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert len(found["history"]) == len(expected["history"])
    for ours, theirs in zip(found["history"], expected["history"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=2e-5)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results(tmp_path_factory.mktemp("one"), 1, RUNS, {"plain": None})["plain"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    return results(tmp_path_factory.mktemp("two"), 2, RUNS)


@pytest.mark.platform
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("config", CONFIGS)
def test_two_ranks_end_as_one(one: Results, two: dict[str, Results], config: str, name: str) -> None:
    assert_same(two[config][name], one[name])


@pytest.mark.platform
def test_a_resumed_run_ends_as_one_that_was_not_interrupted_on_two_ranks(two: dict[str, Results]) -> None:
    for name, value in two["plain"]["ppo"]["weights"].items():
        assert torch.equal(two["plain"]["ppo_resumed"]["weights"][name], value), name


@pytest.mark.platform
def test_training_moves_the_weights(one: Results) -> None:
    """Else agreement would say nothing."""
    from ranks import POLICIES, trainable_state

    before = trainable_state(POLICIES["decoder"](1).model)
    for name in ("sft", "ppo", "grpo"):
        moved = max(float((one[name]["weights"][key] - value).abs().max()) for key, value in before.items())
        assert moved > 1e-3


@pytest.mark.platform
@pytest.mark.timeout(1800)
def test_sharded_ranks_hand_vllm_their_gathered_weights(tmp_path: Path) -> None:
    try:
        installed()
    except RecipeError as error:
        pytest.skip(str(error))
    expected = results(tmp_path, 1, ["grpo_wide"], {"plain": None})["plain"]["grpo_wide"]
    sharded = {"zero3": CONFIGS["zero3"]}
    found = results(tmp_path, 2, ["grpo_by_vllm"], sharded, seconds=1700)["zero3"]["grpo_by_vllm"]
    gaps = [(step.pop("engine_gap"), step.pop("engine_gap_max")) for step in found["history"]]
    assert_same(found, expected)
    assert len(gaps) == 2
    assert all(0 < mean <= largest < 1e-5 for mean, largest in gaps)


def test_in_one_process_everything_is_the_identity() -> None:
    values = torch.tensor([1.0, -0.0, 2.0])
    assert distributed.merged(values) is values
    assert distributed.spread(values, 3) is values
    assert distributed.own([3, 1, 2]) == [3, 1, 2]
    assert distributed.on_main(lambda: 5) == 5
    assert (distributed.world_size(), distributed.rank(), distributed.largest(4)) == (1, 0, 4)


@pytest.mark.parametrize("announced", [{"WORLD_SIZE": "2"}, {"MASTER_ADDR": "127.0.0.1"}])
def test_a_launcher_that_started_one_process_is_named(
    monkeypatch: pytest.MonkeyPatch, announced: dict[str, str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    distributed.join()  # without a launcher: alone
    for name, value in announced.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match=r"accelerate launch --cpu.*starts one"):
        distributed.join()


def test_missing_processes_are_reported_after_a_while() -> None:
    code = "from rlhf_core import distributed\ndistributed.join(1)"
    alone = environment(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    done = subprocess.run([sys.executable, "-c", code], env=alone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "WORLD_SIZE is 2, but after 1 s not all processes had started" in done.stderr
