"""Variation of the demo's results between machines, measured by running stages again with the same seeds.

    python -m benchmarks.same_seed_variation ROOT --work FOLDER [--chains segment par] [--roundings sse avx2]
    python -m benchmarks.same_seed_variation ROOT --machine NAME [--work FOLDER ...]

ROOT is a tree in which `make demo` and `make demo-all` have finished; it is only read. A chain is one row of a paper,
or one world of the demo, with every model that it needs, from the SFT model on; each rounding is another instruction
set or number of threads, as another machine has. Stages that FOLDER already has are not run again, so a stopped
measurement goes on. All re-runs in FOLDER go into reference/same_seed_variation.json: for each kind of stage and each
thing that `rewardsmith verify` compares, how far re-runs are from ROOT.

On another machine ROOT itself is a re-run of the committed references, and so are chains that it trains: the second
call adds them to the record under a name of the machine.

The record also has the false alarms of each re-run, with tolerances from all others (where re-runs are added, from
those that the record had before and the others added with it).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fault_planting import CODE, commands, link, run_stage
from rlhf_core.errors import DataError
from tasks.commands.fingerprints import EXACT_KINDS, USED, Fingerprint, distances, fingerprint
from tasks.commands.verify import VARIATION, VERIFIED, Variation, compare, pooled, read_reference, tolerance
from tasks.graph.names import DEMO_ALL
from tasks.params.settings import DEFAULT_SCALE
from tasks.running.artifacts import read_json, write_json

#: Stage -> its fingerprint in the finished demo and in the re-run.
ReRun = Mapping[str, tuple[Fingerprint, Fingerprint]]

#: Stages of each chain, each after those that it reads; outputs below `results/testbed`.
CHAINS: Mapping[str, tuple[str, ...]] = {
    "demo": (
        "shared/sft/demo/1",
        "shared/entropies/demo/1",
        "demo/reward_model/whole/1",
        "demo/reward_model/segments/1",
        "demo/normaliser/whole/1",
        "demo/normaliser/segments/1",
        "demo/references/whole/1",
        "demo/policy/vanilla/1",
        "demo/policy/par/1",
        "demo/policy/segment/1",
    ),
    "segment": (
        "shared/sft/phi3-mini/0",
        "shared/entropies/phi3-mini/0",
        "segment/reward_model/segment/0",
        "segment/normaliser/segment/0",
        "segment/policy/segment/0",
        "segment/tables-demo",
    ),
    "sentence": (
        "shared/segmenter/sat-3l-dialogue",
        "shared/sft/llama31-8b-sft/0",
        "sentence/reward_model/response/0",
        "sentence/reward_bench/bench-response/0",
    ),
    "par": (
        "shared/sft/gemma2-2b/0",
        "par/reward_model/standard/0",
        "par/normaliser/standard/0",
        "par/references/standard/0",
        "par/policy/par/0",
    ),
    "alarm": (
        "shared/sft/alarm-qa/0",
        "alarm/reward_model/holistic-qa/0",
        "alarm/normaliser/holistic-qa/0",
        "alarm/aspect_model/relevance/0",
        "alarm/aspect_model/factuality/0",
        "alarm/aspect_model/completeness/0",
        "alarm/selection/qa/0",
        "alarm/policy/qa-alarm/0",
    ),
    "rlmec": (
        "shared/sft/rlmec-qa/0",
        "shared/samples/rlmec-qa/0",
        "shared/teacher/rlmec-qa/0",
        "rlmec/generative_reward_model/qa/0",
        "rlmec/policy/qa-rlmec/0",
    ),
}
#: Environment of each way to round. The second setting is MKL's, the third oneDNN's.
ROUNDINGS: Mapping[str, Mapping[str, str]] = {
    "sse": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "two_threads": {"REWARDSMITH_THREADS": "2", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
}


def inputs(root: Path, stage: str) -> Iterator[Path]:
    """Yields the results that a stage's command reads, relative to the tree; of tables, all headline rows."""
    if stage.partition("/")[2].startswith("tables"):
        for other in commands(root, (DEMO_ALL,)):
            if other != stage:
                yield Path("results") / DEFAULT_SCALE / other
    for word in commands(root)[stage]:
        if word.startswith("results/") and word.endswith("/result"):
            yield Path(word).parent


