"""What would run and why: the stages of chosen dvc.yaml files against what DVC knows.

`read_state` asks DVC once. Each stage is then `current`, `restore` (its outputs come from DVC's cache) or
`run`; what hangs on a stage that runs is counted as running, since its input may change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from rlhf_core.errors import RecipeError, RewardsmithError, hint
from rlhf_core.published import registry
from tasks.graph import files as graph
from tasks.graph.check import refuse_rows
from tasks.graph.items import SHARED, Graph
from tasks.graph.matrix import build
from tasks.graph.names import SUITE
from tasks.graph.rows import ROW_STAGES
from tasks.params.pages import page_files, read_settings
from tasks.params.scales import scale_names
from tasks.params.settings import ROOT_SCALE
from tasks.params.yaml_files import read_mapping
from tasks.running.artifacts import stopped
from tasks.running.exclusive import only_scheduler

ROOT_FILE = "dvc.yaml"


@dataclass(frozen=True)
class Stage:
    """One stage of the graph. Paths are relative to the repository.

    Attributes:
        address: DVC's name, `policy-segment-bandit-0` or `pipelines/testbed/segment/dvc.yaml:policy-segment-dpo-2`.
        kind: the module that it runs, such as policy.
        owner, name, seed: the paper (or 'shared'), the row, model or data set, and the seed; no name for tables.
        upstream: addresses of the stages whose outputs it reads.
        state: current | restore | run.
        reasons: why it is not current, in words.
        needs: cores, gpus and memory_gb while it runs.
    """

    address: str
    kind: str
    owner: str
    name: str
    seed: int | None
    command: str
    outs: tuple[str, ...]
    upstream: tuple[str, ...]
    state: str
    reasons: tuple[str, ...]
    needs: Mapping[str, int]

    @property
    def out(self) -> str:
        """The stage's output directory, which holds result/ and record/."""
        return str(Path(self.outs[0]).parent)

    @property
    def file_name(self) -> str:
        """The address as a file name."""
        return graph.file_name(self.address)


def pipeline_files(
    root: Path,
    paper: str,
    *,
    scale: str = "testbed",
    full: bool = False,
    rows: Collection[str] = (),
    seeds: Collection[int] = (),
) -> list[str]:
    """The dvc.yaml files of a paper: the root's, and the full matrix's when asked for, at another scale, or where the
    demo has no rows of the paper, or not the chosen rows (or, of chosen rows, not the chosen seeds).

    What params/ no longer gives as it stands in them is written anew, a matrix asked for the first time too.

    Raises:
        RecipeError: not a repository of this project, or a paper without rows at the scale.
    """
    files = [ROOT_FILE] if scale == ROOT_SCALE else []
    params = root / "params.yaml"
    refuse_asked(root, paper, rows, scale=scale, full=full)
    in_demo = not params.exists() or _within(read_settings(params)["demo"].get(paper), rows, seeds)
    folders: tuple[Path, ...] = ()
    if full or not files or not in_demo:
        if not (root / "params" / "scales" / scale).is_dir():
            raise RecipeError(f"unknown scale '{scale}'{hint(scale, sorted(scale_names(root)), more=3)}")
        folders = graph.matrix_folders(scale, paper)
    if params.exists():
        _follow_params(root, folders, build(root))
    files += [f"{folder}/dvc.yaml" for folder in folders if (root / folder / "dvc.yaml").exists()]
    for file in files:
        if not (root / file).exists():
            raise RecipeError(f"{file} does not exist. Run rewardsmith in the repository")
    return files


def refuse_asked(root: Path, paper: str, rows: Collection[str], *, scale: str, full: bool) -> None:
    """Refuses what a run is asked for where a stage would refuse a setting of it, and warns of other rows.

    Raises:
        RecipeError: every problem, one a line.
    """
    if not (root / "params.yaml").exists() or not (root / "params" / "scales" / scale).is_dir():
        return
    chosen = suite_papers(root, scale=scale, full=full) if paper == SUITE else (paper,)
    refuse_rows(root, scale, {name: rows or _demo_rows(root, name, scale, full=full) for name in chosen})


