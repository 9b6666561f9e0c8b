"""Sources of records, interchangeable: a folder of JSON Lines, and Hugging Face data sets.

Each has `available()` and `load(name, split)`; what `load` returns has been screened against the schema of
its record type, bad rows being in the quarantine folder and counted in `summaries`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.data.dialogue import parse_dialogue, render_dialogue
from rlhf_core.data.jsonl import Lines, read_lines
from rlhf_core.data.quarantine import QuarantineSummary, Screening
from rlhf_core.data.schemas import Record, infer_record_type, record_type
from rlhf_core.data.selection import HubSet
from rlhf_core.errors import DataError, hint

if TYPE_CHECKING:
    import datasets

_FILE_NAME = re.compile(r"(?P<name>[^.]+)\.(?P<split>[^.]+)\.jsonl(\.gz)?")
_SLICE = re.compile(r"(-?\d*):(-?\d*)")


@dataclass
class DirectorySource:
    """A folder of `<name>.<split>.jsonl` or `<name>.<split>.jsonl.gz` files.

    Attributes:
        screening: what becomes of bad rows.
        summaries: of what was loaded so far.
    """

    root: str | Path
    screening: Screening = field(default_factory=Screening)
    summaries: list[QuarantineSummary] = field(default_factory=list)

    def available(self) -> dict[str, list[str]]:
        """Returns {set name: its splits}."""
        root = Path(self.root)
        if not root.is_dir():
            raise DataError("no such folder", file=str(root), remedy="Name the folder that holds the data files")
        found: dict[str, list[str]] = {}
        for path in sorted(root.iterdir()):
            if match := _FILE_NAME.fullmatch(path.name):
                found.setdefault(match["name"], []).append(match["split"])
        return found

    def load(self, name: str, split: str, kind: str | None = None) -> list[Record]:
        """Returns the good records of one split, of a record type or of the type that fits the fields.

        Raises:
            DataError: an unknown set or split (with the nearest), or data that cannot be used.
        """
        lines = read_lines(self.file(name, split))
        if kind is None and lines.rows:
            kind = infer_record_type([record for _, record in lines.rows], file=lines.file).name
        # where no line is JSON, the lines are at fault, whatever the type
        rows, summary = self.screening.apply(lines, record_type(kind or "prompt"))
        self.summaries.append(summary)
        return rows

    def file(self, name: str, split: str) -> Path:
        """Returns the file of one split.

        Raises:
            DataError: an unknown set or split (with the nearest), or two files of one split.
        """
        _check_known(self.available(), name, split, str(self.root))
        paths = [Path(self.root) / f"{name}.{split}.jsonl{end}" for end in ("", ".gz")]
        present = [path for path in paths if os.path.lexists(path)]
        if len(present) > 1:
            raise DataError(
                "exists both plain and compressed", file=str(present[0]), remedy="Remove one of the two files"
            )
        return present[0]


@dataclass
class HuggingFaceSource:
    """Data sets read with the `datasets` library; their remote code is never run."""

    sets: Mapping[str, HubSet]
    screening: Screening = field(default_factory=Screening)
    summaries: list[QuarantineSummary] = field(default_factory=list)
    #: Columns that a set's mapping does not name, of all splits that were loaded so far.
    unmapped: dict[str, list[str]] = field(default_factory=dict)

    def available(self) -> dict[str, list[str]]:
        return {name: sorted(hub_set.splits) for name, hub_set in self.sets.items()}

    def load(self, name: str, split: str, kind: str | None = None) -> list[Record]:
        _check_known(self.available(), name, split, "the Hugging Face source")
        hub_set = self.sets[name]
        table = load_split(hub_set, hub_set.splits[split])
        label = f"{hub_set.path}:{hub_set.splits[split]}"
        _check_columns(hub_set.mapping, table.column_names, label)
        mapped = {
            theirs if theirs in table.column_names else theirs.split(".")[0] for theirs in hub_set.mapping.values()
        }
        unmapped = [column for column in table.column_names if column not in mapped]
        self.unmapped[name] = list(dict.fromkeys([*self.unmapped.get(name, ()), *unmapped]))
        lines = Lines(label)
        for number, row in enumerate(table, start=1):
            record = _mapped(row, hub_set.mapping)
            record.setdefault("id", f"{name}-{split}-{number:06d}")
            record.setdefault("source", hub_set.path)
            lines.rows.append((number, record))
        # Without a name, the mapping tells the type, not the rows: a value that is missing is a fault.
        kind = kind or hub_set.kind or infer_record_type([dict.fromkeys(hub_set.mapping)], file=label).name
        rows, summary = self.screening.apply(lines, record_type(kind))
        self.summaries.append(summary)
        return rows


Source = DirectorySource | HuggingFaceSource


def _check_known(available: Mapping[str, Sequence[str]], name: str, split: str, where: str) -> None:
    if name not in available:
        raise DataError(f"unknown data set '{name}'{hint(name, available, more=3)}", file=where)
    if split not in available[name]:
        known = available[name]
        raise DataError(f"the data set '{name}' has no split '{split}'{hint(split, known, more=3)}", file=where)


def load_split(hub_set: HubSet, split: str) -> datasets.Dataset:
    """Returns one split as a table; every way in which that can fail becomes a `DataError`."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    folder, named = Path(hub_set.path), hub_set.data_files or {}
    try:
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(folder))[split]
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(
            hub_set.path,
            hub_set.config,
            split=split,
            revision=hub_set.revision,
            data_files={each: one if isinstance(one, str) else list(one) for each, one in named.items()} or None,
        )
    except (ConnectionError, OfflineModeIsEnabled, HfHubHTTPError) as error:
        raise DataError(
            f"the hub cannot be reached ({error})",
            file=hub_set.path,
            remedy="Go online (unset HF_HUB_OFFLINE), log in where the data set is gated, or save the data "
            "set to a folder with save_to_disk on another machine and give that folder as path",
        ) from error
    except Exception as error:  # what datasets raises is of many classes
        raise DataError(
            f"cannot be loaded ({error})",
            file=f"{hub_set.path}:{split}",
            remedy="Check path, configuration, revision and split; a data set's own code is never run",
        ) from error


