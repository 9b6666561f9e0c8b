"""Golden values: what the golden runs gave when each stage's VERSION was last stepped.

A stage whose code changes its results must step its VERSION, or stored results of the old code pass for results of
the new code. Of every file of a result
- texts are compared exactly: all strings, whole numbers and truth values, as one digest of the file;
- numbers within a tolerance: one by one those of `metrics.json` (of a stage that stopped, `stopped.json`) and of the
  first and last row of `history.jsonl`; of tensors and of other files' numbers, by key, the root mean square and a
  projection (`~`) that changes with their order.

tests/tasks/golden/<stage>.json holds them. Tolerances are a small multiple of what other instruction sets and thread
counts change (`refresh_golden.py` measures it). Numbers that are 0 are left out.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.tasks.golden_runs import RUNS

FOLDER = Path(__file__).parent / "golden"
REFRESH = "python -m tests.tasks.refresh_golden"
#: The smallest tolerance, relative and absolute.
RELATIVE, ABSOLUTE = 2e-4, 5e-6
#: Numbers that step when a value crosses a bound, with their smallest tolerance.
COUNTED = {"*clip_fraction": 0.02, "*ece": 0.1}
#: Files that a library writes beside a model; they change with the library.
LIBRARY_FILES = ("config.json", "generation_config.json", "adapter_config.json", "tokenizer*.json", "*.txt", "*.md")
#: Files whose numbers are looked at one by one.
METRICS, STOPPED, HISTORY = "metrics.json", "stopped.json", "history.jsonl"


@dataclass
class Measured:
    """Measurements of a run: digests of texts by file, and numbers by name."""

    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    def add_texts(self, name: str, values: Iterable[Any]) -> None:
        text = "\n".join(json.dumps(value, sort_keys=True) for value in values)
        self.texts[name] = hashlib.sha256(text.encode()).hexdigest()[:16]

    def add_series(self, name: str, values: np.ndarray[Any, Any]) -> None:
        """Adds the root mean square of numbers and their projection on a fixed direction."""
        flat = values.reshape(-1).astype(np.float64)
        if len(flat):
            self.numbers[name] = float(np.sqrt(np.mean(flat**2)))
            self.numbers[f"{name}~"] = float(np.mean(flat * np.cos(np.arange(len(flat)))))


def version(stage: str) -> int:
    found: int = import_module(f"tasks.{stage}").VERSION
    return found


def measured(result: Path) -> Measured:
    """Returns the texts and numbers of a result."""
    found = Measured()
    for path in sorted(path for path in result.rglob("*") if path.is_file()):
        name = path.relative_to(result).as_posix()
        if path.suffix == ".safetensors":
            _add_tensors(found, name, path)
        elif path.name == "tokenizer.json" and path.parent == result:
            model = json.loads(path.read_text(encoding="utf-8"))["model"]
            found.add_texts(name, [model["vocab"], model["merges"]])
        elif not any(fnmatch(path.name, pattern) for pattern in LIBRARY_FILES):
            _add_values(found, name, _content(path))
    return found


def _content(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if path.suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
        return [{key: float(value) if key == "value" else value for key, value in row.items()} for row in rows]
    return json.loads(text)


def _add_tensors(found: Measured, name: str, path: Path) -> None:
    tensors = load_file(path)
    whole = {key: value for key, value in tensors.items() if not np.issubdtype(value.dtype, np.floating)}
    if whole:
        found.add_texts(name, [[key, value.tolist()] for key, value in sorted(whole.items())])
    parts = [tensors[key].reshape(-1) for key in sorted(tensors.keys() - whole.keys())]
    if parts:
        found.add_series(name, np.concatenate(parts))


def _add_values(found: Measured, name: str, content: Any) -> None:
    if name == STOPPED:  # the reason names a settings file, whose form may change
        content = content["metrics"]
    if name in (METRICS, STOPPED):
        found.numbers |= {f"metrics/{key}": float(value) for key, value in content.items()}
        return
    if name == HISTORY:
        for place in {0, len(content) - 1} & set(range(len(content))):
            row = content[place].items()
            found.numbers |= {f"history/{place}/{key}": float(value) for key, value in row if value is not None}
        return
    series: dict[str, list[float]] = {}
    texts: list[Any] = []
    for key, value in _leaves(content, ""):
        if isinstance(value, float):
            series.setdefault(key, []).append(value)
        else:
            texts.append([key, value])
    found.add_texts(name, texts)
    for key, values in series.items():
        found.add_series(f"{name}/{key}", np.array(values))


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Values with the last key on the way to each."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from _leaves(value[name], name)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, key)
    else:
        yield key, value


def floor(name: str, numbers: Mapping[str, float]) -> float:
    """Returns the smallest tolerance of a number; a projection's is that of its series."""
    size = max(abs(numbers.get(name, 0.0)), abs(numbers.get(name.removesuffix("~"), 0.0)))
    counted = (value for pattern, value in COUNTED.items() if fnmatch(name, pattern))
    return max(RELATIVE * size, ABSOLUTE, *counted)


def stored(stage: str) -> dict[str, Any]:
    """Returns {version, runs: {run: {texts, numbers, tolerances}}} of a stage; empty where nothing is stored."""
    path = FOLDER / f"{stage}.json"
    golden: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return golden


def store(stage: str, runs: Mapping[str, Any]) -> None:
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"version": version(stage), "runs": runs}, indent=1, sort_keys=True, ensure_ascii=False)
    (FOLDER / f"{stage}.json").write_text(text + "\n", encoding="utf-8")


def differences(golden: Mapping[str, Any], found: Measured) -> list[str]:
    """Returns 'name: was -> is' for each number outside its tolerance, and each file whose texts changed."""
    changes = []
    texts = golden["texts"]
    for name in sorted(texts.keys() | found.texts.keys()):
        before, after = texts.get(name), found.texts.get(name)
        if before != after:
            changes.append(f"texts of {name}" if before and after else f"{name}: {'new' if after else 'missing'}")
    numbers, tolerances = golden["numbers"], golden.get("tolerances", {})
    for name in sorted(numbers.keys() | found.numbers.keys()):
        old, new = numbers.get(name, 0.0), found.numbers.get(name, 0.0)
        allowed = tolerances.get(name, floor(name, numbers))
        if not math.isfinite(new) or abs(old - new) > allowed:
            changes.append(f"{name}: {old:.7g} -> {new:.7g} (tolerance {allowed:.2g})")
    return changes


def runs_of(stage: str) -> list[str]:
    return [name for name, run in RUNS.items() if run.stage == stage]
