"""Results of the demo, or of all headline rows, against the committed reference, within what re-runs with the same
seeds vary.

    python -m tasks.commands.verify                              compares the demo's with reference/demo.json
    python -m tasks.commands.verify demo-all                     the headline rows' with reference/demo_all.json
    python -m tasks.commands.verify [demo-all] --write-reference     makes the reference from these results

1. Provenance: each result is the one that its record describes, and was made from the results beside it.
2. What a result says twice agrees, such as metrics with the rows that they are of (`result_mismatches`).
3. Versions, settings (also as they were used), names of inputs, data, examples learnt from data, tokenizers, ids and
   prompts are equal to the reference's.
4. No column is that of true rewards where the reference's is another, and no trained model is its SFT model.
5. Everything else that a stage computed is at most its tolerance away (`fingerprints`). Tolerances come from re-runs
   with the same seeds on other instruction sets and threads; reference/same_seed_variation.json has their distances
   from the finished results for each kind of stage:
   - FACTOR times the largest distance, which is enough for rows, curves and weights: a mean over many numbers varies
     little;
   - of a single number, which may be near the reference by luck, at least what a t distribution with as many degrees of
     freedom as there are re-runs exceeds with probability CHANCE;
   - at least LEAST, of a first step LEAST_FIRST.
   What re-runs cannot compare, or no re-run measured, is counted but not compared.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.commands.fingerprints import DRIFT, USED, Fingerprint, distances, fingerprint, truths
from tasks.commands.result_mismatches import result_mismatches
from tasks.graph.matrix import HEADLINE_ROWS
from tasks.graph.names import DEMO_ALL
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping, write_whole
from tasks.running.artifacts import digest, json_text
from tasks.running.result_rows import Reference, Spread
from tasks.running.typed_results import read_stage_record, read_typed_object

VARIATION = Path("reference/same_seed_variation.json")
FACTOR, CHANCE = 3.0, 1e-5
#: Numbers of a field from which on its distance is that of rows.
SEVERAL = 8
#: Exit status where a share FEW of comparisons deviates, at most, all of numbers that models computed: as many as on a
#: processor whose rounding was not measured (docs/verify.md has the false alarms of re-runs).
FEW_COMPUTED, FEW = 3, 0.02
#: Smallest tolerance of what models compute: a share of rows, of a deviation or of a metric.
LEAST = 0.05
#: Smallest tolerance of a training's first metrics, which rounding hardly changes.
LEAST_FIRST = 0.002
#: Says of a result that its content is not what its record says.
CHANGED = "result/ changed after the stage had ended"
#: Deviations of a stage that are printed.
SHOWN = 4

#: Kind of stage -> what is compared -> number of re-runs, root mean square and largest of their distances; None where
#: re-runs cannot be compared.
Variation = Mapping[str, Mapping[str, Sequence[float] | None]]


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
HEADLINES = Verified(DEMO_ALL, HEADLINE_ROWS / "dvc.yaml", Path("reference/demo_all.json"))
VERIFIED = {each.name: each for each in (DEMO, HEADLINES)}


@dataclass(frozen=True)
class Deviation:
    """Something of a stage that is not as in the reference.

    Attributes:
        stage: its path below results/testbed.
        says: what it is.
        computed: it is a number that a model computed, farther from the reference than re-runs on known processors.
    """

    stage: str
    says: str
    computed: bool = False


@dataclass(frozen=True)
class Compared:
    """A stage beside its reference.

    Attributes:
        distances: by name, of what has a tolerance.
        tolerances: of the same names.
        left_out: names of what has no tolerance.
        other: what must be equal and is not, in words.
    """

    stage: str
    kind: str
    distances: Mapping[str, float]
    tolerances: Mapping[str, float]
    left_out: Sequence[str] = ()
    other: Sequence[str] = ()

    @property
    def far(self) -> list[str]:
        """Returns the names of what is farther from the reference than its tolerance, the farthest first."""
        far = {name: d for name, d in self.distances.items() if not d <= self.tolerances[name]}  # nan is far, too
        return sorted(far, key=lambda name: -far[name] / max(self.tolerances[name], 1e-9))

    @property
    def beyond(self) -> list[str]:
        """Returns in words what is farther from the reference than its tolerance, the farthest first."""
        return [said(name, self.distances[name], self.tolerances[name]) for name in self.far]

    @property
    def deviations(self) -> list[Deviation]:
        """Returns all that is not as in the reference."""
        computed = [self.tolerances[name] > 0 and math.isfinite(self.distances[name]) for name in self.far]
        beyond = [Deviation(self.stage, words, own) for words, own in zip(self.beyond, computed, strict=True)]
        return [*(Deviation(self.stage, words) for words in self.other), *beyond]


def said(name: str, distance: float, tolerance: float) -> str:
    """Returns a distance beyond its tolerance in words."""
    if tolerance == 0:
        return f"{name} must be equal on any machine and differs"
    if math.isnan(distance):
        return f"{name} is not a number"
    if math.isinf(distance):
        return f"{name} is missing, new or of another size"
    return f"{name} is {distance:.3g} from the reference, tolerance {tolerance:.3g}"


def pooled(kind: str, name: str) -> str:
    """Returns the name under which things of several rows are measured together.

    `history.jsonl/reward/segment`, of a component, is `history.jsonl/reward/*`; a metric of tables its column.
    """
    if kind == "tables":
        return f"metrics/{name.rpartition('/')[2]}"
    file, _, key = name.partition("/")
    own, _, component = key.partition("/")
    return f"{file}/{own}/*" if component and file not in ("weights", "model") else name


def tolerance(variation: Variation, reference: Fingerprint, name: str) -> float | None:
    """Returns the largest distance that agrees, 0 for what must be equal; None where nothing can be said."""
    from scipy import stats

    if name.startswith(USED):
        return 0.0
    texts, numbers = reference.texts.get(name), reference.numbers.get(name)
    measured, key = variation.get(reference.kind, {}), pooled(reference.kind, name)
    if texts is not None and not texts.sample:
        return None if key in measured else 0.0  # ids of rows that a model chose differ between re-runs
    spread = measured.get(key)
    if spread is None:
        return None
    count, size, largest = spread
    if texts is not None or (numbers is not None and numbers.count >= SEVERAL):
        return max(LEAST, FACTOR * largest)
    least = LEAST_FIRST if name.startswith("first/") else LEAST
    return max(least, FACTOR * largest, float(stats.t.isf(CHANCE / 2, count)) * size)


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


def compare(stage: str, reference: Fingerprint, found: Fingerprint, variation: Variation) -> Compared:
    """Returns a stage's fingerprint beside its reference."""
    other = []
    if found.version != reference.version:
        other.append(f"version of its code is {found.version}, in the reference {reference.version}")
    for name in sorted(reference.inputs.keys() - found.inputs.keys()):
        other.append(f"it did not read {name}")
    for name, value in found.inputs.items():
        if name not in reference.inputs:
            other.append(f"it read {name}, which the reference did not")
        elif reference.inputs[name] != value:
            other.append(f"settings {name} differ from the reference's")
    if reference.metrics.get(DRIFT) and found.metrics.get(DRIFT) == 0:
        other.append("its model is the SFT model")
    other += [f"{one} has the numbers of {true}" for one, true in sorted(truths(found) - truths(reference))]
    measured = distances(reference, found)
    allowed = {name: tolerance(variation, reference, name) for name in measured}
    known = {name: value for name, value in allowed.items() if value is not None}
    left_out = [name for name, value in allowed.items() if value is None]
    return Compared(stage, reference.kind, {name: measured[name] for name in known}, known, left_out, other)


