"""Stages in several processes, and what is refused before they start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import known_configuration
from rlhf_core.models.forecast import Sharding
from rlhf_core.models.loading import on_meta, trainable
from tasks.graph.scale_check import check_scale
from tasks.params.stages import read_deepspeed
from tasks.running import launch
from tests.tasks.golden_runs import SharedRuns, module

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted((ROOT / "infra" / "deepspeed").glob("*.json"))
#: Metrics that a flipped token changes by more than rounding: one answer of the few that are generated.
COARSE = ("wr", "chars", "tokens", "true_reward", "kl", "longer", "mtbench", "invalid", "gsm8k", "arithmetic")


def in_processes(golden: SharedRuns, name: str, out: Path, **more: str) -> dict[str, float]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        launch.PROCESSES_VARIABLE: "2",
        **more,
    }
    command = [sys.executable, "-m", module(name), *golden.command_line(name, out=out)]
    done = subprocess.run(command, cwd=golden.root, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, float] = json.loads((out / "result" / "metrics.json").read_text())
    return found


@pytest.mark.platform
def test_a_stage_in_two_processes_gives_the_metrics_of_one(golden: SharedRuns, tmp_path: Path) -> None:
    name = "segment"
    found, expected = in_processes(golden, name, tmp_path / "two"), golden.read(name)
    assert found.keys() == expected.keys()
    exact = {key for key in expected if not any(part in key for part in COARSE)}
    assert {key: found[key] for key in exact} == pytest.approx(
        {key: expected[key] for key in exact}, rel=2e-3, abs=1e-4
    )
    files = {path.name for path in (tmp_path / "two" / "result").iterdir()}
    assert files == {path.name for path in golden.result(name).iterdir()}
    assert not list((golden.root / ".work" / "checkpoints").glob("*/*"))


@pytest.mark.platform
def test_the_policy_stage_runs_sharded_in_bf16(golden: SharedRuns, tmp_path: Path) -> None:
    config = tmp_path / "zero.json"
    config.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}))
    found = in_processes(golden, "segment", tmp_path / "two", REWARDSMITH_DEEPSPEED=str(config))
    assert found.keys() == golden.read("segment").keys()
    assert (tmp_path / "two" / "result" / "model" / "model.safetensors").is_file()


@pytest.mark.platform
def test_one_process_runs_sharded(golden: SharedRuns, tmp_path: Path) -> None:
    """ZeRO 3 in bf16, which the record tells."""
    config = ROOT / "infra" / "deepspeed" / "zero3.json"
    more = {launch.PROCESSES_VARIABLE: "1", launch.DEEPSPEED_VARIABLE: str(config)}
    found = in_processes(golden, "sft", tmp_path / "one", **more)
    assert found.keys() == golden.read("sft").keys()
    record = json.loads((tmp_path / "one" / "record" / "record.json").read_text())
    assert (record["resolved"]["processes"], record["resolved"]["precision"]) == (1, "bf16")


@pytest.mark.parametrize(("threads", "processes", "each"), [("8", 2, "4"), ("32", 5, "6"), ("1", 8, "1")])
def test_the_processes_of_a_stage_share_its_threads(
    monkeypatch: pytest.MonkeyPatch, threads: str, processes: int, each: str
) -> None:
    monkeypatch.setenv("REWARDSMITH_THREADS", threads)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = launch.environment_of_each(processes)
    assert found == dict.fromkeys(("REWARDSMITH_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), each)


def test_every_process_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert launch.environment_of_each(2)["REWARDSMITH_THREADS"] == "1"
    with pytest.raises(
        RecipeError, match=r"REWARDSMITH_PROCESSES is 3, but the stage sees 2 GPU\(s\).*`resources` in .*stages.yaml"
    ):
        launch.environment_of_each(3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "'zero_optimization'"),
        ({"zero_optimization": {"stage": 4}}, "stage is 4"),
        ({"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}, "gradient_clipping come from the recipe"),
        ({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}, "use bf16"),
    ],
)
def test_deepspeed_configurations_are_checked(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(settings))
    with pytest.raises(RecipeError, match=message):
        read_deepspeed(path)


def test_deepspeed_without_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(launch.DEEPSPEED_VARIABLE, str(CONFIGURATIONS[0]))
    with pytest.raises(RecipeError, match="not started by torchrun"):
        launch.prepare_process(several=True)


def test_every_accelerate_configuration_names_a_deepspeed_configuration_that_is_there() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    named = set()
    for path in (ROOT / "infra" / "accelerate").glob("*.yaml"):
        settings = load_config_from_file(str(path))  # accelerate's own class: an unknown key is an error
        if settings.distributed_type == "DEEPSPEED":
            named.add(ROOT / settings.deepspeed_config["deepspeed_config_file"])
    assert sorted(named) == CONFIGURATIONS


@pytest.mark.parametrize(
    ("source", "parameters"),
    [
        ("microsoft/Phi-3-mini-4k-instruct", 3_821_079_552),
        ("RLHFlow/LLaMA3-SFT-v2", 8_030_261_248),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("meta-llama/Llama-3.2-3B", 3_212_749_824),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-2-13b-hf", 13_015_864_320),
        ("google-t5/t5-large", 737_668_096),
    ],
)
def test_models_on_the_meta_device_have_their_published_sizes(source: str, parameters: int) -> None:
    model = on_meta(known_configuration(source))
    assert trainable(model) == parameters
    assert all(parameter.is_meta for parameter in model.parameters())


def test_the_memory_model_by_hand() -> None:
    billion = 10**9
    assert Sharding(8).trained(billion) == (16 * billion, 0.0), "weights, gradients and two moments in float32"
    assert Sharding(8, bf16=True).trained(billion)[0] == 18 * billion, "float32 copies, moments and gradients"
    assert Sharding(8, 2, bf16=True).trained(billion)[0] == (2 + 2 / 8 + 12 / 8) * billion
    assert Sharding(8, 3, bf16=True).trained(billion)[0] == 2 * billion
    assert Sharding(8, 3, bf16=True, offload=True).trained(billion) == (0.5 * billion, 1.5 * billion)
    assert [Sharding(8, stage, bf16=True).whole(billion) for stage in (2, 3)] == [0.0, 2 * billion]
    llama = known_configuration("RLHFlow/LLaMA3-SFT-v2")
    assert Sharding(1, bf16=True).cache(llama, 1) == 2 * 2 * 32 * 8 * 128


def test_the_small_scale_fits_one_gpu_and_the_paper_scale_eight() -> None:
    offloaded = read_deepspeed(ROOT / "infra" / "deepspeed" / "zero3-offload.json")
    for scale, sharding in (("small", Sharding(1)), ("paper", Sharding.of(8, offloaded))):
        for stage in check_scale(ROOT, scale, sharding):
            assert stage.total < 80 * 2**30, f"{scale}: {stage}"
    with pytest.raises(RecipeError, match="loads no model"):
        check_scale(ROOT, "testbed", Sharding(1))


def test_every_papers_recipes_are_checked_by_their_own_settings() -> None:
    offloaded = Sharding.of(8, read_deepspeed(ROOT / "infra" / "deepspeed" / "zero3-offload.json"))
    alarm = {(stage.backbone, stage.stage): stage for stage in check_scale(ROOT, "paper", offloaded, "alarm")}
    assert {backbone for backbone, _ in alarm} == {"alarm-qa", "alarm-mt"}
    for backbone in ("alarm-qa", "alarm-mt"):
        trained = alarm[backbone, "policy (ppo)"].trained
        assert trained["policy"] < 0.05 * alarm[backbone, "sft"].trained["model"], "adapters alone"
        assert trained["critic"] > 10 * trained["policy"], "the critic is a model of its own"
    grpo = [stage for stage in check_scale(ROOT, "small", Sharding(1), "par") if "policy" in stage.stage]
    assert grpo
    with pytest.raises(RecipeError, match=r"rows.yaml:.*: settings is 'hackability', which scale small does not have"):
        check_scale(ROOT, "small", Sharding(1), "hackability")


def test_a_backbone_is_reckoned_in_bf16_unless_it_states_float32(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    plain = {(stage.backbone, stage.stage): stage for stage in check_scale(tmp_path, "small", Sharding(1))}
    page = tmp_path / "params/scales/small/backbones.yaml"
    page.write_text(page.read_text().replace("phi3-mini:\n", "phi3-mini:\n  precision: float32\n"))
    for stage in check_scale(tmp_path, "small", Sharding(1)):
        before = plain[stage.backbone, stage.stage]
        if stage.backbone == "phi3-mini":
            assert stage.gpu["trained"] == pytest.approx(before.gpu["trained"] * 16 / 18)
            assert stage.total > before.total
        else:
            assert stage == before