def _demo_rows(root: Path, paper: str, scale: str, *, full: bool) -> Collection[str]:
    """The rows of a paper's part of the demo, where a run is of the demo; none stand for all of the paper's."""
    demo = read_settings(root / "params.yaml")["demo"].get(paper)
    if demo is None or full or scale != ROOT_SCALE:
        return ()
    found: Collection[str] = demo["rows"]
    return found


def suite_papers(root: Path, *, scale: str = ROOT_SCALE, full: bool) -> tuple[str, ...]:
    """Whose rows the suite has: the demo's; in full or at another scale, the five papers'. Others run by name."""
    if full or scale != ROOT_SCALE:
        return tuple(paper for paper in registry.PAPERS if page_files(root / "params" / paper, "rows"))
    return tuple(read_settings(root / "params.yaml")["demo"])


def suite_files(root: Path, *, scale: str = ROOT_SCALE, full: bool) -> list[str]:
    """The dvc.yaml files of the suite's papers at a scale (what they share may hold others' stages, too), or of the
    demo-sized rows; written anew where params/ gives others.

    Raises:
        RecipeError: no paper has rows at the scale.
    """
    folders: list[Path] = []
    refuse_asked(root, SUITE, (), scale=scale, full=full)
    graphs = build(root)
    if full or scale != ROOT_SCALE:
        chosen = {SHARED, *suite_papers(root, scale=scale, full=full)}
        here = [folder for folder in graphs if folder.parts[:2] == ("pipelines", scale)]
        folders = [folder for folder in here if folder.name in chosen]
    _follow_params(root, folders, graphs)
    files = [ROOT_FILE] if scale == ROOT_SCALE else []
    files += [f"{folder}/dvc.yaml" for folder in folders]
    if not files:
        raise RecipeError(f"no paper has a row whose backbone is at scale {scale}")
    return files


def readable_lock(path: Path) -> bool:
    """Whether DVC would read a dvc.lock: it is whole enough for DVC's own schema."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.strictyaml import YAMLValidationError, validate

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        validate(content, COMPILED_LOCKFILE_SCHEMA)
    except (yaml.YAMLError, UnicodeDecodeError, YAMLValidationError):
        return False
    return True


def _follow_params(root: Path, folders: Collection[Path], graphs: Mapping[Path, Graph]) -> None:
    """Writes what params/ gives, and says so of files that git keeps; not under a run that reads them.

    Raises:
        RewardsmithError: a run is at work here, and params/ gives other stages than it has.
    """
    texts = graph.render(root, folders, graphs)
    changed = graph.stale(root, texts)
    with only_scheduler(root) if any((root / path).exists() for path in changed) else nullcontext():
        graph.put(root, texts, changed)
    kept = [path.as_posix() for path in changed if path.parent == Path()]
    if kept:
        print(f"updated {' and '.join(kept)}: params/ changed", file=sys.stderr)


def _within(demo: Mapping[str, Any] | None, rows: Collection[str], seeds: Collection[int]) -> bool:
    """Whether a paper's part of the demo has the chosen rows at the chosen seeds."""
    return demo is not None and (not rows or (set(rows) <= set(demo["rows"]) and set(seeds) <= set(demo["seeds"])))


def _reasons(status: Sequence[Any]) -> tuple[str, ...]:
    """DVC's status entries in words."""
    words = []
    for entry in status:
        if isinstance(entry, str):
            words.append({"changed command": "its command changed"}.get(entry, entry))
            continue
        for kind, paths in entry.items():
            noun = {"changed deps": "input", "changed outs": "output"}.get(kind, kind)
            for path, change in paths.items():
                keys = change.items() if isinstance(change, Mapping) else [("", change)]  # of parameters: each key
                words += [f"{noun} {path}:{key} {how}" if key else f"{noun} {path} {how}" for key, how in keys]
    return tuple(words)