def provenance(made: Mapping[str, Path]) -> list[Deviation]:
    """Returns results that were changed after their stage ended, or made from other results than those beside them."""
    records = {stage: read_stage_record(out) for stage, out in made.items() if out.exists()}
    ends = {f"results/{DEFAULT_SCALE}/{stage}/result": record.get("result_digest") for stage, record in records.items()}
    found = []
    for stage, record in records.items():
        if digest(made[stage] / "result") != record.get("result_digest"):
            found.append(Deviation(stage, CHANGED))
        for name, value in record["inputs"].items():
            if value != ends.get(name, value):
                found.append(Deviation(stage, f"it was made from another result of {name}: run it again"))
    return found


def read_reference(root: Path, what: Verified) -> tuple[dict[str, Fingerprint], Variation]:
    """Returns fingerprints by stage, and the variation of re-runs.

    Raises:
        DataError: there is no reference, or no variation.
    """
    if not (root / what.reference).exists():
        remedy = f"Make one in a clone, where {what.name} ran: rewardsmith verify {what.name} --write-reference"
        raise DataError("there is no reference", file=str(what.reference), remedy=remedy)
    if not (root / VARIATION).exists():
        remedy = "Measure it: python -m benchmarks.same_seed_variation . --work .work/re-runs"
        raise DataError("there are no tolerances", file=str(VARIATION), remedy=remedy)
    stages = read_typed_object(root / what.reference, Reference)["stages"]
    variation: Variation = read_typed_object(root / VARIATION, Spread)["spread"]
    return {name: Fingerprint.from_json(value) for name, value in stages.items()}, variation


def make_reference(root: Path, what: Verified) -> dict[str, Any]:
    """Returns the reference from the results that are here.

    Raises:
        DataError: a stage has no result.
    """
    stages = {name: fingerprint(out, root).to_json() for name, out in outputs(root, what).items()}
    machine = {"python": platform.python_version(), "system": platform.platform(), "cpu": platform.machine()}
    return {"made_on": machine, "stages": stages}


