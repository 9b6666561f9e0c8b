"""Reward models and policies that `mlflow.pyfunc.load_model` loads: the same numbers, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.sampling import Sampling
from tasks.evaluating.policies import answer
from tasks.running.artifacts import digest, read_json, read_jsonl, write_json
from tasks.running.loading import load_encoder, load_policy
from tasks.scoring.reward_models import TrainedScorer
from tasks.tracking.mirror import Mirror
from tasks.tracking.model_folder import opening, write_model
from tasks.tracking.outcomes import RowOutcome, TrackedStage
from tests.tasks.golden_runs import SharedRuns
from tests.test_documentation import ROOT, blocks, text_of

#: Names of a reward model and a policy with their kinds of stages; golden runs by name.
KINDS = {"reward_model": "reward_model", "ppo": "policy"}
GOLDEN = {"data": "dialogue", "sft": "sft", "reward_model": "model-segment", "ppo": "segment"}
Load = Callable[..., Any]


@pytest.fixture
def project(golden: SharedRuns, tmp_path: Path) -> Path:
    """A clone that has the results of a reward model and a policy, and what they read."""
    root = tmp_path / "project"
    places = {str(golden.result(run)): f"results/{name}/result" for name, run in GOLDEN.items()}
    for name, run in GOLDEN.items():
        shutil.copytree(golden.out(run), root / "results" / name)
        file = root / "results" / name / "record" / "record.json"
        record = read_json(file)
        inputs = {places.get(path, path): value for path, value in record["inputs"].items()}
        file.unlink()
        write_json(file, record | {"inputs": inputs})
    (root / ".dvc").mkdir()
    return root


def outcome(project: Path, name: str, **params: str) -> RowOutcome:
    """A result as the graph of a project names it: by paths below the project."""
    kind, out = KINDS[name], project / "results" / name
    record = read_json(out / "record" / "record.json")
    stage = TrackedStage(f"{kind}-segment-segment-0", kind, "segment", 0, out, f"testbed/segment/{name}/0", params)
    return RowOutcome(stage, digest(out / "result"), record)


@pytest.fixture
def load(project: Path, tmp_path: Path) -> Load:
    """Writes the model of a run as the sync does, and loads it as MLflow's users do."""

    def loaded(name: str, **params: str) -> Any:
        folder = tmp_path / "model"
        if not folder.exists():
            folder.mkdir()
            write_model(folder, outcome(project, name, **params), project)
        return mlflow.pyfunc.load_model(str(folder), model_config={"project": str(project)})

    return loaded


def pairs(project: Path) -> pd.DataFrame:
    rows = read_jsonl(project / "results/data/result/preference.validation.jsonl")
    texts = [(row["prompt"], row[side]) for row in rows for side in ("chosen", "rejected")]
    return pd.DataFrame(texts, columns=["prompt", "response"], index=range(7, 7 + len(texts)))


def test_a_reward_model_scores_as_the_stages_do(golden: SharedRuns, project: Path, load: Load) -> None:
    table = pairs(project)
    rewards = load("reward_model").predict(table.assign(other=1))
    scorer = TrainedScorer.load(golden.result("model-segment"))
    expected = scorer([{"prompt": prompt} for prompt in table["prompt"]], list(table["response"]))
    assert max(expected) - min(expected) > 1e-2
    assert list(rewards.columns) == ["reward"]
    assert rewards["reward"].dtype == np.float32
    assert rewards["reward"].tolist() == pytest.approx(expected, abs=1e-6)
    assert list(rewards.index) == list(table.index)


def test_a_policy_answers_greedily_or_by_a_seed(golden: SharedRuns, project: Path, load: Load) -> None:
    table = pairs(project)[:6]
    model, folder = load("ppo", **{"evaluation.max_new_tokens": "9"}), golden.result("segment") / "model"
    encoder = load_encoder(golden.result("dialogue"), folder)
    policy, rows = load_policy(folder, encoder), [{"prompt": prompt} for prompt in table["prompt"]]

    def own(temperature: float, seed: int = 0) -> list[str]:
        return [text for text, _ in answer(policy, encoder, rows, Sampling(9, temperature), seed, 16)]

    def given(**params: Any) -> list[str]:
        return list(model.predict(table, params=params)["response"])

    assert given() == own(0.0)
    assert given(temperature=1.0, seed=3) == own(1.0, 3) != given(temperature=1.0, seed=4)
    opened = [{**row, "opening": "Tell"} for row in rows]
    assert given(opening="Tell") == [text for text, _ in answer(policy, encoder, opened, Sampling(9, 0.0), 0, 16)]


@pytest.mark.parametrize(
    ("file", "target"),
    [("reward_model/result/model/model.safetensors", "reward_model-segment-segment-0"),
     ("sft/result/model/model.safetensors", "results/sft/result"), ("data/result/data.json", "results/data/result")],
)  # fmt: skip
def test_a_changed_result_is_refused(load: Load, project: Path, file: str, target: str) -> None:
    load("reward_model")
    changed = project / "results" / file
    content = changed.read_bytes()
    changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=rf"another result there.*dvc checkout {target}\)"):
        load("reward_model")


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("reward_model/result", "dvc pull reward_model-segment-segment-0"),
        ("data", "data result .* fetch that result"),
    ],
)
def test_an_absent_result_is_named_with_the_command_that_fetches_it(
    load: Load, project: Path, folder: str, said: str
) -> None:
    load("reward_model")
    shutil.rmtree(project / "results" / folder)
    with pytest.raises(DataError, match=said):
        load("reward_model")


def test_a_reward_model_that_is_asked_has_nothing_to_load(load: Load, golden: SharedRuns, project: Path) -> None:
    (project / "results/reward_model/result/zero_shot.json").write_text("{}")
    with pytest.raises(RecipeError, match="has no weights to load"):
        load("reward_model")


def test_chain_of_hindsight_answers_behind_its_good_words() -> None:
    assert opening({"optimiser.kind": "coh"}) == "Good:\n"
    assert opening({"optimiser.kind": "coh", "optimiser.good": "Right:", "optimiser.batch": "8"}) == "Right:\n"
    assert opening({"optimiser.kind": "imitation"}) == opening({"optimiser.kind": "ppo"}) == opening({}) == ""


@pytest.mark.platform
def test_the_example_of_the_documentation_runs_in_a_clone(
    golden: SharedRuns, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/mlflow.db")
    for _ in range(2):
        mirror = Mirror(project, "segment", "testbed")
        for name in KINDS:
            mirror.record(outcome(project, name))
    assert (mirror.counts.new, mirror.counts.unchanged) == (0, 2)
    versions = mirror.client.search_model_versions()
    assert {(found.name, found.version) for found in versions} == {
        ("segment-policy-segment", 1),
        ("segment-reward-model-segment", 1),
    }
    (example,) = blocks(text_of(ROOT / "docs" / "platform.md"), "python")
    names: dict[str, Any] = {}
    monkeypatch.chdir(project)
    try:
        exec(compile(example, "example", "exec"), names)
        for found in versions:
            mlflow.pyfunc.load_model(f"runs:/{found.run_id}/model")
    finally:
        mlflow.set_tracking_uri(None)
    (row,) = names["table"].to_dict("records")
    expected = TrainedScorer.load(golden.result("model-segment"))([{"prompt": row["prompt"]}], [row["response"]])
    assert row["reward"] == pytest.approx(expected[0], abs=1e-6)
    assert row["greedy"] != row["sampled"]
    assert not [path for path in (project / "mlruns").rglob("*") if path.suffix in (".safetensors", ".pkl")]
