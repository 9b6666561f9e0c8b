"""A language model as judge over any OpenAI-compatible chat endpoint.

Answers are cached on disk as they arrive, so an interrupted run resumes without paying twice. The key comes
from an environment variable and reaches nothing but the request header.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from rlhf_core.errors import JudgeError
from rlhf_core.evaluation.judges.replies import CUT_OFF, preference_from_logprobs
from rlhf_core.evaluation.judges.templates import TEMPLATES, JudgeRequest, render
from rlhf_core.lazy import httpx
from rlhf_core.services import (
    CallFailed,
    CallSettings,
    Row,
    Service,
    Usage,
    check_address,
    client,
    digest,
    post,
    storable,
)
from rlhf_core.typed import above, accepted_by, at_least, between

_TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_CONFIGURATION = {401, 402, 403, 404, 405}


@dataclass(frozen=True)
class EndpointConfig(CallSettings):
    """Address and request settings of an endpoint; those of its calls are in `CallSettings`.

    Attributes:
        base_url: up to and including the version, e.g. `http://127.0.0.1:8000/v1`; without credentials.
        model: model name to send.
        api_key_variable: environment variable that holds the key, or None for an endpoint without one.
        timeout_s: longest time until an answer is whole, seconds.
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
    _: KW_ONLY
    timeout_s: Annotated[float, above(0)] = 120.0
    retries: Annotated[int, at_least(0)] = 5
    backoff_s: Annotated[float, at_least(0)] = 1.0
    max_backoff_s: Annotated[float, at_least(0)] = 60.0
    concurrency: Annotated[int, between(1, 1024)] = 8
    use_logprobs: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    input_price: Annotated[float, at_least(0)] = 0.0
    output_price: Annotated[float, at_least(0)] = 0.0
    on_failure: Literal["raise", "empty"] = "raise"


#: Template and body of a request.
_Call = dict[str, Any]


