"""The platform of a working tree as its clients see it: what stands in `.work/platform/`, and whether it lives."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(".work") / "platform"
STATE, CLIENT = "state.json", "client.json"


def write_private(path: Path, value: Any) -> None:
    """Writes JSON that only its owner may read (mode 0600), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1) + "\n")
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_private(path: Path) -> dict[str, Any]:
    """Its content; empty when it is not there or cut."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def alive(note: Mapping[str, Any] | None) -> bool:
    """Whether a noted process {pid, created} still runs; a reused process id does not count."""
    try:
        process = psutil.Process(int((note or {})["pid"]))
        return (
            abs(process.create_time() - float((note or {})["created"])) < 1.0
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def note_of(pid: int) -> dict[str, Any]:
    """A process as `alive` reads it."""
    return {"pid": pid, "created": psutil.Process(pid).create_time()}


def client_environment(root: Path) -> dict[str, str]:
    """What a client of the tree's platform needs in its environment; empty while the platform is down."""
    processes = read_private(root / FOLDER / STATE).get("processes", {})
    if not all(alive(processes.get(name)) for name in ("prefect", "mlflow")):
        return {}
    return {str(name): str(value) for name, value in read_private(root / FOLDER / CLIENT).items()}


def join_platform(root: Path) -> bool:
    """Lets this process and its children speak to the tree's platform, unless other addresses are set.

    Returns:
        whether there is one.
    """
    environment = client_environment(root)
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    return bool(environment)
