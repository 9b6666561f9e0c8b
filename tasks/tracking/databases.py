"""MLflow's databases: clients of them, and upgrades of a server's to the installed version."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_core.errors import RewardsmithError

#: Addresses come by the environment: a command line is everybody's to read.
UPGRADE = """
import os
if place := os.environ.get("UPGRADE_MLFLOW"):
    from mlflow.db import commands
    commands(["upgrade", place], standalone_mode=False)
if place := os.environ.get("UPGRADE_AUTH"):
    from mlflow.server.auth.db.cli import commands
    commands(["upgrade", "--url", place], standalone_mode=False)
"""


#: Ports of database servers whose addresses may leave them out, and seconds that a server has to accept a connection.
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
PATIENCE = 10.0


def mark_of(tool: str, address: str) -> str:
    """Returns the note of a prepared database: its tool's version, and a hash of its address with the password."""
    return f"{tool} {metadata.version(tool)} {hashlib.sha256(address.encode()).hexdigest()}\n"


def without_passwords(text: str) -> str:
    """Returns a text whose addresses have no users and passwords."""
    return re.sub(r"(\w://)[^\s/]*@", r"\1", text)


def refuse_unusable(uri: str) -> None:
    """Refuses a database for which MLflow would try again for minutes: a damaged file, a server that does not answer.

    A SQLite file that is not there yet is made, for its owner alone to read; MLflow makes the tables.

    Raises:
        RewardsmithError: names the file or the server.
    """
    kind, _, place = uri.partition(":///")
    if kind == "sqlite":
        try:
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            Path(place).touch(mode=0o600)
            with closing(sqlite3.connect(place)) as database:
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except (OSError, sqlite3.DatabaseError) as error:
            raise RewardsmithError(
                f"the tracking database {place} cannot be prepared ({error}); move it away: rewardsmith sync makes "
                "another one from the results"
            ) from None
        return
    parts = urlsplit(uri)
    default = PORTS.get(parts.scheme.split("+")[0])
    if default is None or parts.hostname is None or "," in parts.netloc:  # MLflow's server, or left to the driver
        return
    try:
        host, port = parts.hostname, parts.port or default
    except ValueError as error:
        raise RewardsmithError(f"MLFLOW_TRACKING_URI has no port that is a number ({error}); correct it") from None
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        raise RewardsmithError(
            f"no database server answers at {host}:{port} of MLFLOW_TRACKING_URI ({error}); start it, correct the "
            "address, or unset the variable for mlflow.db"
        ) from None


def open_client(uri: str) -> Any:
    """Returns MLflow's client of a server or database.

    Raises:
        RewardsmithError: a database that cannot be used.
    """
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # it tells of new tables
    from mlflow import MlflowClient

    refuse_unusable(uri)
    return MlflowClient(tracking_uri=uri)


def upgrade(addresses: Mapping[str, str], *, cwd: Path | None = None, **environment: str) -> str | None:
    """Creates or upgrades the tables of MLflow's databases, in one process of its own.

    Args:
        addresses: SQLAlchemy's URLs by name: mlflow, auth.
        cwd: where it runs.
        environment: in which it runs, beside this process's.

    Returns:
        why it failed, in one line; None when all are ready.
    """
    given = {f"UPGRADE_{name.upper()}": address for name, address in addresses.items()}
    done = subprocess.run(
        [sys.executable, "-P", "-c", UPGRADE],
        env={**os.environ, **environment, **given},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if not done.returncode:
        return None
    lines = (done.stdout + done.stderr).splitlines()
    # SQLAlchemy's last line leads to its own manual
    errors = [line for line in lines if "rror" in line and "sqlalche.me" not in line]
    return (errors or ["no output"])[-1]
