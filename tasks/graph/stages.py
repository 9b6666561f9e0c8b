"""Stages of the graph as pipeline files declare them, and the choice of some by row, seed and paper."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError, RewardsmithError, hint
from tasks.graph.dvc_files import file_name
from tasks.graph.items import SHARED
from tasks.graph.results import stopped
from tasks.graph.rows import ROW_STAGES
from tasks.params.yaml_files import read_mapping


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
        """Returns the stage's output directory, which holds result/ and record/."""
        return str(Path(self.outs[0]).parent)

    @property
    def file_name(self) -> str:
        """Returns the address as a file name."""
        return file_name(self.address)


def declared_stages(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """Returns each stage of a dvc.yaml, by its name within the file.

    Raises:
        RewardsmithError: a stage without its `meta`, which `rewardsmith graph` did not write.
    """
    stages: Any = read_mapping(file).get("stages") or {}
    if not isinstance(stages, Mapping):
        raise RewardsmithError(f"{file}: stages is not a mapping; write the file with `rewardsmith graph`")
    metas: dict[str, Any] = {
        name: stage.get("meta") if isinstance(stage, Mapping) else None for name, stage in stages.items()
    }
    for name, meta in metas.items():
        if part := _missing(meta) or ("" if "cmd" in stages[name] else "cmd"):
            raise RewardsmithError(f"{file}: stage '{name}' has no {part}; write it with `rewardsmith graph`")
    return stages


def _missing(meta: Any) -> str | None:
    """Returns the part that a stage's `meta` lacks, or has as another kind of value; None for a whole one."""
    if not isinstance(meta, Mapping) or not isinstance(meta.get("module"), str):
        return "meta.module"
    kinds = {"owner": str, "name": str, "seed": int, "needs": Mapping}
    stated = {"owner": "", "seed": 0, "needs": {}} | dict(meta)
    return next((f"meta.{part}" for part, kind in kinds.items() if not isinstance(stated.get(part), kind)), None)


def modules_of_files_never_run(root: Path, files: Iterable[str]) -> list[str]:
    """Returns the module of each stage of the dvc.yaml files that have never run, so have no dvc.lock, unparsed."""
    kinds: list[str] = []
    for path in (root / file for file in files):
        if path.exists() and not path.with_suffix(".lock").exists():
            kinds += re.findall(r"^ +module: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return kinds


def in_order(stages: Mapping[str, Any], upstream: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Returns addresses with every stage after the ones it reads from."""
    done: dict[str, None] = {}

    def visit(address: str) -> None:
        if address not in done:
            for above in upstream[address]:
                visit(above)
            done[address] = None

    for address in stages:
        visit(address)
    return list(done)


def select(
    states: Mapping[str, Stage], rows: Sequence[str] = (), seeds: Sequence[int] = (), papers: Collection[str] = ()
) -> dict[str, Stage]:
    """Returns the stages of chosen rows and seeds with everything above them; without a choice, all.

    With papers, theirs alone: papers have rows of the same name, and share stages that only one of them needs."""
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
    known_seeds = sorted({number for name, number in ends.values() if not rows or name in rows})
    refuse_unknown_seeds(rows, seeds, known_seeds)
    wanted = {
        address for address, (row, seed) in ends.items() if (not rows or row in rows) and (not seeds or seed in seeds)
    }
    return closure(states, wanted)


def refuse_unknown_seeds(rows: Collection[str], seeds: Collection[int], known: Collection[int]) -> None:
    """Refuses seeds that no stage of the rows has; without rows, of any."""
    for wanted in seeds:
        if wanted not in known:
            of = ", ".join(f"'{row}'" for row in rows) or "no stage"
            raise RecipeError(
                f"{of} has{' no' if rows else ''} seed {wanted}; there are {sorted(known)}. All rows of a paper: "
                f"add --full; further seeds: `suite: seeds` in params.yaml (`scale_seeds` at other scales)"
            )


def closure(states: Mapping[str, Stage], addresses: Iterable[str]) -> dict[str, Stage]:
    """Returns the named stages and everything they read from, in an order that runs."""
    wanted: set[str] = set()
    left = list(addresses)
    while left:
        address = left.pop()
        if address not in wanted:
            wanted.add(address)
            left += states[address].upstream
    return {address: stage for address, stage in states.items() if address in wanted}


def stopped_stages(root: Path, stages: Iterable[Stage]) -> dict[str, str]:
    """Returns the reason of each stage that stopped (`tasks.running.artifacts.Stopped`), by address."""
    reasons = {stage.address: stopped(root / stage.out / "result") for stage in stages}
    return {address: reason for address, reason in reasons.items() if reason is not None}
