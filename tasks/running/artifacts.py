"""Stage outputs: written to a temporary directory and renamed whole, in two parts.

`<out>/result/` is deterministic (weights, metrics, history without clock) and the only thing that later
stages read. `<out>/record/` says how it was made (seconds, memory, versions, commit) and nothing reads it. Beside them
`<out>/headline.json` has at most six metrics of some stages, for DVC's tables (`tasks.graph.results`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psutil

from rlhf_core import distributed
from rlhf_core.errors import DataError, NumericsError, RewardsmithError, path_error
from rlhf_core.models.device import padded, resolved
from rlhf_core.models.sampling import used_engines
from rlhf_core.models.vllm.environment import deaths, installed
from tasks.graph.results import HEADLINE_FILE, HEADLINES, STOPPED_FILE, write_headlines
from tasks.params.pages import Address, settings_digest
from tasks.running.commit import changed_since, commit_of
from tasks.running.result_digests import RECORD, check_content, digests_of, file_digest
from tasks.running.variables import arithmetic

#: The folder of the packages that run.
PROJECT = Path(__file__).resolve().parents[2]
RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn")


def digest(path: Path | str) -> str:
    """Returns SHA-256 of a file, or of a directory's sorted relative names and contents."""
    path = Path(path)
    return file_digest(path) if path.is_file() else str(digests_of(path)["result_digest"])


#: The warnings of this process's present stage, for its record.
fewer_rows: list[str] = []
Row = TypeVar("Row")


def _content(path: Path) -> bytes:
    """Returns the content of an artifact file.

    Raises:
        DataError: it cannot be read, or is not what its stage's record says.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Run the stage that makes it") from None
    except OSError as error:
        raise path_error(error) from None
    check_content(path, content)
    return content


def _parsed(text: bytes, path: Path | str, row: int | None = None) -> Any:
    """Returns the value of a JSON text of a file.

    Raises:
        DataError: it is not valid JSON.
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})", file=str(path), row=row, remedy="Re-run its stage") from None


def read_json(path: Path | str) -> Any:
    """Returns the parsed JSON of an artifact file; a missing, broken or changed one is named with its remedy."""
    return _parsed(_content(Path(path)), path)


def read_object(path: Path | str) -> dict[str, Any]:
    """Returns the object of an artifact file: names with values.

    Raises:
        DataError: the file is missing, broken, or has another value.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError("is not an object with names", file=str(path), remedy="Re-run its stage")
    return value


def stage_record(out: Path) -> dict[str, Any]:
    """Returns the record that a stage left in its output directory; empty where there is none."""
    return read_object(out / RECORD) if (out / RECORD).exists() else {}


def write_json(path: Path | str, value: Any) -> None:
    """Writes a value as JSON.

    Raises:
        NumericsError: numbers in it that are not finite, by name.
    """
    Path(path).write_text(json_text(value, Path(path).name), encoding="utf-8")


def json_text(value: Any, name: str) -> str:
    """Returns a value as the text of a JSON file of that name.

    Raises:
        NumericsError: numbers in it that are not finite, by name.
    """
    if names := list(_not_finite(value, "")):
        raise NumericsError(f"{name}: {', '.join(names)} not finite")
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _not_finite(value: Any, name: str) -> Iterator[str]:
    """Yields the names of numbers that JSON cannot hold, as in `rows/3/reward`."""
    if isinstance(value, Mapping | list | tuple):
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            yield from _not_finite(part, f"{name}/{key}" if name else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield name


def write_jsonl(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    with Path(path).open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path | str) -> list[Any]:
    """Returns the rows of a stage's output, whose types `tasks.running.result_rows` has."""
    return [_parsed(line, path, number) for number, line in enumerate(_content(Path(path)).splitlines(), start=1)]


