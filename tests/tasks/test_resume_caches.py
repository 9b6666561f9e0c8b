"""A killed policy run asks neither tool nor judge again for what they had answered, and ends as one never killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import policy
from tasks.running.artifacts import digest
from tasks.running.checkpoints import SECONDS_VARIABLE, RunCheckpoints
from tests.chat_endpoint import Answer, ChatEndpoint, completion
from tests.tasks.golden_runs import SETTINGS, SharedRuns
from tests.tasks.killing import Killed
from tests.tool_server import ToolServer

OWN_REWARD = """
import os
import torch
from rlhf_core.aspects.language_tool import LanguageToolGrammar

def grammar(batch):
    aspect = LanguageToolGrammar(os.environ["OWN_TOOL"], cache_path=os.environ["OWN_CACHE"])
    return torch.tensor([0.1 * sum(scored.values) for scored in aspect.score(batch.records, batch.texts)])
"""


@pytest.fixture
def judge() -> Iterator[ChatEndpoint]:
    """A judge whose verdict depends on how often it was asked before: asked again, it says something else."""

    def verdict(body: dict[str, Any]) -> Answer:
        third = len(made.bodies) % 3 == 0
        return (
            completion("[[B>A]]" if third else "[[A>B]]") if "[[A" in str(body) else completion("M" if third else "m")
        )

    with ChatEndpoint(verdict) as made:
        yield made


def settings_of(folder: Path, judge: ChatEndpoint) -> dict[str, dict[str, Any]]:
    row = dict(SETTINGS["row/segment"])
    model = {name: row.pop(name) for name in ("reward_model", "readout", "normaliser", "credit")}
    own = {"function": "own_grammar:grammar", "gives": "sequence", "credit": "last_token", "name": "grammar"}
    asked = {
        "kind": "endpoint", "base_url": judge.url, "model": "fickle", "api_key_variable": None, "concurrency": 1,
        "use_logprobs": False,
        "cache_path": str(folder / "judge.jsonl"),
    }  # fmt: skip
    return {
        "row": {**row, "components": [model, own]},
        "evaluation": {**SETTINGS["evaluation"], "judge": asked},
    }


def test_a_killed_run_goes_on_with_what_tool_and_judge_had_answered(
    golden: SharedRuns, tmp_path: Path, judge: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_grammar.py").write_text(OWN_REWARD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(SECONDS_VARIABLE, "0")
    with ToolServer() as tool:
        monkeypatch.setenv("OWN_TOOL", tool.url)

        def run(name: str) -> Path:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            monkeypatch.setenv("OWN_CACHE", str(folder / "tool.jsonl"))
            return golden.run("segment", **settings_of(folder, judge), out=folder / "out")

        never = {path.name: digest(path) for path in run("never").iterdir()}
        asked = tool.calls, len(judge.bodies)
        assert min(asked) > 10
        metrics = json.loads((tmp_path / "never" / "out" / "result" / "metrics.json").read_text())
        invalid = {name: value for name, value in metrics.items() if name.endswith("_invalid")}
        assert invalid, "pairs were judged"
        assert not any(invalid.values()), "every verdict is read"

        judge.bodies.clear()
        offer, write = RunCheckpoints.offer, policy.write_run

        def killed_before_the_second_is_saved(self: RunCheckpoints, step: int, state: Any) -> None:
            if step == 2:
                raise Killed
            offer(self, step, state)

        def killed_after_the_judge(*arguments: Any) -> None:
            raise Killed

        monkeypatch.setattr(RunCheckpoints, "offer", killed_before_the_second_is_saved)
        with pytest.raises(Killed):
            run("killed")
        monkeypatch.setattr(RunCheckpoints, "offer", offer)
        monkeypatch.setattr(policy, "write_run", killed_after_the_judge)
        with pytest.raises(Killed):
            run("killed")
        monkeypatch.setattr(policy, "write_run", write)
        assert {path.name: digest(path) for path in run("killed").iterdir()} == never
        assert (tool.calls - asked[0], len(judge.bodies)) == asked
