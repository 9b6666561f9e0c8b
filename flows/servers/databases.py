"""The platform's databases, made and brought to the installed versions before any server or client opens them.

MLflow's two are prepared here, in one process: several first writers of one database crash. Prefect's has a single
opener, its server, which prepares it while it starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from flows.servers.settings import USER, Settings
from rlhf_core.errors import RewardsmithError
from tasks.tracking.databases import mark_of, upgrade

#: Every database, and what writes it.
TOOLS = {"prefect": "prefect", "mlflow": "mlflow", "auth": "mlflow"}
PREPARED = ("mlflow", "auth")


def _mark(settings: Settings, name: str) -> str:
    return mark_of(TOOLS[name], settings.database_of(name))


def _file(settings: Settings, name: str) -> Path | None:
    """Returns the file of a SQLite database; None for PostgreSQL."""
    kind, _, place = settings.database_of(name).partition(":///")
    return Path(place) if kind == "sqlite" else None


def _is_there(settings: Settings, name: str) -> bool:
    path = _file(settings, name)
    return path is None or path.exists()


@contextmanager
def _server(settings: Settings) -> Iterator[Any]:
    """Yields a cursor on the PostgreSQL server.

    Raises:
        RewardsmithError: it cannot be used.
    """
    import psycopg2

    parts = urlsplit(settings.database or "")
    try:
        with closing(psycopg2.connect(urlunsplit(parts._replace(path="/postgres")), connect_timeout=10)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor
    except psycopg2.Error as error:
        raise RewardsmithError(
            f"{_shown_server(settings)} cannot be used: {_first_line(error)}. Start it, or correct "
            "REWARDSMITH_DATABASE; nothing was changed"
        ) from None


def _shown_server(settings: Settings) -> str:
    parts = urlsplit(settings.database or "")
    return f"the database server {parts.hostname}:{parts.port or 5432}"


def _own_name(settings: Settings, name: str) -> str:
    """Returns the name of a database on its PostgreSQL server."""
    return unquote(urlsplit(settings.database_of(name)).path.lstrip("/"))


def missing(settings: Settings) -> list[str]:
    """Returns the databases that a PostgreSQL server lacks, as TOOLS names them; none of SQLite's, which make
    themselves.

    Raises:
        RewardsmithError: the server cannot be used.
    """
    if settings.database is None:
        return []
    with _server(settings) as cursor:
        cursor.execute("select datname from pg_database")
        there = {name for (name,) in cursor.fetchall()}
    return [name for name in TOOLS if _own_name(settings, name) not in there]


def create_missing(settings: Settings) -> None:
    """Creates the databases that a PostgreSQL server lacks.

    Raises:
        RewardsmithError: it cannot be reached, or refuses.
    """
    wanted = [_own_name(settings, name) for name in missing(settings)]
    if not wanted:
        return
    from psycopg2 import errors, sql

    user = urlsplit(settings.database or "").username
    with _server(settings) as cursor:
        try:
            for name in wanted:
                cursor.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        except errors.InsufficientPrivilege:
            statements = " ".join(f'create database "{name}" owner "{user}";' for name in wanted)
            raise RewardsmithError(
                f"{_shown_server(settings)} does not let the user {user} create databases. "
                f"Its administrator can: {statements}"
            ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
    """Upgrades what is not at the installed version; returns the names of the databases touched.

    Raises:
        RewardsmithError: a database cannot be prepared.
    """
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
    new = {name: path for name in PREPARED if (path := _file(settings, name)) and not path.exists()}
    for name, path in new.items():
        Path(f"{path}.new").unlink(missing_ok=True)
        places[name] += ".new"
    problem = upgrade(places, cwd=settings.folder, **settings.environment("mlflow"))
    if problem:
        shown = " and ".join(settings.shown_database(name) for name in PREPARED)
        raise RewardsmithError(f"MLflow cannot prepare its databases {shown}: {problem}")
    for path in new.values():
        Path(f"{path}.new").rename(path)
    for name in PREPARED:
        (notes / name).write_text(_mark(settings, name), encoding="utf-8")
    return stale
