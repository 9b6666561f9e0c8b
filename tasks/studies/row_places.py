"""Checks that each row of a record is in its place: trained in its cell, on its cell's data, with its own settings.

A row that was put in the place of another one brings its digests along, of its result, its data and its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError

Record = Mapping[str, Any]
#: Parts of a row's origin that are results of its cell, and their names in messages.
OF_CELL = {"data": "data", "sft": "SFT model"}
REMEDY = "A record is written by `rewardsmith study run` and never edited"


def check_cells(file: Path, record: Record) -> None:
    """Refuses a row with the result of another row of its cell, or trained on something that is not of its cell.

    Args:
        file: of the record.
        record: its content.

    Raises:
        DataError: names the cell and the rows.
    """
    for cell, stages in record["cells"].items():
        seen: dict[str, str] = {}
        made = {run["result"] for part in stages.values() for run in part.values()}
        for row, run in stages["rows"].items():
            where = f"row '{row}' of cell '{cell}'"
            if run["result"] is not None and "stopped" not in run:
                if run["result"] in seen:
                    problem = f"{where} has the result of row '{seen[run['result']]}', digest {run['result'][:12]}"
                    raise DataError(problem, file=file.as_posix(), field="result", remedy=REMEDY)
                seen[run["result"]] = row
            for name, word in OF_CELL.items():
                origin = run.get("origin", {}).get(name)
                if origin is not None and origin not in made:
                    problem = f"{where} is of {word} {origin[:12]}, which no stage of the cell made"
                    raise DataError(problem, file=file.as_posix(), field=f"origin.{name}", remedy=REMEDY)


def check_settings(records: Mapping[Path, Record]) -> None:
    """Refuses a row with the settings that another row, or the row of another cell, has in another world.

    Settings that differ between worlds and are of no other place come from changed pages or stages, which
    `tasks.studies.provenance.differences` names.

    Args:
        records: of a study's worlds by file.

    Raises:
        DataError: names both places and worlds.
    """
    first: tuple[Path, dict[tuple[str, str], str]] | None = None
    for file, record in records.items():
        own = _settings(record)
        if first is None:
            first = file, own
            continue
        before, known = first
        places = {settings: place for place, settings in known.items()}
        for (cell, row), settings in own.items():
            if settings != known.get((cell, row), settings) and settings in places:
                other, name = places[settings]
                problem = f"row '{row}' of cell '{cell}' has the settings of row '{name}' of cell '{other}' in {before}"
                raise DataError(problem, file=file.as_posix(), field="origin.settings", remedy=REMEDY)


def _settings(record: Record) -> dict[tuple[str, str], str]:
    """Returns the digest of each row's settings by cell and row."""
    return {
        (cell, row): run["origin"]["settings"]
        for cell, stages in record["cells"].items()
        for row, run in stages["rows"].items()
        if "settings" in run.get("origin", {})
    }
