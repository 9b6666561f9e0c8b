"""Calls of a service over HTTP, such as a judge or a tool: side by side, tried again within bounds, cached on disk."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.lazy import httpx
from rlhf_core.typed import Checked, at_least, between

#: Most bytes of an answer.
LONGEST = 64 << 20
Q = TypeVar("Q")
Row = Mapping[str, Any]


# --- answers on disk -----------------------------------------------------------------------------------------------


def digest(parts: Mapping[str, Any]) -> str:
    """Returns sha256 of the canonical JSON of a request: equal parts, in any order, give equal keys."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def storable(text: str) -> str:
    """Returns a text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class AnswerCache:
    """Answers by key, in a file that grows by one JSON line per answer, or without a path in memory.

    Each line is written with one append, so writers of several threads or processes do not mix. A line holds the
    digest of its other fields: one that was cut or changed is skipped. The last line of a key wins.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        content = b""
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise DataError(f"the cache of answers cannot be read ({error.strerror})", file=str(self.path)) from error
        self._needs_newline = bool(content) and not content.endswith(b"\n")
        for line in content.split(b"\n"):
            self._load(line)

    def _load(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            whole = row.pop("sha256") == digest(row) and isinstance(row["key"], str) and isinstance(row["text"], str)
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            return
        if whole:
            self._rows[row["key"]] = row | {"text": storable(row["text"])}

    def get(self, key: str) -> dict[str, Any] | None:
        """Returns the stored row (with its `text`), or None."""
        return self._rows.get(key)

    def put(self, key: str, text: str, **facts: str | int | float) -> None:
        """Stores an answer with a few facts about it (never credentials)."""
        row = {"key": key, "text": text, **facts}
        line = json.dumps({**row, "sha256": digest(row)}, ensure_ascii=True).encode("ascii") + b"\n"
        with self._lock:
            self._rows[key] = row
            if self.path is not None:
                with self.path.open("ab", buffering=0) as file:
                    file.write(b"\n" + line if self._needs_newline else line)
                self._needs_newline = False


# --- calls ---------------------------------------------------------------------------------------------------------


class CallFailed(Exception):
    """A failed call of a service; `final`: another try is useless, `stop`: so are other calls, `wait`: the pause in
    seconds that the service asked for."""

    def __init__(self, reason: str, *, final: bool = False, stop: bool = False, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.final, self.stop, self.wait = final, stop, wait


@dataclass(frozen=True, kw_only=True)
class CallSettings(Checked):
    """Settings of the calls of a service.

    Attributes:
        concurrency: calls under way at once.
        retries: further tries of a call after a passing failure (connection, timeout, overload, an invalid answer).
        backoff_s, max_backoff_s: first and longest pause between tries; doubles, with a quarter of jitter.
        cache_path: file of answers, or None for this process only.
    """

    concurrency: Annotated[int, between(1, 1024)] = 16
    retries: Annotated[int, at_least(0)] = 4
    backoff_s: Annotated[float, at_least(0)] = 0.25
    max_backoff_s: Annotated[float, at_least(0)] = 8.0
    cache_path: str | Path | None = None


@dataclass
class Usage:
    """Requests to a service so far, tokens as it reported them, their cost, and the seconds that `answers` waited."""

    calls: int = 0
    tries_again: int = 0
    from_cache: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    waited_s: float = 0.0


class Service(Generic[Q]):
    """Answers of a service to questions, each known by a key: the digest of all that its answer depends on.

    Args:
        name: for threads.
        ask: one call, which returns the row to store, with its `text`; a `CallFailed` is tried again. Called from
            several threads.
        settings: of the calls.
    """

    def __init__(self, name: str, ask: Callable[[Q], dict[str, Any]], settings: CallSettings) -> None:
        self.name, self.settings, self.usage = name, settings, Usage()
        self.cache = AnswerCache(settings.cache_path)
        self.lock = threading.Lock()
        self._ask = ask
        self._pending: dict[str, Future[Row]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._stop = threading.Event()

    def prefetch(self, questions: Mapping[str, Q]) -> None:
        """Starts the calls for questions that are neither known nor asked for, and returns."""
        with self.lock:
            for key, question in questions.items():
                if key in self._pending:
                    continue
                if self.cache.get(key) is not None:
                    self.usage.from_cache += 1
                    continue
                if self._pool is None:
                    self._stop.clear()
                    self._pool = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix=self.name)
                self._pending[key] = self._pool.submit(self._answer, key, question)

    def answers(self, questions: Mapping[str, Q], unanswered: Row | None = None) -> dict[str, Row]:
        """Returns the row of each question's answer by key; waits for calls under way.

        Args:
            questions: by key.
            unanswered: stands for the answer to a question whose call failed for good, unless all calls would; None
                raises the failure.

        Raises:
            CallFailed: a call that failed for good. What was answered stays cached, the rest is given up.
        """
        self.prefetch(questions)
        started, found = time.monotonic(), dict[str, Row]()
        try:
            for key in questions:
                pending = self._pending.get(key)
                try:
                    found[key] = self.cache.get(key) or {} if pending is None else pending.result()
                except CallFailed as failure:
                    self.usage.failed += 1
                    if failure.stop or unanswered is None:
                        raise
                    found[key] = unanswered
                with self.lock:
                    self._pending.pop(key, None)
        except BaseException:
            self.close()
            raise
        finally:
            self.usage.waited_s += time.monotonic() - started
        return found

    def close(self) -> None:
        """Gives up calls under way and frees the threads; the next call starts afresh."""
        self._stop.set()
        with self.lock:
            pool, self._pool = self._pool, None
            self._pending.clear()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _answer(self, key: str, question: Q) -> Row:
        """Returns the answer of a call, which is stored as it arrives; tried again with pauses that double."""
        for attempt in range(self.settings.retries + 1):
            with self.lock:
                self.usage.calls += 1
                self.usage.tries_again += attempt > 0
            try:
                row = self._ask(question)
            except CallFailed as failure:
                if failure.final or attempt == self.settings.retries:
                    tried = f" ({attempt + 1} tries)" if attempt else ""
                    raise CallFailed(f"{failure}{tried}", final=True, stop=failure.stop) from None
                pause = self.settings.backoff_s * 2**attempt * (1.0 + 0.25 * random.random())
                if self._stop.wait(min(max(failure.wait, pause), self.settings.max_backoff_s)):
                    raise
            else:
                self.cache.put(key, **row)
                return row
        raise AssertionError("the last try returns or raises")


def check_address(url: str) -> None:
    """Refuses what is not the address of a service; one with `${NAME}` is known when its variable is.

    Raises:
        RecipeError: says what an address looks like.
    """
    if "${" in url:
        return
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise RecipeError(f"it must be an http or https address ({error})") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise RecipeError("it must be an http or https address, as in http://127.0.0.1:8000/v1")
    if address.userinfo:
        raise RecipeError("it must not contain credentials; name an environment variable by api_key_variable instead")


def client(concurrency: int, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Returns a client for `post`, for several threads.

    Raises:
        RecipeError: a proxy or certificate that the environment names cannot be used.
    """
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    try:
        return httpx.Client(limits=limits, headers={"Accept-Encoding": "gzip", **(headers or {})})
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
        raise RecipeError(
            f"a proxy or certificate of the environment cannot be used ({error}); correct or unset ALL_PROXY, "
            "HTTP_PROXY, HTTPS_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from None


def post(client: httpx.Client, url: str, seconds: float, **content: Any) -> httpx.Response:
    """Returns the answer to a POST.

    Raises:
        CallFailed: no connection, no whole answer within some seconds, an answer that is longer than `LONGEST` bytes
            when it is unpacked, or one that is not HTTP.
    """
    until, body = time.monotonic() + seconds, bytearray()
    try:
        with client.stream("POST", url, timeout=seconds, **content) as answer:  # whose timeout is of each silence
            packed = answer.headers.get("content-encoding", "identity").lower()
            if packed not in ("identity", "gzip"):
                raise CallFailed(f"the answer is packed as '{packed}'; only gzip was asked for", final=True)
            unpacking = zlib.decompressobj(wbits=31)
            for part in answer.iter_raw():
                body += part if packed == "identity" else unpacking.decompress(part, LONGEST + 1 - len(body))
                if len(body) > LONGEST:
                    raise CallFailed(f"the answer is longer than {LONGEST >> 20} MiB", final=True)
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the answer has not ended")
        headers = [(name, value) for name, value in answer.headers.items() if name != "content-encoding"]
        return httpx.Response(answer.status_code, headers=headers, content=bytes(body), request=answer.request)
    except httpx.TimeoutException:
        raise CallFailed(f"no answer within {seconds} s; is the server overloaded?") from None
    except (httpx.TransportError, zlib.error) as error:
        raise CallFailed(f"cannot be reached ({type(error).__name__}: {error}); is the server running?") from None
