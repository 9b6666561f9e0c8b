"""Tool rewards: asked at once, cached, tried again within bounds, and never made up."""

from __future__ import annotations

import contextlib
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.aspects import Density, build_aspect, checked_scores, language_tool, rate
from rlhf_core.aspects.language_tool import LanguageToolGrammar, spans_of
from rlhf_core.aspects.tool_client import Failure, ToolClient, ToolConfig
from rlhf_core.errors import RecipeError, ToolError
from tests.tool_server import ToolServer

TEXTS = ["The cats sees a dog.", "This dogs see an apple.", "The cat sees the dog.", "A apple sees the dog."]


def grammar(url: str, **options: Any) -> LanguageToolGrammar:
    return LanguageToolGrammar(url, **{"retries": 2, "backoff_s": 0.01, "timeout_s": 1.0, **options})


def client(ask: Callable[[str], Any], **options: Any) -> ToolClient[int]:
    def read(answer: Any, text: str) -> int:
        if not isinstance(answer, int):
            raise Failure("no number")
        return answer

    return ToolClient("a tool", {"tool": "t"}, ask, read, ToolConfig(**{"backoff_s": 0.001, "retries": 2, **options}))


def test_wrong_tokens_earn_minus_one_and_the_error_rate_counts_them() -> None:
    with ToolServer() as server:
        aspect = grammar(server.url)
        scored = checked_scores(aspect, [{}] * 4, TEXTS)
    assert aspect.density is Density.TOKEN
    assert not aspect.higher_is_better
    assert [TEXTS[0][a:b] for (a, b), v in zip(scored[0].spans, scored[0].values, strict=True) if v] == ["sees"]
    assert [rate(aspect, one) > 0 for one in scored] == [True, True, False, True]
    assert rate(aspect, scored[0]) == pytest.approx(1 / 6)


def test_calls_run_side_by_side_and_equal_texts_are_asked_once() -> None:
    with ToolServer(latency=0.05) as server:
        aspect = grammar(server.url, concurrency=4)
        checked_scores(aspect, [{}] * 8, TEXTS * 2)
        assert server.calls == 4
        assert server.most_at_once > 1
        checked_scores(aspect, [{}] * 4, TEXTS)
        assert server.calls == 4


def test_prefetched_answers_are_there_without_waiting() -> None:
    with ToolServer(latency=0.1) as server:
        aspect = grammar(server.url)
        aspect.prefetch(TEXTS)
        time.sleep(0.5)
        checked_scores(aspect, [{}] * 4, TEXTS)
        assert server.calls == 4
        assert aspect.client.usage.waited_s < 0.1


def test_answers_outlive_the_process_and_the_server(tmp_path: Path) -> None:
    cache = str(tmp_path / "grammar.jsonl")
    with ToolServer() as server:
        first = checked_scores(grammar(server.url, cache_path=cache), [{}] * 4, TEXTS)
        url = server.url
    again = grammar(url, cache_path=cache)
    assert checked_scores(again, [{}] * 4, TEXTS) == first
    assert again.client.usage.from_cache == 4


def test_a_passing_failure_is_tried_again() -> None:
    with ToolServer(faults={"error": range(2)}) as server:
        aspect = grammar(server.url, concurrency=1)
        assert checked_scores(aspect, [{}], TEXTS[:1])[0].values.count(-1.0) == 1
        assert aspect.client.usage.tries_again == 2


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("error", "status 503"),
        ("garbage", "no JSON"),
        ("form", "no whole offset"),
        ("span", "outside the text"),
        ("slow", "no answer within 0.2 s"),
    ],
)
def test_a_tool_that_stays_broken_is_an_error_after_the_retries_and_no_score(mode: str, said: str) -> None:
    with ToolServer(mode=mode) as server:
        aspect = grammar(server.url, timeout_s=0.2, concurrency=1)
        with pytest.raises(ToolError, match=said) as caught:
            aspect.score([{}], TEXTS[:1])
        assert server.calls == 3
        assert "(3 tries)" in str(caught.value)
        assert server.url in str(caught.value)


class _Dripping(socketserver.BaseRequestHandler):
    """Says the start of an answer, then byte after byte of it without an end."""

    said = b""

    def handle(self) -> None:
        self.request.recv(65536)
        with contextlib.suppress(OSError):
            self.request.sendall(self.said)
            while True:
                self.request.sendall(b"a")
                time.sleep(0.005)


