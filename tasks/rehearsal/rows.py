"""Rows of a rehearsal: the shortest ones of the given folder, else made-up ones (`made_up.yaml`)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.data.schemas import Record
from rlhf_core.data.sources import DirectorySource
from rlhf_core.evaluation.benchmark_names import REWARD_BENCH
from rlhf_core.evaluation.harness.choice import harness_folder
from rlhf_core.evaluation.length_controlled import CALIBRATION_COLUMNS
from tasks.params.yaml_files import read_mapping
from tasks.report.length_control import FEWEST

MADE_UP = read_mapping(Path(__file__).with_name("made_up.yaml"))
#: Rows of a set that is learned from; one that is measured has as many as length control is fitted to.
LEARNED = 8
#: Instructions of AlpacaEval.
INSTRUCTIONS = 805
#: Kinds of questions by task of lm-evaluation-harness; the others are of multiple choice.
TASK_KINDS = {"gsm8k": "solved", "winogrande": "gap"}


@dataclass
class SmallRows:
    """The rows of one rehearsal.

    Attributes:
        folder: for files of rows, `<name>.<split>.jsonl`.
        given, also: the source of real rows, and names of its sets by the names that the scale has for them.
        texts: of every row.
    """

    folder: Path
    given: DirectorySource | None
    also: Mapping[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def write(
        self, name: str, split: str, kind: str, count: int = 0, where: Callable[[Record], bool] | None = None
    ) -> list[Record]:
        """Writes rows of a split of a set; returns them.

        Args:
            kind: in `MADE_UP`.
            count: of the rows; without it, those of a set that is learned from or measured.
            where: returns whether a real row can be used.
        """
        rows = self.records(name, split, kind, count or (LEARNED if split == "train" else FEWEST), where)
        self._write_file(name, split, rows)
        return rows

    def records(
        self, name: str, split: str, kind: str, count: int, where: Callable[[Record], bool] | None = None
    ) -> list[Record]:
        """Returns rows of a split of a set: the shortest real ones, else made-up ones."""
        known = self.given.available() if self.given else {}
        local = next((one for one in (name, self.also.get(name, name)) if split in known.get(one, ())), None)
        if local is None or self.given is None:
            first = 101 if split == "train" else 201
            return [_made_up(kind, f"{name}-{split}", number) for number in range(first, first + count)]
        found = [row for row in _read(self.given.file(local, split)) if where is None or where(row)]
        found.sort(key=lambda row: (not row.get("reference"), len(json.dumps(row))))
        return [_with_prompt(row) if kind == "prompt" else row for row in found[:count]]

    def pairs_of(self, name: str, split: str, questions: list[Record]) -> None:
        """Writes a split of a set of pairs: one pair of each of some questions."""
        ids = [row["id"] for row in questions]
        found = self.records(name, split, "preference", len(ids), lambda row: row.get("question_id") in ids)
        self._write_file(name, split, [{"question_id": id_, **row} for row, id_ in zip(found, ids, strict=False)])

    def task(self, task: str, shots: int, name: str | None) -> str:
        """Writes the rows of a task of lm-evaluation-harness; returns the name of their set."""
        name = name or self.also.get(task, task)
        for split in ("train", "validation", "test"):
            if task != "mmlu":
                self.write(name, split, TASK_KINDS.get(task, "choice"), shots + 2 if split == "train" else 2)
                continue
            rows = []
            for file in sorted(harness_folder().glob("mmlu/default/mmlu_*.yaml")):
                subject = file.stem.removeprefix("mmlu_")
                own = self.records(name, split, "choice", shots or 1, _of_subject(subject))
                rows += [{**row, "subject": subject, "id": f"{row['id']}-{subject}"} for row in own]
            self._write_file(name, split, rows)
        return name

    def reward_bench(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of a set of the hub that has a pair for each of RewardBench's subsets."""
        subsets = [subset for section in REWARD_BENCH.values() for subset in section]
        found = self.records(name, "test", "preference", len(subsets))
        rows = [{**row, "subset": subset} for row, subset in zip(found * len(subsets), subsets, strict=False)]
        file = self._write_file(name, "test", rows)
        mapping = {ours: ours for ours in values["mapping"]}
        read = {"path": "json", "kind": values["kind"], "mapping": mapping}
        return {**read, "data_files": {"test": f"{file.parent.name}/{file.name}"}, "splits": {"test": "test"}}

    def calibration(self) -> str:
        """Writes made-up calibration rows of AlpacaEval's length control; returns the file."""
        file = self.folder / "df_gamed.csv"
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, CALIBRATION_COLUMNS)
            writer.writeheader()
            for index in range(INSTRUCTIONS):
                for length, preference in ((-1.0, 0.6), (1.0, 0.3)):
                    made = {"preference": preference + index % 9 / 100, "index": index, "std_delta_len": length}
                    writer.writerow(made | {"instruction_difficulty": index % 9 / 10, "not_gamed_baseline": False})
        return f"{self.folder.name}/{file.name}"

    def _write_file(self, name: str, split: str, rows: list[Record]) -> Path:
        file = self.folder / f"{name}.{split}.jsonl"
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self.texts += lines
        return file


@lru_cache(maxsize=1)
def _read(file: Path) -> list[Record]:
    return read_jsonl(file)


def _made_up(kind: str, name: str, number: int) -> Record:
    """Returns a made-up row with an id, whose numbers begin at 1 in each split."""

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return Template(value).substitute(n=number, twice=2 * number)
        if isinstance(value, Mapping):
            return {key: filled(part) for key, part in value.items()}
        return [filled(part) for part in value] if isinstance(value, list) else value

    return {"id": f"{name}-{number % 100:06d}", **filled(MADE_UP[kind]), "source": "made up for a rehearsal"}


def _with_prompt(row: Record) -> Record:
    return row if "prompt" in row else {**row, "prompt": row["turns"][0]}


def _of_subject(subject: str) -> Callable[[Record], bool]:
    return lambda row: row.get("subject") == subject
