"""Settings of the platform: addresses, credentials, and the command and environment of each process.

The variable REWARDSMITH_HOST is the address that the servers bind, instead of 127.0.0.1.
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

from rlhf_core.errors import RecipeError
from tasks.running.platform_state import FOLDER, STATE, read_private, write_private

USER = "rewardsmith"
POOL = "rewardsmith"
HOST = "REWARDSMITH_HOST"
#: Asked for first; when one is taken, a free one is used.
PORTS = {"prefect": 4200, "mlflow": 5000}
#: Names of variables that hold a secret, and those among them that a server needs; the worker's stages may need any.
SECRETS = re.compile(r"AWS_.*|.*(_KEY|_TOKEN|_SECRET|PASSWORD)", re.IGNORECASE)
NEEDED = {"prefect": re.compile("PREFECT_.*"), "mlflow": re.compile("MLFLOW_.*"), "worker": re.compile(".*")}
#: Variables that name a database and a store of artifacts, which `rewardsmith up` refuses.
STORES = ("REWARDSMITH_DATABASE", "REWARDSMITH_ARTIFACTS")
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
    """

    root: Path
    host: str
    ports: Mapping[str, int]
    password: str
    secret: str

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    @property
    def worker(self) -> str:
        """Returns the worker's name in the work pool."""
        return f"{socket.gethostname()}-{self.root.name}"

    def url(self, name: str) -> str:
        """Returns the address of a server for clients on this machine."""
        return f"http://{LOOPBACK if self.host == EVERYWHERE else self.host}:{self.ports[name]}"

    def database(self, name: str) -> str:
        """Returns SQLAlchemy's URL of the database of mlflow or auth."""
        return f"sqlite:///{self.root / 'mlflow.db' if name == 'mlflow' else self.folder / f'{name}.db'}"

    def client(self) -> dict[str, str]:
        """Returns the environment of whoever speaks to the servers."""
        return {
            "PREFECT_API_URL": f"{self.url('prefect')}/api",
            "PREFECT_API_AUTH_STRING": f"{USER}:{self.password}",
            "PREFECT_HOME": str(self.folder / "prefect-home"),
            "MLFLOW_TRACKING_URI": self.url("mlflow"),
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": self.password,
            "REWARDSMITH_PLATFORM": str(self.folder),
            "REWARDSMITH_SLOTS": socket.gethostname(),
        }

    def environment(self, name: str) -> dict[str, str]:
        """Returns the environment of a process of the platform."""
        common = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true"}
        common |= {"MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_LOGGING_LEVEL": "WARNING"}
        own = {
            "prefect": {
                "PREFECT_SERVER_API_AUTH_STRING": f"{USER}:{self.password}",
                "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{self.folder / 'prefect.db'}",
                "PREFECT_API_DATABASE_TIMEOUT": "60",  # trainings fill the cores beside it
                # leases outlive a killed server, else their slots stay taken for good
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
                "PREFECT_UI_API_URL": f"{self.url('prefect')}/api",
                "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            },
            "mlflow": {
                "MLFLOW_BACKEND_STORE_URI": self.database("mlflow"),
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
        module = [sys.executable, "-m"]
        where = ["--host", self.host, "--port"]
        mlflow = ["--workers", "1", "--app-name", "basic-auth", "--no-serve-artifacts", "--default-artifact-root"]
        mlflow.append((self.root / "mlruns").as_uri())
        return {
            "prefect": [*module, "prefect", "server", "start", *where, str(self.ports["prefect"])],
            "mlflow": [*module, "mlflow", "server", *where, str(self.ports["mlflow"]), *mlflow],
            "worker": [
                *module,
                "prefect",
                "worker",
                "start",
                "--pool",
                POOL,
                "--type",
                "process",
                "--name",
                self.worker,
            ],
        }


def inherited(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the caller's environment for a process of the platform, with only the secrets that it needs."""
    needed = NEEDED[name]
    return {key: value for key, value in environment.items() if needed.fullmatch(key) or not SECRETS.fullmatch(key)}


def load(root: Path, ports: Mapping[str, int]) -> Settings:
    """Returns the settings of a tree's platform on given ports; its credentials are generated once.

    Raises:
        RecipeError: a variable that names no host, or a store that this platform does not use.
    """
    root = root.resolve()
    # the host of the last start holds while no other is named
    host = os.environ.get(HOST) or read_private(root / FOLDER / STATE).get("host") or LOOPBACK
    before = read_private(root / FOLDER / "stores.json")  # of a platform that was in such stores
    for name in STORES:
        if os.environ.get(name) or before.get(name):
            raise RecipeError(
                f"{name} is set, but `rewardsmith up` keeps its data in this tree. For PostgreSQL and S3 start the "
                "services of infra/compose.yaml (docs/containers.md), or set PREFECT_API_URL and MLFLOW_TRACKING_URI "
                "to servers of your own. Here unset it and remove .work/platform/stores.json"
            )
    try:
        socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RecipeError(
            f"{HOST} is {host}, which is neither an IPv4 address nor the name of a host with one ({error}). Set it to "
            f"an address of this machine, to {EVERYWHERE} for all of them, or to {LOOPBACK}"
        ) from None
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)  # its files have secrets: passwords, databases, logs
    path = folder / "credentials.json"
    known = read_private(path)
    if not {"password", "secret"} <= {*known}:
        known = {"user": USER, "password": secrets.token_urlsafe(24), "secret": secrets.token_urlsafe(32)}
        write_private(path, known)
    return Settings(root, host, dict(ports), str(known["password"]), str(known["secret"]))
