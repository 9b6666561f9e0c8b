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

from rlhf_core.errors import RecipeError, RewardsmithError
from rlhf_core.published import registry
from tasks.dvc.state import Look
from tasks.dvc.unofficial import open_repo
from tasks.graph import files as graph
from tasks.graph.items import SHARED, Graph
from tasks.graph.matrix import build
from tasks.graph.names import SUITE
from tasks.graph.rows import ROOT_SCALE, ROW_STAGES
from tasks.params.pages import nearest, page_files, read_settings
from tasks.params.scales import scale_names
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
    in_demo = not params.exists() or _within(read_settings(params)["demo"].get(paper), rows, seeds)
    folders: tuple[Path, ...] = ()
    if full or not files or not in_demo:
        if not (root / "params" / "scales" / scale).is_dir():
            raise RecipeError(f"unknown scale '{scale}'. {nearest(scale, scale_names(root))}")
        folders = graph.matrix_folders(scale, paper)
    if params.exists():
        _follow_params(root, folders, build(root))
    files += [f"{folder}/dvc.yaml" for folder in folders if (root / folder / "dvc.yaml").exists()]
    for file in files:
        if not (root / file).exists():
            raise RecipeError(f"{file} does not exist. Run rewardsmith in the repository")
    return files


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
        print(f"wrote {' and '.join(kept)} anew, which params/ gives otherwise than they stood", file=sys.stderr)


def _within(demo: Mapping[str, Any] | None, rows: Collection[str], seeds: Collection[int]) -> bool:
    """Whether a paper's part of the demo has the chosen rows at the chosen seeds."""
    return demo is not None and (not rows or (set(rows) <= set(demo["rows"]) and set(seeds) <= set(demo["seeds"])))


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

    declared = {file: declared_stages(root / file) for file in files}
    loaded_seeds = seeds if set(seeds) <= _seeds(declared.values(), papers) else ()  # `select` says what is wrong
    try:
        with open_repo(root) as repo, repo.lock:
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
    """The chosen stages with what DVC says of each."""
    look, states = Look(repo), dict[str, Stage]()
    for name, item in chosen.items():
        state, reasons = look.state(loaded[name], [a for a in item.upstream if states[a].state != "current"])
        states[name] = replace(item, state=state, reasons=reasons)
    return states


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
            raise RecipeError(f"unknown row '{row}'. {nearest(row, known)}")
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


def clock(seconds: float) -> str:
    """Seconds as a person reads them: 48 s, 3.5 min."""
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


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
