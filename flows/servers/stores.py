"""Check of the platform's stores before anything starts: the disk and the object store respond, and both
stores and the host are the same as last time."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from flows.servers.settings import Settings
from rlhf_core.errors import RewardsmithError
from tasks.running import machine
from tasks.running.platform_state import read_private, write_private

#: Databases and logs need this much to begin with.
FREE_MB = 256
NOTE = "stores.json"
VARIABLES = {"database": "REWARDSMITH_DATABASE", "artifacts": "REWARDSMITH_ARTIFACTS"}
#: Kept beside the stores: the address that the servers bind.
HOST = "host"
#: Written to see whether the key may write, and removed; one name, so that at most one object ever stays.
CHECK = "rewardsmith-check"


def _places(settings: Settings) -> dict[str, str]:
    """Returns the addresses of both stores, without user and password."""
    database = settings.shown_database("mlflow").removesuffix("_mlflow") if settings.database else "SQLite"
    return {"database": database, "artifacts": settings.artifacts}


def refuse_others(settings: Settings) -> None:
    """Refuses stores and a host other than the last time's: a variable that is not set would hide all that there is,
    or make servers that run look as if they did not answer.

    Raises:
        RewardsmithError: with both places.
    """
    before, host = read_private(settings.folder / NOTE), host_of(settings)
    if host != settings.host:
        raise RewardsmithError(
            f"this platform's servers bind {host}, and REWARDSMITH_HOST now says {settings.host}. Set the old value "
            f"(not set for 127.0.0.1); or, to bind {settings.host}, run `rewardsmith down` first"
        )
    for name, now in _places(settings).items():
        if before.get(name, now) != now:
            raise RewardsmithError(
                f"this platform keeps its {name} in {before[name]}, and {VARIABLES[name]} now says {now}. Set it as it "
                f"was (not set for SQLite and mlruns/); or, to start afresh in {now}, remove {settings.folder / NOTE}"
            )


def remember(settings: Settings) -> None:
    """Notes the stores and the host in use."""
    write_private(settings.folder / NOTE, {**_places(settings), HOST: settings.host})


def host_of(settings: Settings) -> str:
    """Returns the address that the servers bound the last time; before the first, the one that they would."""
    return str(read_private(settings.folder / NOTE).get(HOST, settings.host))


def forget_host(folder: Path) -> None:
    """Lets the next start bind another address: nothing is bound any more."""
    note = read_private(folder / NOTE)
    if note.pop(HOST, None) is not None:
        write_private(folder / NOTE, note)


def refuse_full_disk(settings: Settings) -> None:
    """Refuses to start servers on a disk that is about to be full.

    Raises:
        RewardsmithError: with what is free.
    """
    free = machine.free_disk_gb(settings.root) * 1024
    if free < FREE_MB:
        text = f"{settings.root} has {free:.0f} MiB free, and the platform needs {FREE_MB} to begin with"
        raise RewardsmithError(machine.full_disk(text))


def check_artifacts(settings: Settings) -> None:
    """Writes, reads and lists in the object store, as MLflow will.

    Raises:
        RewardsmithError: it does not answer, lacks the bucket, or refuses the key.
    """
    if not settings.artifacts.startswith("s3://"):
        return
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    parts = urlsplit(settings.artifacts)
    bucket, key = parts.netloc, "/".join(filter(None, [parts.path.strip("/"), CHECK]))
    address = os.environ.get("MLFLOW_S3_ENDPOINT_URL")
    limits = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2})
    doing = "write to"
    try:
        client = boto3.Session().client("s3", endpoint_url=address, config=limits)
        client.put_object(Bucket=bucket, Key=key, Body=b"")
        doing = "read from"
        client.get_object(Bucket=bucket, Key=key)
        doing = "list"
        client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
        doing = "delete from"
        client.delete_object(Bucket=bucket, Key=key)
    except ClientError as error:
        raise RewardsmithError(_refusal(error.response, bucket, doing, settings.artifacts)) from None
    except (BotoCoreError, ValueError) as error:
        raise RewardsmithError(
            f"the object store {address or 'of AWS'} cannot be used: {error}. Check MLFLOW_S3_ENDPOINT_URL, "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None


def _refusal(response: object, bucket: str, doing: str, place: str) -> str:
    """Returns an answer of the object store in words."""
    answer = response if isinstance(response, dict) else {}
    code, message = (str(answer.get("Error", {}).get(name, "")) for name in ("Code", "Message"))
    if code in ("NoSuchBucket", "404"):
        return f"the object store has no bucket {bucket}. Create it, or correct REWARDSMITH_ARTIFACTS ({place})"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"):
        return f"the object store refuses the key: {message} Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if code in ("AccessDenied", "403"):
        return (
            f"the object store does not let this key {doing} {place}. It needs s3:PutObject, s3:GetObject, "
            f"s3:DeleteObject and s3:ListBucket on the bucket {bucket}"
        )
    return f"the object store refuses to {doing} {place}: {code} {message}"
