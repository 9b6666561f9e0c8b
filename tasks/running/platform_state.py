"""The platform of a working tree as its clients see it: the content of `.work/platform/`, and whether it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(".work") / "platform"
STATE, CLIENT = "state.json", "client.json"
#: Variables by which a process belongs to a platform, its folder, and is one of its servers or its worker.
PLATFORM, SERVER = "REWARDSMITH_PLATFORM", "REWARDSMITH_SERVER"


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
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def lives(process: psutil.Process) -> bool:
    """Returns whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_up(folder: Path, name: str) -> bool:
    """Returns whether a server or the worker of a platform's folder runs; a reused process id does not count."""
    try:
        process = psutil.Process(read_private(folder / STATE)["processes"][name])
        environment = process.environ()
    except (psutil.Error, LookupError, TypeError, ValueError, OverflowError):
        return False
    return (environment.get(PLATFORM), environment.get(SERVER)) == (str(folder.resolve()), name) and lives(process)


def client_environment(root: Path) -> dict[str, str]:
    """Returns the environment variables of a client of the tree's platform; empty while the platform is down."""
    folder = root / FOLDER
    if not all(is_up(folder, name) for name in ("prefect", "mlflow")):
        return {}
    return {str(name): str(value) for name, value in read_private(folder / CLIENT).items()}


def join_platform(root: Path) -> bool:
    """Lets this process and its children speak to the tree's platform, unless other addresses are set.

    Returns:
        whether there is one.
    """
    environment = client_environment(root)
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    return bool(environment)
