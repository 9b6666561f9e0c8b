"""A language model as judge over any OpenAI-compatible chat endpoint.

Answers are cached on disk as they arrive, so an interrupted run resumes without paying twice. The key comes
from an environment variable and reaches nothing but the request header.
"""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from rlhf_core.errors import JudgeError, RecipeError
from rlhf_core.evaluation.judges.cache import AnswerCache, digest, storable
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.replies import CUT_OFF, preference_from_logprobs
from rlhf_core.evaluation.judges.templates import get_template, render
from rlhf_core.lazy import httpx
from rlhf_core.typed import Checked, above, accepted_by, at_least, between

T = TypeVar("T")

_TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_LONGEST_ANSWER = 16 << 20
#: Least finite log-probability, and the most that rounding adds to a probability.
_LEAST, _ROUNDING = 1e300, 1e-3
_CONFIGURATION = {401, 402, 403, 404, 405}


def check_address(url: str) -> None:
    """Refuses what is not the address of an endpoint; one with `${NAME}` is known when its variable is.

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


@dataclass(frozen=True)
class EndpointConfig(Checked):
    """Address and request settings of an endpoint.

    Attributes:
        base_url: up to and including the version, e.g. `http://127.0.0.1:8000/v1`; without credentials.
        model: model name to send.
        api_key_variable: environment variable that holds the key, or None for an endpoint without one.
        timeout_s: of one call with its whole answer, seconds.
        retries: further tries of a call after a passing failure (connection, timeout, 408, 429, 5xx, an
            answer that is not a chat completion).
        backoff_s, max_backoff_s: first and longest pause between tries; doubles; `Retry-After` is respected
            up to the longest.
        concurrency: calls under way at once.
        cache_path: answer cache, or None.
        use_logprobs: ask for log-probabilities where the template reads them (alpaca_eval) and read nothing else;
            without, a label that is sampled at the template's temperature counts as a whole verdict.
        extra_body: further fields of the request body (`seed`, `top_p`, provider options).
        input_price, output_price: per million tokens, for the cost count.
        on_failure: `raise` a JudgeError when a call fails for good (what was answered stays cached), or
            `empty`: its answer is the empty text, which counts as unparsable.
    """

    base_url: Annotated[str, accepted_by(check_address)]
    model: str
    api_key_variable: str | None = "OPENAI_API_KEY"
    timeout_s: Annotated[float, above(0)] = 120.0
    retries: Annotated[int, at_least(0)] = 5
    backoff_s: Annotated[float, at_least(0)] = 1.0
    max_backoff_s: Annotated[float, at_least(0)] = 60.0
    concurrency: Annotated[int, between(1, 1024)] = 8
    cache_path: str | Path | None = None
    use_logprobs: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    input_price: Annotated[float, at_least(0)] = 0.0
    output_price: Annotated[float, at_least(0)] = 0.0
    on_failure: Literal["raise", "empty"] = "raise"


@dataclass
class JudgeUsage:
    """Cost of a judge so far: calls that reached the endpoint, tokens as the endpoint reported them, money."""

    calls: int = 0
    tries_again: int = 0
    from_cache: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class _Answer:
    text: str
    input_tokens: int
    output_tokens: int
    served: str = ""


#: Template and body of a request.
_Call = dict[str, Any]


class Failure(Exception):
    """A failed call of a service; `final`: another try is useless, `stop`: so are other calls, `wait`: the pause in
    seconds that the service asked for."""

    def __init__(self, reason: str, *, final: bool = False, stop: bool = False, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.final, self.stop, self.wait = final, stop, wait


class Pauses(Protocol):
    """Settings of a service that is asked again: the number of further tries, and pauses in seconds."""

    @property
    def retries(self) -> int: ...
    @property
    def backoff_s(self) -> float: ...
    @property
    def max_backoff_s(self) -> float: ...


def try_again(call: Callable[[], T], pauses: Pauses, given_up: threading.Event, count: Callable[[], None]) -> T:
    """Returns the result of a call that is tried again after a failure, with pauses that double.

    Args:
        call: of the service.
        pauses: the most tries and the pauses between them.
        given_up: ends the tries and a pause.
        count: called before each further try.

    Raises:
        Failure: the last one, or a final one.
    """
    for attempt in range(pauses.retries + 1):
        try:
            return call()
        except Failure as failure:
            if failure.final or attempt == pauses.retries or given_up.is_set():
                raise
            wait = max(failure.wait, pauses.backoff_s * 2**attempt * (1.0 + 0.25 * random.random()))
            count()
            if given_up.wait(min(wait, pauses.max_backoff_s)):
                raise
    raise AssertionError("the last try returns or raises")


class EndpointJudge:
    """Judge over an OpenAI-compatible endpoint; implements `Judge`.

    Args:
        config: where and how to ask.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config, self.name = config, config.model
        self.usage = JudgeUsage()
        self._given: dict[str, tuple[str, str]] = {}
        self._given_up, self._lock = threading.Event(), threading.Lock()
        self._cache = AnswerCache(config.cache_path) if config.cache_path is not None else None
        self._key = ""
        if config.api_key_variable is not None:
            self._key = os.environ.get(config.api_key_variable, "").strip()
            if not self._key:
                raise JudgeError(
                    f"environment variable {config.api_key_variable} is not set; put the endpoint's key "
                    "there or set api_key_variable to null for an endpoint without one"
                )
            if not (self._key.isascii() and self._key.isprintable()):
                raise JudgeError(f"the key in {config.api_key_variable} holds characters no key has")

    def __repr__(self) -> str:
        return f"EndpointJudge({self.config!r})"

    def provenance(self) -> dict[str, Any]:
        """Returns who gave the answers so far, cached ones included.

        These are the model asked for and its address, the models that the endpoint says it served with the number of
        answers of each ('unknown' where it said none), and the dates of the first and last answer.
        """
        served = Counter(model or "unknown" for model, _ in self._given.values())
        dates = sorted(date for _, date in self._given.values() if date)
        address = {"model": self.config.model, "base_url": self.config.base_url}
        asked = {"first": dates[0], "last": dates[-1]} if dates else {}
        return {**address, "served": dict(sorted(served.items())), **asked, "calls": self.usage.calls}

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        """Returns the verdict texts in order; equal requests are asked once.

        Raises:
            JudgeError: wrong address, key or model; or, with `on_failure='raise'`, a call that failed for
                good. Answers already given are in the cache.
        """
        texts: dict[str, str] = {}
        missing: dict[str, _Call] = {}
        keys = []
        for request in requests:
            call = self._request(request)
            key = digest({**call, "url": self.config.base_url.rstrip("/"), "attempt": request.meta.get("attempt", 0)})
            keys.append(key)
            row = self._cache.get(key) if self._cache is not None else None
            if row is None:
                missing[key] = call
            else:
                texts.setdefault(key, row["text"])
                self._given.setdefault(key, (str(row.get("served", "")), str(row.get("date", ""))))
                self.usage.from_cache += 1
        if missing:
            texts |= self._ask_all(missing, len(texts))
        return [texts[key] for key in keys]

    def _ask_all(self, missing: Mapping[str, _Call], n_known: int) -> dict[str, str]:
        """Asks for everything that is not cached, side by side."""
        texts: dict[str, str] = {}
        self._given_up.clear()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=self.config.concurrency)
        with (
            httpx.Client(timeout=self.config.timeout_s, headers=headers, limits=limits) as client,
            ThreadPoolExecutor(self.config.concurrency) as pool,
        ):
            pending = {pool.submit(self._ask, client, key, call): key for key, call in missing.items()}
            try:
                for future in as_completed(pending):
                    try:
                        texts[pending[future]] = future.result()
                    except Failure as failure:
                        self.usage.failed += 1
                        if failure.stop or self.config.on_failure == "raise":
                            kept = "the answers so far are in the cache, run again to resume"
                            raise JudgeError(
                                f"judge '{self.name}' failed: {failure} ({len(texts)} of {n_known + len(missing)} "
                                f"answered{f'; {kept}' if self._cache is not None else ''})"
                            ) from None
                        texts[pending[future]] = ""
            finally:
                self._given_up.set()
                pool.shutdown(wait=True, cancel_futures=True)
        return texts

    def _request(self, request: JudgeRequest) -> _Call:
        template = get_template(request.template)
        system, user = render(request)
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "temperature": template.temperature,
            "max_tokens": template.max_tokens,
        }
        if template.label_tokens is not None and self.config.use_logprobs:
            body |= {"logprobs": True, "top_logprobs": 5}
        return {"template": request.template, "body": body | dict(self.config.extra_body)}

    def _ask(self, client: httpx.Client, key: str, call: _Call) -> str:
        """Returns the text of one answer, which is counted and stored as it arrives."""
        answer = try_again(lambda: self._answer(client, call), self.config, self._given_up, self._count_try)
        paid = answer.input_tokens * self.config.input_price + answer.output_tokens * self.config.output_price
        date = datetime.now(UTC).isoformat(timespec="seconds")
        with self._lock:
            self.usage.input_tokens += answer.input_tokens
            self.usage.output_tokens += answer.output_tokens
            self.usage.cost += paid / 1e6
            self._given[key] = answer.served, date
        if self._cache is not None:
            facts = {"model": self.config.model, "template": call["template"], "served": answer.served, "date": date}
            tokens = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
            self._cache.put(key, answer.text, **facts, **tokens)
        return answer.text

    def _count_try(self) -> None:
        with self._lock:
            self.usage.tries_again += 1

    def _answer(self, client: httpx.Client, call: _Call) -> _Answer:
        with self._lock:
            self.usage.calls += 1
        deadline = time.monotonic() + self.config.timeout_s
        try:
            with client.stream(
                "POST",
                self.config.base_url.rstrip("/") + "/chat/completions",
                content=json.dumps(call["body"]).encode("ascii"),
                headers={"Content-Type": "application/json"},
            ) as response:
                content = _within(response, deadline)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Failure(f"{type(error).__name__}: {self._redacted(str(error))}") from None
        status = response.status_code
        if status != 200:
            reason = f"HTTP {status}: {self._redacted(_error_text(response, content))}"
            again = status in _TRY_AGAIN or status >= 500
            raise Failure(reason, final=not again, stop=status in _CONFIGURATION, wait=_retry_after(response))
        try:
            payload = json.loads(content)
        except (ValueError, RecursionError):
            raise Failure("the answer is not JSON") from None
        template = get_template(call["template"])
        wants_logprobs = template.label_tokens is not None and self.config.use_logprobs
        judged = template.n_answers > 0 and template.label_tokens is None
        answer = _read_completion(payload, wants_logprobs, whole=judged)
        if answer is None:
            raise Failure("the answer is not a chat completion")
        return answer

    def _redacted(self, text: str) -> str:
        return (text.replace(self._key, "***") if self._key else text)[:200]


