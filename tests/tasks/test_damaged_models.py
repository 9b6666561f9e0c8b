"""Results that `explain`, `export` and `hackability` read: what is damaged is named, and no number changes unseen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.commands.explain import print_credit, print_explanation
from tasks.running.result_digests import RECORD
from tests.fuzz.commands import TRAINED, laboratory, make_laboratory, make_trained
from tests.tasks.report.fixture_results import sign


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained") / "root"
    make_trained(root)
    return root


def explain() -> None:
    print_explanation(TRAINED / "result", "the cat", "a dog ran")


def credit() -> None:
    print_credit(Path("results/testbed"), ["one", "other"], 0)


MODEL = TRAINED / "result" / "model"


@pytest.mark.parametrize(
    ("file", "change", "read", "message"),
    [
        (MODEL / "reward_model.json", {"heads": []}, explain, "reward_model.json does not name the heads"),
        (MODEL / "reward_model.json", {"segmenter": None}, explain, "field 'segmenter': None does not describe"),
        (MODEL / "tokenizer_config.json", {"model_max_length": "x"}, explain, "model_max_length is 'x'"),
    ],
)
def test_a_damaged_file_of_a_model_is_named(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path, change: dict[str, Any],
    read: Callable[[], object], message: str,
) -> None:  # fmt: skip
    root = Path(shutil.copytree(made, tmp_path / "root", symlinks=True))
    monkeypatch.chdir(root)
    file.write_text(json.dumps({**json.loads(file.read_text().splitlines()[0] if file.suffix == ".jsonl"
                                             else file.read_text()), **change}) + "\n")  # fmt: skip
    if file.name != RECORD.name:
        sign(root)
    with pytest.raises(DataError, match=message):
        read()
    assert not Path("model").exists(), "half an export was left"


def test_a_tokenizer_that_changed_explains_nothing(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "root", symlinks=True))
    file = MODEL / "tokenizer.json"
    file.write_text(file.read_text().replace('"t":', '"\\u0000":', 1) + "\n")
    with pytest.raises(DataError, match=r"tokenizer\.json: it changed after its stage had ended"):
        explain()


def test_a_tokenizer_with_more_tokens_than_the_model_is_named(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(made, tmp_path / "root", symlinks=True))
    monkeypatch.chdir(root)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["~far~"] = 5000
    (MODEL / "tokenizer.json").write_text(json.dumps(tokenizer))
    sign(root)
    with pytest.raises(DataError, match="the tokenizer has the token 5000, and the model only those below"):
        explain()


def test_a_run_without_a_win_rate_is_named_by_the_laboratory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_laboratory(tmp_path / "root")
    monkeypatch.chdir(tmp_path / "root")
    file = Path("results/testbed/hackability/policy/length-par/0/result/metrics.json")
    file.write_text('{"kl": 1.0}')
    sign(Path())
    with pytest.raises(
        DataError, match=r"length-par/0/result/metrics\.json, field 'win_rate_vs_sft': the win rate is m"
    ):
        laboratory()
