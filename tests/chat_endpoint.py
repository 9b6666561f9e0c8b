"""A chat endpoint on this machine that answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Status, content and headers of an answer.
Answer = tuple[int, bytes, Mapping[str, str]]


def completion(text: Any, logprobs: Mapping[str, float] | None = None, **more: Any) -> Answer:
    """Returns an answer with a text."""
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
    if logprobs is not None:
        top = [{"token": token, "logprob": value} for token, value in logprobs.items()]
        choice["logprobs"] = {"content": [{"token": text, "top_logprobs": top}]}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return 200, json.dumps({"choices": [choice], "usage": usage, **more}).encode(), {}


class ChatEndpoint:
    """The endpoint, running in threads of this process while the context lasts.

    Args:
        script: answers in their order, or functions that make one of a request's body; the last one repeats.

    Attributes:
        url: of its API.
        bodies, headers: of the requests so far.
    """

    def __init__(self, *script: Answer | Callable[[Any], Answer]) -> None:
        self.script, self.bodies, self.headers = [*script], list[Any](), list[dict[str, str]]()
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.bodies.append(body)
                    outer.headers.append(dict(self.headers))
                    step = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                status, content, headers = step(body) if callable(step) else step
                with suppress(OSError):  # the client gave up
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(content))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *words: Any) -> None:
                """Keeps the test's output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> ChatEndpoint:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
