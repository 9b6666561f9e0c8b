"""A killed policy run asks neither tool nor judge again for what they had answered, and ends as one never killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tasks import policy
from tasks.running.artifacts import digest
from tasks.running.checkpoints import SECONDS_VARIABLE, RunCheckpoints
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


class FickleJudge:
    """A chat endpoint whose verdict depends on how often it was asked before: asked again, it says something else."""

    def __init__(self) -> None:
        self.calls = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers["Content-Length"]))
                outer.calls += 1
                one, other = "AB" if outer.calls % 3 else "BA"
                text = f"[[{one}>{other}]]" if b"[[A" in asked else ("m" if outer.calls % 3 else "M")
                content = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def judge() -> Iterator[FickleJudge]:
    made = FickleJudge()
    yield made
    made.server.shutdown()
    made.server.server_close()


def settings_of(folder: Path, judge: FickleJudge) -> dict[str, dict[str, Any]]:
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
    golden: SharedRuns, tmp_path: Path, judge: FickleJudge, monkeypatch: pytest.MonkeyPatch
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
        asked = tool.calls, judge.calls
        assert min(asked) > 10
        metrics = json.loads((tmp_path / "never" / "out" / "result" / "metrics.json").read_text())
        invalid = {name: value for name, value in metrics.items() if name.endswith("_invalid")}
        assert invalid, "pairs were judged"
        assert not any(invalid.values()), "every verdict is read"

        judge.calls = 0
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
        assert (tool.calls - asked[0], judge.calls) == asked
