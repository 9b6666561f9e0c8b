"""Messages between a trainer and its vLLM process: JSON and tensors over a socket.

A message is two lengths (8 bytes each, big-endian), a JSON object, and tensors as safetensors. Nothing in it can run
code, whoever writes it.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

LENGTHS = struct.Struct(">QQ")
#: Most bytes of the JSON and of the tensors of a message; weights go by a file.
MOST_JSON, MOST_TENSORS = 2**28, 2**33


class Ended(Exception):
    """The other side has ended, or does not speak this protocol."""


def send(channel: socket.socket, fields: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Sends a message.

    Raises:
        Ended: nobody reads it.
    """
    text = json.dumps(fields).encode()
    body = save({name: values.detach().cpu().contiguous() for name, values in tensors.items()}) if tensors else b""
    try:
        channel.sendall(LENGTHS.pack(len(text), len(body)) + text + body)
    except OSError as error:
        raise Ended(f"a message cannot be sent ({error.strerror or error})") from None


def receive(channel: socket.socket) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the next message: its JSON object and its tensors.

    Raises:
        Ended: there is none, it ends early, or it is not a message.
    """
    json_bytes, tensor_bytes = LENGTHS.unpack(_exactly(channel, LENGTHS.size))
    if json_bytes > MOST_JSON or tensor_bytes > MOST_TENSORS:
        raise Ended(f"a message says that it has {json_bytes} and {tensor_bytes} bytes")
    text, body = _exactly(channel, json_bytes), _exactly(channel, tensor_bytes)
    try:
        fields = json.loads(text)
        tensors = load(body) if body else {}
    except Exception as error:  # safetensors raises a class of its own
        raise Ended(f"a message cannot be read ({error})") from None
    if not isinstance(fields, dict):
        raise Ended("a message is not a JSON object")
    return fields, tensors


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = channel.recv(min(2**20, count - len(parts)))
        except OSError as error:
            raise Ended(f"no message arrives ({error.strerror or error})") from None
        if not part:
            raise Ended("the other side has ended")
        parts += part
    return bytes(parts)