@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.1 200 OK\r\nServer: a", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"],
    ids=["header", "body"],
)
def test_the_time_of_a_call_is_that_of_its_whole_answer(said: bytes) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("Dripping", (_Dripping,), {"said": said})) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True).start()
        aspect = grammar(f"http://127.0.0.1:{server.server_address[1]}", timeout_s=0.05, retries=1, backoff_s=0.001)
        started = time.monotonic()
        with pytest.raises(ToolError, match=r"no answer within 0.05 s.*\(2 tries\)"):
            aspect.score([{}], TEXTS[:1])
        assert time.monotonic() - started < 5
        server.shutdown()


def test_a_server_that_stops_while_training_runs_is_an_error_and_one_that_returns_serves_again() -> None:
    with ToolServer() as server:
        aspect = grammar(server.url)
        checked_scores(aspect, [{}] * 2, TEXTS[:2])
        url = server.url
    with pytest.raises(ToolError, match="cannot be reached"):
        aspect.score([{}] * 2, TEXTS[2:])
    with ToolServer(port=int(url.rpartition(":")[2])):
        assert len(checked_scores(aspect, [{}] * 4, TEXTS)) == 4


def test_a_fault_of_the_client_itself_gives_up_the_calls_under_way() -> None:
    def ask(text: str) -> Any:
        raise KeyError(text)

    asking = client(ask)
    with pytest.raises(KeyError):
        asking.answers(["a", "b"])
    assert asking._pool is None
    assert not asking._pending


def test_nonsense_is_never_stored(tmp_path: Path) -> None:
    cache = str(tmp_path / "grammar.jsonl")
    with ToolServer(mode="span") as server:
        with pytest.raises(ToolError):
            grammar(server.url, cache_path=cache).score([{}], TEXTS[:1])
        server.mode = "ok"
        aspect = grammar(server.url, cache_path=cache)
        checked_scores(aspect, [{}], TEXTS[:1])
        assert aspect.client.usage.from_cache == 0


def test_a_damaged_cache_line_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    assert client(lambda text: 7, cache_path=path).answers(["a"]) == [7]
    path.write_text(path.read_text().replace("7", '\\"x\\"'))
    assert client(lambda text: 8, cache_path=path).answers(["a"]) == [8]


def test_an_error_that_no_retry_mends_is_not_tried_again() -> None:
    calls = []

    def ask(text: str) -> Any:
        calls.append(text)
        raise Failure("wrong key", final=True)

    with pytest.raises(ToolError, match="wrong key"):
        client(ask).answers(["a"])
    assert len(calls) == 1


def test_an_empty_response_is_not_asked_about() -> None:
    with ToolServer() as server:
        scored = checked_scores(grammar(server.url), [{}, {}], ["", "  "])
        assert [one.values for one in scored] == [(), ()]
        assert server.calls == 0


def test_offsets_are_utf16_code_units() -> None:
    text = "😀 cats sees"
    assert spans_of({"matches": [{"offset": 8, "length": 4}]}, text) == [(7, 11)]
    with pytest.raises(Failure, match="outside"):
        spans_of({"matches": [{"offset": 1, "length": 1}]}, text)


def test_the_environment_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with ToolServer() as server:
        monkeypatch.setenv("REWARDSMITH_LANGUAGETOOL", server.url)
        checked_scores(build_aspect({"kind": "grammar"}), [{}], TEXTS[:1])
        assert server.calls == 1


def test_without_a_server_and_without_a_local_one_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REWARDSMITH_LANGUAGETOOL", raising=False)
    monkeypatch.setitem(sys.modules, "language_tool_python", None)
    with pytest.raises(ToolError, match="give the url of a running server"):
        build_aspect({"kind": "grammar"})


def test_the_local_server_is_started_once_and_asked_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    with ToolServer() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")

        def start(language: str) -> SimpleNamespace:
            started.append(language)
            return SimpleNamespace(host=host, port=int(port))

        monkeypatch.delenv("REWARDSMITH_LANGUAGETOOL", raising=False)
        monkeypatch.setitem(sys.modules, "language_tool_python", SimpleNamespace(LanguageTool=start))
        language_tool._local.cache_clear()
        text = "😀 The cats sees a apple."
        every, some = (
            checked_scores(build_aspect({"kind": "grammar", "disabled_rules": rules}), [{}], [text])[0]
            for rules in ([], ["verb_agreement"])
        )
        language_tool._local.cache_clear()
    wrong = [[text[a:b] for (a, b), v in zip(one.spans, one.values, strict=True) if v] for one in (every, some)]
    assert set(wrong[0]) - set(wrong[1]) == {"sees"}
    assert started == ["en-US"]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(RecipeError, match="concurrency"):
        ToolConfig(concurrency=0)
    with pytest.raises(RecipeError, match="http"):
        build_aspect({"kind": "grammar", "url": "localhost:8081"})