def _restorable(repo: Any, stage: Any, known: Mapping[str, Any]) -> bool:
    """Whether DVC can bring a stale stage's outputs from its cache, given the hashes its inputs will have.

    Fills in the stage's output hashes when it can, so that stages below see them.
    """
    from dvc.exceptions import DvcException
    from dvc.stage.cache import _get_cache_hash
    from dvc.stage.loader import StageLoader
    from dvc.stage.serialize import to_single_stage_lockfile

    try:
        for dep in stage.deps:
            if dep.fs_path in known:
                if known[dep.fs_path] is None:
                    return False
                dep.hash_info = known[dep.fs_path]
            else:
                dep.save()
        key = _get_cache_hash(to_single_stage_lockfile(stage), key=True)
        folder = Path(repo.stage_cache.cache_dir) / key[:2] / key
        runs = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime) if folder.is_dir() else []
        entry = repo.stage_cache._load_cache(key, runs[-1].name) if runs else None
        if not entry:
            return False
        StageLoader.fill_from_lock(stage, entry)
        return bool(stage.outs_cached())
    except (DvcException, OSError):
        return False


def _in_order(stages: Mapping[str, Any], upstream: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Addresses with every stage after the ones it reads from."""
    done: dict[str, None] = {}

    def visit(address: str) -> None:
        if address not in done:
            for above in upstream[address]:
                visit(above)
            done[address] = None

    for address in stages:
        visit(address)
    return list(done)


def read_state(
    root: Path, files: Sequence[str], rows: Sequence[str] = (), seeds: Sequence[int] = (), papers: Collection[str] = ()
) -> dict[str, Stage]:
    """The chosen stages of the files with their state, in an order that runs; without a choice, all (see `select`).

    DVC is asked about the chosen stages only, and loads none of another seed: a look at one costs some milliseconds.

    Raises:
        RecipeError: a row or seed that no stage has.
        RewardsmithError: DVC cannot read the repository.
    """
    from dvc.dvcfile import load_file
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    declared = {file: declared_stages(root / file) for file in files}
    loaded_seeds = seeds if set(seeds) <= _seeds(declared.values(), papers) else ()  # `select` says what is wrong
    try:
        with Repo(str(root), _wait_for_lock=True) as repo, repo.lock:
            loaded, origin = {}, {}
            for file in files:
                stages_of_file = load_file(repo, str(root / file)).stages
                for own in stages_of_file:
                    if not loaded_seeds or _is_of_seeds(declared[file][own], loaded_seeds):
                        name = own if file == ROOT_FILE else f"{file}:{own}"
                        loaded[name], origin[name] = stages_of_file[own], file
            facts = {name: declared[file][str(loaded[name].name)] for name, file in origin.items()}
            stages = _stages(root, loaded, facts)
            return _with_states(repo, loaded, select(stages, rows, seeds, papers))
    except DvcException as error:
        raise RewardsmithError(f"DVC cannot read this repository: {error}") from error


def declared_stages(file: Path) -> dict[str, Mapping[str, Any]]:
    """What a dvc.yaml says of its stages in `meta`, by DVC's name of each within the file.

    Raises:
        RewardsmithError: a stage without it, which `rewardsmith graph` did not write.
    """
    stages = read_mapping(file).get("stages") or {}
    for name, stage in stages.items():
        if "module" not in (stage.get("meta") or {}):
            raise RewardsmithError(f"{file}: stage '{name}' has no meta.module; write it with `rewardsmith graph`")
    return {name: stage["meta"] for name, stage in stages.items()}


def _is_of_seeds(meta: Mapping[str, Any], seeds: Collection[int]) -> bool:
    """Whether a stage belongs to one of the seeds, or to none: what it reads from does, then, too.

    Tables are of all seeds, and no part of a choice of some.
    """
    return meta["module"] != "tables" and meta.get("seed") in (None, *seeds)


def _seeds(files: Iterable[Mapping[str, Mapping[str, Any]]], papers: Collection[str]) -> set[int]:
    """Seeds of the papers' stages; of all papers without a choice."""
    metas = [meta for stages in files for meta in stages.values()]
    return {meta["seed"] for meta in metas if "seed" in meta and (not papers or meta["owner"] in papers)}


def asked_for(
    root: Path, paper: str, rows: Sequence[str], seeds: Sequence[int], *, scale: str, full: bool
) -> dict[str, Stage]:
    """The stages of what a run is asked for with their state: a paper's, or the suite's (SUITE)."""
    if paper != SUITE:
        files = pipeline_files(root, paper, scale=scale, full=full, rows=rows, seeds=seeds)
        return read_state(root, files, rows, seeds, [paper])
    files = suite_files(root, scale=scale, full=full)
    return read_state(root, files, seeds=seeds, papers=suite_papers(root, scale=scale, full=full))


def _stages(root: Path, loaded: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Stage]:
    """What the files say of every stage, in an order that runs, as if each were to run.

    Args:
        declared: `meta` of each stage.
    """
    makers = {out.fs_path: name for name, stage in loaded.items() for out in stage.outs}
    upstream = {
        name: tuple(dict.fromkeys(makers[dep.fs_path] for dep in stage.deps if dep.fs_path in makers))
        for name, stage in loaded.items()
    }
    stages: dict[str, Stage] = {}
    for name in _in_order(loaded, upstream):
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
            needs=meta.get("needs", graph.CPU),
        )
    return stages


