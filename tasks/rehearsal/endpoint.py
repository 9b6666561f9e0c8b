"""Endpoints of a rehearsal: judges, a teacher and LanguageTool, played by one server of this machine that answers in
protocol.

POST /v1/chat/completions    a verdict in the form that the request's template asks for; log-probabilities where it does
POST /v1/completions         echoed prompts with log-probabilities, as a zero-shot reward model
POST /v2/check               LanguageTool: every fifth word is wrong

A verdict follows from the text of the request alone, so that a repeated rehearsal has the same results. A teacher's
answer is the correct solution of the question, which its prompt holds. Replies of a file take the place of the verdicts
of their templates.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from rlhf_core.aspects.language_tool import URL_VARIABLE as LANGUAGETOOL
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.errors import DataError, hint
from rlhf_core.evaluation.judges.templates import TEMPLATES
from rlhf_core.reasoning.templates import REWRITTEN

#: The name that the endpoints give as the model's.
MODEL = "rehearsal"
_SOLUTION = re.compile(r"Correct solution: (.*?)\nPrediction:", re.DOTALL)
_REQUESTED = ("JUDGE", "SECOND_JUDGE", "TEACHER")


def _rewritten(prompt: str, _: int) -> str:
    return _SOLUTION.findall(prompt)[-1]


#: A verdict of each template, given the request and a number that follows from it.
ANSWERS: Mapping[str, Callable[[str, int], str]] = {
    "alpaca_eval": lambda _, draw: "mM"[draw % 2],
    "arena_hard": lambda _, draw: f"My verdict: [[{('A>>B', 'A>B', 'A=B', 'B>A', 'B>>A')[draw % 5]}]]",
    "mt_bench": lambda _, draw: f"Rating: [[{draw % 10 + 1}]]",
    "mt_bench_turns": lambda _, draw: f"Rating: [[{draw % 10 + 1}]]",
    "mt_bench_reference": lambda _, draw: f"Rating: [[{draw % 10 + 1}]]",
    "mt_bench_reference_turns": lambda _, draw: f"Rating: [[{draw % 10 + 1}]]",
    "pairwise": lambda _, draw: f"A rehearsal.\nBetter: {'ABN'[draw % 3]}",
    "ranking": lambda _, draw: str(
        [{"model": "model_1", "rank": 1 + draw % 2}, {"model": "model_2", "rank": 2 - draw % 2}]
    ),
    "output_pair": lambda _, draw: f"Output ({'ab'[draw % 2]})",
    "locate_error": lambda _, __: "[0]",
    "rewrite_solution": _rewritten,
}


def read_replies(file: Path) -> dict[str, list[str]]:
    """Returns the replies of a file of JSON Lines by template: `{"template": "arena_hard", "reply": "..."}`.

    Raises:
        DataError: a file that cannot be read, an unknown template, or a reply that is no text, with its row.
    """
    found: dict[str, list[str]] = {}
    for row, line in enumerate(read_jsonl(file), start=1):
        name, reply = line.get("template"), line.get("reply")
        if not isinstance(name, str) or name not in ANSWERS:
            raise DataError(f"{name!r} is unknown{hint(name, ANSWERS)}", file=str(file), row=row, field="template")
        if not isinstance(reply, str):
            raise DataError(f"it is {reply!r}, not a text", file=str(file), row=row, field="reply")
        found.setdefault(name, []).append(reply)
    return found


def template_of(system: str, user: str) -> str:
    """Returns the name of the template that a request was made with.

    Raises:
        ValueError: no template has such a system message.
    """
    names = [name for name, template in TEMPLATES.items() if template.system == system]
    if names == ["locate_error", "rewrite_solution"]:
        return names[user.rstrip().endswith(REWRITTEN)]
    if not names:
        raise ValueError("no judge or teacher of this project asks with such a system message")
    return names[0]


def completion(body: Mapping[str, Any], replies: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Returns a chat completion for a request's body.

    Args:
        replies: by template, what is answered instead of a verdict of `ANSWERS`.
    """
    texts = {message["role"]: message["content"] for message in body["messages"]}
    name = template_of(texts.get("system", ""), texts["user"])
    draw = int(sha256(texts["user"].encode("utf-8", "surrogatepass")).hexdigest()[:8], 16)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    given = (replies or {}).get(name)
    reply = given[draw % len(given)] if given else ANSWERS[name](texts["user"], draw)
    choice["message"] = {"role": "assistant", "content": reply}
    if body.get("logprobs"):
        chance = (draw % 97 + 1) / 99
        top = [{"token": "m", "logprob": math.log(chance)}, {"token": "M", "logprob": math.log(0.99 - chance)}]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    usage = {"prompt_tokens": len(texts["user"].split()), "completion_tokens": 1}
    return {"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


def echoed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns echoed prompts with log-probabilities for a request's body."""
    choices = []
    for index, prompt in enumerate(body["prompt"]):
        found = list(re.finditer(r"\s*\S+(?:\s+\Z)?", prompt))
        values = [None, *(-1.0 - len(token[0]) % 7 / 10 for token in found[1:])][: len(found)]
        told = {"tokens": [token[0] for token in found], "text_offset": [token.start() for token in found]}
        choices.append({"index": index, "text": prompt, "logprobs": {**told, "token_logprobs": values}})
    return {"object": "text_completion", "model": MODEL, "choices": choices}


def checked(text: str) -> dict[str, Any]:
    """Returns LanguageTool's answer about a text; it counts in UTF-16 code units."""
    units = [0]
    for character in text:
        units.append(units[-1] + 1 + (ord(character) > 0xFFFF))
    words = list(re.finditer(r"\S+", text))[::5]
    spans = [(units[word.start()], units[word.end()]) for word in words]
    return {"matches": [{"offset": start, "length": end - start, "message": MODEL} for start, end in spans]}


class _Handler(BaseHTTPRequestHandler):
    """Handler of the requests of a rehearsal."""

    protocol_version = "HTTP/1.1"
    replies: Mapping[str, Sequence[str]]

    def do_POST(self) -> None:
        """Answers a request; 400 with the reason for one that is not in protocol."""
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode("utf-8")
        try:
            if self.path.endswith("/v2/check"):
                self._send(200, checked(parse_qs(sent, keep_blank_values=True)["text"][0]))
            elif self.path.endswith("/chat/completions"):
                self._send(200, completion(json.loads(sent), self.replies))
            elif self.path.endswith("/completions"):
                self._send(200, echoed(json.loads(sent)))
            else:
                self._send(404, {"error": {"message": f"no such endpoint: {self.path}"}})
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._send(400, {"error": {"message": f"not in protocol: {type(error).__name__}: {error}"}})

    def _send(self, status: int, payload: Mapping[str, Any]) -> None:
        content = json.dumps(payload).encode("ascii")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Keeps requests out of the terminal."""


@contextmanager
def endpoints(replies: Mapping[str, Sequence[str]] | None = None) -> Iterator[dict[str, str]]:
    """Runs the server; yields the environment variables by which stages find it.

    Args:
        replies: of judges and teachers by template (`read_replies`).
    """
    handler = type("_HandlerOfReplies", (_Handler,), {"replies": replies or {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="rehearsal endpoints", daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        found = {LANGUAGETOOL: address}
        for name in _REQUESTED:
            found |= {f"REWARDSMITH_{name}_URL": f"{address}/v1", f"REWARDSMITH_{name}_MODEL": MODEL}
            found[f"REWARDSMITH_{name}_KEY"] = MODEL
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
