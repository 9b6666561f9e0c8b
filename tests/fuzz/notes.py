"""Notes that processes leave in a tree and caches of answers: locks, states, records, times, histories."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from dvc.rwlock import SCHEMA

from flows.servers.processes import read_state
from flows.working_tree import clear_dead_locks
from rlhf_core.evaluation.judges.cache import AnswerCache
from tasks.dvc.cache_digests import damaged_outputs, made_by_another_run
from tasks.graph.expected import expected_bytes, expected_seconds
from tasks.graph.stages import stopped_stages
from tasks.graph.times import print_times, stage_time
from tasks.reevaluation.history import records
from tasks.running.alarms import alarms_of
from tasks.running.exclusive import is_held, only_scheduler
from tasks.running.platform_state import FOLDER, STATE, client_environment, note_of
from tasks.tracking.outcomes import RowOutcome, outcome_of
from tests.fuzz.damage import Area, damage_file, damaged_bytes, damaged_json, damaged_tree

OUT = "results/testbed/par/policy/vanilla/0"
RESULT = f"{OUT}/result"
STAGE: Any = SimpleNamespace(
    address="policy-par-vanilla-0", out=Path(OUT), name="vanilla", kind="policy", state="run", seed=0
)
ANSWERS = {f"{n:064x}": text for n, text in enumerate(["[[A>B]]", "7", "\N{GRINNING FACE}\n", "m", "" * 9])}


class _Read(NamedTuple):
    """A way to read some files, and what must hold of it."""

    files: Mapping[str, Any]
    read: Callable[[Path], object]


def _lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _dead_locks(root: Path) -> None:
    """The locks of dead processes go, and DVC can read what is left."""
    clear_dead_locks(root)
    path = root / ".dvc" / "tmp" / "rwlock"
    if path.exists():
        SCHEMA(json.loads(path.read_text()))


def _scheduler(root: Path) -> None:
    """A lock that nobody holds is free, whatever is in it."""
    is_held(root / ".work" / "scheduler.lock")
    with only_scheduler(root):
        assert is_held(root / ".work" / "scheduler.lock")


def _times(root: Path) -> None:
    with redirect_stdout(io.StringIO()):
        print_times(root, "testbed", None)
    stage_time(root / OUT, stage="s", outcome="ran", cores=1, began=0.0, seconds=9.0)
    expected_seconds(root, [STAGE])
    expected_bytes(root, [STAGE])


def _results(root: Path) -> None:
    """A result is taken for the stage's own only if its record says so."""
    out = SimpleNamespace(
        fs_path=str(root / RESULT), repo=SimpleNamespace(root_dir=str(root)), hash_info=SimpleNamespace(value="0"),
        stage=SimpleNamespace(cmd="python", deps=()),
    )  # fmt: skip
    damaged_outputs([out])
    made_by_another_run(out)


def _outcome(root: Path) -> None:
    stopped_stages(root, [STAGE])
    alarms_of(root / RESULT)
    stage: Any = SimpleNamespace(**{**vars(STAGE), "out": root / OUT})
    outcome = outcome_of(root, stage)
    if isinstance(outcome, RowOutcome):
        dict(outcome.metrics)


def _platform(root: Path) -> None:
    assert client_environment(root) == {}, "no server runs"
    read_state(root / FOLDER)


def _cached(root: Path) -> None:
    """An answer is the one that was stored, or none; new ones are kept beside damaged lines."""
    file = root / "answers.jsonl"
    cache = AnswerCache(file)
    for key, text in ANSWERS.items():
        row = cache.get(key)
        assert row is None or row["text"] == text, f"another answer: {row}"
    cache.put("new", "answer", model="m")
    found = AnswerCache(file).get("new")
    assert found is not None
    assert found["text"] == "answer"


def _reads(folder: Path) -> list[_Read]:
    note = {**note_of(1), "pid": 999_999, "started": -1}
    holder = {"pid": 999_999, "cmd": "dvc repro"}
    stage = {"stage": "s", "outcome": "ran", "cores": 1, "began": 0.1, "seconds": 2.0, "own": 1.0, "startup": 0.5}
    metrics = {"win_rate_vs_sft": 0.5, "kl": 1.0}
    alarm = {"step": 3, "kind": "kl", "since": 1, "message": "kl is 9, above 8"}
    record = {"stage": "policy", "version": 1, "out": OUT, "seconds": 1.5, "startup_seconds": 0.5, "inputs": {"a": "0"},
              "peak_memory_mb": 9.0, "result_digest": "0"}  # fmt: skip
    failure = {"stage": STAGE.address, "out": OUT, "time": "2026-01-01T00:00:00Z", "message": "error: x"}
    failures = {f".work/failures/{STAGE.address}.json": failure}
    results = {f"{RESULT}/metrics.json": metrics, f"{OUT}/record/record.json": record}
    cache = AnswerCache(folder / "cache.jsonl")
    for key, text in ANSWERS.items():
        cache.put(key, text, model="m", seconds=0.5)
    platform = {"ports": {"prefect": 1}, "processes": {"prefect": note, "mlflow": note, "worker": note}}
    evaluated = {"record": {"model": "m", "version": 1}, "numbers": {"alpaca_wr": 0.5}}
    locks = {"read": {"a": [holder], "b": [holder, holder]}, "write": {"c": holder}}
    times = {"slots": 2, "started": "2026", "seconds": 9.0, "stages": [stage, stage]}
    state = {f"{FOLDER}/{STATE}": platform, f"{FOLDER}/client.json": {"A": "b"}, f"{FOLDER}/run.json": note}
    return [
        _Read({".dvc/tmp/rwlock": locks}, _dead_locks),
        _Read({".work/scheduler.lock": "process 999999, started 2026-01-01 00:00:00"}, _scheduler),
        _Read({".work/runs/2026.json": times, **results}, _times),
        _Read(results, _results),
        _Read({**results, f"{RESULT}/alarms.jsonl": _lines(alarm)}, _outcome),
        _Read({f"{RESULT}/stopped.json": {"reason": "0.5 is below 0.6", "metrics": metrics}}, _outcome),
        _Read(failures, _outcome),
        _Read(state, _platform),
        _Read({"answers.jsonl": (folder / "cache.jsonl").read_text()}, _cached),
        _Read({"evaluations/000001.json": evaluated}, lambda root: records(root / "evaluations")),
    ]


@contextmanager
def notes(folder: Path) -> Iterator[Area]:
    """Yields a case: a damaged note is read as far as it goes, or refused in words; a cached answer never changes."""
    reads = _reads(folder)

    def case(rng: random.Random) -> None:
        root = folder / "tree"
        given = rng.choice(reads)
        for name, content in given.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        name = rng.choice(list(given.files))
        done = damage_file(rng, root / name, damaged_bytes if name.endswith(".lock") else damaged_json)
        with damaged_tree(root, done):
            given.read(root)

    yield case