def rerun(root: Path, tree: Path, chain: str, rounding: str) -> None:
    """Runs a chain's stages in another tree, on its own results and, where it makes none, on those of the root."""
    for name in CODE:
        link(root / name, tree / name)
    for stage in CHAINS[chain]:
        started, own = time.monotonic(), [Path("results") / DEFAULT_SCALE / each for each in CHAINS[chain]]
        for path in inputs(root, stage):
            if path not in own:
                link(root / path, tree / path)
        out = Path("results") / DEFAULT_SCALE / stage
        if not (tree / out / "result").exists():
            run_stage(tree, stage, out, {}, **ROUNDINGS[rounding])
            print(f"{chain} {rounding}: {stage} in {time.monotonic() - started:.0f} s", flush=True)


def re_run_trees(work: Path) -> dict[str, tuple[Path, Sequence[str]]]:
    """Returns the trees of a folder's re-runs, each with its stages, by chain and rounding."""
    trees = {f"{chain}-{rounding}": CHAINS[chain] for chain in CHAINS for rounding in ROUNDINGS}
    return {name: (work / name, stages) for name, stages in sorted(trees.items()) if (work / name).exists()}


def measure(root: Path, trees: Mapping[str, tuple[Path, Sequence[str]]]) -> dict[str, ReRun]:
    """Returns fingerprints of every re-run's stages, each beside that of the finished tree."""
    found: dict[str, ReRun] = {}
    finished = root / "results" / DEFAULT_SCALE
    for name, (tree, stages) in trees.items():
        results = tree / "results" / DEFAULT_SCALE
        both = [stage for stage in stages if all((at / stage / "result").exists() for at in (finished, results))]
        found[name] = {
            stage: (fingerprint(finished / stage, root), fingerprint(results / stage, tree)) for stage in both
        }
    return found


def seconds(tree: Path, stage: str) -> int:
    """Returns how long a stage of a re-run took."""
    return round(float(read_json(tree / "results" / DEFAULT_SCALE / stage / "record" / "record.json")["seconds"]))


def spread(reruns: Iterable[ReRun]) -> dict[str, dict[str, list[float] | None]]:
    """Returns number, root mean square and largest of the distances of each thing by kind of stage.

    None where results cannot be compared. Of inputs, those that differ; of tables, rows that ran again.
    """
    measured: dict[str, dict[str, list[float]]] = {}
    for reference, found in (pair for each in reruns for pair in each.values()):
        for name, distance in distances(reference, found).items():
            if tolerance({}, reference, name) == 0:  # an input, unless rows depend on what a model answered
                distance = math.inf if distance else 0.0
            if distance or (tolerance({}, reference, name) is None and reference.kind != "tables"):
                kind = measured.setdefault(reference.kind, {})
                kind.setdefault(pooled(reference.kind, name), []).append(distance)
    return {
        kind: {name: _summary(each) for name, each in sorted(things.items())}
        for kind, things in sorted(measured.items())
    }


def _summary(found: list[float]) -> list[float] | None:
    if not all(map(math.isfinite, found)):
        return None
    size = math.sqrt(sum(distance**2 for distance in found) / len(found))
    return [len(found), float(f"{size:.3g}"), float(f"{max(found):.3g}")]


def joined(first: Variation, second: Variation) -> dict[str, dict[str, list[float] | None]]:
    """Returns the spread of the re-runs of two spreads together."""
    found: dict[str, dict[str, list[float] | None]] = {}
    for kind in sorted(first.keys() | second.keys()):
        ours, theirs = first.get(kind, {}), second.get(kind, {})
        found[kind] = {name: _joined(ours.get(name, ()), theirs.get(name, ())) for name in sorted({*ours, *theirs})}
    return found


