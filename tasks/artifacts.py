"""Stage outputs: written to a temporary directory and renamed whole, in two parts.

`<out>/result/` is deterministic (weights, metrics, history without clock) and the only thing that later
stages read. `<out>/record/` says how it was made (seconds, memory, versions, commit) and nothing reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError

RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn")


def digest(path: Path | str) -> str:
    """SHA-256 of a file, or of a directory's sorted relative names and contents."""
    path = Path(path)
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    total = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        total.update(f"{file.relative_to(path).as_posix()}\0{digest(file)}\n".encode())
    return total.hexdigest()


def read_json(path: Path | str) -> Any:
    """Parsed JSON of an artifact file; a missing or broken one is named with its remedy."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Run the stage that makes it") from None
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON ({error})", file=str(path), remedy="Re-run its stage") from None


def write_json(path: Path | str, value: Any) -> None:
    Path(path).write_text(
        json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n",
        encoding="utf-8",
    )


def write_jsonl(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    with Path(path).open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """Rows of a stage's own output (user data goes through `rlhf_core.data.sources`)."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Run the stage that makes it") from None


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _source_digest() -> str:
    """Digest of the project's own imported sources, so that a record tells which code made it."""
    root = Path(__file__).resolve().parent.parent
    total = hashlib.sha256()
    for package in ("rlhf_core", "tasks"):
        for file in sorted((root / package).rglob("*.py")):
            total.update(file.read_bytes())
    return total.hexdigest()


def _record(stage: str, version: int, inputs: Sequence[Path], started: float, clock: float) -> dict[str, Any]:
    import torch

    return {
        "stage": stage,
        "version": version,
        "seconds": round(time.monotonic() - clock, 3),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "host_cpu": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in RECORDED_PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "sources": _source_digest(),
        "inputs": {path.as_posix(): digest(path) for path in inputs},
    }


@contextmanager
def stage_output(out: Path | str, *, stage: str, version: int, inputs: Sequence[Path | str]) -> Iterator[Path]:
    """Yields the directory to write results into; on success it becomes `<out>/result` as a whole.

    Args:
        out: the stage's output directory.
        stage: the stage's name, for the record.
        version: the stage module's VERSION.
        inputs: files and directories read, whose digests the record keeps.

    Raises:
        DataError: an input that does not exist.
    """
    out = Path(out)
    paths = [Path(path) for path in inputs]
    for path in paths:
        if not path.exists():
            raise DataError("input does not exist", file=str(path), remedy="Run the stage that makes it first")
    out.mkdir(parents=True, exist_ok=True)
    for leftover in out.glob(".partial-*"):
        shutil.rmtree(leftover)
    partial = out / f".partial-{os.getpid()}"
    (partial / "result").mkdir(parents=True)
    (partial / "record").mkdir()
    started, clock = time.time(), time.monotonic()
    try:
        yield partial / "result"
        record = _record(stage, version, paths, started, clock)
        record["result_digest"] = digest(partial / "result")
        write_json(partial / "record" / "record.json", record)
        for part in ("result", "record"):
            if (out / part).exists():
                shutil.rmtree(out / part)
            (partial / part).rename(out / part)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_version(stage: str, version: int, requested: int | None) -> None:
    """A stage started for another version of its code would record a wrong lineage: refused."""
    if requested is not None and requested != version:
        raise RewardsmithError(
            f"stage '{stage}' has version {version} but version {requested} was asked for. "
            "Run `rewardsmith graph` to bring the graph files up to date"
        )