def _with_states(repo: Any, loaded: Mapping[str, Any], chosen: Mapping[str, Stage]) -> dict[str, Stage]:
    """The chosen stages with what DVC says of each.

    The result of a check is constant: what reads it does not run because the check does.
    """
    known: dict[str, Any] = {}
    hashes: dict[str, Any] = {}
    states: dict[str, Stage] = {}
    for name, item in chosen.items():
        stage = loaded[name]
        for part in (*stage.outs, *stage.deps):
            _hash_once(part, hashes)
        reasons = _reasons(next(iter(_status(stage).values()), []))
        if not any(out.hash_info for out in stage.outs):
            reasons = ("it has not run here",)
        above = [a for a in item.upstream if states[a].state != "current" and states[a].kind != "check"]
        state = "current"
        if reasons or above:
            state = "restore" if _restorable(repo, stage, known) else "run"
            reasons = reasons or tuple(f"reads from {a}" for a in above)
        unknown = state == "run" and not (item.kind == "check" and all(out.hash_info for out in stage.outs))
        known |= {out.fs_path: None if unknown else out.hash_info for out in stage.outs}
        states[name] = replace(item, state=state, reasons=reasons)
    return states


def _status(stage: Any) -> dict[str, list[Any]]:
    """DVC's status of a stage, without waiting for those that run: the repository is locked, nothing is written."""
    found: dict[str, list[Any]] = type(stage).status.__wrapped__(stage)
    return found


def _hash_once(part: Any, hashes: dict[str, Any]) -> None:
    """Has what many stages read hashed once in a look, by path; parameters are each stage's own keys of a page."""
    from dvc.dependency import ParamsDependency

    if isinstance(part, ParamsDependency):
        return
    compute = part.get_hash

    def get_hash() -> Any:
        if part.fs_path not in hashes:
            hashes[part.fs_path] = compute()
        return hashes[part.fs_path]

    part.get_hash = get_hash


