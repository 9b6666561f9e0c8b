"""Grammar by LanguageTool: cached, asked while something else runs, and never made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.aspects import Density, checked_scores, rate
from rlhf_core.aspects.choices import build_aspect
from rlhf_core.aspects.language_tool import LanguageToolGrammar, spans_of
from rlhf_core.errors import RecipeError, ToolError
from rlhf_core.services import CallFailed
from tests.tool_server import ToolServer

TEXTS = ["The cats sees a dog.", "This dogs see an apple.", "The cat sees the dog.", "A apple sees the dog."]


def grammar(url: str, **options: Any) -> LanguageToolGrammar:
    return LanguageToolGrammar(url, **{"retries": 2, "backoff_s": 0.01, "timeout_s": 1.0, **options})


def test_wrong_tokens_earn_minus_one_and_the_error_rate_counts_them() -> None:
    with ToolServer() as server:
        aspect = grammar(server.url)
        scored = checked_scores(aspect, [{}] * 4, TEXTS)
    assert aspect.density is Density.TOKEN
    assert not aspect.higher_is_better
    assert [TEXTS[0][a:b] for (a, b), v in zip(scored[0].spans, scored[0].values, strict=True) if v] == ["sees"]
    assert [rate(aspect, one) > 0 for one in scored] == [True, True, False, True]
    assert rate(aspect, scored[0]) == pytest.approx(1 / 6)


def test_answers_outlive_the_process_and_the_server(tmp_path: Path) -> None:
    cache = str(tmp_path / "grammar.jsonl")
    with ToolServer() as server:
        first = checked_scores(grammar(server.url, cache_path=cache), [{}] * 4, TEXTS)
        url = server.url
    again = grammar(url, cache_path=cache)
    assert checked_scores(again, [{}] * 4, TEXTS) == first
    assert again.usage.from_cache == 4


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


def test_offsets_are_utf16_code_units() -> None:
    text = "😀 cats sees"
    assert spans_of({"matches": [{"offset": 8, "length": 4}]}, text) == [(7, 11)]
    with pytest.raises(CallFailed, match="outside"):
        spans_of({"matches": [{"offset": 1, "length": 1}]}, text)


def test_the_environment_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with ToolServer() as server:
        monkeypatch.setenv("REWARDSMITH_LANGUAGETOOL", server.url)
        checked_scores(build_aspect({"kind": "grammar"}), [{}], TEXTS[:1])
        assert server.calls == 1


def test_without_a_server_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REWARDSMITH_LANGUAGETOOL", raising=False)
    with pytest.raises(RecipeError, match="no LanguageTool server is named; set REWARDSMITH_LANGUAGETOOL or url"):
        build_aspect({"kind": "grammar"})


def test_disabled_rules_are_no_errors() -> None:
    text = "😀 The cats sees a apple."
    with ToolServer() as server:
        every, some = (
            checked_scores(grammar(server.url, disabled_rules=rules), [{}], [text])[0] for rules in ((), ("sees",))
        )
    wrong = [[text[a:b] for (a, b), v in zip(one.spans, one.values, strict=True) if v] for one in (every, some)]
    assert set(wrong[0]) - set(wrong[1]) == {"sees"}


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(RecipeError, match="url is 'localhost:8081'; it must be an http or https address"):
        build_aspect({"kind": "grammar", "url": "localhost:8081"})
