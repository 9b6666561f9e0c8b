"""Changes after a study's first start, when results may be known: a changed file or record of tuning is refused, a
changed claim is a note.

A row that tuning found broken loses nothing, and wins over it confirm nothing. A record of tuning that is changed once
results are known could so turn 'contradicted' into 'broken'. New words of a claim would be tested by known results.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError
from tasks.params.study_claims import PaperClaim
from tasks.params.yaml_files import parse_mapping
from tasks.studies.git_history import blob_at, blob_of, content_of, is_ancestor
from tasks.studies.registration import Registration
from tasks.studies.start_log import VERDICT, starts
from tasks.studies.trial_records import TAKEN_FROM, read_tuning, tuning_file

CLAIMS = Path("rlhf_core") / "published" / "claims"


def refuse_study_changed_since_start(root: Path, own: Registration) -> None:
    """Refuses a study whose file was changed after its first start.

    Raises:
        RecipeError: another version of the study was started before.
    """
    for line in starts(root):
        if line["study"] == own.study and line["kind"] == VERDICT and line["digest"] != own.digest:
            raise RecipeError(
                f"studies/{own.study}.yaml was changed after its first start on {line['time'][:10]} (digest "
                f"{line['digest'][:12]}, now {own.digest[:12]}); register the change as a study of another name"
            )


def _first_start(root: Path, study: str) -> Mapping[str, Any] | None:
    return next((line for line in starts(root) if line["study"] == study and line["kind"] == VERDICT), None)


def tuning_at_start(root: Path, study: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Returns the record of a study's tuning, None without one, and what is to be known of it, in words.

    A record that the commit of the first start does not have came too late: it is not read. Where that commit is lost,
    so is the registration, and the record is read as it is.

    Raises:
        DataError: the record was changed or removed after the study's first start.
    """
    first = _first_start(root, study)
    file = tuning_file(study).as_posix()
    if first is None:
        return _with_origin(read_tuning(root, study))
    here, commit = blob_of(root, file), str(first["commit"])
    at_start = blob_at(root, commit, file)
    if at_start is None and is_ancestor(root, commit, "HEAD"):
        late = f"{file} is not in commit {commit[:10]}, from which the study was started: its rows count as not tuned"
        return None, () if here is None else (late,)
    if at_start is not None and here != at_start:
        remedy = f"Restore it: git checkout {commit[:10]} -- {file}. Tune a study of another name for other trials"
        raise DataError(f"was changed after the first start of study '{study}'", file=file, remedy=remedy)
    return _with_origin(read_tuning(root, study))


def _with_origin(record: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Returns a record of tuning, and which rows have trials of another study."""
    taken: dict[str, list[str]] = {}
    for row, made in (record or {"rows": {}})["rows"].items():
        taken.setdefault(made.get(TAKEN_FROM, ""), []).append(f"'{row}'")
    taken.pop("", None)
    return record, tuple(
        f"tuning trials of {', '.join(rows)} are those of study '{other}'" for other, rows in taken.items()
    )


def claim_changed_since_start(root: Path, study: str, claim: PaperClaim | None) -> tuple[str, ...]:
    """Returns how a claim of a paper differs from what it said at a study's first start, in words."""
    first = _first_start(root, study)
    if claim is None or claim.id is None or first is None:
        return ()
    file, commit = (CLAIMS / f"{claim.paper}.yaml").as_posix(), str(first["commit"])
    then = blob_at(root, commit, file)
    if then is None or then == blob_of(root, file):
        return ()
    before = parse_mapping(content_of(root, then) or "", file)["claims"].get(claim.id)
    now = parse_mapping((root / file).read_text(encoding="utf-8"), file)["claims"].get(claim.id)
    said = f"claim '{claim.id}' of {file} was changed after the first start, of commit {commit[:10]}"
    return (said,) if before != now else ()
