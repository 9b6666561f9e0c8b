"""Slots: a core or a GPU is given to one stage at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.errors import RewardsmithError


@dataclass(frozen=True)
class Grant:
    """Resources granted to one stage: a number of cores, its own GPUs, and memory in GiB."""

    cores: int
    gpus: tuple[str, ...]
    memory_gb: float

    def environment(self) -> dict[str, str]:
        """Returns the thread counts and visible devices of the stage's processes."""
        threads = str(self.cores)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "REWARDSMITH_THREADS")
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        return dict.fromkeys(names, threads) | devices | ({} if self.gpus else {"DS_ACCELERATOR": "cpu"})


class Slots:
    """The machine's cores, GPUs and memory, handed out and taken back."""

    def __init__(self, cores: int, gpus: Sequence[str], memory_gb: float) -> None:
        self.cores, self.gpus, self.memory_gb = cores, list(gpus), memory_gb
        self._free_cores, self._free_gpus, self._free_memory = cores, list(gpus), memory_gb
        self._lock = threading.Lock()

    def can_ever_run(self, needs: Mapping[str, float]) -> bool:
        """Returns whether this machine can ever run a stage with these needs."""
        return needs.get("gpus", 0) <= len(self.gpus)

    def refuse_impossible(self, stage: str, needs: Mapping[str, float]) -> None:
        """Refuses a stage that this machine can never run.

        Raises:
            RewardsmithError: it needs more GPUs than there are.
        """
        if not self.can_ever_run(needs):
            raise RewardsmithError(
                f"stage {stage} needs {needs['gpus']} GPU(s), this machine has {len(self.gpus)}. "
                "Run it on another machine, or declare less under `resources` in params/scales/<scale>/stages.yaml"
            )

    def take(self, needs: Mapping[str, float]) -> Grant | None:
        """Returns a grant of the needs of a stage, at most the whole machine; None while they are not free."""
        cores = int(min(needs.get("cores", 1), self.cores))
        gpus, memory = int(needs.get("gpus", 0)), min(needs.get("memory_gb", 0), self.memory_gb)
        with self._lock:
            if cores > self._free_cores or gpus > len(self._free_gpus) or memory > self._free_memory:
                return None
            self._free_cores -= cores
            self._free_memory -= memory
            given = tuple(self._free_gpus.pop(0) for _ in range(gpus))
            return Grant(cores, given, memory)

    def give_back(self, grant: Grant) -> None:
        with self._lock:
            self._free_cores += grant.cores
            self._free_memory += grant.memory_gb
            self._free_gpus = sorted([*self._free_gpus, *grant.gpus], key=self.gpus.index)
