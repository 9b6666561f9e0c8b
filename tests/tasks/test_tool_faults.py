"""A tool server that is delayed, corrupted or stopped while stages run: the same result, or none and a clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.aspects.language_tool import URL_VARIABLE
from rlhf_core.errors import ToolError
from tasks.running.artifacts import digest, read_jsonl
from tasks.running.checkpoints import SECONDS_VARIABLE
from tests.tasks.alarm_run import FILES, TRANSLATION, Run
from tests.tool_server import ToolServer

GRAMMAR = {"kind": "grammar", "retries": 3, "backoff_s": 0.02, "timeout_s": 1.5}
PPO = {**FILES["ppo"], "optimiser": {**FILES["ppo"]["optimiser"], "iterations": 3}}
SETTINGS = {**TRANSLATION, "aspects/grammar": {"aspect": GRAMMAR}, "ppo": PPO}
POLICY = "alarm/policy/qa-alarm/0"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A policy trained by a server that never failed."""
    made = Run(tmp_path_factory.mktemp("calm"), SETTINGS, ("grammar", "length"), {})
    with ToolServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL_VARIABLE, server.url)
        made.up_to_the_selection().policy("qa-alarm")
    return made


def asked(run: Run, place: str) -> list[dict[str, Any]]:
    """Returns the phases of each step, with its calls of the tool."""
    return read_jsonl(run.out(place) / "record" / "phases.jsonl")


def second_step(calm: Run) -> int:
    """The number of a call in the midst of the second step."""
    first, second, *_ = (int(step["tool_calls"]) for step in asked(calm, POLICY))
    assert second > 2
    return first + second // 2


def test_every_step_notes_what_it_asked_and_how_long_it_waited(calm: Run) -> None:
    steps = asked(calm, POLICY)
    assert len(steps) == 3
    for step in steps:
        assert step["tool_calls"] > 0
        assert 0 <= step["tool_seconds"] <= step["score_seconds"]


def test_delayed_refused_and_corrupted_answers_are_asked_again_and_change_nothing(
    calm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, faults = second_step(calm), {}
    for number, mode in enumerate(("slow", "error", "garbage", "form", "span")):
        faults[mode] = range(begin + number, begin + number + 1)
    with ToolServer(faults=faults) as server:
        monkeypatch.setenv(URL_VARIABLE, server.url)
        found = calm.policy("qa-alarm", "alarm/policy/disturbed/0")
    assert sum(step["tool_retries"] for step in asked(calm, "alarm/policy/disturbed/0")) >= 5
    assert digest(found) == digest(calm.result(POLICY))


@pytest.mark.parametrize(
    ("mode", "said"),
    [("stopped", "cannot be reached"), ("slow", "no answer within 1.5 s"), ("span", "outside the text")],
)
def test_a_server_that_fails_for_good_stops_training_which_goes_on_once_it_is_back(
    calm: Run, mode: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SECONDS_VARIABLE, "0")
    place = f"alarm/policy/{mode}/0"
    with ToolServer(faults={mode: range(second_step(calm), 10**6)}) as server:
        monkeypatch.setenv(URL_VARIABLE, server.url)
        with pytest.raises(ToolError, match=said) as stopped:
            calm.policy("qa-alarm", place)
        assert server.url in str(stopped.value)
    assert not calm.result(place).exists()
    with ToolServer() as server:
        monkeypatch.setenv(URL_VARIABLE, server.url)
        found = calm.policy("qa-alarm", place)
        calls = server.calls
    assert digest(found) == digest(calm.result(POLICY))
    steps = asked(calm, place)
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert calls < sum(step["tool_calls"] for step in asked(calm, POLICY)) + evaluated(calm)


def evaluated(run: Run) -> int:
    """Texts that are scored after training: the test answers."""
    return len(read_jsonl(run.result(POLICY) / "scores.jsonl"))


def test_a_selection_without_its_tool_chooses_nothing(calm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with ToolServer() as server:
        url = server.url
    monkeypatch.setenv(URL_VARIABLE, url)
    with pytest.raises(ToolError, match="No score is made up"):
        calm.stage("selection", "alarm/selection/none/0", **calm.selection_inputs())
    assert not calm.result("alarm/selection/none/0").exists()
