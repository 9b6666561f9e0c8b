"""Calls of services: side by side, tried again within bounds, cached on disk, and never made up."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.services import LONGEST, AnswerCache, CallFailed, CallSettings, Service, client, post


def service(ask: Callable[[str], dict[str, Any]], **options: Any) -> Service[str]:
    return Service("a service", ask, CallSettings(**{"backoff_s": 0.001, "retries": 2, **options}))


def keyed(*texts: str) -> dict[str, str]:
    return {f"key of {text}": text for text in texts}


def test_calls_run_side_by_side_and_what_is_known_is_not_asked_again() -> None:
    asked, both = [], threading.Barrier(2, timeout=5)

    def ask(text: str) -> dict[str, Any]:
        asked.append(text)
        both.wait()
        return {"text": text.upper()}

    asking = service(ask)
    asking.prefetch(keyed("a"))
    for _ in range(2):
        assert [row["text"] for row in asking.answers(keyed("a", "b")).values()] == ["A", "B"]
    assert sorted(asked) == ["a", "b"]


def failing(*outcomes: CallFailed | None) -> tuple[Callable[[str], dict[str, Any]], list[str]]:
    script, asked = list(outcomes), list[str]()

    def ask(text: str) -> dict[str, Any]:
        asked.append(text)
        failure = script.pop(0)
        if failure is not None:
            raise failure
        return {"text": "answer"}

    return ask, asked


def test_a_passing_failure_is_tried_again_within_bounds(tmp_path: Path) -> None:
    ask, _ = failing(CallFailed("busy"), CallFailed("busy", wait=0.01), None)
    asking = service(ask, cache_path=tmp_path / "cache.jsonl")
    assert asking.answers(keyed("a"))["key of a"]["text"] == "answer"
    assert (asking.usage.calls, asking.usage.tries_again) == (3, 2)
    ask, asked = failing(*[CallFailed("busy")] * 3)
    with pytest.raises(CallFailed, match=r"busy \(3 tries\)"):
        service(ask, cache_path=tmp_path / "cache.jsonl").answers(keyed("a", "b"))
    assert asked == ["b"] * 3  # the answer to a is in the cache


def test_a_final_failure_is_not_tried_again_and_may_stand_for_an_answer() -> None:
    ask, asked = failing(CallFailed("refused", final=True), None, CallFailed("wrong key", final=True, stop=True))
    asking = service(ask, concurrency=1)
    rows = asking.answers(keyed("a", "b"), {"text": ""})
    assert [row["text"] for row in rows.values()] == ["", "answer"]
    with pytest.raises(CallFailed, match=r"wrong key$"):
        asking.answers(keyed("a"), {"text": ""})
    assert (asked, asking.usage.failed) == (["a", "b", "a"], 2)


def test_a_fault_of_the_client_itself_gives_up_the_calls_under_way() -> None:
    def ask(text: str) -> dict[str, Any]:
        raise KeyError(text)

    asking = service(ask)
    with pytest.raises(KeyError):
        asking.answers(keyed("a", "b"))
    assert (asking._pool, asking._pending) == (None, {})


def test_lines_of_a_cache_that_were_cut_or_changed_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache.jsonl"
    AnswerCache(path).put("a", "t")
    good = path.read_bytes()
    changed = good.replace(b'"t"', b'"x"')
    path.write_bytes(b'{"key": 1}\n\xff\xfe\n[1]\n{"key": "c", "text": "t"}\n' + good + changed + good[:5])
    cache = AnswerCache(path)
    assert [cache.get(key) for key in ("1", "c")] == [None, None]
    cache.put("b", "line\nbreak \ud800 \ud83d\ude00", model="m")
    reread = AnswerCache(path)
    told = "line\nbreak \N{REPLACEMENT CHARACTER} \N{GRINNING FACE}"
    assert reread.get("b") == {"key": "b", "text": told, "model": "m"}
    assert reread.get("a") == {"key": "a", "text": "t"}


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(RecipeError, match="concurrency"):
        CallSettings(concurrency=0)


class Quiet(BaseHTTPRequestHandler):
    """A server that writes nothing to the test's output."""

    def log_message(self, *words: Any) -> None:
        """Writes nothing."""


class Dripping(Quiet):
    """Answers with a byte every 50 ms, for five seconds."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(100):
            try:
                self.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.05)


def packed(size: int, layers: int) -> bytes:
    """Returns zeros, packed by gzip several times."""
    packer = zlib.compressobj(wbits=31)
    body = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])
    return body if layers == 1 else gzip.compress(body)


@pytest.mark.parametrize(
    ("encoding", "body", "outcome"),
    [
        ("", b"whole", b"whole"),
        ("gzip", gzip.compress(b"whole"), b"whole"),
        ("", bytes(LONGEST + 1), "longer than 64 MiB"),
        ("gzip", packed(2 * LONGEST, 1), "longer than 64 MiB"),
        ("gzip, gzip", packed(2 * LONGEST, 2), "packed as 'gzip, gzip'"),
        ("br", b"whole", "packed as 'br'"),
        ("gzip", b"whole", "cannot be reached"),
    ],
    ids=["plain", "packed", "long", "packed long", "packed twice", "another packing", "not packed"],
)
def test_an_answer_is_bounded_while_it_is_unpacked(encoding: str, body: bytes, outcome: bytes | str) -> None:
    class Answering(Quiet):
        def do_POST(self) -> None:
            self.send_response(200)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(CallFailed, match=outcome) if isinstance(outcome, str) else nullcontext():
            assert post(client(1), f"http://127.0.0.1:{server.server_port}", 20).content == outcome
        server.shutdown()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "ftp://127.0.0.1:1"),
        ("HTTPS_PROXY", "nonsense://x"),
        ("HTTP_PROXY", "http://host:abc"),
        ("ALL_PROXY", "http://[::1"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
def test_a_proxy_or_certificate_that_no_client_can_use_is_refused(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(RecipeError, match=f"correct or unset .*{variable}"):
        client(1)


def test_an_answer_that_never_ends_is_given_up() -> None:
    with HTTPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(CallFailed, match=r"no answer within 0\.3 s"):
            post(client(1), f"http://127.0.0.1:{server.server_port}", 0.3)
        server.shutdown()
