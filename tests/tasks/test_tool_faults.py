"""A tool server that is delayed, corrupted or stopped while stages run: the same result, or none and a clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.aspects.language_tool import URL_VARIABLE
from rlhf_core.errors import ToolError
from tasks.running.artifacts import digest, read_jsonl
from tasks.running.checkpoints import SECONDS_VARIABLE
from tests.tasks.golden_runs import SETTINGS, SharedRuns
from tests.tool_server import ToolServer

GRAMMAR = {"kind": "grammar", "retries": 3, "backoff_s": 0.02, "timeout_s": 1.5}
SCALE = SETTINGS["policy/alarm"]
#: Trains a policy in a folder; of a server's faults by call.
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(golden: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains by a server with faults; the first run, `calm`, is by one without."""
    root = tmp_path_factory.mktemp("tool")
    golden.made("model-holistic-mt", "fit-holistic-mt")
    (root / "grammar.yaml").write_text(yaml.safe_dump({"aspect": GRAMMAR}))
    aspects = (root / "grammar.yaml", golden.settings("aspects/length"))
    scale = {**SCALE, "optimiser": {**SCALE["optimiser"], "iterations": 3}}

    def run(name: str, **faults: range) -> Path:
        with ToolServer(faults=faults) as server, pytest.MonkeyPatch.context() as patch:
            patch.setenv(URL_VARIABLE, server.url)
            if name == "selection":
                golden.run("selection-mt", aspect=aspects, out=root / name)
            else:
                golden.run("mt-alarm", scale=scale, selection=root / "selection" / "result", out=root / name)
        return root / name

    run("selection")
    run("calm")
    return run


def steps(out: Path) -> list[dict[str, Any]]:
    """Returns the phases of each step, with its calls of the tool."""
    return read_jsonl(out / "record" / "phases.jsonl")


def second_step(calm: Path) -> int:
    """Returns the number of a call in the midst of the second step."""
    first, second, *_ = (int(step["tool_calls"]) for step in steps(calm))
    assert second > 2
    return first + second // 2


@pytest.fixture(scope="module")
def calm(train: Train) -> Path:
    return train("calm")


def test_delayed_refused_and_corrupted_answers_are_asked_again_and_change_nothing(train: Train, calm: Path) -> None:
    for step in steps(calm):
        assert step["tool_calls"] > 0
        assert 0 <= step["tool_seconds"] <= step["score_seconds"]
    begin = second_step(calm)
    modes = ("slow", "error", "garbage", "form", "span")
    disturbed = train("disturbed", **{mode: range(begin + n, begin + n + 1) for n, mode in enumerate(modes)})
    assert sum(step["tool_retries"] for step in steps(disturbed)) >= 5
    assert digest(disturbed / "result") == digest(calm / "result")


@pytest.mark.parametrize(
    ("mode", "message"),
    [("stopped", "cannot be reached"), ("slow", "no answer within 1.5 s"), ("span", "outside the text")],
)
def test_a_server_that_fails_for_good_stops_training_which_goes_on_once_it_is_back(
    train: Train, calm: Path, mode: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECONDS_VARIABLE, "0")
    with pytest.raises(ToolError, match=message):
        train(mode, **{mode: range(second_step(calm), 10**6)})
    out = train(mode)
    assert digest(out / "result") == digest(calm / "result")
    assert [step["step"] for step in steps(out)] == [1, 2, 3]


def test_a_selection_without_its_tool_chooses_nothing(train: Train) -> None:
    before = digest(train("calm").parent / "selection" / "result")
    with pytest.raises(ToolError, match="No score is made up"):
        train("selection", stopped=range(10**6))
    assert digest(train("calm").parent / "selection" / "result") == before
