"""Registration of studies: the commit of a study's file, and the seeds of its worlds that follow from it.

A study is registered by the commit of its file. The seeds of its worlds are drawn from its name and the file's digest,
so that nobody chooses them; a changed or renamed file has other worlds. A pilot, too, runs a committed file, but on a
tuning seed; until a registered world has started, a later commit may still change the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.params.studies import TWIN
from tasks.params.yaml_files import parse_mapping
from tasks.running.commit import commit_of
from tasks.studies.git_history import blob_at, blob_of
from tasks.studies.world_seeds import TWINS, world_seed

RECORDS = Path("reference") / "studies"


@dataclass(frozen=True)
class Registration:
    """A study's file as git has it.

    Attributes:
        study: its name.
        digest: SHA-256 of the file.
        blob: git's name of the file's content.
        commit: HEAD of the repository, whose code trains the worlds; not necessarily the commit that added the file.
        twins: whether rows are compared with themselves.
    """

    study: str
    digest: str
    blob: str
    commit: str
    twins: bool = False

    def world_seed(self, index: int) -> int:
        """Returns the seed of the study's world of an index, from 0 on; a study of twins has seeds kept for twins."""
        return TWINS.start + index if self.twins else world_seed(self.study, self.digest, index)


def digest_of(file: Path) -> str:
    """Returns SHA-256 of a study's file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def registration_of(root: Path, file: Path) -> Registration:
    """Returns the registration of a study.

    Raises:
        RecipeError: the file is not committed as it is.
    """
    inside = file.resolve().relative_to(root.resolve()).as_posix()
    own, committed = blob_of(root, inside), blob_at(root, "HEAD", inside)
    if own is None or own != committed:
        state = "is not committed" if committed is None else "differs from the committed one"
        raise RecipeError(
            f"{inside} {state}; a study is registered by a commit before it runs: git add {inside} && git commit"
        )
    return Registration(file.stem, digest_of(file), own, commit_of(root), of_twins(file))


def of_twins(file: Path) -> bool:
    """Returns whether a study's file has a twin among its rows, whatever else is wrong with it."""
    rows = parse_mapping(file.read_text(encoding="utf-8"), file.as_posix()).get("rows")
    return isinstance(rows, Mapping) and any(
        isinstance(row, Mapping) and row.get(TWIN) is True for row in rows.values()
    )


def record_file(study: str, number: int, *, pilot: bool = False) -> Path:
    """Returns where the record of a world is, relative to the root."""
    return RECORDS / study / (f"pilot-{number}.json" if pilot else f"{number}.json")
