"""Rows of a rehearsal: a few of each data set that a scale reads, in the form in which the scale reads them.

They are the shortest rows of the folder that the rehearsal is given; where it has none of a set, they are made up. Rows
of a set of the hub get the columns of the hub's set, so that the scale's own mapping reads them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

from rlhf_core.data.dialogue import parse_dialogue, render_dialogue
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.data.schemas import Record
from rlhf_core.data.sources import DirectorySource
from rlhf_core.evaluation.alpaca_calibration import CALIBRATION_COLUMNS
from rlhf_core.evaluation.harness.choice import harness_folder
from rlhf_core.evaluation.reward_bench import OFFICIAL
from tasks.rehearsal.made_up import made_up
from tasks.report.length_controlled_runs import FEWEST

#: Rows of a set that is learned from, and of one that is measured: as many as length control is fitted to.
LEARNED, MEASURED = 8, FEWEST
#: Rows of a task of lm-evaluation-harness.
TASK_ROWS = 2
#: More rows than any set has.
MANY = 10**6
#: Sets under another name in the given folder.
ALSO = {
    "helpful_base": "hh_helpful",
    "arena_hard_v01_baseline": "arena_hard_v01",
    "mt_bench_references": "mt_bench",
    "europarl_es_en": "wmt_es_en",
    "arc_challenge": "arc",
    "truthfulqa_mc2": "truthfulqa",
}
#: Sets of the hub whose dialogues are texts.
TEXT_DIALOGUES = ("Anthropic/hh-rlhf",)
#: Places of a tree's rows.
DATA, HUB_ROWS = "data", "hub_rows"
OWN, MADE = "own rows", "made up"
_SUBSETS = tuple(subset for section in OFFICIAL.values() for subset in section)
#: Kinds of made-up questions by harness task; the others are of multiple choice.
TASK_KINDS = {"gsm8k": "solved", "winogrande": "gap"}


@dataclass
class SmallRows:
    """The rows of one rehearsal.

    Attributes:
        tree: the rehearsal's folder.
        given: the source of real rows, None for none.
        origins: by set: 'own rows', 'rows of <set>' or 'made up'.
        texts: of every row that was written.
    """

    tree: Path
    given: DirectorySource | None
    origins: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    _read: dict[Path, list[Record]] = field(default_factory=dict)

    def hub_set(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the settings of a set of the hub that reads rows of the tree instead.

        Entries that map different columns of a set have files of their own.
        """
        kind = str(values.get("kind") or _kind_of(values["mapping"]))
        read_as = sha256(json.dumps([kind, values["mapping"]]).encode()).hexdigest()[:8]
        files = {}
        for split in values.get("splits") or {"train": "train", "test": "test"}:
            subsets = _SUBSETS if "subset" in values["mapping"] else ()
            records = self.records(name, split, kind, count=len(subsets))
            named = zip(records, cycle(subsets or ("",)), strict=False)
            as_text = values["path"] in TEXT_DIALOGUES
            own = values["mapping"]
            rows = [hub_row({"subset": subset, **row}, own, as_text=as_text) if own else row for row, subset in named]
            file = Path(HUB_ROWS) / f"{name}-{read_as}.{split}.jsonl"
            self._write(file, rows)
            files[split] = str(file)
        kept = {key: value for key, value in values.items() if key not in ("config", "revision")}
        return {**kept, "path": "json", "data_files": files, "splits": {split: split for split in files}}

    def directory_set(
        self, name: str, split: str, kind: str, where: Callable[[Record], bool] | None = None
    ) -> list[Record]:
        """Writes a split of a set of the folder of real data; returns its rows."""
        rows = self.records(name, split, kind, where=where)
        self._write(Path(DATA) / f"{name}.{split}.jsonl", rows)
        return rows

    def pairs_of(self, name: str, split: str, ids: Collection[str]) -> None:
        """Writes a split of a set of pairs: one pair of each of some questions."""
        rows: dict[str, Record] = {}
        for row in self.records(name, split, "preference", count=MANY, where=lambda row: row.get("question_id") in ids):
            rows.setdefault(str(row.get("question_id", row["id"])), row)
        if self.origins[name] == MADE:
            made = made_up("preference", f"{name}-{split}", len(ids))
            rows = {id_: {**row, "question_id": id_} for id_, row in zip(ids, made, strict=True)}
        self._write(Path(DATA) / f"{name}.{split}.jsonl", list(rows.values()))

    def task_rows(self, task: str, shots: int, given: str | None) -> str:
        """Writes the rows of a task of lm-evaluation-harness; returns the name of their set."""
        name = given or ALSO.get(task, task)
        kind = TASK_KINDS.get(task, "choice")
        for split in ("train", "validation", "test"):
            count = max(1, shots) + 1 if split == "train" else TASK_ROWS
            if task == "mmlu":
                rows = self._by_subject(name, split, 5 if split == "train" else 1)
            else:
                rows = self.records(name, split, kind, count=count)
            self._write(Path(DATA) / f"{name}.{split}.jsonl", rows)
        return name

    def calibration(self) -> str:
        """Writes calibration rows of AlpacaEval's length control, which are made up; returns the file."""
        file = Path(DATA) / "df_gamed.csv"
        (self.tree / DATA).mkdir(parents=True, exist_ok=True)
        with (self.tree / file).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(CALIBRATION_COLUMNS)
            for index in range(LEARNED):
                for length, preference in ((-1.0, 0.6), (1.0, 0.3)):
                    made = {"preference": preference + index / 100, "index": index, "std_delta_len": length}
                    made |= {"instruction_difficulty": index / 10, "not_gamed_baseline": False}
                    writer.writerow([made[name] for name in CALIBRATION_COLUMNS])
        self.origins["df_gamed.csv"] = MADE
        return str(file)

    def records(
        self, name: str, split: str, kind: str, *, count: int = 0, where: Callable[[Record], bool] | None = None
    ) -> list[Record]:
        """Returns rows of a split of a set: real ones, else made-up ones.

        Args:
            kind: record type, or 'solved' or 'choice' of questions.
            count: of the rows; without it, those of a set that is learned from or measured.
            where: real rows that are good enough; others are not chosen.
        """
        wanted = count or (MEASURED if split in ("test", "validation") else LEARNED)
        known = self.given.available() if self.given else {}
        local = next((one for one in (name, ALSO.get(name, name)) if split in known.get(one, ())), None)
        if local is None or self.given is None:
            self.origins.setdefault(name, MADE)
            known_as = ALSO.get(name, name) if kind == "model_output" else name  # answers of a set of questions
            made = "benchmark" if kind == "model_output" else kind
            rows = made_up(made, f"{known_as}-{split}", min(wanted, 64))
            return [_as(row, kind) for row in rows]
        self.origins[name] = OWN if local == name else f"rows of {local}"
        file = self.given.file(local, split)
        if file not in self._read:
            self._read[file] = read_jsonl(file)
        found = [row for row in self._read[file] if where is None or where(row)]
        return [record for row in _shortest(found, wanted) if (record := _as(row, kind))]

    def _by_subject(self, name: str, split: str, each: int) -> list[Record]:
        """Returns rows of each subject of MMLU."""
        files = harness_folder().glob("mmlu/default/mmlu_*.yaml")
        subjects = sorted(file.stem.removeprefix("mmlu_") for file in files)
        rows: list[Record] = []
        for subject in subjects:
            found = self.records(name, split, "choice", count=each, where=_of_subject(subject))
            rows += [{**row, "subject": subject, "id": f"{row['id']}-{subject}"} for row in found]
        return rows

    def _write(self, file: Path, rows: Sequence[Record]) -> None:
        (self.tree / file).parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (self.tree / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self.texts += [text for row in rows for text in _texts(row)]


def _shortest(rows: Sequence[Record], count: int) -> list[Record]:
    """Returns the shortest rows, in turn of those with and without a reference answer where there are both."""
    ordered = sorted(rows, key=lambda row: len(json.dumps(row)))
    groups = [row for row in ordered if row.get("reference")], [row for row in ordered if not row.get("reference")]
    return [row for pair in zip_longest(*groups) for row in pair if row is not None][:count]


def _texts(value: Any) -> list[str]:
    """Returns the texts in a value."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]


def _of_subject(subject: str) -> Callable[[Record], bool]:
    """Returns whether a row is of a subject, as a function of the row."""
    return lambda row: row.get("subject") == subject


def _kind_of(mapping: Mapping[str, Any]) -> str:
    return "preference" if {"chosen", "rejected"} <= set(mapping) else "sft" if "response" in mapping else "prompt"


def _as(row: Record, kind: str) -> Record:
    """Returns a row of the folder as a record of a type; empty where it is not one."""
    turns = row.get("turns") or []
    if kind == "sft" and "response" not in row:
        answer = row.get("reference") or row.get("chosen")
        prompt = row.get("prompt") or (turns[0] if turns else None)
        return {**row, "prompt": prompt, "response": answer[0] if isinstance(answer, list) else answer}
    if kind == "prompt" and "prompt" not in row:
        return {**row, "prompt": turns[0]}
    if kind == "model_output" and "output" not in row:
        answer = row.get("reference")
        said = {"question_id": row["id"], "generator": row.get("reference_generator"), "output": answer}
        return {"id": row["id"], **said} if answer else {}
    return row


def hub_row(record: Record, mapping: Mapping[str, str], *, as_text: bool = False) -> Record:
    """Returns a row in the columns of a set of the hub, from which its mapping makes the record.

    Args:
        as_text: whether its dialogues are texts of turns instead of chat messages.
    """
    row: Record = {}
    for ours, path in mapping.items():
        column, *steps = path.split(".")
        if steps and steps[0] == "-1":
            row[column] = _conversation(record["prompt"], record[ours], as_text=as_text)
    for ours, path in mapping.items():
        column, *steps = path.split(".")
        if column in row:
            continue
        if steps == [":-1"]:  # of a set that has prompts alone
            row[column] = _conversation(record["prompt"], "", as_text=as_text)
        else:
            row[column] = _nested(record.get(ours), steps)
    return row


def _conversation(prompt: str, answer: str, *, as_text: bool) -> str | list[dict[str, str]]:
    """Returns a dialogue with its last answer: chat messages, or a text of turns."""
    messages = parse_dialogue(prompt)
    if as_text:
        return f"\n\n{render_dialogue(messages)} {answer}"
    return [*messages, {"role": "assistant", "content": answer}]


def _nested(value: Any, steps: Sequence[str]) -> Any:
    """Returns a column from which the steps lead to a value."""
    if not steps:
        return value
    if steps[-1] == "content" and isinstance(value, list):
        value = value[0]
    if steps[-1] == "turns" and isinstance(value, str):
        value = [value]
    for step in reversed(steps):
        value = [value] if step.isdigit() else {step: value}
    return value
