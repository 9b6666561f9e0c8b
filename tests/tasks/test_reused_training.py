"""A model is trained once for data that differ in what its training does not read, bit by bit as by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tasks import aspect_model, prepare, reward_model, sft, tokenizer
from tasks.running.artifacts import digest
from tasks.running.reused_training import FOLDER
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline

TAKEN = "trained by another stage: continues after step"


@pytest.fixture(scope="module")
def made(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Data and tokenizer, and the same data with other labels and another world."""
    made = Pipeline(tmp_path_factory.mktemp("pipeline")).write(SETTINGS)
    for name in ("data", "tokenizer"):
        shutil.copytree(pipeline.out(name), made.out(name))
    relabelled = made.root / "results" / "relabelled" / "result"
    shutil.copytree(made.result("data"), relabelled)
    rows = [json.loads(line) for line in (relabelled / "preference.train.jsonl").read_text().splitlines()]
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    (relabelled / "preference.train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in swapped))
    learned = [json.loads(line) for line in (relabelled / "sft.jsonl").read_text().splitlines()]
    meta = [{**row, "meta": {**row.get("meta", {}), "clauses": []}} for row in learned]
    (relabelled / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in meta))
    facts = json.loads((relabelled / "data.json").read_text())
    facts["world"]["dials"] = {**facts["world"].get("dials", {}), "aggregation": "mean"}
    (relabelled / "data.json").write_text(json.dumps(facts))
    return made


@pytest.fixture
def train(made: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Trains in a tree; returns the result."""

    def run(tree: str, name: str, data: str = "data", seed: int = 0) -> Path:
        (tmp_path / tree).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / tree)
        _, line = made.arguments("sft", Path(name), seed)
        place = line.index("--data") + 1
        line[place] = str(made.result(data))
        sft.main(line)
        return tmp_path / tree / name / "result"

    return run


def test_a_relabelled_data_set_takes_the_training_and_has_an_evaluation_of_its_own(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, alone = train("plain", "first"), train("plain", "second", "relabelled")
    assert TAKEN not in capsys.readouterr().err, "a tree without the folder shares nothing"
    (tmp_path / "sharing" / FOLDER).mkdir(parents=True)
    first = train("sharing", "first")
    assert TAKEN not in capsys.readouterr().err
    second = train("sharing", "second", "relabelled")
    assert capsys.readouterr().err.count(TAKEN) == 1
    assert (digest(first), digest(second)) == (digest(plain), digest(alone))
    assert digest(first / "model") == digest(second / "model")
    assert digest(first / "metrics.json") != digest(second / "metrics.json"), "each is measured in its own world"


def test_another_seed_or_other_texts_are_another_training(
    made: Pipeline, train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sharing" / FOLDER).mkdir(parents=True)
    train("sharing", "first")
    train("sharing", "seed", seed=1)
    other = made.root / "results" / "other" / "result"
    shutil.copytree(made.result("data"), other, dirs_exist_ok=True)
    lines = (other / "sft.jsonl").read_text().splitlines(keepends=True)
    (other / "sft.jsonl").write_text("".join(lines[:-1]))
    train("sharing", "texts", "other")
    assert TAKEN not in capsys.readouterr().err


def test_a_damaged_training_is_not_taken(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sharing" / FOLDER).mkdir(parents=True)
    first = train("sharing", "first")
    for state in (tmp_path / "sharing" / FOLDER).rglob("*.pt"):
        state.write_bytes(state.read_bytes()[:-8] + b"changed!")
    second = train("sharing", "second")
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert TAKEN not in said
    assert digest(first) == digest(second)


LONGFORM = {
    "source": "testbed-longform",
    "template": "plain",
    "limits": {"prompt": 176, "total": 288},
    "world_seed": 0,
    "seed": 0,
    "rows": {
        "sft": 24, "sft_validation": 4, "prompts": 6, "preference_train": 24, "preference_validation": 8,
        "preference_ood": 4, "benchmark": 2, "labelled_train": 16, "labelled_validation": 6,
    },
}  # fmt: skip
LABELS: dict[str, dict[str, Any]] = {
    "right": {"annotator": {"temperature": 0.75}},
    "flipped": {"annotator": {"temperature": 0.75, "flipped": 0.4}},
    "errors": {"annotator": {"temperature": 0.75}, "aspect_errors": {"factuality": 0.4, "completeness": 0.4}},
}
WHOLE = {"title": "Holistic", "backbone": "tiny", "segmenter": {"kind": "bandit"}, "aggregation": "mean"}
ASPECT = {"title": "Aspect", "backbone": "tiny"}


@pytest.fixture(scope="module")
def longform(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Long-form answers in three labellings, and an SFT model of them."""
    settings = {
        **SETTINGS,
        **{name: {**LONGFORM, **labels} for name, labels in LABELS.items()},
        "holistic": {**WHOLE, "loss": "bradley_terry"},
        "factuality": {**ASPECT, "aspect": "factuality", "density": "sentence"},
        "completeness": {**ASPECT, "aspect": "completeness", "density": "sequence"},
    }
    made = Pipeline(tmp_path_factory.mktemp("longform")).write(settings)
    for name in LABELS:
        prepare.main(["--spec", str(made.settings(name)), "--out", str(made.out(name))])
    line = ["--spec", made.settings("tokenizer"), "--data", made.result("right"), "--out", made.out("tokenizer")]
    tokenizer.main([str(part) for part in line])
    line = ["--spec", made.settings("backbone"), "--evaluation", made.settings("evaluation"), "--seed", "0"]
    line += ["--data", made.result("right"), "--tokenizer", made.result("tokenizer"), "--out", made.out("sft")]
    sft.main([str(part) for part in line])
    return made


@pytest.mark.parametrize(
    ("stage", "spec", "same", "other"),
    [
        (reward_model, "holistic", "errors", "flipped"),
        (aspect_model, "factuality", "flipped", "errors"),
        (aspect_model, "completeness", "flipped", "errors"),
    ],
)
def test_models_of_rewards_share_a_training_where_their_own_labels_are_the_same(
    stage: ModuleType,
    spec: str,
    same: str,
    other: str,
    longform: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(tree: str, labels: str) -> Path:
        (tmp_path / tree).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / tree)
        line = ["--spec", longform.settings(spec), "--scale", longform.settings("reward_model_scale")]
        line += ["--data", longform.result(labels), "--sft", longform.result("sft"), "--seed", "0", "--out", labels]
        stage.main([str(part) for part in line])
        return tmp_path / tree / labels / "result"

    alone = {labels: train("plain", labels) for labels in ("right", same, other)}
    (tmp_path / "sharing" / FOLDER).mkdir(parents=True)
    capsys.readouterr()
    for labels, takes in (("right", 0), (same, 1), (other, 0)):
        assert digest(train("sharing", labels)) == digest(alone[labels])
        assert capsys.readouterr().err.count(TAKEN) == takes, labels
