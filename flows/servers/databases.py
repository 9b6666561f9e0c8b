"""The platform's databases, brought to the installed versions before any server or client opens them.

MLflow's two are prepared here, in one process: several first writers of one database crash. Prefect's has a single
opener, its server, which prepares it while it starts.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from flows.servers.settings import USER, Settings
from rlhf_core.errors import RewardsmithError

#: Every database, and what writes it.
TOOLS = {"prefect": "prefect", "mlflow": "mlflow", "auth": "mlflow"}
PREPARED = ("mlflow", "auth")
#: Run with MLflow's database and that of its authentication.
UPGRADE = """
import sys
from mlflow.db import commands as runs
from mlflow.server.auth.db.cli import commands as auth
runs(["upgrade", sys.argv[1]], standalone_mode=False)
auth(["upgrade", "--url", sys.argv[2]], standalone_mode=False)
"""


def _mark(settings: Settings, name: str) -> str:
    """What the note of a prepared database holds: its place and its tool's version."""
    place = hashlib.sha256(settings.database_of(name).encode()).hexdigest()
    return f"{TOOLS[name]} {metadata.version(TOOLS[name])} {place}\n"


def _is_there(settings: Settings, name: str) -> bool:
    kind, _, place = settings.database_of(name).partition(":///")
    return kind != "sqlite" or os.path.exists(place)


def create_missing(settings: Settings) -> None:
    """Creates the databases that a PostgreSQL server lacks.

    Raises:
        RewardsmithError: it cannot be reached, or refuses.
    """
    if settings.database is None:
        return
    import psycopg2
    from psycopg2 import sql

    parts = urlsplit(settings.database)
    shown = f"{parts.hostname}:{parts.port or 5432}"
    try:
        connection = psycopg2.connect(urlunsplit(parts._replace(path="/postgres")), connect_timeout=10)
        connection.autocommit = True
        with connection.cursor() as cursor:
            for name in TOOLS:
                wanted = urlsplit(settings.database_of(name)).path.lstrip("/")
                cursor.execute("select 1 from pg_database where datname = %s", (wanted,))
                if cursor.fetchone() is None:
                    cursor.execute(sql.SQL("create database {}").format(sql.Identifier(wanted)))
        connection.close()
    except psycopg2.Error as error:
        raise RewardsmithError(
            f"the database server {shown} cannot be used: {str(error).strip().splitlines()[0]}. "
            "Check REWARDSMITH_DATABASE, and that its user may create databases"
        ) from None


def write_auth_file(settings: Settings) -> None:
    """MLflow's authentication settings; mode 0600."""
    text = (
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = {settings.database_of('auth').replace('%', '%%')}\n"
        f"admin_username = {USER}\nadmin_password = {settings.password}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "grant_default_workspace_access = false\nauth_cache_ttl_seconds = 60\n"
    )
    path = settings.folder / "mlflow-auth.ini"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def prepare(settings: Settings) -> list[str]:
    """Creates and upgrades what is not at the installed version; returns the names of the databases touched.

    Raises:
        RewardsmithError: a database that cannot be reached, or that a newer version has written.
    """
    create_missing(settings)
    notes = settings.folder / "databases"
    notes.mkdir(parents=True, exist_ok=True)
    stale = [
        name
        for name in PREPARED
        if not _is_there(settings, name)
        or not (notes / name).exists()
        or (notes / name).read_text(encoding="utf-8") != _mark(settings, name)
    ]
    if not stale:
        return []
    # a new file gets its name when it is whole: a half-made one could not be upgraded
    places = {name: settings.database_of(name) for name in PREPARED}
    new = {name: Path(places[name].removeprefix("sqlite:///")) for name in PREPARED if not _is_there(settings, name)}
    for name, path in new.items():
        Path(f"{path}.new").unlink(missing_ok=True)
        places[name] += ".new"
    done = subprocess.run(
        [sys.executable, "-P", "-c", UPGRADE, *places.values()],
        env={**os.environ, **settings.server()},
        cwd=settings.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RewardsmithError(explained(settings, "mlflow", done.stdout + done.stderr))
    for path in new.values():
        Path(f"{path}.new").rename(path)
    for name in PREPARED:
        (notes / name).write_text(_mark(settings, name), encoding="utf-8")
    return stale


def explained(settings: Settings, name: str, output: str) -> str:
    """A tool's refusal of its database, in words."""
    place = settings.database_of(name).split("@")[-1]
    lines = [line for line in output.strip().splitlines() if "rror" in line and "sqlalche.me" not in line]
    if "Can't locate revision" in output:
        return (
            f"the {TOOLS[name]} database {place} was written by another version than the installed "
            f"{metadata.version(TOOLS[name])}. Install that version (constraints.txt), or move the database away"
        )
    return f"the {TOOLS[name]} database {place} cannot be prepared: {(lines or ['no output'])[-1]}"
