"""Settings and examples as a stage used them (`rlhf_core.as_used`), as a fingerprint has them."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.running.artifacts import read_json
from tasks.running.result_digests import RECORD
from tasks.running.result_rows import WholeRecord
from tasks.running.typed_results import read_stage_record

#: Notes that have names of their own; others are settings.
BY_NAME = ("sampling", "examples")
#: Kinds of stages that give a training its data, equal on any machine, or weights to begin with.
GIVE_DATA = ("prepare", "tokenizer", "sft")
#: Kinds of stages that say where segments end.
GIVE_SEGMENTS = ("entropies", "segmenter")


def as_used(record: WholeRecord, out: Path, root: Path) -> dict[str, str]:
    """Returns what a stage used by name, without digests of examples that depend on what models computed.

    Args:
        record: of the stage.
        out: its output directory.
        root: of the repository, in which inputs are found.
    """
    notes = record.get("as_used", {})
    named = {f"{part}/{name}": value for part in BY_NAME for name, value in notes.get(part, {}).items()}
    found = {f"{part}/settings": value for part, value in notes.items() if part not in BY_NAME} | named
    if not _learns_data(record, out, root):
        found = {name: value for name, value in found.items() if not name.startswith("examples/")}
    return {name: each if isinstance(each, str) else json.dumps(each, sort_keys=True) for name, each in found.items()}


def _learns_data(record: WholeRecord, out: Path, root: Path) -> bool:
    """Returns whether the tokens that a stage learns come from data alone.

    Where segments end changes them only if a token marks each end.
    """
    above = [root / name for name in record["inputs"] if ".yaml" not in name]
    if not all((path.parent / RECORD).exists() for path in above):
        return False
    kinds = {read_stage_record(path.parent)["stage"] for path in above}
    trained = out / "result" / "model" / "reward_model.json"
    marked = trained.exists() and bool(read_json(trained).get("end_token"))
    return kinds <= {*GIVE_DATA, *(() if marked else GIVE_SEGMENTS)}
