"""Prefect flows: they pass paths, digests and names, never tensors.

Importing this package sets what every process of a flow needs before Prefect is imported: no telemetry, and
Prefect's own files in the working tree (`.work/prefect`, mode 0700) unless PREFECT_HOME or PREFECT_API_URL say
otherwise.
"""

import os
from contextlib import suppress
from pathlib import Path

DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "true",
    "HF_HUB_OFFLINE": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_CLIENT_MAX_RETRIES": "3",  # each request waits 14 s for a server that has gone
}
for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
if not {"PREFECT_API_URL", "PREFECT_HOME"} & {*os.environ}:
    _home = Path.cwd() / ".work" / "prefect"
    _home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(PermissionError):  # another user's; the server says that it cannot write there
        _home.chmod(0o700)
    os.environ["PREFECT_HOME"] = str(_home)
