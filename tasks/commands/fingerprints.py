"""Fingerprints of stage results: small enough to commit, and comparable with the same stage's result elsewhere.

Another processor rounds differently and training amplifies that, so that a digest of a result agrees on one kind of
machine only. A fingerprint keeps of each file what can be compared anyway:

1. texts: for each field a digest of all its values, and short digests of up to SAMPLED rows, which tell in how many
   rows two results differ. What no model computes must be equal on any machine: whole files of data and tokenizers, and
   fields of INPUTS elsewhere (ids, prompts, order of answers). Their numbers count with DIGITS digits.
2. numbers: for each field, one value for each row, as count, mean, deviation and SKETCH projections on fixed random
   signs. The root mean square of two sketches' differences estimates that of the values, row by row: values in another
   order are far apart.
3. weights: tensors of a file as one long row of numbers, with WEIGHT_SKETCH projections.
4. metrics: each number of metrics.json.
5. first: the first row of history.jsonl and the rollouts of the first step, before training has amplified much.
6. drift: how far each tensor of a trained model moved from the SFT model that the same results have, and the share of
   answers that are not the SFT model's. It varies far less than weights and answers themselves.
7. used: settings of sampling and training, and digests of the examples that were learnt (`rlhf_core.as_used`): equal
   on any machine. Examples that a model made count only for the stage that made them.

Rows that a model chose (MODEL_CHOSEN) are compared only where both results have the same ones.

A distance is 0 for equal results. It is in units of the reference: of the deviation of a field's values, of the size of
a metric; of texts, the share of rows that differ.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.errors import DataError
from tasks.commands.used import as_used
from tasks.report.measurements import JOINT_METRICS
from tasks.running.artifacts import read_json, read_jsonl
from tasks.running.typed_results import read_stage_record

SAMPLED, SKETCH, WEIGHT_SKETCH = 64, 8, 32
#: Characters of a row's digest.
SHORT = 4
#: Fields that no model computes: equal on any machine.
INPUTS = frozenset(
    {"benchmark", "id", "turn", "prompt", "prompts", "baseline", "subset", "split", "first", "template", "kind"}
    | {"entity", "phrasing", "requested", "question_id", "true_clauses", "spec", "density"}
)
#: Files whose rows a model chose, such as the wrong solutions that could be rewritten: another re-run has other rows.
MODEL_CHOSEN = ("rewrites.jsonl", "grm_rewrites.jsonl", "credit.jsonl")
#: Kinds of stages that compute nothing with models.
EXACT_KINDS = ("prepare", "tokenizer")
DIGITS = 6
#: Files that libraries write beside a model, and files that repeat other files.
LEFT_OUT = ("config.json", "generation_config.json", "tokenizer_config.json", "tables.json", "figures.json")
#: Entries of a JSON file from which on it is read as rows.
MANY = 64
#: Smallest unit of a distance: absolute, and as a share of the mean.
LEAST, LEAST_SHARE = 1e-6, 0.05
#: Column of true rewards.
TRUE = "true_reward"
#: Smallest unit of a metric.
LEAST_METRIC = 0.01

#: Mean relative distance of a model's tensors from the SFT model's.
DRIFT = "drift/weights"
#: Begins the names of what a stage used.
USED = "used/"
Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class TextField:
    """A field's texts: rows, a digest of all, and short digests of some rows after one another."""

    rows: int
    digest: str
    sample: str

    @classmethod
    def of(cls, values: Sequence[str], sampled: int = SAMPLED) -> TextField:
        places = np.linspace(0, len(values) - 1, min(sampled, len(values))).astype(int)
        sample = "".join(_digest(values[i])[:SHORT] for i in places)
        return cls(len(values), _digest("\n".join(values))[:16], sample)

    @classmethod
    def from_words(cls, words: Sequence[str]) -> TextField:
        return cls(int(words[0]), words[1], "".join(words[2:]))

    def __str__(self) -> str:
        return f"{self.rows} {self.digest} {self.sample}".strip()

    def distance(self, other: TextField) -> float:
        """Returns the share of sampled rows that differ, above 0 where any row differs."""
        if self.rows != other.rows:
            return 1.0
        if self.digest == other.digest:
            return 0.0
        if not self.sample:
            return 1.0
        starts = range(0, len(self.sample), SHORT)
        differ = sum(self.sample[i : i + SHORT] != other.sample[i : i + SHORT] for i in starts)
        return max(differ / len(starts), 1 / max(SAMPLED, self.rows))


