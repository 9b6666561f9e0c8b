"""JSON files that a crash, a disk or a hand damaged: a message that names the file, never a traceback."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from tasks.commands.verify import stable_facts
from tasks.data_specs.pair_formats import read_pairs
from tasks.graph.items import Item
from tasks.graph.needs import _architecture
from tasks.graph.results import stopped
from tasks.graph.stages import declared_stages
from tasks.params.stages import read_deepspeed
from tasks.params.yaml_files import yaml_text
from tasks.report.outputs import StageOutput
from tasks.running.artifacts import read_json, read_jsonl
from tasks.running.doubtful_numbers import alarms_of
from tasks.scoring.segmenting import load_entropies
from tasks.studies.world_record import row_run

DAMAGED = {
    "cut": b'{"a": ',
    "nested": b"[" * 100_000,
    "binary": b"\xff\xfe\x00",
    "empty": b"",
}


def _of_a_folder(read: Callable[[Path], Any], name: str) -> Callable[[Path], Any]:
    def of(file: Path) -> Any:
        place = file.parent / name
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
        return read(file.parent)

    return of


READERS: dict[str, Callable[[Path], Any]] = {
    "artifact": read_json,
    "rows of an artifact": read_jsonl,
    "deepspeed": read_deepspeed,
    "pairs": lambda file: read_pairs(file, {}),
    "answers of a report": _of_a_folder(lambda out: StageOutput(out, 0).generations, "result/generations.jsonl"),
    "configuration of a backbone": _of_a_folder(
        lambda folder: _architecture(folder, SimpleNamespace(source=".")),  # type: ignore[arg-type]
        "config.json",
    ),
}


@pytest.mark.parametrize("read", [stable_facts, lambda tree: row_run(tree, Item("policy", "a", {}, ".", "p", 0))])
def test_a_missing_record_of_a_stage_is_named(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(DataError, match=r"record/record\.json"):
        read(tmp_path)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_named(tmp_path: Path, reader: str, damage: str) -> None:
    lines = reader in ("rows of an artifact", "answers of a report")
    if lines and damage == "empty":
        pytest.skip("a file without rows is one")
    file = tmp_path / "file.json"
    file.write_bytes(DAMAGED[damage])
    with pytest.raises(
        (DataError, RecipeError), match=r"not valid JSON|cannot be read|no such field|not a list|not UTF-8"
    ):
        READERS[reader](file)


@pytest.mark.parametrize("text", ["5", "[1]", "{}", '{"reason_": "x"}'])
def test_a_stop_without_a_reason_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "stopped.json").write_text(text)
    with pytest.raises(DataError, match=r"stopped.json"):
        stopped(tmp_path)


@pytest.mark.parametrize("row", ["5", "{}", '{"step": 3, "kind": "kl", "since": 1, "message": "m", "x": 1}'])
def test_an_alarm_that_is_none_is_named_with_its_row(tmp_path: Path, row: str) -> None:
    (tmp_path / "alarms.jsonl").write_text('{"step": 3, "kind": "kl", "since": 1, "message": "m"}\n' + row + "\n")
    with pytest.raises(RewardsmithError, match=r"alarms.jsonl, row 2"):
        alarms_of(tmp_path)


def test_tensors_that_are_missing_are_named(tmp_path: Path) -> None:
    save_file({"train.values": torch.rand(3)}, tmp_path / "entropies.safetensors")
    with pytest.raises(DataError, match=r"entropies.safetensors: has no tensor 'test.values'"):
        load_entropies(tmp_path, "test")


@pytest.mark.parametrize(
    "meta", [None, 5, {"owner": "par"}, {"module": "sft", "owner": "par", "name": "x", "seed": "0"}]
)
def test_a_stage_that_the_graph_did_not_write_is_named(tmp_path: Path, meta: object) -> None:
    (tmp_path / "dvc.yaml").write_text(yaml_text({"stages": {"sft": {"cmd": "x", "meta": meta}}}))
    with pytest.raises(RewardsmithError, match=r"dvc.yaml: stage 'sft' has no meta.(module|seed)"):
        declared_stages(tmp_path / "dvc.yaml")
    (tmp_path / "dvc.yaml").write_text("stages: {sft: true}\n")
    with pytest.raises(RewardsmithError, match=r"stage 'sft' has no meta.module"):
        declared_stages(tmp_path / "dvc.yaml")
