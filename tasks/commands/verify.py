"""Results of the demo, or of all headline rows, against their records and the committed reference.

1. Each result has the files and digests of its record, and was made from the results beside it.
2. Settings and versions of all stages, and the files of stages that compute nothing with models, are equal to the
   reference's: numbers in six digits.
3. Directions: of two rows of a paper (or a row and its SFT model) that are `FAR_APART` in the reference, the same one
   has the higher win rate here.

What trained models computed is not compared otherwise: processors round differently, and training amplifies it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.graph.matrix import HEADLINE_ROWS
from tasks.graph.names import DEMO_ALL
from tasks.graph.results import HEADLINES, headlines
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping, write_whole
from tasks.running.artifacts import json_text, read_json, read_jsonl, read_object
from tasks.running.result_digests import RECORD, check_result

#: Kinds of stages that compute nothing with models: their files are equal on any machine.
TEXT_KINDS = ("prepare", "tokenizer")
#: Files that a library writes beside a tokenizer.
LEFT_OUT = ("tokenizer_config.json", "special_tokens_map.json")
#: Percentage points between win rates whose order is compared: more than the 15 that a processor has moved a row.
FAR_APART = 16.0
WIN_RATE, SFT_MODEL = "win_rate_vs_sft", "the SFT model"
AGREES, DAMAGED, DEVIATES = 0, 1, 2


@dataclass(frozen=True)
class Verified:
    """Stages with a reference.

    Attributes:
        name: as on the command line.
        file: the dvc.yaml with the stages.
        reference: the committed file.
    """

    name: str
    file: Path
    reference: Path


DEMO = Verified("demo", Path("dvc.yaml"), Path("reference/demo.json"))
ALL_HEADLINES = Verified(DEMO_ALL, HEADLINE_ROWS / "dvc.yaml", Path("reference/demo_all.json"))
VERIFIED = {each.name: each for each in (DEMO, ALL_HEADLINES)}


def outputs(root: Path, what: Verified) -> dict[str, Path]:
    """Returns the directories of stages by path below results/testbed, without those that compute nothing.

    Raises:
        DataError: their dvc.yaml is not there.
    """
    if not (root / what.file).exists():
        raise DataError("it is not written yet", file=str(what.file), remedy=f"Run `rewardsmith run {what.name}` first")
    outs = [Path(stage["outs"][0]).parent for stage in read_mapping(root / what.file)["stages"].values()]
    base = Path("results") / DEFAULT_SCALE
    return {out.relative_to(base).as_posix(): root / out for out in sorted(outs) if out.parts[3] != "check"}


def damages(made: Mapping[str, Path]) -> Iterator[str]:
    """Yields results that are missing, changed since their stage ended, or made from others than those beside them."""
    digests = {}
    for stage, out in made.items():
        if not (out / RECORD).exists():
            yield f"{stage}: there is no result"
            continue
        try:
            check_result(out / "result")
            digests[f"results/{DEFAULT_SCALE}/{stage}/result"] = read_object(out / RECORD).get("result_digest")
        except DataError as error:
            yield f"{stage}: {error}"
    for name in digests:
        stage = name.removeprefix(f"results/{DEFAULT_SCALE}/").removesuffix("/result")
        for read, digest in read_object(made[stage] / RECORD)["inputs"].items():
            if digest != digests.get(read, digest):
                yield f"{stage}: it was made from another result of {read}; run it again"


def stage_entry(out: Path) -> dict[str, Any]:
    """Returns a reference's entry of a stage: kind, version, digests of settings and of texts, headline metrics."""
    record, result = read_object(out / RECORD), out / "result"
    kind, metrics = record["stage"], result / "metrics.json"
    found = {
        "kind": kind,
        "version": record["version"],
        "settings": {name: value[:16] for name, value in sorted(record["inputs"].items()) if ".yaml" in name},
    }
    if kind in TEXT_KINDS:
        files = (path for path in sorted(result.rglob("*.json*")) if path.name not in LEFT_OUT)
        found["texts"] = {path.relative_to(result).as_posix(): _text_digest(path) for path in files}
    if kind in HEADLINES and kind != "tables" and metrics.exists():
        found["metrics"] = _rounded(headlines(kind, read_object(metrics)))
    return found