def _read_completion(payload: Any, wants_logprobs: bool, *, whole: bool) -> _Answer | None:
    """Returns the text and token counts of a chat completion; None if it has another form.

    Args:
        whole: mark a text that was cut off at its length, which may end in the middle of its reasons.
    """
    try:
        (choice,) = payload["choices"]  # the request asks for one
        content = choice["message"]["content"]
        cut = whole and choice.get("finish_reason") in ("length", "content_filter")
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    if content is not None and not isinstance(content, str):
        return None
    text = storable(content or "") + (CUT_OFF if cut else "")
    if wants_logprobs:
        logprobs = _first_token_logprobs(choice)
        if not logprobs:
            raise Failure(
                "the endpoint gives no log-probabilities, from which this template's verdict is read; use one that "
                "does, or set use_logprobs to false to count a sampled m or M",
                final=True,
                stop=True,
            )
        preference = preference_from_logprobs(logprobs)
        # a label without its probability is a sample at temperature 1, not the verdict asked for
        text = f"no probability of m or M: {text}" if preference is None else f"preference: {preference:.12f}"
    usage = payload.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    served = payload.get("model")
    tokens = _count_of(usage, "prompt_tokens"), _count_of(usage, "completion_tokens")
    return _Answer(text, *tokens, storable(served) if isinstance(served, str) else "")


