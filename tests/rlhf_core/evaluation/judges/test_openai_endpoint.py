"""The endpoint judge against a real local server that fails in all the usual ways."""

import json
import math

import pytest

from rlhf_core.errors import JudgeError, RecipeError
from rlhf_core.evaluation.judges.choices import check_stated_judge
from rlhf_core.evaluation.judges.games import JudgedPair, combine_orders, play_games
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.evaluation.judges.templates import JudgeRequest
from tests.chat_endpoint import ChatEndpoint, completion

SECRET = "sk-test-4242424242"


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ChatEndpoint(completion("Better: A")) as fake:
        yield fake


def judge_at(endpoint, **changes):
    settings = {"retries": 3, "backoff_s": 0.001, "timeout_s": 5.0, "api_key_variable": "JUDGE_KEY"} | changes
    return EndpointJudge(EndpointConfig(endpoint.url, "judge-1", **settings))


def requests(n, template="pairwise"):
    return [JudgeRequest(str(i), f"question {i}", ("one", "two"), template) for i in range(n)]


def test_it_sends_the_prompt_and_the_key_and_counts_what_it_costs(endpoint):
    judge = judge_at(endpoint, input_price=2.0, output_price=10.0, extra_body={"seed": 7})
    assert judge.answer([*requests(3), *requests(3)]) == ["Better: A"] * 6
    assert endpoint.headers[0]["Authorization"] == f"Bearer {SECRET}"
    body = endpoint.bodies[0]
    assert (body["model"], body["seed"], body["temperature"]) == ("judge-1", 7, 0.0)
    assert "question 0" in json.dumps(endpoint.bodies)
    assert (judge.usage.calls, judge.usage.input_tokens, judge.usage.output_tokens) == (3, 300, 30)
    assert judge.usage.cost == pytest.approx(3 * (100 * 2 + 10 * 10) / 1e6)


@pytest.mark.parametrize(
    "failure",
    [
        (500, b"boom", {}),
        (503, b"", {}),
        (429, b'{"error": {"message": "slow down"}}', {"Retry-After": "0"}),
        (200, b"<html>garbage</html>", {}),
        (200, b'{"choices": []}', {}),
        (200, b'{"choices": [{"message": {"content": 5}}]}', {}),
        (200, b"[" * 5000, {}),
    ],
)
def test_passing_failures_are_tried_again(endpoint, failure):
    endpoint.script = [failure, failure, completion("Better: B")]
    judge = judge_at(endpoint)
    assert judge.answer(requests(1)) == ["Better: B"]
    assert judge.usage.tries_again == 2


def test_on_request_a_failed_call_counts_as_unparsable_instead(endpoint):
    endpoint.script = [(400, b'{"error": {"message": "too long"}}', {})]
    judge = judge_at(endpoint, on_failure="empty")
    games = play_games(judge, [JudgedPair("x", "q", "1", "2")], "pairwise", retries=0)
    assert math.isnan(combine_orders(games)["x"])
    assert judge.usage.failed == 2
    assert len(endpoint.bodies) == 2  # a refused request is not tried again


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_address_stops_at_once_without_showing_the_key(endpoint, status):
    endpoint.script = [(status, json.dumps({"error": {"message": f"bad key {SECRET}"}}).encode(), {})]
    judge = judge_at(endpoint, on_failure="empty", concurrency=1)
    with pytest.raises(JudgeError) as caught:
        judge.answer(requests(20))
    assert SECRET not in str(caught.value)
    assert len(endpoint.bodies) < 20


def test_log_probabilities_become_a_soft_preference(endpoint):
    endpoint.script = [completion("M", {"M": -0.2, "m": -1.8, "The": -5.0})]
    (text,) = judge_at(endpoint).answer(requests(1, "alpaca_eval"))
    body = endpoint.bodies[0]
    assert (body["max_tokens"], body["temperature"]) == (1, 1.0)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
    assert float(text.removeprefix("preference: ")) == pytest.approx(1.8320183851, abs=1e-9)


