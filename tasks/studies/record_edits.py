"""Checks that a record agrees with itself: a number or a digest that was edited disagrees with one that it repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.params.tuning import FILE as TUNING_FILE
from tasks.studies.git_history import blob_at
from tasks.studies.row_places import REMEDY

Record = Mapping[str, Any]


def check_last_points(file: Path, record: Record) -> None:
    """Refuses a row whose metrics are not those of its curve's last point, where both are of one evaluation.

    A policy that kept the weights of an earlier evaluation has another one after training (`kept_step`).

    Args:
        file: of the record.
        record: its content.

    Raises:
        DataError: names the cell, row and metric.
    """
    for cell, stages in record["cells"].items():
        for row, run in stages["rows"].items():
            metrics, points = run.get("metrics", {}), run.get("curve", {}).get("points", [])
            if not points or "kl" not in metrics or "kept_step" in metrics:
                continue
            for name, value in _numbers(points[-1]):
                other = metrics.get(name)
                if isinstance(other, int | float) and f"{other:.7g}" != f"{value:.7g}":
                    problem = f"row '{row}' of cell '{cell}' has {name} {other:g}; the last point of its curve, which "
                    problem += f"is the same evaluation, has {value:g}"
                    raise DataError(problem, file=file.as_posix(), field=f"metrics.{name}", remedy=REMEDY)


def _numbers(point: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in point.items() if isinstance(value, int | float))


def check_unknown_settings(root: Path, records: Mapping[Path, Record]) -> None:
    """Refuses a row whose digest of settings differs from that of the same row and cell in other worlds.

    Digests of rows may differ between worlds whose digest of all settings, code or search spaces of tuning differ
    (`tasks.studies.provenance.differences` names the first two): only alike worlds are compared.

    Args:
        root: the repository.
        records: of a study's worlds by file.

    Raises:
        DataError: names the world's record, the cell and the row.
    """
    seen: dict[tuple[str, str, Any], dict[Path, str]] = {}
    for file, record in records.items():
        alike = _alike(record)
        for cell, stages in record["cells"].items():
            for row, run in stages["rows"].items():
                if (settings := run.get("origin", {}).get("settings")) is not None:
                    seen.setdefault((cell, row, alike), {})[file] = settings
    for (cell, row, _), digests in seen.items():
        if len({*digests.values()}) > 1 and len({_spaces(root, records[file]) for file in digests}) == 1:
            usual = Counter(digests.values()).most_common(1)[0][0]
            file, digest = next((file, digest) for file, digest in digests.items() if digest != usual)
            problem = f"row '{row}' of cell '{cell}' has settings {digest}, and {usual} in "
            problem += f"{next(other for other, known in digests.items() if known == usual)}"
            raise DataError(problem, file=file.as_posix(), field="origin.settings", remedy=REMEDY)


def _alike(record: Record) -> tuple[str, frozenset[str]]:
    """Returns what worlds have in common whose rows have the same digests: settings of all stages, and code."""
    return record["settings"], frozenset(one["sources"] for one in record["environments"])


def _spaces(root: Path, record: Record) -> frozenset[str | None]:
    """Returns git's names of the search spaces with which a world's stages ran."""
    commits = {record["commit"], *(one["commit"] for one in record["environments"])}
    return frozenset(blob_at(root, commit, TUNING_FILE.as_posix()) for commit in commits)
