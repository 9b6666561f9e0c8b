"""State of stages in DVC: current, to be restored from its cache, or to be run, with the reason.

`read_state` asks DVC once. What hangs on a stage that runs is counted as running, since its input may change. DVC makes
its objects of a stage, which takes some milliseconds each, only where they decide: of one that has run here, or whose
inputs are all known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.dvc.internals import (
    ROOT_FILE,
    is_damaged,
    newest_run,
    open_repo,
    refuse_unreadable_locks,
    run_key,
)
from tasks.dvc.pipelines import Request
from tasks.dvc.remote import Remote
from tasks.graph.dvc_files import CPU
from tasks.graph.stages import Stage, declared_stages, in_order, select
from tasks.params.yaml_files import read_mapping


def cache_folder(root: Path) -> Path:
    """Returns the folder of a tree's DVC cache, run cache included."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        return Path(repo.cache.local_cache_dir)


def requested_stages(root: Path, asked: Request) -> dict[str, Stage]:
    """Returns the stages of what a run is asked for with their state."""
    return read_state(root, asked.files(root), asked.rows, asked.seeds, asked.papers(root))


def read_state(
    root: Path, files: Sequence[str], rows: Sequence[str] = (), seeds: Sequence[int] = (), papers: Collection[str] = ()
) -> dict[str, Stage]:
    """Returns the chosen stages of the files with their state, in an order that runs; without a choice, all (see
    `select`).

    Raises:
        RecipeError: a row or seed that no stage has.
        RewardsmithError: DVC cannot read the repository.
    """
    from dvc.dvcfile import load_file
    from dvc.exceptions import DvcException

    chosen = select(_stages({file: declared_stages(root / file) for file in files}), rows, seeds, papers)
    try:
        locks = {file: _lock(root, file) for file in files}
        with open_repo(root) as repo, repo.lock:
            loaded = cache(lambda file: load_file(repo, str(root / file)).stages)
            look, states = Inspection(repo), dict[str, Stage]()
            for address, item in chosen.items():
                above = [a for a in item.upstream if states[a].state != "current" and states[a].kind != "check"]
                file, _, name = address.rpartition(":")
                file = file or ROOT_FILE
                load = cache(lambda file=file, name=name: loaded(file)[name])
                state, reasons = look.state(item, above, load, ran=name in locks[file])
                states[address] = replace(item, state=state, reasons=reasons)
            return states
    except (DvcException, DataError, OSError, ValueError) as error:
        refuse_unreadable_locks(root, files)
        raise RewardsmithError(f"DVC cannot read this repository: {error}") from error


def _lock(root: Path, file: str) -> Mapping[str, Any]:
    """Returns the stages of a dvc.yaml's lock file by name; none where there is no such file."""
    path = (root / file).with_suffix(".lock")
    stages: Mapping[str, Any] = (read_mapping(path).get("stages") or {}) if path.exists() else {}
    return stages


def _paths(folder: str, *lists: Sequence[Any]) -> tuple[str, ...]:
    """Returns the paths of outputs or inputs relative to the root; each is a path, or one with its options."""
    paths = (next(iter(one)) if isinstance(one, Mapping) else one for entries in lists for one in entries)
    return tuple(os.path.normpath(os.path.join(folder, path)) for path in paths)


def _stages(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Stage]:
    """Returns every stage of the files in an order in which they can run, each as if it were to run."""
    stages, inputs = dict[str, Stage](), dict[str, tuple[str, ...]]()
    for file, declared in files.items():
        for name, stage in declared.items():
            folder, meta = os.path.join(os.path.dirname(file), stage.get("wdir", "")), stage["meta"]
            address = name if file == ROOT_FILE else f"{file}:{name}"
            inputs[address] = _paths(folder, stage.get("deps") or ())
            stages[address] = Stage(
                address=address,
                kind=str(meta["module"]),
                owner=str(meta["owner"]),
                name=str(meta["name"]),
                seed=meta.get("seed"),
                command=str(stage["cmd"]),
                outs=_paths(folder, *(stage.get(kind) or () for kind in ("outs", "metrics", "plots"))),
                upstream=(),
                state="run",
                reasons=(),
                needs=meta.get("needs", CPU),
            )
    makers = {out: address for address, stage in stages.items() for out in stage.outs}
    upstream = {a: tuple(dict.fromkeys(makers[dep] for dep in deps if dep in makers)) for a, deps in inputs.items()}
    return {address: replace(stages[address], upstream=upstream[address]) for address in in_order(stages, upstream)}