def _first_token_logprobs(choice: Mapping[str, Any]) -> dict[str, float]:
    """Returns token -> log-probability of the first generated token; empty when the endpoint gave none.

    Raises:
        Failure: values that are not log-probabilities of different tokens.
    """
    try:
        top = choice["logprobs"]["content"][0]["top_logprobs"]
        given = [(str(row["token"]), row["logprob"]) for row in top]
    except (KeyError, IndexError, TypeError):
        return {}
    values = [value for _, value in given]
    if None in values:
        return {}
    possible = all(
        type(value) in (int, float) and (-_LEAST <= value <= _ROUNDING or value == -math.inf) for value in values
    )
    if not possible or len(dict(given)) < len(given) or sum(map(math.exp, values)) > 1 + _ROUNDING:
        raise Failure(f"the endpoint's log-probabilities are not of different tokens: {str(given)[:80]}")
    return {token: float(value) for token, value in given}


def _count_of(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _within(response: httpx.Response, deadline: float) -> bytes:
    """Returns the body of an answer that arrives whole before the deadline and is not too long."""
    content = b""
    for chunk in response.iter_bytes():
        content += chunk
        if time.monotonic() > deadline:
            raise Failure("the answer is not whole within timeout_s")
        if len(content) > _LONGEST_ANSWER:
            raise Failure(f"the answer is longer than {_LONGEST_ANSWER} bytes", final=True)
    return content


def _error_text(response: httpx.Response, content: bytes) -> str:
    try:
        payload = json.loads(content)
        return str(payload["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return response.reason_phrase or "no reason given"


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
