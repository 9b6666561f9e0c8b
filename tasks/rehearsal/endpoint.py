"""Endpoint of a rehearsal: judges, a teacher and LanguageTool, played by this machine.

POST /v1/chat/completions    a reply of `replies.yaml` to the request's template, with log-probabilities where asked
POST /v2/check               LanguageTool: every fifth word is wrong

A reply follows from the text of the request alone, so that a repeated rehearsal has the same results.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from rlhf_core.aspects.language_tool import URL_VARIABLE as LANGUAGETOOL
from rlhf_core.evaluation.judges.templates import TEMPLATES
from rlhf_core.reasoning.templates import REWRITTEN
from tasks.params.yaml_files import read_mapping

#: Replies by the name of a template.
REPLIES: Mapping[str, Sequence[str]] = read_mapping(Path(__file__).with_name("replies.yaml"))
MODEL = "rehearsal"
_SOLUTION = re.compile(r"Correct solution: (.*?)\nPrediction:", re.DOTALL)


def completion(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a chat completion for a request's body, whose system message says its template."""
    texts = {message["role"]: message["content"] for message in body["messages"]}
    names = [name for name, template in TEMPLATES.items() if template.system == texts.get("system", "")]
    if names == ["locate_error", "rewrite_solution"]:
        names = names[texts["user"].rstrip().endswith(REWRITTEN) :]
    draw = int(sha256(texts["user"].encode("utf-8", "surrogatepass")).hexdigest()[:8], 16)
    known = REPLIES[names[0]] or _SOLUTION.findall(texts["user"])[-1:]
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice["message"] = {"role": "assistant", "content": known[draw % len(known)]}
    if body.get("logprobs"):
        chance = (draw % 97 + 1) / 99
        top = [{"token": "m", "logprob": math.log(chance)}, {"token": "M", "logprob": math.log(0.99 - chance)}]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    usage = {"prompt_tokens": len(texts["user"].split()), "completion_tokens": 1}
    return {"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


def checked(text: str) -> dict[str, Any]:
    """Returns LanguageTool's answer about a text; it counts in UTF-16 code units."""
    words = list(re.finditer(r"\S+", text))[::5]
    starts = [len(text[: word.start()].encode("utf-16-le")) // 2 for word in words]
    lengths = [len(word[0].encode("utf-16-le")) // 2 for word in words]
    return {"matches": [{"offset": o, "length": n, "message": MODEL} for o, n in zip(starts, lengths, strict=True)]}


class _Handler(BaseHTTPRequestHandler):
    """Handler of the requests of a rehearsal."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answers a request; 400 with the reason for one that is not in protocol."""
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode("utf-8")
        status = 200
        try:
            if self.path.endswith("/v2/check"):
                payload = checked(parse_qs(sent, keep_blank_values=True)["text"][0])
            else:
                payload = completion(json.loads(sent))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            status, payload = 400, {"error": {"message": f"not in protocol: {type(error).__name__}: {error}"}}
        content = json.dumps(payload).encode("ascii")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Keeps requests out of the terminal."""


@contextmanager
def endpoints() -> Iterator[dict[str, str]]:
    """Runs the server; yields the environment variables by which stages find it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="rehearsal endpoints", daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        found = {LANGUAGETOOL: address}
        for name in ("JUDGE", "SECOND_JUDGE", "TEACHER"):
            found |= {f"REWARDSMITH_{name}_URL": f"{address}/v1", f"REWARDSMITH_{name}_MODEL": MODEL}
            found[f"REWARDSMITH_{name}_KEY"] = MODEL
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