def _print(what: Verified, compared: Sequence[Compared]) -> None:
    """Prints what was compared in two lines, and a table of the kinds of stages that deviate."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    count, left_out = sum(len(one.distances) for one in compared), sum(len(one.left_out) for one in compared)
    console.print(
        f"{what.name.capitalize()} against {what.reference}: {len(compared)} stages, {count:,} comparisons, "
        f"{left_out:,} left out, whose spread between machines is not known"
    )
    ratio, name = nearest(compared)
    if name:
        console.print(f"Nearest to its tolerance: {name}, {ratio:.2f} of it")
    by_kind: dict[str, list[Compared]] = {}
    for one in compared:
        by_kind.setdefault(one.kind, []).append(one)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("stages", "number", "compared", "deviations", "largest distance / tolerance"):
        table.add_column(column, justify="left" if column == "stages" else "right", max_width=18)
    for kind, members in sorted(by_kind.items()):
        beyond, size = sum(len(one.deviations) for one in members), sum(len(one.distances) for one in members)
        if beyond:
            table.add_row(kind, *map(str, (len(members), size, beyond)), f"{nearest(members)[0]:.2f}", style="red")
    if table.row_count:
        console.print(table)


def nearest(compared: Iterable[Compared]) -> tuple[float, str]:
    """Returns the largest distance over its tolerance, with its name; an empty name if all are 0."""
    near = [
        (distance / one.tolerances[name], name)
        for one in compared
        for name, distance in one.distances.items()
        if distance > 0 and one.tolerances[name] > 0
    ]
    return max(near, default=(0.0, ""))


def verify(root: Path, what: Verified) -> tuple[list[Deviation], int]:
    """Prints the comparison and returns the deviations, and the number of comparisons."""
    reference, variation = read_reference(root, what)
    made = {stage: out for stage, out in outputs(root, what).items() if (out / "record" / "record.json").exists()}
    missing = [Deviation(stage, "there is no result") for stage in reference if stage not in made]
    origins = provenance(made)
    changed = {each.stage for each in origins if each.says == CHANGED}
    sound = {stage: out for stage, out in made.items() if not changed & {stage, *_stages_read(out)}}
    readable, unreadable = _fingerprints({stage: sound[stage] for stage in reference if stage in sound}, root)
    compared = [compare(stage, reference[stage], each, variation) for stage, each in readable.items()]
    _print(what, compared)
    own = [Deviation(stage, words) for stage, out in sound.items() for words in result_mismatches(out, root)]
    count = sum(len(one.distances) for one in compared)
    return [*missing, *origins, *unreadable, *own, *(found for one in compared for found in one.deviations)], count


def _fingerprints(made: Mapping[str, Path], root: Path) -> tuple[dict[str, Fingerprint], list[Deviation]]:
    """Returns the stages' fingerprints, and stages whose files cannot be read."""
    found, unreadable = dict[str, Fingerprint](), list[Deviation]()
    for stage, out in made.items():
        try:
            found[stage] = fingerprint(out, root)
        except (RewardsmithError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            unreadable.append(Deviation(stage, f"its result cannot be read: {error!r:.200}"))
    return found, unreadable


def _stages_read(out: Path) -> set[str]:
    """Returns the stages whose results a stage read."""
    prefix = f"results/{DEFAULT_SCALE}/"
    inputs = (name for name in read_stage_record(out)["inputs"] if name.startswith(prefix))
    return {name.removeprefix(prefix).removesuffix("/result") for name in inputs}


def print_deviations(what: Verified, deviations: Sequence[Deviation]) -> None:
    """Prints the first deviations of each stage."""
    by_stage: dict[str, list[str]] = {}
    for each in deviations:
        by_stage.setdefault(each.stage, []).append(each.says)
    for stage, says in by_stage.items():
        for words in says[:SHOWN]:
            print(f"{stage}: {words}")
        if len(says) > SHOWN:
            print(f"{stage}: {len(says) - SHOWN} more")
    stages = f"{len(deviations)} deviation(s) in {len(by_stage)} stage(s)"
    if not deviations:
        print(f"{what.name} agrees with the reference")
    elif all(each.computed for each in deviations):
        print(f"{stages}, all of numbers that models computed; data, settings and seeds are those of the reference: "
              "changed code, or a processor whose rounding was not measured (docs/verify.md)")  # fmt: skip
    else:
        print(
            f"{stages}: another result, changed code, or a processor whose rounding was not measured (docs/verify.md)"
        )


def exit_status(deviations: Sequence[Deviation], comparisons: int) -> int:
    """Returns 0 without a deviation, `FEW_COMPUTED` where few numbers that models computed deviate, otherwise 1."""
    if not deviations:
        return 0
    few = all(each.computed for each in deviations) and len(deviations) <= FEW * comparisons
    return FEW_COMPUTED if few else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.commands.verify", description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=VERIFIED, default=DEMO.name, help="demo (default) or demo-all")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    parser.add_argument("--write-reference", action="store_true", help="make the reference from these results")
    options = parser.parse_args(arguments)
    what, root = VERIFIED[options.what], options.root
    try:
        if options.write_reference:
            write_whole(root / what.reference, json_text(make_reference(root, what), what.reference.name))
            print(f"wrote {root / what.reference}")
            return 0
        deviations, comparisons = verify(root, what)
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_deviations(what, deviations)
    return exit_status(deviations, comparisons)


if __name__ == "__main__":
    sys.exit(main())
