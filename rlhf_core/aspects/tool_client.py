"""Asking tools behind rewards: batched, cached on disk, concurrent, with bounded retries; never an invented score.

A tool is a function from a text to an answer (a call of a server, mostly waiting). `prefetch` starts calls and returns
at once, so that they run beside generation; `answers` waits for what is not there yet. Equal texts are asked once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from rlhf_core.errors import RecipeError, ToolError
from rlhf_core.evaluation.judges.cache import AnswerCache, digest
from rlhf_core.evaluation.judges.openai_endpoint import Failure, try_again
from rlhf_core.typed import Checked, at_least

A = TypeVar("A")


@dataclass(frozen=True)
class ToolConfig(Checked):
    """Request settings of a tool.

    Attributes:
        concurrency: calls under way at once.
        retries: further tries of a call after a temporary failure (no connection, too slow, an invalid answer).
        backoff_s, max_backoff_s: first and longest pause between tries; doubles, with a quarter of jitter.
        cache_path: file of answers, or None for this process only.
    """

    concurrency: Annotated[int, at_least(1)] = 16
    retries: Annotated[int, at_least(0)] = 4
    backoff_s: Annotated[float, at_least(0)] = 0.25
    max_backoff_s: float = 8.0
    cache_path: str | Path | None = None

    def _check_together(self) -> None:
        if self.max_backoff_s < self.backoff_s:
            raise RecipeError(
                f"max_backoff_s is {self.max_backoff_s}; it must be at least backoff_s, which is {self.backoff_s}"
            )


@dataclass
class ToolUsage:
    """Requests to a tool so far, and the seconds that `answers` waited for them."""

    calls: int = 0
    tries_again: int = 0
    from_cache: int = 0
    failed: int = 0
    waited_s: float = 0.0


class ToolClient(Generic[A]):
    """Answers of one tool.

    Args:
        name: of the tool and its address, for messages.
        identity: what an answer depends on beside the text (tool, language, rules); the cache's key.
        ask: the tool; a `Failure` is tried again. Called from several threads.
        read: an answer, which is JSON, as what the caller wants; raises `Failure` on nonsense, which is then asked
            again and never stored.
        config: how to ask.
    """

    def __init__(
        self,
        name: str,
        identity: dict[str, Any],
        ask: Callable[[str], Any],
        read: Callable[[Any, str], A],
        config: ToolConfig | None = None,
    ) -> None:
        self.name, self.config, self.usage = name, config or ToolConfig(), ToolUsage()
        self._identity, self._ask, self._read = identity, ask, read
        self._cache = AnswerCache(self.config.cache_path) if self.config.cache_path is not None else None
        self._known: dict[str, A] = {}
        self._pending: dict[str, Future[A]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._stop = threading.Event()

    def prefetch(self, texts: Sequence[str]) -> None:
        """Starts the calls for texts that are neither known nor asked for, and returns."""
        with self._lock:
            for text in texts:
                if text in self._known or text in self._pending:
                    continue
                if self._from_cache(text):
                    continue
                if self._pool is None:
                    self._stop.clear()
                    self._pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix=self.name)
                self._pending[text] = self._pool.submit(self._answer, text)

    def answers(self, texts: Sequence[str]) -> list[A]:
        """Returns the answer to each text, in order; waits for calls under way.

        Raises:
            ToolError: a call that failed for good. What was answered stays cached, the rest is given up.
        """
        self.prefetch(texts)
        started = time.monotonic()
        try:
            for text in dict.fromkeys(texts):
                pending = self._pending.get(text)
                if pending is not None:
                    self._known[text] = pending.result()
                    with self._lock:
                        self._pending.pop(text, None)
        except Failure as failure:
            self.close()
            raise ToolError(f"{self.name}: {failure}. No score is made up: training stops here") from None
        except BaseException:
            self.close()
            raise
        finally:
            self.usage.waited_s += time.monotonic() - started
        found = [self._known[text] for text in texts]
        if len(self._known) > _KEPT:
            self._known.clear()
        return found

    def close(self) -> None:
        """Gives up calls under way and frees the threads; the next call starts afresh."""
        self._stop.set()
        with self._lock:
            pool, self._pool = self._pool, None
            self._pending.clear()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _from_cache(self, text: str) -> bool:
        row = self._cache.get(self._key(text)) if self._cache is not None else None
        if row is None:
            return False
        try:
            self._known[text] = self._read(json.loads(row["text"]), text)
        except (ValueError, Failure):
            return False
        self.usage.from_cache += 1
        return True

    def _key(self, text: str) -> str:
        return digest({**self._identity, "text": text})

    def _answer(self, text: str) -> A:
        def ask() -> tuple[Any, A]:
            with self._lock:
                self.usage.calls += 1
            answer = self._ask(text)
            return answer, self._read(answer, text)

        try:
            answer, found = try_again(ask, self.config, self._stop, self._count_try)
        except Failure as failure:
            with self._lock:
                self.usage.failed += 1
            tried = "" if failure.final else f" ({self.config.retries + 1} tries)"
            raise Failure(f"{failure}{tried}", final=True) from None
        if self._cache is not None:
            self._cache.put(self._key(text), json.dumps(answer, ensure_ascii=False))
        return found

    def _count_try(self) -> None:
        with self._lock:
            self.usage.tries_again += 1


#: Answers kept in memory; beyond them the memory is emptied between calls, the disk keeps all.
_KEPT = 100_000
