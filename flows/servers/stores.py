"""Stores of the platform, checked before anything starts: the object store and the databases.

MLflow's two databases are brought to the installed version here, in one process: several first writers of one database
crash. Prefect's has a single opener, its server, which prepares it while it starts.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url

from flows.servers.settings import USER, Settings
from rlhf_core.errors import RewardsmithError
from tasks.running.platform_state import read_private, write_private
from tasks.tracking.databases import mark_of, upgrade

#: The versions that MLflow's databases were prepared for.
PREPARED = "databases.json"
DATABASES = ("prefect", "mlflow", "auth")
#: Written to see whether the key may write, and removed; one name, so that at most one object ever stays.
CHECK = "rewardsmith-check"


def check_artifacts(settings: Settings) -> None:
    """Writes and deletes in the object store, as MLflow will.

    Raises:
        RewardsmithError: it does not answer, lacks the bucket, or refuses the key.
    """
    if not settings.artifacts.startswith("s3://"):
        return
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    address, parts = os.environ.get("MLFLOW_S3_ENDPOINT_URL"), urlsplit(settings.artifacts)
    place = {"Bucket": parts.netloc, "Key": f"{parts.path}/{CHECK}".lstrip("/")}
    limits = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2})
    try:
        client = boto3.Session().client("s3", endpoint_url=address, config=limits)
        client.put_object(**place, Body=b"")
        client.delete_object(**place)
    except (BotoCoreError, ClientError, ValueError) as error:
        raise RewardsmithError(
            f"the object store {address or 'of AWS'} cannot be used for {settings.artifacts}: {error}. It needs the "
            f"bucket {parts.netloc}, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of a key with s3:PutObject, "
            "s3:GetObject, s3:DeleteObject and s3:ListBucket; check MLFLOW_S3_ENDPOINT_URL, too"
        ) from None


def create_missing(settings: Settings) -> None:
    """Creates the databases that a PostgreSQL server lacks; SQLite makes its own.

    Raises:
        RewardsmithError: the server cannot be reached, or does not let the user create them.
    """
    if settings.database is None:
        return
    import psycopg2
    from psycopg2 import errors, sql

    url, missing = make_url(settings.database), list[str]()
    address = url.set(database="postgres").render_as_string(hide_password=False)
    try:
        with closing(psycopg2.connect(address, connect_timeout=10)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("select datname from pg_database")
                there = {name for (name,) in cursor.fetchall()}
                wanted = (str(make_url(settings.database_of(name)).database) for name in DATABASES)
                missing += [name for name in wanted if name not in there]
                for name in missing:
                    cursor.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    except errors.InsufficientPrivilege:
        statements = " ".join(f'create database "{name}" owner "{url.username}";' for name in missing)
        raise RewardsmithError(
            f"the database server does not let the user {url.username} create databases. Its administrator can: "
            f"{statements}"
        ) from None
    except psycopg2.Error as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RewardsmithError(
            f"the database server {url.host}:{url.port or 5432} cannot be used: {reason}. Start it, or correct "
            "REWARDSMITH_DATABASE; nothing was changed"
        ) from None


def write_auth_file(settings: Settings) -> None:
    """Writes MLflow's authentication settings; mode 0600."""
    text = (
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = {settings.database_of('auth').replace('%', '%%')}\n"
        f"admin_username = {USER}\nadmin_password = {settings.password}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "grant_default_workspace_access = false\nauth_cache_ttl_seconds = 60\n"
    )
    descriptor = os.open(settings.folder / "mlflow-auth.ini", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def prepare(settings: Settings) -> bool:
    """Brings MLflow's databases to the installed version; returns whether that was needed.

    Raises:
        RewardsmithError: a database cannot be prepared.
    """
    places = {name: settings.database_of(name) for name in ("mlflow", "auth")}
    marks = {name: mark_of("mlflow", place) for name, place in places.items()}
    files = {name: Path(place.removeprefix("sqlite:///")) for name, place in places.items() if place[:6] == "sqlite"}
    new = {name: file for name, file in files.items() if not file.exists()}
    if not new and read_private(settings.folder / PREPARED) == marks:
        return False
    # a new file gets its name when it is whole: a half-made one could not be upgraded
    for name, file in new.items():
        Path(f"{file}.new").unlink(missing_ok=True)
        places[name] += ".new"
    if problem := upgrade(places, cwd=settings.folder, **settings.environment("mlflow")):
        shown = " and ".join(settings.shown_database(name) for name in places)
        raise RewardsmithError(f"MLflow cannot prepare its databases {shown}: {problem}")
    for file in new.values():
        Path(f"{file}.new").rename(file)
    write_private(settings.folder / PREPARED, marks)
    return True
