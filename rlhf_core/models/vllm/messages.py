"""Messages between a trainer and its vLLM process: JSON, then tensors as safetensors, over a connection.

Nothing in a message can run code, whoever writes it: no pickles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from safetensors.torch import load, save
from torch import Tensor


class ConnectionEnded(Exception):
    """The other side has ended, or says nothing."""


def send(channel: Connection, fields: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Sends a message; raises ConnectionEnded where nobody reads it."""
    try:
        channel.send_bytes(json.dumps(fields).encode())
        channel.send_bytes(save({name: value.detach().cpu().contiguous() for name, value in (tensors or {}).items()}))
    except OSError as error:
        raise ConnectionEnded(f"a message cannot be sent ({error.strerror or error})") from None


def receive(channel: Connection, seconds: float | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the next message's JSON object and tensors; raises ConnectionEnded without one in `seconds`."""
    try:
        if not channel.poll(seconds):
            raise ConnectionEnded(f"no message arrives within {seconds:g} s")
        return json.loads(channel.recv_bytes()), load(channel.recv_bytes())
    except (EOFError, OSError):
        raise ConnectionEnded("the other side has ended") from None