def _joined(*parts: Sequence[float] | None) -> list[float] | None:
    """Returns a summary of the distances of several; an empty one has none."""
    if None in parts:
        return None
    known = [part for part in parts if part]
    count = sum(part[0] for part in known)
    size = math.sqrt(sum(part[0] * part[1] ** 2 for part in known) / count)
    return [count, float(f"{size:.3g}"), max(part[2] for part in known)]


def false_alarms(reruns: Mapping[str, ReRun], known: Variation | None = None) -> dict[str, dict[str, Any]]:
    """Returns what verify would say of each re-run, with tolerances from the other re-runs and a known spread."""
    return {
        name: alarms(rerun, joined(known or {}, spread(each for other, each in reruns.items() if other != name)))
        for name, rerun in reruns.items()
    }


def alarms(rerun: ReRun, variation: Variation) -> dict[str, Any]:
    """Returns what verify would say of a re-run."""
    compared = [compare(stage, *pair, variation) for stage, pair in rerun.items()]
    return {
        "stages": len(compared),
        "compared": sum(len(one.distances) for one in compared),
        "not_compared": sum(len(one.left_out) for one in compared),
        "alarms": [f"{each.stage}: {each.says}" for one in compared for each in one.deviations],
    }


def of_references(root: Path, reruns: Mapping[str, ReRun]) -> dict[str, ReRun]:
    """Returns re-runs beside the committed references in the place of a finished tree.

    Raises:
        DataError: data, settings or seeds of a re-run are not the reference's.
    """
    references = {stage: each for what in VERIFIED.values() for stage, each in read_reference(root, what)[0].items()}
    found = {
        name: {stage: (references[stage], own) for stage, (_, own) in rerun.items() if stage in references}
        for name, rerun in reruns.items()
    }
    for stage, pair in (each for rerun in found.values() for each in rerun.items()):
        one = compare(stage, *pair, {})
        differ = (name for name in one.far if name.startswith(USED) or one.kind in EXACT_KINDS)
        if inputs := [*one.other, *(f"{name} differs" for name in differ)]:
            remedy = "A re-run has the reference's data, settings and seeds; make it from a clean clone"
            raise DataError(inputs[0], file=str(root), field=stage, remedy=remedy)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_seed_variation", description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--machine", help="name of the re-run that ROOT is")
    parser.add_argument("--chains", nargs="*", choices=CHAINS, default=list(CHAINS))
    parser.add_argument("--roundings", nargs="*", choices=ROUNDINGS, default=list(ROUNDINGS))
    parser.add_argument("--record", type=Path, default=VARIATION)
    options = parser.parse_args(arguments)
    if options.work is None and options.machine is None:
        parser.error("give --work, --machine or both")
    root, work = options.root.resolve(), options.work and options.work.resolve()
    for rounding in options.roundings if work else ():
        for chain in options.chains:
            rerun(root, work / f"{chain}-{rounding}", chain, rounding)
    trees = re_run_trees(work) if work else {"": (root, list(commands(root)))}
    reruns = measure(root, trees)
    known: Mapping[str, Any] = {"re-runs": {}, "spread": {}}
    if options.machine:
        known, reruns = read_json(options.record), of_references(root, reruns)
    found = false_alarms(reruns, known["spread"])
    for name, stages in reruns.items():
        found[name]["seconds"] = sum(seconds(trees[name][0], stage) for stage in stages)
    if options.machine:
        found = {f"{options.machine}-{name}".rstrip("-"): each for name, each in found.items()}
    if again := sorted(found.keys() & known["re-runs"].keys()):
        parser.error(f"{options.record} has re-runs {', '.join(again)}: choose another --machine")
    record = {
        "roundings": ROUNDINGS,
        "re-runs": known["re-runs"] | found,
        "spread": joined(known["spread"], spread(reruns.values())),
    }
    write_json(options.record, record)
    for name, each in record["re-runs"].items():
        print(f"{name}: {each['stages']} stages, {each['compared']} compared, {len(each['alarms'])} false alarms")


if __name__ == "__main__":
    main(sys.argv[1:])