def cache_folder(root: Path) -> Path:
    """Where a tree's DVC cache lies, the run cache beside the files."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        return Path(repo.cache.local_cache_dir)


def select(
    states: Mapping[str, Stage], rows: Sequence[str] = (), seeds: Sequence[int] = (), papers: Collection[str] = ()
) -> dict[str, Stage]:
    """The stages of chosen rows and seeds with everything above them; without a choice, all.

    With papers, theirs alone: papers have rows of the same name, and share stages that only one of them needs.

    Raises:
        RecipeError: a row that no stage has, with the nearest known ones.
    """
    own = [a for a, s in states.items() if s.owner in papers]
    mine = closure(states, own) if papers else dict(states)
    if not rows and not seeds:
        return mine
    ends = {
        address: (stage.name, stage.seed)
        for address, stage in states.items()
        if stage.kind in ROW_STAGES and stage.seed is not None
        if (not papers or stage.owner in (SHARED, *papers)) and (rows or address in mine)
    }
    for row in rows:
        if row not in {name for name, _ in ends.values()}:
            known = {name for name, _ in ends.values()}
            raise RecipeError(f"unknown row '{row}'{hint(row, sorted(known), more=3)}")
    for wanted_seed in seeds:
        if wanted_seed not in {number for _, number in ends.values()}:
            known_seeds = sorted({number for _, number in ends.values()})
            raise RecipeError(f"no stage has seed {wanted_seed}; there are {known_seeds}. The full matrix: add --full")
    wanted = {
        address for address, (row, seed) in ends.items() if (not rows or row in rows) and (not seeds or seed in seeds)
    }
    return closure(states, wanted)


def closure(states: Mapping[str, Stage], addresses: Iterable[str]) -> dict[str, Stage]:
    """The named stages and everything they read from, in an order that runs."""
    wanted: set[str] = set()
    left = list(addresses)
    while left:
        address = left.pop()
        if address not in wanted:
            wanted.add(address)
            left += states[address].upstream
    return {address: stage for address, stage in states.items() if address in wanted}


def stopped_stages(root: Path, stages: Iterable[Stage]) -> dict[str, str]:
    """Why stages stopped, by address, of those whose results say so (`tasks.running.artifacts.Stopped`)."""
    reasons = {stage.address: stopped(root / stage.out / "result") for stage in stages}
    return {address: reason for address, reason in reasons.items() if reason is not None}


def expected_seconds(root: Path, stages: Iterable[Stage]) -> dict[str, float | None]:
    """Seconds a stage took here before: its own record, else the mean of its kind at its scale, else None."""
    records: dict[str, float] = {}
    kinds: dict[tuple[str, str], list[float]] = {}
    for path in (root / "results").glob("**/record/record.json"):
        if stopped(path.parent.parent / "result") is not None:
            continue  # it did not do what a stage of its kind does
        try:
            seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        out = path.parent.parent.relative_to(root)
        records[out.as_posix()] = seconds
        kinds.setdefault(_kind_of(out.as_posix()), []).append(seconds)
    expected: dict[str, float | None] = {}
    for stage in stages:
        same = kinds.get(_kind_of(stage.out), [])
        expected[stage.address] = records.get(stage.out, mean(same) if same else None)
    return expected


def _kind_of(out: str) -> tuple[str, str]:
    """Scale and kind of an output directory `results/<scale>/<group>/<kind>/...`."""
    parts = Path(out).parts
    return parts[1], parts[3]


def expected_bytes(root: Path, stages: Iterable[Stage]) -> float:
    """Disk that the results of stages which run should take: as their present results, else as their kind's mean."""
    own: dict[str, int] = {}
    kinds: dict[tuple[str, str], list[int]] = {}
    for path in (root / "results").glob("**/result"):
        if stopped(path) is not None:
            continue
        out = path.parent.relative_to(root).as_posix()
        own[out] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        kinds.setdefault(_kind_of(out), []).append(own[out])
    total = 0.0
    for stage in stages:
        if stage.state == "run":
            same = kinds.get(_kind_of(stage.out), [])
            total += own.get(stage.out, mean(same) if same else 0.0)
    return total
