"""Sizes of a new project's scale: what a model trains with on the device that was found."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.models.device import CPU, Device, device_of
from tasks.running.machine import cores, gpus

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: From this many parameters on, a model has the learning rates of published ones.
LARGE = 50_000_000


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


@dataclass(frozen=True)
class ProjectSizes:
    """Numbers of a scale's pages; see `tasks/commands/project/`."""

    prompt_tokens: int
    total_tokens: int
    answer_tokens: int
    iterations: int
    rollout_batch: int
    group_size: int
    generation_batch: int
    batch: int
    microbatch: int
    benchmark_rows: int
    scored_prompts: int
    normaliser_pairs: int
    references: int
    policy_lr: float
    model_lr: float
    dpo_lr: float
    cores: int
    gpus: int
    memory_gb: int

    @property
    def pair_microbatch(self) -> int:
        """Returns pairs of a forward pass, each of which has two responses."""
        return max(1, self.microbatch // 2)

    @property
    def prompts(self) -> int:
        """Returns prompts that a policy sees."""
        return self.iterations * self.rollout_batch // self.group_size


def project_sizes(config: PreTrainedConfig, parameters: int, device: Device) -> ProjectSizes:
    """Returns the sizes for a model on a device: a pure function of both.

    Args:
        config: of the model.
        parameters: of the model.
        device: what one stage trains on.
    """
    on_gpu = device.memory_gb is not None
    longest = int(getattr(config, "max_position_embeddings", None) or 1024)
    total = min(1024 if on_gpu else 256, longest)
    rates = (1.0e-6, 1.0e-5, 5.0e-7) if parameters >= LARGE else (1.0e-4, 5.0e-4, 1.0e-4)
    return ProjectSizes(
        prompt_tokens=total // 2,
        total_tokens=total,
        answer_tokens=min(256 if on_gpu else 48, total // 2),
        iterations=100 if on_gpu else 10,
        rollout_batch=64 if on_gpu else 32,
        group_size=8 if on_gpu else 4,
        generation_batch=64 if on_gpu else 32,
        batch=64 if on_gpu else 16,
        microbatch=fitting_rows(config, parameters, device, total) or 1 if on_gpu else 8,
        benchmark_rows=256 if on_gpu else 32,
        scored_prompts=256 if on_gpu else 32,
        normaliser_pairs=1000 if on_gpu else 64,
        references=4 if on_gpu else 2,
        policy_lr=rates[0],
        model_lr=rates[1],
        dpo_lr=rates[2],
        cores=max(1, min(4, cores() // max(1, device.count))) if on_gpu else 1,
        gpus=1 if on_gpu else 0,
        memory_gb=max(4, round(20 * parameters / 2**30)) if on_gpu else 2,
    )


def fitting_rows(config: Any, parameters: int, device: Device, tokens: int) -> int:
    """Returns the rows of a forward pass that fit beside a trained policy, its reference and a reward model: a power of
    two of at most 16; 0 where the models alone do not fit.

    Args:
        config: of the model.
        parameters: of the model.
        device: a GPU.
        tokens: of the longest row.
    """
    from rlhf_core.models.memory import GIB, OVERHEAD, Sharding

    assert device.memory_gb is not None
    sharding = Sharding(1, bf16=device.bf16)
    models = sharding.trained(parameters)[0] + 2 * sharding.bytes * parameters
    room = device.memory_gb * GIB / OVERHEAD - models
    row = sharding.activations(config, tokens) + 4.0 * tokens * int(config.vocab_size)
    return next((rows for rows in (16, 8, 4, 2, 1) if rows * row <= room), 0)
