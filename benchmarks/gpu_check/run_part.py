"""One part of the check in this process; `python -m benchmarks.gpu_check` starts it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.device import Device, Row
from benchmarks.gpu_check.parts import PARTS
from benchmarks.gpu_check.random_work import Check, sizes_of
from benchmarks.gpu_check.table import write_rows
from rlhf_core.models.cost import Peak


def run_part(name: str, record: Path, *, machine: dict[str, Any], peaks: list[float] | None) -> list[Row]:
    """Runs a part and writes its record after each row."""
    device = Device(Peak(peaks[0] * 1e12, peaks[1] * 1e9) if peaks else None)
    sizes = replace(sizes_of(machine["rehearsal"]), microbatch=machine["microbatch"])
    check, rows = Check(sizes, device), list[Row]()
    for row in PARTS[name].run(check):
        rows.append(row)
        write_rows(record, machine, rows)
    return rows


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    run_part(given["name"], Path(given["record"]), machine=given["machine"], peaks=given["peaks"])