class EndpointJudge:
    """Judge over an OpenAI-compatible endpoint; implements `Judge`.

    Args:
        config: where and how to ask.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config, self.name = config, config.model
        self._given: dict[str, Row] = {}
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
        self._service: Service[_Call] = Service("judge", self._ask, config)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        self._client = client(config.concurrency, headers)

    def __repr__(self) -> str:
        return f"EndpointJudge({self.config!r})"

    @property
    def usage(self) -> Usage:
        """Returns the calls, tokens and money so far."""
        return self._service.usage

    def provenance(self) -> dict[str, Any]:
        """Returns who gave the answers so far, cached ones included.

        These are the model asked for and its address, the models that the endpoint says it served with the number of
        answers of each ('unknown' where it said none), and the dates of the first and last answer.
        """
        served = Counter(row.get("served") or "unknown" for row in self._given.values())
        dates = sorted(row["date"] for row in self._given.values() if row.get("date"))
        address = {"model": self.config.model, "base_url": self.config.base_url}
        asked = {"first": dates[0], "last": dates[-1]} if dates else {}
        return {**address, "served": dict(sorted(served.items())), **asked, "calls": self.usage.calls}

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        """Returns the verdict texts in order; equal requests are asked once.

        Raises:
            JudgeError: wrong address, key or model; or, with `on_failure='raise'`, a call that failed for
                good. Answers already given are in the cache.
        """
        calls: dict[str, _Call] = {}
        keys = []
        for request in requests:
            call, url = self._request(request), self.config.base_url.rstrip("/")
            keys.append(digest({**call, "url": url, "attempt": request.meta.get("attempt", 0)}))
            calls[keys[-1]] = call
        try:
            rows = self._service.answers(calls, None if self.config.on_failure == "raise" else {"text": ""})
        except CallFailed as failure:
            known = sum(self._service.cache.get(key) is not None for key in calls)
            kept = "; the answers so far are in the cache, run again to resume" if self.config.cache_path else ""
            raise JudgeError(
                f"judge '{self.name}' failed: {failure} ({known} of {len(calls)} answered{kept})"
            ) from None
        self._given |= {key: row for key, row in rows.items() if row["text"]}
        return [str(rows[key]["text"]) for key in keys]

    def _request(self, request: JudgeRequest) -> _Call:
        template = TEMPLATES[request.template]
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

    def _ask(self, call: _Call) -> dict[str, Any]:
        """Returns the answer to one call with its facts, as they are stored."""
        url, body = self.config.base_url.rstrip("/") + "/chat/completions", json.dumps(call["body"]).encode("ascii")
        try:
            response = post(self._client, url, self.config.timeout_s, content=body)
        except CallFailed as failure:
            raise CallFailed(self._redacted(str(failure)), final=failure.final) from None
        status = response.status_code
        if status != 200:
            reason = f"HTTP {status}: {self._redacted(_error_text(response))}"
            again = status in _TRY_AGAIN or status >= 500
            raise CallFailed(reason, final=not again, stop=status in _CONFIGURATION, wait=_retry_after(response))
        try:
            payload = json.loads(response.content)
        except (ValueError, RecursionError):
            raise CallFailed("the answer is not JSON") from None
        template = TEMPLATES[call["template"]]
        wants_logprobs = template.label_tokens is not None and self.config.use_logprobs
        row = _read_completion(payload, wants_logprobs, whole=template.n_answers > 0 and template.label_tokens is None)
        with self._service.lock:
            self.usage.input_tokens += row["input_tokens"]
            self.usage.output_tokens += row["output_tokens"]
            paid = row["input_tokens"] * self.config.input_price + row["output_tokens"] * self.config.output_price
            self.usage.cost += paid / 1e6
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return {**row, "model": self.config.model, "template": call["template"], "date": date}

    def _redacted(self, text: str) -> str:
        return (text.replace(self._key, "***") if self._key else text)[:200]


def _read_completion(payload: Any, wants_logprobs: bool, *, whole: bool) -> dict[str, Any]:
    """Returns the text, the serving model and the token counts of a chat completion.

    Args:
        whole: mark a text that was cut off at its length, which may end in the middle of its reasons.

    Raises:
        CallFailed: another form.
    """
    try:
        (choice,) = payload["choices"]  # the request asks for one
        content = choice["message"]["content"]
        cut = whole and choice.get("finish_reason") in ("length", "content_filter")
        text = storable(content or "") + (CUT_OFF if cut else "")
    except (KeyError, ValueError, TypeError, AttributeError):
        raise CallFailed("the answer is not a chat completion") from None
    if wants_logprobs:
        logprobs = _first_token_logprobs(choice)
        if not logprobs:
            raise CallFailed(
                "the endpoint gives no log-probabilities, from which this template's verdict is read; use one that "
                "does, or set use_logprobs to false to count a sampled m or M",
                final=True,
                stop=True,
            )
        preference = preference_from_logprobs(logprobs)
        # a label without its probability is a sample at temperature 1, not the verdict asked for
        text = f"no probability of m or M: {text}" if preference is None else f"preference: {preference:.12f}"
    usage, served = payload.get("usage"), payload.get("model")
    return {
        "text": text,
        "served": storable(served) if isinstance(served, str) else "",
        "input_tokens": _count_of(usage, "prompt_tokens"),
        "output_tokens": _count_of(usage, "completion_tokens"),
    }


def _first_token_logprobs(choice: Mapping[str, Any]) -> dict[str, float]:
    """Returns token -> log-probability of the first generated token; empty when the endpoint gave none."""
    try:
        return {str(row["token"]): float(row["logprob"]) for row in choice["logprobs"]["content"][0]["top_logprobs"]}
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return {}


def _count_of(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else 0
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _error_text(response: httpx.Response) -> str:
    try:
        payload = json.loads(response.content)
        return str(payload["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return response.reason_phrase or "no reason given"


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
