"""Heavy work of every kind of stage on one GPU, at half a billion parameters with random weights in bf16.

    python -m benchmarks.gpu_check [--only sft ppo]      (a GPU; at most ten minutes, each part at most eight)
    python -m benchmarks.gpu_check --rehearse            (any machine: every part on a tiny shape)

Nothing is downloaded. Each part is a process; its rows are kept in `.work/benchmarks/gpu_check`, so that parts run one
by one make up the same table, gpu_check.json and gpu_check.md. Operations are 6 a parameter and token in training and 2
in scoring and sampling, attention over the length left out; the output projection counts where logits are computed.
Exits with 1 when a part fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.device import FAILED, Device, Row
from benchmarks.gpu_check.parts import PARTS
from benchmarks.gpu_check.random_work import Check, sizes_of
from benchmarks.gpu_check.table import failures, markdown, read_rows, write_rows
from rlhf_core.models.forecast import Peak
from tasks.running.commit import commit_of

ROOT = Path(__file__).resolve().parents[2]
#: Seconds of the whole check, and of one part.
LIMIT, PART_LIMIT = 600.0, 480.0
RUN_PART = "import json, sys; from benchmarks.gpu_check.__main__ import run_part; run_part(**json.loads(sys.argv[1]))"


def machine_of(device: Device, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the facts that records of one table share."""
    facts: dict[str, Any] = {name: metadata.version(name) for name in ("torch", "transformers")}
    facts |= {"commit": commit_of(ROOT)[:10], "microbatch": options.microbatch or sizes_of(options.rehearse).microbatch}
    return {"device": device.name, **facts, "rehearsal": options.rehearse}


def run_part(name: str, record: str, *, machine: dict[str, Any], peaks: list[float] | None) -> None:
    """Runs a part in this process and writes its record after each row."""
    device = Device(Peak(peaks[0] * 1e12, peaks[1] * 1e9) if peaks else None)
    sizes, rows = replace(sizes_of(machine["rehearsal"]), microbatch=machine["microbatch"]), list[Row]()
    for row in PARTS[name].run(Check(sizes, device)):
        rows.append(row)
        write_rows(Path(record), machine, rows)


def run_in_process(name: str, folder: Path, machine: dict[str, Any], peaks: list[float] | None, limit: float) -> None:
    """Runs a part in a process of its own; a failure, or a part that takes too long, becomes its last row."""
    record = folder / f"{name}.json"
    record.unlink(missing_ok=True)
    given = {"name": name, "record": str(record), "machine": machine, "peaks": peaks}
    command = [sys.executable, "-c", RUN_PART, json.dumps(given)]
    reason = ""
    try:
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=limit)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            reason = ([f"exit code {done.returncode}", *done.stderr.strip().splitlines()])[-1]
    except subprocess.TimeoutExpired:
        reason = f"it was ended after {limit:g} s"
    if reason:
        rows = read_rows(folder, [name], machine).get(name, [])
        write_rows(record, machine, [*rows, Row("", FAILED, reason)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rehearse", action="store_true", help="every part on a tiny shape, on the CPU too")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts")
    parser.add_argument("--microbatch", type=int, help="rows of a forward pass in training (default: 16)")
    parser.add_argument("--peaks", type=float, nargs=2, metavar=("TFLOPS", "GBPS"), help="of a device not listed")
    parser.add_argument("--out", type=Path, default=Path(".work/benchmarks"))
    options = parser.parse_args(arguments)
    device = Device()
    if not device.on_gpu and not options.rehearse:
        print("error: torch sees no GPU here; --rehearse runs every part on a tiny shape", file=sys.stderr)
        return 2
    if device.on_gpu and device.peak is None and not options.peaks:
        print(f"note: the peaks of {device.name} are not listed; --peaks TFLOPS GBPS states them", file=sys.stderr)
    out = options.out.resolve()
    machine, folder, began = machine_of(device, options), out / "gpu_check", time.monotonic()
    print(f"{device.name}, torch {torch.__version__}", flush=True)
    for name in options.only:
        left = LIMIT - (time.monotonic() - began)
        if left < 1:
            print(f"{name}: not run, {LIMIT:.0f} s are over", file=sys.stderr)
            continue
        print(f"{name} ...", flush=True)
        run_in_process(name, folder, machine, options.peaks, min(PART_LIMIT, round(left)))
    found = read_rows(folder, list(PARTS), machine)
    text = markdown(machine, list(PARTS), found)
    record = {"machine": machine, "parts": json.loads(json.dumps(found, default=vars))}
    (out / "gpu_check.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (out / "gpu_check.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nwrote {options.out / 'gpu_check.json'} and {options.out / 'gpu_check.md'}")
    problems = failures({name: rows for name, rows in found.items() if name in options.only})
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
