"""Times, memory and shares of the peak on the device at hand: rows of the check's table."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core.models.forecast import Peak, Work, peak_of
from tasks.running.artifacts import peak_memory

MEASURED, ABSENT, FAILED = "measured", "absent", "failed"


@dataclass(frozen=True)
class Row:
    """One line of the table; numbers that a row or a device does not have are None.

    Attributes:
        what: the work that was timed.
        outcome: measured, absent (not in this version or not installed) or failed.
        reason: why it is absent or failed.
        seconds: median over the repeats.
        share_of_peak: of the device's dense bf16 operations per second.
        assumed_share: what forecasts of GPU hours assume instead.
        share_of_bandwidth: of the device's memory.
        memory_gib: the peak, of the GPU; of the process without one.
        difference: the largest, of what is compared instead of timed.
    """

    what: str
    outcome: str = MEASURED
    reason: str = ""
    seconds: float | None = None
    tokens_per_second: float | None = None
    share_of_peak: float | None = None
    assumed_share: float | None = None
    share_of_bandwidth: float | None = None
    memory_gib: float | None = None
    difference: float | None = None


class Device:
    """The GPU, or the CPU of a rehearsal.

    Args:
        peak: its limits where its name is not listed.
    """

    def __init__(self, peak: Peak | None = None) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.torch = torch.device("cuda" if self.on_gpu else "cpu")
        self.name = torch.cuda.get_device_name() if self.on_gpu else f"CPU ({platform.machine()})"
        self.peak = peak or peak_of(self.name)

    def now(self) -> float:
        """Returns the time after all work under way."""
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def median_seconds(self, work: Callable[[], Any], repeats: int) -> float:
        """Returns the median of the repeats, after one that is not counted."""
        work()
        seconds = []
        for _ in range(repeats):
            begin = self.now()
            work()
            seconds.append(self.now() - begin)
        return statistics.median(seconds)

    def row(self, what: str, seconds: float, tokens: int, work: Work, traffic: float | None = None) -> Row:
        """Returns a measured row; the memory's peak is counted anew for the next one.

        Args:
            what: the work that was timed.
            seconds: that it took.
            tokens: of its sequences; while sampling, of the responses.
            work: tokens times parameters.
            traffic: bytes that it moves between the memory and the processors.
        """
        memory = peak_memory()
        mebibytes = memory.get("peak_gpu_memory_mb", memory["peak_memory_mb"])
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        return Row(
            what,
            seconds=seconds,
            tokens_per_second=tokens / seconds,
            share_of_peak=work.operations / seconds / self.peak.operations if self.peak else None,
            assumed_share=work.assumed_share,
            share_of_bandwidth=traffic / seconds / self.peak.bandwidth if self.peak and traffic else None,
            memory_gib=mebibytes / 1024,
        )
