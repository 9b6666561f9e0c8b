"""Differences between a study's rows and what was tuned: a row that was tuned as something else is not tuned fairly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.params.studies import StudySpec
from tasks.studies.origins import placed
from tasks.studies.tuned import TunedRow, has_tuned_settings
from tasks.studies.world_seeds import TUNING

Records = Sequence[Mapping[str, Any]]


def tuning_differences(rows: tuple[str, str], tuning: Mapping[str, Any], tuned: Mapping[str, TunedRow]) -> list[str]:
    """Returns how the tuning of two rows differs, in words.

    Args:
        rows: that a hypothesis compares.
        tuning: the record of the study's tuning.
        tuned: its rows with their choices.
    """
    found = []
    trials = [tuned[row].trials if row in tuned else 0 for row in rows]
    if trials[0] != trials[1]:
        found.append(f"{trials[0]} trials of '{rows[0]}' and {trials[1]} of '{rows[1]}'")
    spaces = [tuning["rows"].get(row, {}).get("space") or {} for row in rows]
    other = sorted(name for name in spaces[0].keys() & spaces[1].keys() if spaces[0][name] != spaces[1][name])
    if other and len({tuned[row].kind for row in rows}) == 1:
        found.append(f"'{rows[0]}' and '{rows[1]}' were tuned over different ranges of {', '.join(other)}")
    return found


def other_than_tuned(
    spec: StudySpec, row: str, tuning: Mapping[str, Any], tuned: TunedRow, records: Records
) -> list[str]:
    """Returns how a row differs from what was tuned under its name, in sentences that begin with its name.

    Args:
        spec: the study.
        row: its row.
        tuning: the record of the study's tuning.
        tuned: the row in it, with its choice.
        records: of the study's worlds.
    """
    made, found = tuning["rows"][row], []
    if tuning["metric"] != spec.metric:
        found.append(f"'{row}' was tuned by {tuning['metric']}, and the study's metric is {spec.metric}")
    if strange := [seed for seed in tuning["seeds"] if seed not in TUNING]:
        found.append(f"'{row}' was tuned on seed {strange[0]}, which is not a seed of tuning")
    cells = spec.tuning_cells(row)
    if made["cells"] != cells:
        found.append(f"'{row}' was tuned in {_names(made['cells'])}, and the study tunes it in {_names(cells)}")
    fixed = made.get("fixed", [])
    if sorted(fixed) != sorted(spec.fixed(row)):
        found.append(f"'{row}' was tuned with {_names(fixed)} fixed, now {_names(spec.fixed(row))}")
    if tuned.best is None:
        found.append(f"'{row}' has nothing that tuning chose")
    elif not has_tuned_settings(spec, tuned):
        found.append(f"'{row}' does not run at the settings that tuning chose")
    return found + _other_settings(row, made, records)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _other_settings(row: str, made: Mapping[str, Any], records: Records) -> list[str]:
    """Returns in which worlds a row was trained from something else than its trials were."""
    places: dict[str, list[str]] = {}
    for record in records:
        for cell in made["cells"]:
            runs = (run for trial in made["trials"] for cells in trial["runs"].values() for run in [cells.get(cell)])
            known = {run["settings"] for run in runs if run is not None}
            run = record["cells"].get(cell, {}).get("rows", {}).get(row)
            if run is not None and {run.get("origin", {}).get("settings")} != known:
                said = f"'{row}' was tuned at other settings or stage versions"
                places.setdefault(said, []).append(f"than it has in world {record['world']}, cell '{cell}'")
    return [placed(said, where) for said, where in places.items()]