def read_tensors(path: Path, names: Iterable[str] = ()) -> dict[str, Any]:
    """Returns tensors of an artifact file by name.

    Raises:
        DataError: the file is missing or damaged, or lacks a tensor of `names`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Run the stage that makes it") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"not valid safetensors ({error})", file=str(path), remedy="Re-run its stage") from None
    if missing := [name for name in names if name not in found]:
        raise DataError(f"has no tensor '{missing[0]}'", file=str(path), remedy="Re-run its stage")
    return found


def warn_too_few_rows(asked: int | None, exist: int, field: str, file: Path | str) -> None:
    """Prints and records a warning where a setting (`field`) asks for more rows than a file has; None asks for all."""
    text = f"{field} is {asked}, but {file} has {exist} rows; all of them are used"
    if asked is not None and asked > exist and text not in fewer_rows:
        fewer_rows.append(text)
        if not distributed.rank():
            print(f"warning: {text}", file=sys.stderr, flush=True)


def first_rows(rows: Sequence[Row], asked: int | None, field: str, file: Path | str) -> list[Row]:
    """Returns the first rows of a file, all for None; see `warn_too_few_rows`."""
    warn_too_few_rows(asked, len(rows), field, file)
    return list(rows[:asked])


def source_digest() -> str:
    """Returns the digest of the project's own sources, so that a record tells which code made it."""
    total = hashlib.sha256()
    for package in ("rlhf_core", "tasks"):
        for file in sorted((PROJECT / package).rglob("*.py")):
            total.update(file.read_bytes())
    return total.hexdigest()


@dataclass(frozen=True)
class Inputs:
    """The files, directories and entries of pages that a stage reads, as they were when it began.

    Args:
        digests: of each by its path or address; of an entry, its own settings count, and not the rest of the page.
        stamps: size, inode and times of the files of each, which tell cheaply that nothing wrote to them.
    """

    digests: Mapping[str, str]
    stamps: Mapping[str, frozenset[tuple[str, int, int, int]]]

    @classmethod
    def of(cls, paths: Sequence[Path | str | None]) -> Inputs:
        """Returns the present state of the inputs, without those that are None.

        Raises:
            DataError: an input that does not exist.
        """
        addresses = [Address(Path(path)) for path in paths if path is not None]
        for address in addresses:
            if not address.file.exists():
                raise DataError("input does not exist", file=str(address), remedy="Run the stage that makes it first")
        stamps = {str(one): _stamp(one.file) for one in addresses}  # before the digests: a write between the two shows
        return cls({str(address): _input_digest(address) for address in addresses}, stamps)

    def refuse_changed_inputs(self) -> None:
        """Compares with the present state; what was not written to is not read again.

        Raises:
            DataError: an input that changed since, so that a result would belong to neither state.
        """
        for name, known in self.digests.items():
            address = Address(name)
            try:
                same = _stamp(address.file) == self.stamps[name] or _input_digest(address) == known
            except (OSError, RewardsmithError):
                same = False
            if not same:
                problem = "it changed while the stage that reads it ran, so nothing was written"
                raise DataError(problem, file=name, remedy="Run the same command again")


def _input_digest(address: Address) -> str:
    return digest(address.file) if address.key is None else settings_digest(address)


def _stamp(path: Path) -> frozenset[tuple[str, int, int, int]]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    states = [(file.as_posix(), file.stat()) for file in files]
    return frozenset((name, state.st_size, state.st_ino, state.st_ctime_ns) for name, state in states)


