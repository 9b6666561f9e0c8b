"""Files by which DVC knows what is done: dvc.yaml, dvc.lock, run cache, lists of folders' files, records."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.working_tree import clear_dead_locks, set_aside_unreadable_locks
from rlhf_core.errors import RewardsmithError
from tasks.dvc.lock_files import ROOT_FILE, locked_stages
from tasks.dvc.stale import read_state
from tests import small_repository
from tests.fuzz.damage import Area, as_commands, damage_file, damaged_json, damaged_yaml, remove
from tests.small_repository import command

LOCK = "dvc.lock"


def _made(root: Path) -> Path:
    """Returns a small repository whose stages ran, each in no time."""
    small_repository.create(root, demo=("bandit",), seeds=(0,))
    command("dvc", "repro", "-q", root=root)
    return root


def _entries(root: Path) -> dict[str, Any]:
    """Returns by stage what its entry in the lock says of content: command, digests, settings."""
    kept = locked_stages(root, ROOT_FILE)
    sizes = ("size", "nfiles", "isexec")
    return {
        name: {
            part: _by_path([_without(one, sizes) for one in parts]) if isinstance(parts, list) else parts
            for part, parts in entry.items()
        }
        for name, entry in kept.items()
    }


def _by_path(parts: Sequence[Any]) -> list[Any]:
    """Returns the parts of a lock's entry by path; of two with one path DVC reads the last."""
    last = {str(part.get("path") if isinstance(part, dict) else part): part for part in parts}
    return [last[path] for path in sorted(last)]


def _without(part: Any, names: Collection[str]) -> Any:
    """Returns a part of a lock's entry without some of its fields; a damaged one as it is."""
    return {key: value for key, value in part.items() if key not in names} if isinstance(part, dict) else part


def _check(root: Path, known: Mapping[str, Any]) -> None:
    """Asserts that a stage counts as done only where the lock says what it said before the damage."""
    states = read_state(root, [ROOT_FILE])
    found = _entries(root)
    for name, stage in states.items():
        if stage.state == "current":
            assert found[name] == known[name], f"{name} counts as done"


@contextmanager
def locks(folder: Path) -> Iterator[Area]:
    """Yields a case: with a damaged file of DVC's, stages are refused in words or run again; and after what a run does
    first, the state can be read."""
    os.environ["DVC_NO_ANALYTICS"] = "true"
    logging.getLogger("dvc").setLevel(logging.CRITICAL)
    made = _made(folder / "made")
    known = _entries(made)
    assert {stage.state for stage in read_state(made, [ROOT_FILE]).values()} == {"current"}

    cache = made / ".dvc" / "cache"
    cached = sorted([*cache.glob("runs/*/*/*"), *cache.glob("files/md5/*/*.dir")])
    records = sorted((made / "results").rglob("record.json"))

    def case(rng: random.Random) -> None:
        file = rng.choice([made / LOCK, made / LOCK, made / ROOT_FILE, rng.choice(cached), rng.choice(records)])
        mode, content = file.stat().st_mode, file.read_bytes()
        of = {".lock": damaged_yaml, ".yaml": damaged_yaml, ".dir": damaged_json, ".json": damaged_json}
        done = damage_file(rng, file, of.get(file.suffix, damaged_yaml))
        if alone := file.parent != made and file not in records and rng.random() < 0.5:  # a clone with its cache alone
            (made / "results").rename(folder / "aside")
        try:
            _planned(made, known, file)
        except BaseException as error:
            error.add_note(done)
            raise
        finally:
            if alone:
                (folder / "aside").rename(made / "results")
            remove(file)
            file.write_bytes(content)
            file.chmod(mode)
            shutil.rmtree(made / ".work", ignore_errors=True)

    yield case


def _planned(root: Path, known: Mapping[str, Any], file: Path) -> None:
    """Reads the state as a plan does, and again after what a run does first, where that changes anything.

    Args:
        root: the repository.
        known: entries of the lock before the damage.
        file: that is damaged.
    """
    refused = None
    try:
        with as_commands():
            _check(root, known)
    except RewardsmithError as error:
        refused = error
    moved = clear_dead_locks(root) + len(set_aside_unreadable_locks(root))
    if moved:
        _check(root, known)
    elif refused is not None:
        assert file.name == ROOT_FILE, f"a run would be refused, too: {refused}"
        raise refused