@dataclass(frozen=True)
class NumberField:
    """A field's numbers: count, mean, deviation and projections on random signs."""

    count: int
    mean: float
    deviation: float
    sketch: tuple[float, ...]

    @classmethod
    def of(cls, values: Vector, size: int = SKETCH) -> NumberField:
        sketch = tuple(_short(float(values @ signs) / math.sqrt(len(values))) for signs in _signs(len(values), size))
        return cls(len(values), _short(float(values.mean())), _short(float(values.std())), sketch)

    @classmethod
    def from_words(cls, words: Sequence[str]) -> NumberField:
        mean, deviation, *sketch = map(float, words[1:])
        return cls(int(words[0]), mean, deviation, tuple(sketch))

    def __str__(self) -> str:
        return " ".join(map(str, (self.count, self.mean, self.deviation, *self.sketch)))

    @property
    def unit(self) -> float:
        return max(self.deviation, LEAST_SHARE * abs(self.mean), LEAST)

    def distance(self, other: NumberField) -> float:
        """Returns the root mean square difference of the values, estimated; infinite for another count."""
        if self.count != other.count:
            return math.inf
        apart = np.asarray(self.sketch) - np.asarray(other.sketch)
        return float(np.sqrt(np.mean(apart**2))) / self.unit


@dataclass(frozen=True)
class Fingerprint:
    """Everything that is compared of a stage's result.

    Attributes:
        kind: the stage's module.
        version: of the stage's code.
        inputs: what it read: entries of settings pages with a digest, other results by name alone.
        texts, numbers, metrics: by name, such as `generations.jsonl/response`.
        used: settings and digests of examples by name, such as `sampling/answers`.
    """

    kind: str
    version: int
    inputs: Mapping[str, str]
    texts: dict[str, TextField] = field(default_factory=dict)
    numbers: dict[str, NumberField] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Fingerprint:
        try:
            texts = {name: TextField.from_words(words.split()) for name, words in value["texts"].items()}
            numbers = {name: NumberField.from_words(words.split()) for name, words in value["numbers"].items()}
        except (ValueError, IndexError) as error:
            raise DataError(
                f"a reference has a damaged fingerprint ({error})", remedy="git checkout reference/"
            ) from None
        used = value.get("used", {})
        return cls(value["kind"], value["version"], value["inputs"], texts, numbers, value["metrics"], used)

    def to_json(self) -> dict[str, Any]:
        plain = {"kind": self.kind, "version": self.version, "inputs": self.inputs, "metrics": self.metrics}
        fields = {
            part: {name: str(each) for name, each in getattr(self, part).items()} for part in ("texts", "numbers")
        }
        return {**plain, **fields, **({"used": dict(self.used)} if self.used else {})}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _signs(count: int, size: int) -> Iterator[Vector]:
    """Yields rows of random signs: raw bits of a generator, which are the same on any machine."""
    for row in range(size):
        raw = np.random.PCG64(row).random_raw(count // 64 + 1)
        bits = np.unpackbits(np.asarray(raw, dtype="<u8").view(np.uint8))[:count]
        yield bits.astype(np.float64) * 2 - 1


def own_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns a stage's metrics without p-values, and without those that tables repeat from their runs:
    'table-1/segment/0/alpaca_lc' stays."""

    def repeated(name: str) -> bool:
        parts = name.split("/")
        return name.startswith(("table-", "verdicts/")) and not (len(parts) == 4 and parts[3] in JOINT_METRICS)

    return {name: _short(v) for name, v in sorted(metrics.items()) if not repeated(name) and not name.endswith("_p")}


def fingerprint(out: Path, root: Path) -> Fingerprint:
    """Returns the fingerprint of a stage's output, `result/` and `record/`, of the tree that has its inputs."""
    record = read_stage_record(out)
    inputs = {name: value[:16] if ".yaml" in name else "" for name, value in sorted(record["inputs"].items())}
    found = Fingerprint(record["stage"], record["version"], inputs, used=as_used(record, out, root))
    result = out / "result"
    for path in sorted(path for path in result.rglob("*") if path.is_file() and path.name not in LEFT_OUT):
        name, exact = path.relative_to(result).as_posix(), found.kind in EXACT_KINDS or path.name == "tokenizer.json"
        if exact and path.suffix in (".json", ".jsonl"):
            rows = [read_json(path)["model"]] if path.name == "tokenizer.json" else _rows(path)
            found.texts[name] = TextField.of([json.dumps(_rounded(row), sort_keys=True) for row in rows], 0)
        elif name == "metrics.json":
            found.metrics.update(own_metrics(read_json(path)))
        elif path.suffix == ".safetensors":
            values = np.concatenate([np.zeros(0), *_tensors(path).values()])
            if len(values):
                found.numbers[f"weights/{name}"] = NumberField.of(values, WEIGHT_SKETCH)
        elif path.suffix in (".json", ".jsonl"):
            _add_columns(found, name, _rows(path))
    for sft in (root / name for name in inputs if "/sft/" in name):
        _add_drift(found, result, sft)
    return found


def _add_drift(found: Fingerprint, result: Path, sft: Path) -> None:
    """Adds relative changes of tensors and answers since the SFT model."""
    weights, answers = (Path("model") / "model.safetensors", Path("generations.jsonl"))
    if (result / weights).exists() and (sft / weights).exists():
        own, start = (_without_prefix(_tensors(folder / weights)) for folder in (result, sft))
        alike = [name for name in start if name in own and len(own[name]) == len(start[name])]
        moved = [float(np.linalg.norm(own[n] - start[n])) / max(LEAST, float(np.linalg.norm(start[n]))) for n in alike]
        if moved:
            found.numbers["drift/tensors"] = NumberField.of(np.asarray(moved))
            found.metrics[DRIFT] = _short(sum(moved) / len(moved))
    if found.kind == "policy" and (result / answers).exists() and (sft / answers).exists():
        pairs = list(zip(read_jsonl(result / answers), read_jsonl(sft / answers), strict=False))
        other = sum(one.get("response") != start.get("response") for one, start in pairs)
        found.metrics["drift/answers"] = _short(other / max(1, len(pairs)))


def _add_columns(found: Fingerprint, file: str, rows: Sequence[Any]) -> None:
    """Adds the fields of a file, and those of the first step of a training."""
    first = (
        rows[:1] if file == "history.jsonl" else [row for row in rows if file == "rollouts.jsonl" and row["step"] == 1]
    )
    for name, part in ((f"{file}/", rows), ("first/", first)):
        for key, column in _columns(part).items():
            if isinstance(column, list):
                found.texts[name + key] = TextField.of(column, 0 if key in INPUTS else SAMPLED)
            elif name == "first/" and file == "history.jsonl":
                found.metrics[name + key] = _short(float(column[0]))
            else:
                found.numbers[name + key] = NumberField.of(column)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return _short(value) if isinstance(value, float) else value


def _rows(path: Path) -> list[Any]:
    """Returns the rows of a file; a JSON object of many entries is read as rows of key and value."""
    if path.suffix == ".jsonl":
        return read_jsonl(path)
    content = read_json(path)
    if isinstance(content, dict) and len(content) > MANY:
        return [{"id": key, "value": value} for key, value in sorted(content.items())]
    return [content]


def _tensors(path: Path) -> dict[str, Vector]:
    """Returns the numbers of each tensor of a file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, TypeError) as error:  # numpy has no bfloat16
        raise DataError(f"not valid safetensors ({error})", file=str(path), remedy="Re-run its stage") from None
    return {name: tensors[name].reshape(-1).astype(np.float64) for name in sorted(tensors)}


def _without_prefix(tensors: Mapping[str, Vector]) -> dict[str, Vector]:
    """Returns tensors by the names that they have in a model without a head."""
    return {name.removeprefix("model."): values for name, values in tensors.items()}


def _columns(rows: Sequence[Any]) -> dict[str, list[str] | Vector]:
    """Returns texts and numbers by field. A row's number is the mean of all its numbers of that field.

    Where a field of the only row is a list of numbers, these are the field's values.
    """
    texts: dict[str, dict[int, list[Any]]] = {}
    numbers: dict[str, dict[int, list[float]]] = {}
    for place, row in enumerate(rows):
        for key, value in _leaves(row, ""):
            if isinstance(value, str | bool):
                texts.setdefault(key, {}).setdefault(place, []).append(value)
            elif value is not None:
                numbers.setdefault(key, {}).setdefault(place, []).append(float(value))
    found: dict[str, list[str] | Vector] = {}
    for key, by_row in numbers.items():
        if len(rows) == 1:
            found[key] = np.asarray(by_row[0])
        else:
            found[key] = np.asarray([float(np.mean(by_row.get(i, [0.0]))) for i in range(len(rows))])
    for key, written in texts.items():
        values = [json.dumps(written.get(i, []), ensure_ascii=False) for i in range(len(rows))]
        found[f"{key} (text)" if key in found else key] = values
    return found


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yields texts, numbers and truth values with the last name on the way to each."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from _leaves(value[name], name)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, key)
    else:
        yield key, value


def distances(reference: Fingerprint, found: Fingerprint) -> dict[str, float]:
    """Returns the distance of each text, number and metric by name; infinite for one that is missing or new.

    Of a file whose rows a model chose, nothing is compared where it chose others.
    """
    measured: dict[str, float] = {}
    others = tuple(f"{file}/" for file in MODEL_CHOSEN if _has_other_rows(reference, found, file))
    for part in ("texts", "numbers"):
        known, new = getattr(reference, part), getattr(found, part)
        for name in (name for name in _either(known, new) if not name.startswith(others)):
            measured[name] = known[name].distance(new[name]) if name in known and name in new else math.inf
    for name in _either(reference.metrics, found.metrics):
        old, value = reference.metrics.get(name, math.inf), found.metrics.get(name, math.inf)
        unit = max(abs(old), LEAST_METRIC) if math.isfinite(old) else 1.0
        measured[metric_name(name)] = abs(old - value) / unit if math.isfinite(old + value) else math.inf
    for name in _either(reference.used, found.used) if reference.used else ():
        if name.startswith("examples/") and not (name in reference.used and name in found.used):
            continue  # they count where all inputs of a stage are there
        measured[f"{USED}{name}"] = float(reference.used.get(name) != found.used.get(name))
    return measured


def truths(found: Fingerprint) -> set[tuple[str, str]]:
    """Returns the columns, each with one of true rewards, that have the same numbers row by row in a file."""
    true = [name for name in found.numbers if name.rpartition("/")[2] == TRUE]
    return {
        (name, column)
        for column in true
        for name, numbers in found.numbers.items()
        if name.startswith(column.removesuffix(TRUE)) and name != column and numbers == found.numbers[column]
        if numbers.count > 1 and numbers.deviation > LEAST
    }


def _has_other_rows(reference: Fingerprint, found: Fingerprint, file: str) -> bool:
    """Returns whether both results have a file, with rows of other ids."""
    ids = [one.texts.get(f"{file}/id") for one in (reference, found)]
    return None not in ids and ids[0] != ids[1]


def metric_name(name: str) -> str:
    """Returns a metric's name beside those of texts and numbers."""
    return name if name.startswith(("first/", "drift/")) else f"metrics/{name}"


def _either(*names: Iterable[str]) -> list[str]:
    return sorted(set().union(*names))