def test_without_log_probabilities_a_label_counts_only_where_the_settings_say_so(endpoint):
    endpoint.script = [completion("m")]
    pair = JudgedPair("x", "q", "1", "2")
    with pytest.raises(JudgeError, match="set use_logprobs to false"):
        play_games(judge_at(endpoint), [pair], "alpaca_eval", orders=("baseline",))
    games = play_games(judge_at(endpoint, use_logprobs=False), [pair], "alpaca_eval", orders=("baseline",))
    assert games[0].preference_for_model == 1.0
    assert "logprobs" not in endpoint.bodies[-1]
    endpoint.script = [completion("m", {"The": -0.1})]
    games = play_games(judge_at(endpoint), [pair], "alpaca_eval", orders=("baseline",))
    assert games[0].verdict is None


def test_the_cache_survives_a_cut_line_and_never_holds_the_key(endpoint, tmp_path):
    cache = tmp_path / "deep" / "cache.jsonl"
    judge_at(endpoint, cache_path=cache).answer(requests(3))
    content = cache.read_bytes()
    assert SECRET.encode() not in content
    cache.write_bytes(content[:-20])
    endpoint.script = [completion("Better: N")]
    judge = judge_at(endpoint, cache_path=cache)
    assert sorted(judge.answer(requests(3))) == ["Better: A", "Better: A", "Better: N"]
    assert judge.usage.calls == 1
    again = judge_at(endpoint, cache_path=cache)
    again.answer(requests(3))
    assert again.usage.calls == 0
    assert SECRET not in repr(again)


def test_another_model_template_sampling_or_attempt_is_another_answer(endpoint, tmp_path):
    cache = tmp_path / "cache.jsonl"
    base = requests(1)[0]
    judge_at(endpoint, cache_path=cache).answer([base])
    judge_at(endpoint, cache_path=cache, extra_body={"temperature": 1.0}).answer([base])
    judge_at(endpoint, cache_path=cache).answer([JudgeRequest("0", base.prompt, base.answers, "arena_hard")])
    retry = JudgeRequest("0", base.prompt, base.answers, base.template, {"attempt": 1})
    judge_at(endpoint, cache_path=cache).answer([retry])
    assert len(endpoint.bodies) == 4
    other_id = JudgeRequest("other", base.prompt, base.answers, base.template, {"gold": 1})
    judge_at(endpoint, cache_path=cache).answer([other_id])
    assert len(endpoint.bodies) == 4


def test_a_missing_key_names_its_variable(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(JudgeError, match="NO_SUCH_KEY is not set"):
        EndpointJudge(EndpointConfig("http://127.0.0.1:1/v1", "m", api_key_variable="NO_SUCH_KEY"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"base_url": "http://user:secret@127.0.0.1/v1"}, "must not contain credentials"),
        ({"base_url": "ftp://host/v1"}, "base_url .*http or https address"),
        ({"base_url": "host"}, "base_url .*http or https address"),
        ({"concurrency": 10**9}, "concurrency is 1000000000; it must be from 1 to 1024"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'; it must be one of raise, empty"),
    ],
)
def test_settings_that_no_judge_can_have_are_refused(setting, message):
    stated = {"kind": "endpoint", "base_url": "http://127.0.0.1/v1", "model": "m", **setting}
    with pytest.raises(RecipeError, match=message):
        check_stated_judge(stated)


def test_any_text_can_be_sent_and_stored(endpoint, tmp_path):
    odd = 'quote " \\ { } \x00 é 汉 \ud800 \u2028'
    judge_at(endpoint).answer([JudgeRequest("0", odd, (odd, "b"), "pairwise")])
    assert odd in endpoint.bodies[0]["messages"][1]["content"]
    endpoint.script = [completion("Better: A \ud800")]
    cache = tmp_path / "cache.jsonl"
    assert judge_at(endpoint, cache_path=cache).answer(requests(1)) == ["Better: A \N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_verdict_at_which_an_answer_was_cut_off_is_asked_again(endpoint, reason):
    cut = json.loads(completion("If length counted:\nBetter: A")[1])
    cut["choices"][0]["finish_reason"] = reason
    endpoint.script = [(200, json.dumps(cut).encode(), {}), completion("Better: B")]
    (game,) = play_games(judge_at(endpoint), [JudgedPair("x", "q", "1", "2")], "pairwise", orders=("model",))
    assert (game.verdict, len(endpoint.bodies)) == ("B", 2)
