"""A small HTTP server that speaks LanguageTool's `/v2/check` for the testbed's English, and can be made to fail.

Its modes are those in which a tool fails while training runs: `ok`; `slow` never answers in time; `error` answers 503;
`garbage` no JSON; `form` JSON of another form; `span` an error outside the text; `stopped` goes down. `faults` says
which calls meet one.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

from rlhf_core.testbed.translation_grammar import grammar_errors


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        server: Any = self.server
        server.owner.connections.append(self.connection)

    def do_POST(self) -> None:
        server: Any = self.server
        owner: ToolServer = server.owner
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode("utf-8")
        form = {name: values[0] for name, values in parse_qs(body, keep_blank_values=True).items()}
        status, answer = owner.answer(form.get("text", ""), form.get("disabledRules", "").split(","))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no news."""


class ToolServer:
    """The server, running in threads of this process while the context lasts.

    Args:
        latency: seconds before each answer.
        mode: see the module.
        faults: another mode for some calls, by their numbers from 0 on: {"slow": range(20, 30)}.
        port: 0 for a free one.

    Attributes:
        calls: requests so far.
        most_at_once: the most requests under way at one time.
        connections: sockets of the clients.
    """

    def __init__(
        self, latency: float = 0.0, mode: str = "ok", faults: Mapping[str, range] | None = None, port: int = 0
    ) -> None:
        self.latency, self.mode, self.faults = latency, mode, faults or {}
        self.calls = self.most_at_once = self._under_way = 0
        self.connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self  # type: ignore[attr-defined]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ToolServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops answering, open connections included, as a server that goes down does."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def answer(self, text: str, disabled: Sequence[str] = ()) -> tuple[int, bytes]:
        """Status and body of one request."""
        with self._lock:
            mode = next((fault for fault, calls in self.faults.items() if self.calls in calls), self.mode)
            self.calls += 1
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        if mode == "stopped":
            self.stop()
        time.sleep(30.0 if mode == "slow" else self.latency)
        with self._lock:
            self._under_way -= 1
        if mode == "error":
            return 503, b"overloaded"
        if mode == "garbage":
            return 200, b"<html>no json</html>"
        if mode == "form":
            return 200, b'{"matches": [{"offset": "first", "length": 1}]}'
        if mode == "span":
            return 200, b'{"matches": [{"offset": 0, "length": 100000}]}'
        matches = []
        for first, last in grammar_errors(text):
            if (rule := text[first:last]) not in disabled:  # a rule of its own for each word
                start, end = _units(text[:first]), _units(text[:last])
                matches.append({"offset": start, "length": end - start, "rule": {"id": rule}})
        return 200, json.dumps({"matches": matches}).encode()


def _units(text: str) -> int:
    """UTF-16 code units, in which LanguageTool counts."""
    return len(text.encode("utf-16-le")) // 2
