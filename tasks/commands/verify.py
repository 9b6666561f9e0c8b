"""Results of the demo, or of all headline rows, against their records and the committed reference.

1. Each result has the files and digests of its record, and was made from the results beside it.
2. Versions and settings of all stages, and the files of stages that compute nothing with models, are equal to the
   reference's: numbers in six digits.
3. Directions: of two rows of a paper (or a row and its SFT model) that are `FAR_APART` in the reference, the same one
   has the higher win rate here.

What trained models computed is not compared otherwise: processors round differently, and training amplifies it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from tasks.graph.matrix import HEADLINE_ROWS
from tasks.graph.names import DEMO_ALL
from tasks.params.scales import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping, write_whole
from tasks.running.artifacts import json_text, read_object, stage_record
from tasks.running.result_digests import RECORD, check_result

#: Stages with a reference: the dvc.yaml that has them, and the committed file.
VERIFIED = {
    "demo": (Path("dvc.yaml"), Path("reference/demo.json")),
    DEMO_ALL: (HEADLINE_ROWS / "dvc.yaml", Path("reference/demo_all.json")),
}
RESULTS = Path("results") / DEFAULT_SCALE
#: Kinds of stages that compute nothing with models: their files are equal on any machine.
TEXT_KINDS = ("prepare", "tokenizer")
#: Files that a library writes beside a tokenizer.
LEFT_OUT = ("tokenizer_config.json", "special_tokens_map.json")
#: Percentage points between win rates whose order is compared: more than the 15 that a processor has moved a row.
FAR_APART = 16.0
WIN_RATE, SFT_MODEL = "win_rate_vs_sft", "the SFT model"
AGREES, DAMAGED, DEVIATES = 0, 1, 2

#: Mean win rate over worlds in percent, by paper and row.
WinRates = Mapping[str, Mapping[str, float]]


def stages_of(root: Path, name: str) -> dict[str, Path]:
    """Returns the directories of stages by their path below results/testbed, without the stages that check settings.

    Raises:
        RecipeError: there is no reference of this name.
        DataError: their dvc.yaml is not there.
    """
    if name not in VERIFIED:
        raise RecipeError(f"there is no reference of '{name}'{hint(name, VERIFIED)}")
    file = VERIFIED[name][0]
    if not (root / file).exists():
        raise DataError("it is not written yet", file=str(file), remedy=f"Run `rewardsmith run {name}` first")
    outs = sorted(Path(stage["outs"][0]).parent for stage in read_mapping(root / file)["stages"].values())
    return {out.relative_to(RESULTS).as_posix(): root / out for out in outs if out.parts[3] != "check"}


def damages(made: Mapping[str, Path]) -> Iterator[str]:
    """Yields results that are missing, changed since their stage ended, or made from others than those beside them."""
    records = {stage: record for stage, out in made.items() if (record := stage_record(out))}
    digests = {f"{RESULTS}/{stage}/result": record.get("result_digest") for stage, record in records.items()}
    for stage, out in made.items():
        if stage not in records:
            yield f"{stage}: there is no result"
            continue
        try:
            check_result(out / "result")
        except DataError as error:
            yield f"{stage}: {error}"
        for read, digest in records[stage]["inputs"].items():
            if digest != digests.get(read, digest):
                yield f"{stage}: it was made from another result of {read}; run it again"


def stable_facts(out: Path) -> dict[str, Any]:
    """Returns what any machine gives equally of a stage: version, digests of settings, and of texts."""
    record, result = read_object(out / RECORD), out / "result"
    facts = {"version": record["version"]}
    facts |= {name: digest[:16] for name, digest in record["inputs"].items() if ".yaml" in name}
    if record["stage"] in TEXT_KINDS:
        files = (path for path in result.rglob("*.json*") if path.name not in LEFT_OUT)
        facts |= {path.relative_to(result).as_posix(): _text_digest(path) for path in files}
    return dict(sorted(facts.items()))


def _text_digest(path: Path) -> str:
    """Returns a digest of the values of a JSON file, numbers in six digits."""
    text = path.read_text(encoding="utf-8")
    parts = filter(None, text.split("\n")) if path.suffix == ".jsonl" else [text]
    rows = [json.loads(part, parse_float=lambda number: float(f"{float(number):.6g}")) for part in parts]
    if path.name == "tokenizer.json":
        rows = [rows[0]["model"]]  # the rest depends on the library's version
    return hashlib.sha256("\n".join(json.dumps(row, sort_keys=True) for row in rows).encode()).hexdigest()[:16]


def win_rates(made: Mapping[str, Path]) -> WinRates:
    """Returns the mean win rate over worlds of each paper's rows, in percent, and the SFT model's against itself."""
    found: dict[str, dict[str, list[float]]] = {}
    for stage, out in made.items():
        paper, kind, *row = stage.split("/")
        file = out / "result" / "metrics.json"
        if kind == "policy" and file.exists() and WIN_RATE in (metrics := read_object(file)):
            found.setdefault(paper, {}).setdefault(row[0], []).append(metrics[WIN_RATE])
    return {
        paper: {SFT_MODEL: 50.0, **{row: round(statistics.mean(each), 4) for row, each in rows.items()}}
        for paper, rows in found.items()
    }


def directions(rates: WinRates) -> list[tuple[str, str, str]]:
    """Returns (paper, row above, row below) of rows whose order does not depend on the machine."""
    pairs = [(paper, *pair) for paper, rows in rates.items() for pair in itertools.permutations(rows, 2)]
    return [(paper, one, other) for paper, one, other in pairs if rates[paper][one] - rates[paper][other] >= FAR_APART]


def deviations(reference: Mapping[str, Any], made: Mapping[str, Path]) -> Iterator[str]:
    """Yields facts that are not equal to the reference's, and directions that do not hold."""
    for stage, known in reference["stages"].items():
        here = stable_facts(made[stage])
        if changed := [name for name in known | here if known.get(name) != here.get(name)]:
            yield f"{stage} has another {', '.join(changed)} than the reference"
    rates = win_rates(made)
    for paper, above, below in directions(reference["win_rates"]):
        rows, expected = rates.get(paper, {}), reference["win_rates"][paper]
        if not rows.get(above, 0) > rows.get(below, 0):
            own, other = (f"{each.get(above, 0):.1f} and {each.get(below, 0):.1f}" for each in (rows, expected))
            yield f"{paper}: the win rates of {above} and {below} are {own} %, in the reference {other}"