def _text_digest(path: Path) -> str:
    rows = read_jsonl(path) if path.suffix == ".jsonl" else [read_json(path)]
    if path.name == "tokenizer.json":
        rows = [rows[0]["model"]]  # the rest depends on the library's version
    text = "\n".join(json.dumps(_rounded(row), sort_keys=True) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def differences(reference: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is not equal in two entries of a stage, apart from metrics."""
    if found["version"] != reference["version"]:
        yield f"version of its code is {found['version']}, in the reference {reference['version']}"
    for part in ("settings", "texts"):
        known, here = reference.get(part, {}), found.get(part, {})
        changed = sorted(name for name in known.keys() | here.keys() if known.get(name) != here.get(name))
        if changed:
            yield f"{part} differ: {', '.join(changed)}"


def win_rates(stages: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the mean win rate over worlds of each paper's rows, in percent, and the SFT model's against itself."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for stage, entry in stages.items():
        if WIN_RATE in entry.get("metrics", {}):
            paper, _, name = stage.rpartition("/")[0].partition("/policy/")
            found[paper][name].append(entry["metrics"][WIN_RATE])
    means = {paper: {name: statistics.mean(each) for name, each in rows.items()} for paper, rows in found.items()}
    return {paper: {**rows, SFT_MODEL: 50.0} for paper, rows in means.items()}


def directions(stages: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (paper, row above, row below) of rows whose order does not depend on the machine."""
    return [
        (paper, above, below)
        for paper, rows in win_rates(stages).items()
        for above in rows
        for below in rows
        if rows[above] - rows[below] >= FAR_APART
    ]


def turned(reference: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yields directions of the reference that do not hold here."""
    known, here = win_rates(reference), win_rates(found)
    for paper, above, below in directions(reference):
        rows = here.get(paper, {})
        if not rows.get(above, 0) > rows.get(below, 0):
            own, other = (f"{each.get(above, 0):.1f} and {each.get(below, 0):.1f}" for each in (rows, known[paper]))
            yield f"{paper}: the win rates of {above} and {below} are {own} %, in the reference {other}"


def read_reference(root: Path, what: Verified) -> dict[str, Any]:
    """Returns the reference's entries by stage.

    Raises:
        DataError: there is no reference.
    """
    if not (root / what.reference).exists():
        remedy = f"Make one in a clone, where {what.name} ran: rewardsmith verify {what.name} --write-reference"
        raise DataError("there is no reference", file=str(what.reference), remedy=remedy)
    stages: dict[str, Any] = read_object(root / what.reference)["stages"]
    return stages


def write_reference(root: Path, what: Verified) -> None:
    """Makes the reference from the results that are here.

    Raises:
        DataError: a stage has no result, or a damaged one.
    """
    made = outputs(root, what)
    for problem in damages(made):
        raise DataError(problem, remedy=f"Run `rewardsmith run {what.name}`")
    machine = {"python": platform.python_version(), "system": platform.platform(), "cpu": platform.machine()}
    content = {"made_on": machine, "stages": {stage: stage_entry(out) for stage, out in made.items()}}
    write_whole(root / what.reference, json_text(content, what.reference.name))
    print(f"wrote {root / what.reference}")


def verify(root: Path, what: Verified) -> int:
    """Prints what does not agree and what was compared.

    Returns:
        `AGREES`, `DAMAGED` if a result is missing or changed, `DEVIATES` if what any machine gives equally differs.
    """
    try:
        made, reference = outputs(root, what), read_reference(root, what)
    except RewardsmithError as error:
        print(f"error: {error}")
        return DAMAGED
    missing = [f"{stage}: there is no result" for stage in sorted(reference.keys() - made.keys())]
    if wrong := [*missing, *damages(made)]:
        print("\n".join(wrong))
        return DAMAGED
    found = {stage: stage_entry(made[stage]) for stage in reference}
    deviations = [f"{stage}: {words}" for stage in reference for words in differences(reference[stage], found[stage])]
    deviations += turned(reference, found)
    if deviations:
        print("\n".join(deviations))
    texts = sum(len(entry.get("texts", ())) for entry in reference.values())
    print(
        f"{what.name} {'deviates from' if deviations else 'agrees with'} {what.reference}. Compared: "
        f"{len(made)} results with their records, settings and versions of {len(reference)} stages, "
        f"{texts} files of data and tokenizers, {len(directions(reference))} directions of win rates. "
        "Not compared: what trained models computed, which differs between processors."
    )
    return DEVIATES if deviations else AGREES
