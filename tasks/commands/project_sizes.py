"""Sizes of a new project's scale: what a model trains with on the device that was found."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from rlhf_core.models.device import CPU, Device, device_of
from tasks.running.machine import cores, gpus

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: From this many parameters on, a model has the learning rates of published ones.
LARGE = 50_000_000
#: Learning rates of policies, reward models and DPO, as YAML has them.
_RATES_OF_LARGE = ("1.0e-06", "1.0e-05", "5.0e-07")
_RATES_OF_SMALL = ("1.0e-04", "5.0e-04", "1.0e-04")


def found_device() -> Device:
    """Returns the smallest of this machine's GPUs that may be used, or the CPU."""
    usable, program = gpus(), shutil.which("nvidia-smi")
    if not usable or not program:
        return CPU
    query = [program, "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    answer = subprocess.run([*query, "-i", ",".join(usable)], capture_output=True, text=True, timeout=20)
    if answer.returncode != 0:
        return CPU
    return device_of(answer.stdout.splitlines())


def project_sizes(config: PreTrainedConfig, parameters: int, device: Device) -> dict[str, Any]:
    """Returns the numbers of a scale's pages (`tasks/commands/project/`) for a model that stages train on a device."""
    on_gpu = device.memory_gb is not None
    longest = int(getattr(config, "max_position_embeddings", None) or 1024)
    total = min(1024 if on_gpu else 256, longest)
    iterations, rollout_batch, group_size = (100, 64, 8) if on_gpu else (10, 32, 4)
    microbatch = fitting_rows(config, parameters, device, total) or 1 if on_gpu else 8
    policy_lr, model_lr, dpo_lr = _RATES_OF_LARGE if parameters >= LARGE else _RATES_OF_SMALL
    return {
        "prompt_tokens": total // 2,
        "total_tokens": total,
        "answer_tokens": min(256 if on_gpu else 48, total // 2),
        "iterations": iterations,
        "rollout_batch": rollout_batch,
        "group_size": group_size,
        "prompts": iterations * rollout_batch // group_size,
        "generation_batch": 64 if on_gpu else 32,
        "batch": 64 if on_gpu else 16,
        "microbatch": microbatch,
        "pair_microbatch": max(1, microbatch // 2),  # a pair has two responses
        "benchmark_rows": 256 if on_gpu else 32,
        "scored_prompts": 256 if on_gpu else 32,
        "normaliser_pairs": 1000 if on_gpu else 64,
        "references": 4 if on_gpu else 2,
        "policy_lr": policy_lr,
        "model_lr": model_lr,
        "dpo_lr": dpo_lr,
        "cores": max(1, min(4, cores() // max(1, device.count))) if on_gpu else 1,
        "gpus": 1 if on_gpu else 0,
        "memory_gb": max(4, round(20 * parameters / 2**30)) if on_gpu else 2,
    }


def fitting_rows(config: Any, parameters: int, device: Device, tokens: int) -> int:
    """Returns the rows of so many tokens that fit on a GPU beside a trained policy, its reference and a reward model: a
    power of two of at most 16; 0 where the models alone do not fit."""
    from rlhf_core.models.forecast import GIB, OVERHEAD, Sharding

    assert device.memory_gb is not None
    sharding = Sharding(1, bf16=device.bf16)
    models = sharding.trained(parameters)[0] + 2 * sharding.bytes * parameters
    room = device.memory_gb * GIB / OVERHEAD - models
    row = sharding.activations(config, tokens) + 4.0 * tokens * int(config.vocab_size)
    return next((rows for rows in (16, 8, 4, 2, 1) if rows * row <= room), 0)
