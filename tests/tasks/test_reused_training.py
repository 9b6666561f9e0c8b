"""A model is trained once for data that differ in what its training does not read, bit by bit as by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import sft
from tasks.running.artifacts import digest
from tasks.running.progress import REUSED
from tests.tasks.golden_runs import GoldenRuns, SharedRuns

TAKEN = "trained by another stage: continues after step"


@pytest.fixture(scope="module")
def made(golden: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> GoldenRuns:
    """Data and tokenizer, and the same data with other labels and another world."""
    made = GoldenRuns(tmp_path_factory.mktemp("runs")).write().copy(golden, "dialogue", "dialogue-tokenizer")
    relabelled = made.root / "results" / "relabelled" / "result"
    shutil.copytree(made.result("dialogue"), relabelled)
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
def train(made: GoldenRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Trains in a tree; returns the result."""

    def run(tree: str, name: str, data: str = "", seed: int = 0) -> Path:
        (tmp_path / tree).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / tree)
        folder = made.root / "results" / data / "result" if data else made.result("dialogue")
        sft.main(made.command_line("sft", data=folder, out=name, seed=str(seed)))
        return tmp_path / tree / name / "result"

    return run


def test_a_relabelled_data_set_takes_the_training_and_has_an_evaluation_of_its_own(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, alone = train("plain", "first"), train("plain", "second", "relabelled")
    assert TAKEN not in capsys.readouterr().err, "a tree without the folder shares nothing"
    (tmp_path / "sharing" / REUSED).mkdir(parents=True)
    first = train("sharing", "first")
    assert TAKEN not in capsys.readouterr().err
    second = train("sharing", "second", "relabelled")
    assert capsys.readouterr().err.count(TAKEN) == 1
    assert (digest(first), digest(second)) == (digest(plain), digest(alone))
    assert digest(first / "model") == digest(second / "model")
    assert digest(first / "metrics.json") != digest(second / "metrics.json"), "each is measured in its own world"


def test_another_seed_or_other_texts_are_another_training(
    made: GoldenRuns, train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sharing" / REUSED).mkdir(parents=True)
    train("sharing", "first")
    train("sharing", "seed", seed=1)
    other = made.root / "results" / "other" / "result"
    shutil.copytree(made.result("dialogue"), other, dirs_exist_ok=True)
    lines = (other / "sft.jsonl").read_text().splitlines(keepends=True)
    (other / "sft.jsonl").write_text("".join(lines[:-1]))
    train("sharing", "texts", "other")
    assert TAKEN not in capsys.readouterr().err
