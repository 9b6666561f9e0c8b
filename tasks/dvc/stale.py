"""State of stages in DVC: current, to be restored from its cache, or to be run, with the reason.

`read_state` asks DVC once. What hangs on a stage that runs is counted as running, since its input may change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.dvc.cache_digests import is_damaged
from tasks.dvc.internals import ROOT_FILE, newest_run, open_repo, refuse_unreadable_locks, run_key
from tasks.dvc.pipelines import asked_files, asked_papers
from tasks.dvc.remote import Remote
from tasks.graph.dvc_files import CPU
from tasks.graph.stages import Stage, declared_stages, in_order, is_of_seeds, seeds_of, select


def cache_folder(root: Path) -> Path:
    """Returns the folder of a tree's DVC cache, run cache included."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        return Path(repo.cache.local_cache_dir)


def requested_stages(
    root: Path, paper: str, rows: Sequence[str], seeds: Sequence[int], *, scale: str, full: bool
) -> dict[str, Stage]:
    """Returns the stages of what a run is asked for with their state: a paper's, or the suite's (SUITE)."""
    files = asked_files(root, paper, scale=scale, full=full, rows=rows, seeds=seeds)
    return read_state(root, files, rows, seeds, asked_papers(root, paper, scale=scale, full=full))


def read_state(
    root: Path, files: Sequence[str], rows: Sequence[str] = (), seeds: Sequence[int] = (), papers: Collection[str] = ()
) -> dict[str, Stage]:
    """Returns the chosen stages of the files with their state, in an order that runs; without a choice, all (see
    `select`).

    DVC is asked about the chosen stages only, and loads none of another seed: a look at one costs some milliseconds.

    Raises:
        RecipeError: a row or seed that no stage has.
        RewardsmithError: DVC cannot read the repository.
    """
    from dvc.dvcfile import load_file
    from dvc.exceptions import DvcException

    declared = {file: declared_stages(root / file) for file in files}
    loaded_seeds = seeds if set(seeds) <= seeds_of(declared.values(), papers) else ()  # `select` says what is wrong
    try:
        with open_repo(root) as repo, repo.lock:
            loaded, origin = {}, {}
            for file in files:
                stages_of_file = load_file(repo, str(root / file)).stages
                for own in stages_of_file:
                    if not loaded_seeds or is_of_seeds(declared[file][own], loaded_seeds):
                        name = own if file == ROOT_FILE else f"{file}:{own}"
                        loaded[name], origin[name] = stages_of_file[own], file
            facts = {name: declared[file][str(loaded[name].name)] for name, file in origin.items()}
            stages = _stages(root, loaded, facts)
            return _with_states(repo, loaded, select(stages, rows, seeds, papers))
    except (DvcException, OSError, ValueError) as error:
        refuse_unreadable_locks(root, files)
        raise RewardsmithError(f"DVC cannot read this repository: {error}") from error


def _stages(root: Path, loaded: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Stage]:
    """Returns every stage of the files in an order in which they can run, each as if it were to run.

    Args:
        declared: `meta` of each stage.
    """
    makers = {out.fs_path: name for name, stage in loaded.items() for out in stage.outs}
    upstream = {
        name: tuple(dict.fromkeys(makers[dep.fs_path] for dep in stage.deps if dep.fs_path in makers))
        for name, stage in loaded.items()
    }
    stages: dict[str, Stage] = {}
    for name in in_order(loaded, upstream):
        stage = loaded[name]
        meta = declared[name]
        stages[name] = Stage(
            address=name,
            kind=str(meta["module"]),
            owner=str(meta["owner"]),
            name=str(meta["name"]),
            seed=meta.get("seed"),
            command=str(stage.cmd),
            outs=tuple(Path(out.fs_path).relative_to(root.resolve()).as_posix() for out in stage.outs),
            upstream=upstream[name],
            state="run",
            reasons=(),
            needs=meta.get("needs", CPU),
        )
    return stages


def _with_states(repo: Any, loaded: Mapping[str, Any], chosen: Mapping[str, Stage]) -> dict[str, Stage]:
    """Returns the chosen stages with what DVC says of each.

    The result of a check is constant: what reads it does not run because the check does.
    """
    look, states = Inspection(repo), dict[str, Stage]()
    for name, item in chosen.items():
        above = [a for a in item.upstream if states[a].state != "current" and states[a].kind != "check"]
        state, reasons = look.state(loaded[name], above, constant=item.kind == "check")
        states[name] = replace(item, state=state, reasons=reasons)
    return states


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
        #: Digests that outputs will have by path, of stages looked at already; None for a stage that runs.
        self._known: dict[str, Any] = {}

    def state(self, stage: Any, above: list[str], *, constant: bool = False) -> tuple[str, tuple[str, ...]]:
        """Returns a stage's state (current, restore or run), and why it is not current.

        Args:
            stage: DVC's stage; the ones that it reads from were looked at before.
            above: addresses of the stages above that are not current.
            constant: whether its outputs will be what they are when it runs.
        """
        reasons = self.reasons(stage)
        state = "current"
        if reasons or above:
            state = "restore" if self.restorable(stage) else "run"
            reasons = reasons or tuple(f"reads from {address}" for address in above)
        unknown = state == "run" and not (constant and all(out.hash_info for out in stage.outs))
        self._known |= {out.fs_path: None if unknown else out.hash_info for out in stage.outs}
        return state, reasons

    def reasons(self, stage: Any) -> tuple[str, ...]:
        """Returns the changes since a stage ran, in words."""
        if not any(out.hash_info for out in stage.outs):
            return ("it has not run here",)
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
        if part.hash_info and part.use_cache and (_damaged(part) or part.changed_cache()):
            return [f"{noun} {part} not in cache"]
        if not part.exists:
            return [f"{noun} {part} deleted"]
        return [f"{noun} {part} modified"] if self._hash(part) != part.hash_info else []

    def _changed_settings(self, part: Any) -> Mapping[str, Any]:
        """Returns DVC's status of the settings that a stage reads from one file, which DVC parses for each status."""
        asked = (str(part.fs_path), tuple(part.params), repr(part.hash_info.value))
        if asked not in self._settings:
            self._settings[asked] = part.status()
        return self._settings[asked]

    def _hash(self, part: Any) -> Any:
        if part.fs_path not in self._hashes:
            self._hashes[part.fs_path] = part.get_hash()
        return self._hashes[part.fs_path]

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
                    if self._known[dep.fs_path] is None:
                        return False
                    dep.hash_info = self._known[dep.fs_path]
                else:
                    dep.save()
            key = run_key(to_single_stage_lockfile(stage))
            if own is not None and run_key(own) == key and all(out.hash_info for out in stage.outs):
                return _cached(stage, remote)
            if remote is not None:
                remote.fetch_runs(key)
            entry = newest_run(self.repo, key)
            if not entry:
                return False
            StageLoader.fill_from_lock(stage, entry)
            for out in stage.outs:
                out.obj = None
            return _cached(stage, remote)
        except (DvcException, OSError):
            return False


def _cached(stage: Any, remote: Remote | None) -> bool:
    """Returns whether DVC's cache has a stage's outputs."""
    if any(map(_damaged, stage.outs)):
        return False
    if remote is not None and not stage.outs_cached():
        remote.pull(stage.outs)
    return bool(stage.outs_cached())


def _damaged(out: Any) -> bool:
    """Returns whether an output's list of files in the cache is damaged; DVC may fail to read it."""
    value = str(out.hash_info.value) if out.hash_info else ""
    return value.endswith(".dir") and is_damaged(Path(out.repo.cache.local.oid_to_path(value)))
