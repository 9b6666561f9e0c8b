"""Bad input, met by the stage that reads it: one clear line, exit code 2, nothing half-written, the next run works."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.data.encoding import Limits
from rlhf_core.errors import DataError
from tasks.running.loading import encode, load_encoder
from tasks.running.stage import USER_ERROR, run_main
from tests.tasks.golden_runs import SharedRuns

Row = dict[str, Any]

SPEC: dict[str, Any] = {
    "source": "directory",
    "template": "plain",
    "limits": {"prompt": 64, "total": 128},
    "preference": ["pairs"],
    "validation_share": 0.2,
    "benchmark_rows": 4,
    "max_bad_share": 0.0,
}


def pairs(count: int) -> list[Row]:
    return [
        {
            "id": f"pair-{i}",
            "prompt": f"Where is house number {i}?",
            "chosen": f"It is in street {i}, near the river.",
            "rejected": "I do not know.",
            "source": "made up",
        }
        for i in range(count)
    ]


class Folder:
    """A directory source with one preference set, its spec, and the `prepare` stage on it."""

    def __init__(self, root: Path) -> None:
        self.data, self.spec, self.out = root / "files", root / "data.yaml", root / "out"
        self.data.mkdir()
        self.write("train", pairs(20))
        self.write("test", pairs(5))
        self.describe({})

    def file(self, split: str) -> Path:
        return self.data / f"pairs.{split}.jsonl"

    def write(self, split: str, rows: list[Row]) -> None:
        self.file(split).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def describe(self, changes: dict[str, Any]) -> None:
        values = {**SPEC, "directory": str(self.data), **changes}
        self.spec.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}), encoding="utf-8")

    def prepare(self) -> Path:
        import_module("tasks.prepare").main(["--spec", str(self.spec), "--out", str(self.out)])
        return self.out / "result"

    def leftovers(self) -> set[str]:
        return {path.name for path in self.out.iterdir()} if self.out.exists() else set()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def exits(capsys: pytest.CaptureFixture[str], run: Callable[[], Any]) -> str:
    """The one error line of a stage that exits with USER_ERROR."""
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda _: run())
    assert stopped.value.code == USER_ERROR
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


def with_row(changes: Row) -> Callable[[Folder], None]:
    """Replaces fields of the third training row; None removes a field."""

    def spoil(folder: Folder) -> None:
        rows = pairs(20)
        rows[2] = {key: value for key, value in {**rows[2], **changes}.items() if value is not None}
        folder.write("train", rows)

    return spoil


#: Faults of all kinds are those of `tests/rlhf_core/data`; here one of a file and one of a row meet the stage.
FAULTS: dict[str, tuple[Callable[[Folder], None], str]] = {
    "missing file": (
        lambda folder: folder.file("train").unlink(),
        r"files: the data set 'pairs' has no split 'train'; known: test",
    ),
    "empty field": (with_row({"prompt": " "}), r"row 3, field 'prompt': empty\. .*orrect"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_data_are_refused_and_the_next_run_works(
    folder: Folder, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, message = FAULTS[fault]
    spoil(folder)
    error = exits(capsys, folder.prepare)
    assert re.search(message, error)
    assert str(folder.data) in error
    assert folder.leftovers() <= {"quarantine"}
    folder.write("train", pairs(20))
    assert (folder.prepare() / "data.json").exists()
    assert folder.leftovers() == {"result", "record"}


def test_a_refusal_leaves_its_bad_rows_where_it_says(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with_row({"prompt": " "})(folder)
    path = folder.out / "quarantine" / "pairs.train.jsonl.quarantine.jsonl"
    assert str(path) in exits(capsys, folder.prepare)
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == [3]


def test_tolerated_bad_rows_are_counted_and_kept_apart(folder: Folder) -> None:
    with_row({"prompt": " "})(folder)
    folder.describe({"max_bad_share": 0.1})
    result = folder.prepare()
    facts = json.loads((result / "data.json").read_text())
    assert facts["rows"]["preference.train"] + facts["rows"]["preference.validation"] == 19
    assert facts["quarantine"][0] == {
        "file": "pairs.train.jsonl",
        "total": 20,
        "quarantined": 1,
        "reasons": {"prompt: empty": 1},
        "quarantine_file": "quarantine/pairs.train.jsonl.quarantine.jsonl",
    }
    assert len((result / facts["quarantine"][0]["quarantine_file"]).read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preferense": ["pairs"]}, r"data.yaml: unknown setting 'preferense'; did you mean 'preference'\?"),
        ({"preference": ["pears"]}, r"unknown data set 'pears'; did you mean 'pairs'\?"),
        ({"source": "folder"}, r"data.yaml: source is 'folder'; known: testbed, directory, huggingface"),
        ({"template": "plane"}, r"unknown chat template 'plane'"),
        ({"limits": {"prompt": 128, "total": 64}}, r"prompt limit 128 and total limit 64 contradict each other"),
        ({"limits": {"promt": 128, "total": 64}}, r"limits: unknown setting 'promt'; did you mean 'prompt'\?"),
        ({"validation_share": 1.5}, r"data.yaml: validation_share is 1.5; it must be between 0 and 1"),
        ({"validation_share": 0.99}, r"20 rows leave none for training besides 20 for validation"),
        ({"source": "huggingface"}, r"'sets' belong to huggingface"),
        ({"limits": None}, r"data.yaml: 'limits' is missing"),
    ],
)
def test_a_bad_data_spec_is_refused(
    folder: Folder, changes: Row, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.describe(changes)
    assert re.search(message, exits(capsys, folder.prepare))
    assert folder.leftovers() == set()


def test_an_id_of_two_sets_is_refused(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "test"):
        rows = [{**row, "id": f"other-{row['id']}"} for row in pairs(20)]
        rows[1]["id"] = "pair-1" if split == "train" else rows[1]["id"]
        (folder.data / f"others.{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.describe({"preference": ["pairs", "others"]})
    error = exits(capsys, folder.prepare)
    assert "file others.train, field 'id': 'pair-1' is an id of 'pairs', too. Give the rows of each set" in error
    assert folder.leftovers() <= {"quarantine"}


@pytest.mark.parametrize("beyond", ["truncate", "error"])
def test_a_prompt_beyond_the_cap_is_cut_and_counted_or_refused_by_file_and_row(golden: SharedRuns, beyond: str) -> None:
    data = golden.made("dialogue-tokenizer").result("dialogue")
    encoder = load_encoder(data, golden.result("dialogue-tokenizer"))
    encoder.limits = Limits(60, 128, on_long_prompt=beyond)
    rows = [{"prompt": prompt, "response": "Here."} for prompt in ("Where?", "Where, oh where, is it? " * 20)]
    if beyond == "error":
        with pytest.raises(DataError, match=r"sft.jsonl, row 2, field 'prompt': the prompt has .*the cap is 60. Raise"):
            encode(encoder, rows, "response", data / "sft.jsonl")
    else:
        encode(encoder, rows, "response", data / "sft.jsonl")
        assert encoder.counts.prompts_cut == 1