class Inspection:
    """One look at a locked repository: a file that many stages read is hashed once, and settings that many stages read
    are compared once with those that they ran with.

    It waits for no stage that runs, as `dvc status` would: nothing is written.
    """

    def __init__(self, repo: Any) -> None:
        self.repo = repo
        self._hashes: dict[str, Any] = {}
        #: Differences of settings from dvc.lock, by file, keys and the values in dvc.lock.
        self._settings: dict[tuple[str, tuple[str, ...], str], Mapping[str, Any]] = {}
        #: Digests that outputs will have by path, of stages looked at already.
        self._known: dict[str, Any] = {}
        #: Stages looked at already whose outputs nobody knows before they ran.
        self._unknown: set[str] = set()

    def state(
        self, item: Stage, above: list[str], load: Callable[[], Any], *, ran: bool
    ) -> tuple[str, tuple[str, ...]]:
        """Returns a stage's state (current, restore or run), and why it is not current.

        The result of a check is constant: what reads it does not run because the check does.

        Args:
            item: the stage; the ones that it reads from were looked at before.
            above: addresses of the stages above that are not current.
            load: returns DVC's stage.
            ran: whether dvc.lock has it.
        """
        reasons = self.reasons(load()) if ran else ("it has not run here",)
        state = "current"
        if reasons or above:
            stored = ran or os.path.isdir(os.path.join(self.repo.cache.legacy.path, "runs"))
            restorable = stored and self._unknown.isdisjoint(item.upstream) and self.restorable(load())
            state = "restore" if restorable else "run"
            reasons = reasons or tuple(f"reads from {address}" for address in above)
        if state == "run" and not (item.kind == "check" and ran):
            self._unknown.add(item.address)
        else:
            self._known |= {out.fs_path: out.hash_info for out in load().outs}
        return state, reasons

    def reasons(self, stage: Any) -> tuple[str, ...]:
        """Returns the changes since a stage ran, in words."""
        inputs = [word for dep in stage.deps for word in self._changes("input", dep)]
        outputs = [word for out in stage.outs for word in self._changes("output", out)]
        always = ["always changed"] if stage.is_callback or stage.always_changed else []
        command = ["its command changed"] if stage.changed_stage() else []
        return (*inputs, *outputs, *always, *command)

    def _changes(self, noun: str, part: Any) -> list[str]:
        """Returns the difference of an input or output from dvc.lock, in words."""
        from dvc.dependency import ParamsDependency

        if isinstance(part, ParamsDependency):
            return [
                f"{noun} {path}:{key} {change}" if key else f"{noun} {path} {change}"
                for path, changes in self._changed_settings(part).items()
                for key, change in (changes.items() if isinstance(changes, Mapping) else [("", changes)])
            ]
        if part.hash_info and part.use_cache and (_damaged_list(part) or part.changed_cache()):
            return [f"{noun} {part} not in cache"]
        if not part.exists:
            return [f"{noun} {part} deleted"]
        if part.fs_path not in self._hashes:
            self._hashes[part.fs_path] = part.get_hash()
        return [f"{noun} {part} modified"] if self._hashes[part.fs_path] != part.hash_info else []

    def _changed_settings(self, part: Any) -> Mapping[str, Any]:
        """Returns DVC's status of the settings that a stage reads from one file, which DVC parses for each status."""
        asked = (str(part.fs_path), tuple(part.params), repr(part.hash_info.value))
        if asked not in self._settings:
            self._settings[asked] = part.status()
        return self._settings[asked]

    def restorable(self, stage: Any, remote: Remote | None = None) -> bool:
        """Returns whether DVC can bring a stage's outputs from its cache, given the digests that its inputs will have.

        Fills in the outputs' digests when it can, so that stages below see them.

        Args:
            stage: DVC's stage.
            remote: fills this clone's cache first.

        Raises:
            RemoteFailed: the remote cannot be asked now.
        """
        from dvc.exceptions import DvcException
        from dvc.stage.loader import StageLoader
        from dvc.stage.serialize import to_single_stage_lockfile

        try:
            own = None if stage.changed_stage() else to_single_stage_lockfile(stage)
            for dep in stage.deps:
                if dep.fs_path in self._known:
                    dep.hash_info = self._known[dep.fs_path]
                else:
                    dep.save()
            key = run_key(to_single_stage_lockfile(stage))
            if own is None or run_key(own) != key or not all(out.hash_info for out in stage.outs):
                if remote is not None:
                    remote.fetch_runs(key)
                if not (entry := newest_run(self.repo, key)):
                    return False
                StageLoader.fill_from_lock(stage, entry)
                for out in stage.outs:
                    out.obj = None
            if any(map(_damaged_list, stage.outs)):
                return False
            if remote is not None and not stage.outs_cached():
                remote.pull(stage.outs)
            return bool(stage.outs_cached())
        except (DvcException, OSError):
            return False


def _damaged_list(out: Any) -> bool:
    """Returns whether an output's list of files in the cache is damaged; DVC may fail to read it."""
    value = str(out.hash_info.value) if out.hash_info else ""
    return value.endswith(".dir") and is_damaged(Path(out.repo.cache.local.oid_to_path(value)))