def peak_memory() -> dict[str, float]:
    """Returns `peak_memory_mb` of this process so far, and `peak_gpu_memory_mb` where it uses a GPU."""
    found = {"peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
    torch = sys.modules.get("torch")  # a stage without models does not load it for this
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        found["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return found


def record_folder(result: Path) -> Path:
    """Returns the folder of a stage's record, which depends on clock and machine and which no stage reads."""
    return result.parent / "record"


def _record() -> dict[str, Any]:
    """Returns the part of a record that this process and machine make alone."""
    torch = sys.modules.get("torch")
    gpu = torch is not None and torch.cuda.is_available()
    engines = sorted(used_engines)
    own = {"vllm": installed().version} if "vllm" in engines else {}
    return {
        "peak_memory_mb": peak_memory()["peak_memory_mb"],
        "threads": 1 if torch is None else torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch is not None and gpu else "cpu",
        "host_cpu": platform.processor() or platform.machine(),
        "cpu_capability": "" if torch is None else " ".join([torch.backends.cpu.get_cpu_capability(), *arithmetic()]),
        "python": platform.python_version(),
        "engines": engines,
        **({"engine_deaths": list(deaths)} if deaths else {}),
        "versions": {name: metadata.version(name) for name in RECORDED_PACKAGES} | own,
        "commit": commit_of(Path()),
        "dirty": bool(commit_of(PROJECT) and changed_since(PROJECT, "HEAD")),
        "sources": source_digest(),
        **({"fewer_rows": [*fewer_rows]} if fewer_rows else {}),
        **({"padded": sorted(padded)} if padded else {}),
        **({"resolved": dict(resolved)} if resolved else {}),
    }


class Stopped(Exception):
    """Stop after a measurement that forbids the next stage, such as a reward model below its required accuracy.

    Raised within `stage_output` it leaves a result of its own, the reason and what was measured, so that the same is
    not trained again. Stages that read it stop as well (`tasks.running.stage.command_line`); tables say "stopped".

    Args:
        reason: what was found, and what to change.
        metrics: flat numbers behind it.
    """

    def __init__(self, reason: str, metrics: Mapping[str, float] | None = None) -> None:
        super().__init__(reason)
        self.metrics = dict(metrics or {})


@contextmanager
def stage_output(
    out: Path | str,
    *,
    stage: str,
    version: int,
    inputs: Sequence[Path | str | None] | Inputs,
    seconds_before: Callable[[], float] = lambda: 0.0,
) -> Iterator[Path]:
    """Yields the directory to write results into; on success it becomes `<out>/result` as a whole.

    Of several ranks the first one writes; what the others write goes nowhere. `Stopped` leaves a result that says so,
    and goes on to the caller.

    Args:
        out: the stage's output directory.
        stage: the stage's name, for the record.
        version: the stage module's VERSION.
        inputs: files and directories read, whose digests the record keeps, None for one that was not given; or their
            state when the run began.
        seconds_before: what interrupted runs spent on the part that this one did not repeat.

    Raises:
        DataError: an input that does not exist, or that changed while the stage ran: no result is written then.
    """
    if distributed.rank():
        with tempfile.TemporaryDirectory() as nowhere:
            try:
                yield Path(nowhere)
            except Stopped:
                distributed.barrier()
                raise
        distributed.barrier()
        return
    out = Path(out)
    found: Stopped | None = None
    for noted in (used_engines, deaths, padded, resolved, fewer_rows):
        noted.clear()  # of another stage of this process
    started, clock = time.time(), time.monotonic()
    startup = max(0.0, started - psutil.Process().create_time())  # now: the clock may be set while the stage runs
    read = inputs if isinstance(inputs, Inputs) else Inputs.of(inputs)
    out.mkdir(parents=True, exist_ok=True)
    for leftover in out.glob(".partial-*"):
        shutil.rmtree(leftover)
    partial = out / f".partial-{os.getpid()}"
    (partial / "result").mkdir(parents=True)
    (partial / "record").mkdir()
    try:
        try:
            yield partial / "result"
        except Stopped as error:
            found = error
            shutil.rmtree(partial / "result")
            (partial / "result").mkdir()
            write_json(partial / "result" / STOPPED_FILE, {"reason": str(error), "metrics": error.metrics})
        record = {
            "stage": stage,
            "version": version,
            "out": out.as_posix(),
            "seconds": round(time.monotonic() - clock + seconds_before(), 3),
            "startup_seconds": round(startup, 3),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "inputs": dict(read.digests),
        }
        record |= _record() | digests_of(partial / "result")
        write_json(partial / "record" / "record.json", record)
        parts = ["result", "record"]
        if stage in HEADLINES:
            write_headlines(stage, partial / "result", partial / HEADLINE_FILE)
            parts.append(HEADLINE_FILE)
        read.refuse_changed_inputs()
        for part in parts:
            if (out / part).is_dir():
                shutil.rmtree(out / part)
            (partial / part).replace(out / part)
        distributed.barrier()
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if found is not None:
        raise found


def check_version(stage: str, version: int, requested: int) -> None:
    """Refuses to start a stage for another version of its code, which would record a wrong lineage."""
    if requested != version:
        raise RewardsmithError(
            f"stage '{stage}' has version {version} but version {requested} was asked for. "
            "Run `rewardsmith graph` to bring the graph files up to date"
        )