def write_reference(root: Path, name: str) -> None:
    """Makes the reference from the results that are here.

    Raises:
        DataError: a stage has no result, or a damaged one.
    """
    made, file = stages_of(root, name), root / VERIFIED[name][1]
    for problem in damages(made):
        raise DataError(problem, remedy=f"Run `rewardsmith run {name}`")
    content = {"stages": {stage: stable_facts(out) for stage, out in made.items()}, "win_rates": win_rates(made)}
    write_whole(file, json_text(content, file.name))
    print(f"wrote {file}")


def verify(root: Path, name: str) -> int:
    """Prints what does not agree and what was compared; returns `AGREES`, `DAMAGED` if a result is missing or changed,
    or `DEVIATES` if what any machine gives equally differs.

    Raises:
        RecipeError, DataError: there is no reference of this name, or no file of it or of the stages.
    """
    made, file = stages_of(root, name), VERIFIED[name][1]
    if not (root / file).exists():
        remedy = f"Make one in a clone, where {name} ran: rewardsmith verify {name} --write-reference"
        raise DataError("there is no reference", file=str(file), remedy=remedy)
    reference = read_object(root / file)
    stages = reference["stages"]
    if wrong := [*(f"{stage}: there is no result" for stage in stages if stage not in made), *damages(made)]:
        print("\n".join(wrong))
        return DAMAGED
    differ = list(deviations(reference, made))
    print(
        *differ,
        f"{name} {'deviates from' if differ else 'agrees with'} {file}. Compared: {len(made)} results with their "
        f"records, {sum(map(len, stages.values()))} versions, settings and files of data and tokenizers of "
        f"{len(stages)} stages, {len(directions(reference['win_rates']))} directions of win rates.",
        sep="\n",
    )
    return DEVIATES if differ else AGREES
