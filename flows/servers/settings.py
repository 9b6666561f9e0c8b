"""Settings of the platform: stores, ports and credentials.

Variables (none is needed; what the last `up` was given holds while they are not set):
    REWARDSMITH_DATABASE    postgresql://user:password@host:5432/rewardsmith: PostgreSQL instead of SQLite. The
                            databases rewardsmith_prefect, rewardsmith_mlflow and rewardsmith_auth are created there
    REWARDSMITH_ARTIFACTS   s3://bucket/prefix: where MLflow puts artifacts, instead of the folder mlruns/. Its key
                            comes from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, its address from
                            MLFLOW_S3_ENDPOINT_URL
    REWARDSMITH_HOST        the address that the servers bind, instead of 127.0.0.1
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from rlhf_core.errors import RecipeError
from tasks.running.platform_state import FOLDER, read_private, write_private

USER = "rewardsmith"
POOL = "rewardsmith"
DATABASE, ARTIFACTS, HOST = "REWARDSMITH_DATABASE", "REWARDSMITH_ARTIFACTS", "REWARDSMITH_HOST"
#: Asked for first; when one is taken, a free one is used.
PORTS = {"prefect": 4200, "mlflow": 5000, "page": 4300}
#: Address of a PostgreSQL server; its reserved characters are escaped in user and password.
ADDRESS = re.compile(r"postgresql://[^:/@#?]+(:[^:/@#?]*)?@(\[[\w:]+\]|[^:/@#?]+)(:[1-9]\d*)?(/[^:@#]*)?(\?[^@#]*)?")
#: Names of variables that hold a secret, and those among them that a server needs; the worker's stages may need any.
SECRETS = re.compile(r"AWS_.*|.*(_KEY|_TOKEN|_SECRET|PASSWORD)", re.IGNORECASE)
NEEDED = {"prefect": re.compile("PREFECT_.*|PGPASSWORD"), "mlflow": re.compile("AWS_.*|MLFLOW_.*|PGPASSWORD")}
#: The variables of the last `up`.
STORES = "stores.json"
LOOPBACK = "127.0.0.1"
#: Binds every address of the machine; clients cannot connect to it.
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True)
class Settings:
    """One platform.

    Attributes:
        root: the working tree.
        host: address that the servers bind.
        ports: by server.
        password, secret: generated; the second signs MLflow's sessions.
        database: base URL of a PostgreSQL server, None for SQLite.
        artifacts: where MLflow puts artifacts.
        variables: the three variables as given; empty where one is not set.
    """

    root: Path
    host: str
    ports: Mapping[str, int]
    password: str
    secret: str
    database: str | None
    artifacts: str
    variables: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    @property
    def worker(self) -> str:
        """Returns the worker's name in the work pool."""
        return f"{socket.gethostname()}-{self.root.name}"

    def url(self, name: str) -> str:
        """Returns the address of a server for clients on this machine."""
        host = LOOPBACK if self.host == EVERYWHERE else self.host
        return f"http://{host}:{self.ports[name]}"

    def database_of(self, name: str) -> str:
        """Returns SQLAlchemy's URL of the database of prefect, mlflow or auth."""
        if self.database is None:
            places = {"mlflow": self.root / "mlflow.db"}
            return f"sqlite:///{places.get(name, self.folder / f'{name}.db')}"
        url = make_url(self.database)
        url = url.set(database=f"{url.database or 'rewardsmith'}_{name}")
        return url.render_as_string(hide_password=False)

    def shown_database(self, name: str) -> str:
        """Returns the address of a database, without user and password."""
        if self.database is None:
            return self.database_of(name).removeprefix("sqlite:///")
        return self.database_of(name).partition("@")[2].partition("?")[0]

    def prefect_database(self) -> str:
        """Returns the URL of Prefect's database as its asynchronous drivers want it."""
        url = self.database_of("prefect")
        if url.startswith("sqlite"):
            return url.replace("sqlite://", "sqlite+aiosqlite://", 1)
        return url.replace("postgresql://", "postgresql+asyncpg://", 1).replace("sslmode=", "ssl=")

    def client(self) -> dict[str, str]:
        """Returns the environment of whoever speaks to the servers."""
        return {
            "PREFECT_API_URL": f"{self.url('prefect')}/api",
            "PREFECT_API_AUTH_STRING": f"{USER}:{self.password}",
            "PREFECT_HOME": str(self.folder / "prefect-home"),
            "MLFLOW_TRACKING_URI": self.url("mlflow"),
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": self.password,
            # artifacts go through the server, whose clients need not reach the store
            "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
            "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
            "REWARDSMITH_PLATFORM": str(self.folder),
            "REWARDSMITH_SLOTS": slots_name(),
        }

    def environment(self, name: str) -> dict[str, str]:
        """Returns the environment of a process of the platform."""
        common = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true"}
        common |= {"MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_LOGGING_LEVEL": "WARNING"}
        own = {
            "prefect": {
                "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{self.password}",
                "PREFECT_API_DATABASE_CONNECTION_URL": self.prefect_database(),
                # trainings fill the cores beside it: its own 5 and 10 s pass before PostgreSQL has answered
                "PREFECT_API_DATABASE_CONNECTION_TIMEOUT": "60",
                "PREFECT_API_DATABASE_TIMEOUT": "60",
                # leases outlive a killed server, else their slots stay taken for good
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
                "PREFECT_UI_API_URL": f"{self.url('prefect')}/api",
                "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            },
            "mlflow": {
                "MLFLOW_BACKEND_STORE_URI": self.database_of("mlflow"),
                "MLFLOW_AUTH_CONFIG_PATH": str(self.folder / "mlflow-auth.ini"),
                "MLFLOW_FLASK_SERVER_SECRET_KEY": self.secret,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            # the worker looks for work every 2 s and starts a scheduled run's process ahead of its time
            "worker": {
                "PREFECT_WORKER_QUERY_SECONDS": "2",
                "PREFECT_WORKER_PREFETCH_SECONDS": "30",
                "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "10",
                "PREFECT_LOGGING_LEVEL": "INFO",
            },
        }
        client = {key: value for key, value in self.client().items() if (name, key) != ("prefect", "PREFECT_API_URL")}
        return {**client, **common, **own.get(name, {})}

    def commands(self) -> dict[str, list[str]]:
        """Returns the command of each process, in the order of starting."""
        python = sys.executable
        where = ["--host", self.host, "--port"]
        mlflow = [python, "-m", "mlflow", "server", *where, str(self.ports["mlflow"]), "--workers", "1"]
        mlflow += ["--app-name", "basic-auth"]
        if self.artifacts.startswith("s3://"):
            mlflow += ["--artifacts-destination", self.artifacts]
        else:
            mlflow += ["--no-serve-artifacts", "--default-artifact-root", self.artifacts]
        worker = [python, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
        return {
            "prefect": [python, "-m", "prefect", "server", "start", *where, str(self.ports["prefect"])],
            "mlflow": mlflow,
            "page": [python, "-P", "-m", "flows.servers.page", str(self.root)],
            "worker": [*worker, "--name", self.worker],
        }


def inherited(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the caller's environment for a process of the platform, with only the secrets that it needs."""
    if name == "worker":
        return dict(environment)
    needed = NEEDED.get(name)
    return {
        key: value
        for key, value in environment.items()
        if not SECRETS.fullmatch(key) or (needed is not None and needed.fullmatch(key))
    }


def slots_name() -> str:
    """Returns the prefix of the names of this machine's limits."""
    return socket.gethostname()


def credentials(folder: Path) -> dict[str, str]:
    """Returns the platform's password and signing secret, generated once; `credentials.json`, mode 0600."""
    path = folder / "credentials.json"
    known = read_private(path)
    if not {"user", "password", "secret"} <= set(known):
        known = {"user": USER, "password": secrets.token_urlsafe(24), "secret": secrets.token_urlsafe(32)}
        write_private(path, known)
    path.chmod(0o600)
    return {name: str(value) for name, value in known.items()}


def load(root: Path, ports: Mapping[str, int]) -> Settings:
    """Returns the settings of a tree's platform on given ports.

    Raises:
        RecipeError: a variable that names no database, place or host that this platform knows.
    """
    root = root.resolve()
    kept = read_private(root / FOLDER / STORES)
    given = {name: os.environ.get(name) or str(kept.get(name, "")) for name in (DATABASE, ARTIFACTS, HOST)}
    database, artifacts, host = given[DATABASE], given[ARTIFACTS], given[HOST] or LOOPBACK
    try:
        socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RecipeError(
            f"{HOST} is {host}, which is neither an IPv4 address nor the name of a host with one ({error}). Set it to "
            f"an address of this machine, to {EVERYWHERE} for all of them, or to {LOOPBACK}"
        ) from None
    if database and not ADDRESS.fullmatch(database):  # tools would read another form differently
        raise RecipeError(
            f"{DATABASE} cannot be read; it must be postgresql://user:password@host:5432/name, or not set for SQLite. "
            "In user and password, write @ as %40, / as %2F, : as %3A, # as %23, ? as %3F, % as %25"
        )
    if artifacts and not artifacts.startswith("s3://"):
        raise RecipeError(f"{ARTIFACTS} is {artifacts}; it must be s3://bucket/prefix, or not set")
    known = credentials(root / FOLDER)
    place = artifacts or (root / "mlruns").as_uri()
    return Settings(root, host, dict(ports), known["password"], known["secret"], database or None, place, given)