def _check_columns(mapping: Mapping[str, str], columns: Sequence[str], label: str) -> None:
    for ours, theirs in mapping.items():
        column = theirs if theirs in columns else theirs.split(".")[0]
        if column not in columns:
            raise DataError(
                f"the column '{column}', mapped to '{ours}', does not exist{hint(column, columns, more=3)}",
                file=label,
                field=ours,
            )


def _mapped(row: Mapping[str, Any], mapping: Mapping[str, str]) -> Record:
    """Returns our record of their row; what a path does not reach is left out, so the schema reports it missing."""
    record: Record = {}
    for ours, theirs in mapping.items():
        value = row[theirs] if theirs in row else _follow(row, theirs.split("."))
        if ours == "prompt" and _is_messages(value):
            record["messages"] = [{"role": turn["role"], "content": turn["content"]} for turn in value]
            value = value[0]["content"] if len(value) == 1 else render_dialogue(value)
        if ours == "turns" and isinstance(value, str):
            value = [value]
        if ours in ("id", "question_id") and isinstance(value, int):
            value = str(value)
        if value is not None:
            record[ours] = value
    return record


def _follow(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if isinstance(value, str):
            value = parse_dialogue(f"{value.rstrip()}\n\nAssistant:")
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and (match := _SLICE.fullmatch(step)):
            start, end = (int(bound) if bound else None for bound in match.groups())
            value = value[start:end]
        elif isinstance(value, list) and re.fullmatch(r"-?\d+", step):
            index = int(step)
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            return None
    return value


def _is_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(turn, Mapping)
            and turn.get("role") in ("user", "assistant", "system")
            and isinstance(turn.get("content"), str)
            for turn in value
        )
    )
